"""Shannon entropy of the softmax probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from tood.arrays import FloatArray
from tood.detectors.base import Detector
from tood.detectors.logits import LOGITS
from tood.detectors.outputs import Rows
from tood.detectors.registry import register
from tood.detectors.rowwise import own_columns


@register
class Entropy(Detector):
    """Minus the Shannon entropy of the softmax probabilities.

    ``Σ_c p_c log p_c``. With ``s_c = l_c - max l`` and ``R = Σ_{c ≠ ŷ} exp(s_c)`` the entropy is ``log(1 + R) + Σ_{c ≠
    ŷ} exp(s_c) (-s_c) / (1 + R)``. All terms are positive, so a confident network keeps its digits.
    """

    name = "entropy"
    title = "Entropy"
    needs = LOGITS
    fits_on = "none"
    citation = (
        "Chan, Rottmann and Gottschalk, Entropy Maximization and Meta Classification for Out-of-Distribution Detection "
        "in Semantic Segmentation, ICCV 2021"
    )

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        winner = rows.logits.argmax(axis=1)
        gaps = rows.logits - own_columns(rows.logits, winner)[:, None]
        weights = np.exp(gaps)
        weights[np.arange(len(winner)), winner] = 0
        rest = weights.sum(axis=1)
        # A logit so far below that exp is zero contributes zero, whatever the gap is.
        result: FloatArray = np.einsum("nc,nc->n", weights, gaps) / (1 + rest) - np.log1p(rest)
        return result
