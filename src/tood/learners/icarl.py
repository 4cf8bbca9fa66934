"""iCaRL: exemplars chosen by herding, distillation, and nearest class means."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, normalize, one_hot

from tood.arrays import IntArray, floats
from tood.learners.base import Batch, register
from tood.learners.replay import ExemplarLearner


@register
class ICaRL(ExemplarLearner):
    """iCaRL: replay and distillation with a linear head; predictions by the nearest mean of exemplars.

    Logits always come from the linear head; only :meth:`predict` uses the class means.
    """

    name = "icarl"
    title = "iCaRL"
    citation = 'Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning", CVPR 2017.'
    distils = True
    remembers = ("memory", "means")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.means = torch.empty(0, self.network.head.dim)  # [C, D], of length one

    def loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """Algorithm 3: sigmoids with the labels as targets for new classes and the teacher's outputs for old ones."""
        target = one_hot(batch.columns, logits.shape[1]).to(logits.dtype)
        if self.old:
            target[:, : self.old] = self.teach(batch.inputs).sigmoid()
        return binary_cross_entropy_with_logits(logits, target)

    def end_task(self, task: int) -> None:
        """Herding (Algorithm 4), then the mean of each class's exemplars, their mirror images included."""
        super().end_task(task)
        rows = self.memory.rows
        features = normalize(self.outputs(rows)[0])
        if self.stream.augmentation in ("crop_flip", "resized_crop"):
            features = features + normalize(self.outputs(rows, flip=True)[0])
        member = one_hot(torch.from_numpy(self.memory.labels)).to(features).T
        self.means = normalize(normalize(member, p=1) @ features)

    def predict(self, features: Any, logits: Any) -> IntArray:
        """Algorithm 1: the class whose mean is nearest to the feature scaled to length one."""
        means = self.means.cpu().numpy()
        feature = floats(features, "features", 2)
        feature = feature / np.maximum(np.linalg.norm(feature, axis=1, keepdims=True), 1e-12)
        return np.asarray(np.argmax(feature @ means.T, axis=1))  # all lengths are one: nearest = largest product
