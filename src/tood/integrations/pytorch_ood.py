"""Every detector of logits or features as a detector of pytorch-ood 0.4, for its metrics, benchmarks and grid search.

In pytorch-ood a higher score means *more out-of-distribution*, so the sign is flipped here, and nowhere else. Labels
below 0 mark OOD samples; ``fit`` leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tood.detectors import Detector, Head
from tood.errors import NotFittedError, ToodError
from tood.integrations.adapter import Adapted, AnyDetector, peer

with peer("pytorch_ood", '"tood[pytorch-ood]"', "tood.integrations.pytorch_ood"):
    import torch
    from pytorch_ood import api
    from pytorch_ood.utils import extract_features

__all__ = ["FeaturesDetector", "LogitsDetector"]


class _Common:
    """The hyper-parameters of a detector under pytorch-ood's names, and its score with the sign flipped."""

    info = api.DetectorInfo(tasks={api.Task.CLASSIFICATION})

    def _adapt(self, detector: AnyDetector, tasks: Any) -> None:
        self.adapted = Adapted(detector, tasks)
        self.requires_fit = self.adapted.requires_fit
        grid = getattr(self.adapted.detector, "grid", {})
        self.hyperparameter_space = {name: list(values) for name, values in grid.items()}

    def get_hyperparameters(self) -> dict[str, Any]:
        """The hyper-parameters that have a search space, by name."""
        settings = self.adapted.detector.get_params()
        return {name: settings[name] for name in self.hyperparameter_space}

    def set_hyperparameters(self, **values: Any) -> Any:
        """Change hyper-parameters by name; an unknown one is a ToodError (a ValueError)."""
        self.adapted.detector.set_params(**values)
        return self

    def _outlier_score(self, logits: torch.Tensor, features: torch.Tensor | None = None) -> torch.Tensor:
        try:
            score: torch.Tensor = self.adapted.score(logits.detach(), features)
        except NotFittedError as error:
            raise api.RequiresFittingException(str(error)) from error
        return -score

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.adapted.detector!r})"


class LogitsDetector(_Common, api.LogitsDetector):  # type: ignore[misc]
    """TOOD, or any detector of logits, as a ``pytorch_ood.api.LogitsDetector``: **higher = out-of-distribution**.

    ``fit(loader)``, ``predict(x)``, ``fit_logits(logits, y)``, ``predict_logits(logits)`` are pytorch-ood's.

    Parameters
    ----------
    model:
        Maps inputs to logits ``[n, C]``; None if only ``fit_logits`` and ``predict_logits`` are called.
    detector:
        A :class:`~tood.TOOD` (fitted, as from a file, or not), a detector, or its name.
    tasks:
        The logit columns of each task, for detectors given by name that need them.
    """

    def __init__(
        self,
        model: Callable[[torch.Tensor], torch.Tensor] | None,
        detector: AnyDetector = "tood",
        tasks: Any = None,
    ) -> None:
        super().__init__()
        self.model = model
        self._adapt(detector, tasks)
        if self.adapted.needs_features:
            raise ToodError(f"detector: {self.adapted.name} reads features or the head; use FeaturesDetector")

    def fit_logits(self, logits: torch.Tensor, y: torch.Tensor) -> LogitsDetector:
        """Fit on logits ``[n, C]`` and labels ``[n]``; the calibration set, for TOOD."""
        if self.requires_fit:
            self.adapted.fit(logits[y >= 0], y[y >= 0])
        return self

    @torch.no_grad()
    def predict_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """``[n]``, higher = out-of-distribution."""
        return self._outlier_score(logits)


class FeaturesDetector(_Common, api.FeaturesDetector):  # type: ignore[misc]
    """Any detector of features as a ``pytorch_ood.api.FeaturesDetector``: **higher = out-of-distribution**.

    ``fit(loader)``, ``predict(x)``, ``fit_features(x, y)``, ``predict_features(x)`` are pytorch-ood's.

    Parameters
    ----------
    encoder:
        Maps inputs to features ``[n, D]``; None if only ``fit_features`` and ``predict_features`` are called.
    detector:
        A detector or its name.
    head:
        The last linear layer, a ``torch.nn.Linear`` or a :class:`~tood.detectors.Head`: it makes the logits.
    tasks:
        The logit columns of each task, for detectors that need them.
    """

    def __init__(
        self,
        encoder: Callable[[torch.Tensor], torch.Tensor] | None,
        detector: str | Detector,
        head: torch.nn.Linear | Head,
        tasks: Any = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.weight = _copy(head.weight)
        self.bias = self.weight.new_zeros(len(self.weight)) if head.bias is None else _copy(head.bias)
        self._adapt(detector, tasks)
        if not self.requires_fit:
            self.adapted.fit(None, None, head=Head(self.weight, self.bias))

    def fit(self, data_loader: Any) -> FeaturesDetector:
        """Run the encoder over a loader of ``(x, y)`` and fit on its features."""
        if not self.requires_fit:
            return self
        if self.encoder is None:
            raise api.ModelNotSetException
        return self.fit_features(*extract_features(data_loader, self.encoder, self.device))

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """``[n]`` for a batch of inputs, higher = out-of-distribution."""
        if self.encoder is None:
            raise api.ModelNotSetException
        with torch.no_grad():
            features = self.encoder(x.to(self.device))
        return self.predict_features(features)

    def fit_features(self, x: torch.Tensor, y: torch.Tensor) -> FeaturesDetector:
        """Fit on features ``[n, D]`` and labels ``[n]``."""
        if self.requires_fit:
            features = x[(y >= 0).to(x.device)].to(self.weight.device)
            self.adapted.fit(self._logits(features), y[y >= 0], features, Head(self.weight, self.bias))
        return self

    @torch.no_grad()
    def predict_features(self, x: torch.Tensor) -> torch.Tensor:
        """``[n]``, higher = out-of-distribution."""
        return self._outlier_score(self._logits(x), x)

    def _logits(self, features: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(features, self.weight, self.bias)


def _copy(values: Any) -> torch.Tensor:
    """A copy, because further training changes the head of a network in place."""
    return values.detach().clone() if isinstance(values, torch.Tensor) else torch.from_numpy(np.array(values))
