"""Every detector of logits as a detector of pytorch-ood 0.4, for its metrics, benchmarks and grid search.

In pytorch-ood a higher score means *more out-of-distribution*, so the sign is flipped here, and nowhere else. Labels
below 0 mark OOD samples; ``fit`` leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tood.errors import NotFittedError, ToodError
from tood.integrations.adapter import Adapted, AnyDetector, peer

with peer("pytorch_ood", '"tood[pytorch-ood]"', "tood.integrations.pytorch_ood"):
    import torch
    from pytorch_ood import api

__all__ = ["LogitsDetector"]


class LogitsDetector(api.LogitsDetector):  # type: ignore[misc]
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

    info = api.DetectorInfo(tasks={api.Task.CLASSIFICATION})

    def __init__(
        self,
        model: Callable[[torch.Tensor], torch.Tensor] | None,
        detector: AnyDetector = "tood",
        tasks: Any = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.adapted = Adapted(detector, tasks)
        if self.adapted.needs_features:
            raise ToodError(f"detector: {self.adapted.name} reads features or the head, and pytorch-ood gives logits")
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

    def fit_logits(self, logits: torch.Tensor, y: torch.Tensor) -> LogitsDetector:
        """Fit on logits ``[n, C]`` and labels ``[n]``; the calibration set, for TOOD."""
        if self.requires_fit:
            self.adapted.fit(logits[y >= 0], y[y >= 0])
        return self

    @torch.no_grad()
    def predict_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """``[n]``, higher = out-of-distribution."""
        try:
            score: torch.Tensor = self.adapted.score(logits.detach())
        except NotFittedError as error:
            raise api.RequiresFittingException(str(error)) from error
        return -score

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.adapted.detector!r})"
