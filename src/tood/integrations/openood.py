"""TOOD, or any detector of logits or features, as an OpenOOD postprocessor; higher confidence = ID, as in OpenOOD.

OpenOOD is not on PyPI; its 1.5 interface is used: ``openood.postprocessors.BasePostprocessor``, loaders of dictionaries
with ``data`` and ``label``, networks that give ``net(x, return_feature=True)`` and ``net.get_fc()``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tood.arrays import to_numpy
from tood.detectors import Head
from tood.errors import ToodError
from tood.integrations.adapter import Adapted, AnyDetector, peer

__all__ = ["Postprocessor"]


with peer("openood", "git+https://github.com/Jingkang50/OpenOOD", "tood.integrations.openood"):
    import torch
    from openood.postprocessors import BasePostprocessor  # type: ignore[import-not-found]


class Postprocessor(BasePostprocessor):  # type: ignore[misc]
    """OpenOOD postprocessor for ``Evaluator(net, id_name, postprocessor=...)``; runs on the device of the network.

    Parameters
    ----------
    detector:
        A :class:`~tood.TOOD`, a detector, or its name.
    tasks:
        The logit columns of each task, for detectors given by name that need them.
    fit_on:
        Which of OpenOOD's ID loaders ``setup`` fits on: ``"train"``, or ``"val"`` for a calibration set that the
        network was not trained on.
    config:
        OpenOOD's configuration; not used.
    """

    def __init__(
        self, detector: AnyDetector = "tood", tasks: Any = None, fit_on: str = "train", config: Any = None
    ) -> None:
        super().__init__(config)
        self.adapted = Adapted(detector, tasks)
        self.fit_on = fit_on
        self.setup_flag = False
        self.APS_mode = False  # no search over OOD validation data
        self.hyperparam_search_done = True

    @torch.no_grad()
    def setup(self, net: torch.nn.Module, id_loader_dict: Mapping[str, Any], ood_loader_dict: Any) -> None:
        """Fit once, on ID data alone; ``ood_loader_dict`` is never read."""
        if self.setup_flag:
            return
        net.eval()
        head = Head(*map(_array, net.get_fc())) if self.adapted.reads_features else None  # type: ignore[operator]
        if not self.adapted.requires_fit:
            self.adapted.fit(None, None, head=head)
        elif self.fit_on in id_loader_dict:
            batches = id_loader_dict[self.fit_on]
            logits, features, labels = _joined((*self._outputs(net, b["data"]), b["label"]) for b in batches)
            self.adapted.fit(logits, labels, features, head)
        else:
            raise ToodError(f"fit_on: expected one of {', '.join(id_loader_dict)}, found {self.fit_on!r}")
        self.setup_flag = True

    @torch.no_grad()
    def postprocess(self, net: torch.nn.Module, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Predicted class and confidence of a batch, ``[n]`` each; higher = in-distribution."""
        logits, features = self._outputs(net, data)
        return logits.argmax(1), self.adapted.score(logits, features)

    def inference(
        self, net: torch.nn.Module, data_loader: Iterable[Mapping[str, Any]], progress: bool = True
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.floating[Any]], npt.NDArray[np.int64]]:
        """Predictions, confidences and labels of all batches; ``progress`` is OpenOOD's and shows nothing here."""
        pred, conf, label = _joined((*self.postprocess(net, batch["data"]), batch["label"]) for batch in data_loader)
        return pred.astype(np.int64), conf, label.astype(np.int64)

    def _outputs(self, net: torch.nn.Module, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        weight = next(net.parameters())
        data = data.to(weight.device, weight.dtype)
        if not self.adapted.reads_features:
            return net(data), None
        logits, features = net(data, return_feature=True)
        return logits, features.flatten(1)


def _array(values: Any) -> npt.NDArray[Any]:
    return to_numpy(values) if isinstance(values, torch.Tensor) else np.asarray(values)


def _joined(parts: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Each column of all batches as one array; None if it is not there."""
    columns = zip(*parts, strict=True)
    return [None if column[0] is None else np.concatenate([_array(part) for part in column]) for column in columns]
