"""pytorch-ood's detectors behind one interface, for the benchmark and for the tests that compare with them.

pytorch-ood imports torchvision, whose wheel expects operators that a CPU build of torch does not have. Nothing here
uses them, so their schemas are declared and left empty; this is why it lives outside the product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch


class Peer(NamedTuple):
    """How to fit and score; scores are negated, so higher means in-distribution here too."""

    fit: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]  # logits, features, labels
    score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # logits, features


DECLARED: list[torch.library.Library] = []  # a declaration lives as long as its library


def import_torchvision() -> None:
    """Import torchvision, declaring the operators it misses; ImportError if it is not installed."""
    try:
        import torchvision
    except RuntimeError:  # operator torchvision::nms does not exist
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
        DECLARED.append(library)
        import torchvision  # noqa: F401


def import_pytorch_ood() -> Any:
    """The module of its detectors; ImportError if it is not installed."""
    import_torchvision()
    import pytorch_ood.detector

    return pytorch_ood.detector


def peers(weight: np.ndarray, bias: np.ndarray, dim: int, k: int = 50, guide_k: int = 100) -> dict[str, Peer]:
    """pytorch-ood's counterpart of each detector that has one, set as ours are."""
    library = import_pytorch_ood()
    w, b = torch.from_numpy(weight), torch.from_numpy(bias)
    linear = torch.nn.Linear(w.shape[1], w.shape[0])
    linear.load_state_dict({"weight": w, "bias": b})
    linear.requires_grad_(False)

    def maps_head(x: torch.Tensor) -> torch.Tensor:
        return linear(x.flatten(1))

    def of_logits(detector: Any) -> Peer:
        return Peer(lambda l, z, y: detector.fit_logits(l, y), lambda l, z: -detector.predict_logits(l))

    def of_features(detector: Any) -> Peer:
        return Peer(lambda l, z, y: detector.fit_features(z, y), lambda l, z: -detector.predict_features(z))

    def of_maps(detector: Any) -> Peer:
        def fit(l: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> Any:
            return detector.fit_feature_maps(z[:, :, None, None], y) if detector.requires_fit else detector

        return Peer(fit, lambda l, z: -detector.predict_feature_maps(z[:, :, None, None]))

    gradnorm = library.GradNorm(linear, param_filter=lambda name: name == "weight")
    return {
        "msp": of_logits(library.MaxSoftmax(None)),
        "maxlogit": of_logits(library.MaxLogit(None)),
        "energy": of_logits(library.EnergyBased(None)),
        "gen": of_logits(library.GEN(None, gamma=0.1, M=100)),
        "klm": of_logits(library.KLMatching(None)),
        "dice": of_features(library.DICE(None, w=w, b=b, p=0.9)),
        "ash": of_maps(library.ASH(None, maps_head, variant="ash-b", percentile=0.9)),
        "ash-s": of_maps(library.ASH(None, maps_head, variant="ash-s", percentile=0.9)),
        "ash-p": of_maps(library.ASH(None, maps_head, variant="ash-p", percentile=0.9)),
        "scale": of_maps(library.SCALE(None, maps_head, percentile=0.85)),
        "react": of_maps(library.ReAct(None, maps_head, percentile=0.9)),
        "vra": of_maps(library.VRA(None, maps_head, lower_percentile=0.1, upper_percentile=0.9)),
        "vim": of_features(library.ViM(None, d=dim, w=w, b=b)),
        "mds": of_features(library.Mahalanobis(None)),
        "rmds": of_features(library.RMD(None)),
        "knn": of_features(library.KNN(None, k=k)),
        "nnguide": of_features(library.NNGuide(None, linear, k=guide_k)),
        "fdbd": of_features(library.fDBD(None, linear)),
        "she": of_features(library.SHE(None, linear)),
        "nci": of_features(library.NCI(None, linear, alpha=1e-4)),
        "gradnorm": Peer(lambda l, z, y: gradnorm, lambda l, z: -gradnorm.predict(z)),
    }
