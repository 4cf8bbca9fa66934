"""Detectors that reshape features or weights, then compute the energy of the resulting logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray
from tood.detectors.base import Detector, FitData, Rows, choice, number, register
from tood.detectors.statistics import mean_of, percentiles, ratio
from tood.energy import logsumexp
from tood.errors import ToodError

FEATURES_AND_HEAD = frozenset({"features", "head"})
LARGEST_EXPONENT = 50.0  # keeps exp finite in float32; rectified features reach D / k, 20 on the grids


class Linear(NamedTuple):
    """A head ready to use: ``weight`` is ``[D, C]``."""

    weight: FloatArray
    bias: FloatArray

    def energy(self, features: FloatArray, gain: FloatArray | None = None) -> FloatArray:
        """Energy of the logits of ``gain · features``."""
        logits = features @ self.weight
        if gain is not None:
            logits *= gain[:, None]
        logits += self.bias
        return logsumexp(logits)


class _Shaper(Detector):
    needs = FEATURES_AND_HEAD

    def _prepare(self, dtype: np.dtype[Any]) -> Any:
        return self._linear(dtype, self.weight_)

    def _linear(self, dtype: np.dtype[Any], weight: FloatArray) -> Linear:
        return Linear(weight.T.astype(dtype, order="C"), self.bias_.astype(dtype))


class _Pruner(_Shaper):
    fits_on = "none"
    percentile: float

    def _prepare(self, dtype: np.dtype[Any]) -> tuple[Linear, int]:
        """The head, and how many dimensions the percentile leaves: D - round(D·p/100), half to even; at least one."""
        dimensions = self.weight_.shape[1]
        kept = int(dimensions - round(dimensions * self.percentile / 100))
        if kept < 1:
            self._warn(f"percentile {self.percentile:g} leaves none of {dimensions} dimensions; one is kept")
        return self._linear(dtype, self.weight_), max(1, kept)


@register
class DICE(_Shaper):
    """Energy through the weights that contribute most on average, all others set to zero.

    The contribution of ``w_cj`` is ``w_cj · mean(z_j)``; weights at or below a percentile of all C · D contributions
    are dropped. A changed percentile acts at once, and another head needs a new fit.

    Parameters
    ----------
    percentile:
        Percentile of the contributions, 0 to 100; 90 keeps a tenth.
    """

    name = "dice"
    title = "DICE"
    citation = "Sun and Li, DICE: Leveraging Sparsification for Out-of-Distribution Detection, ECCV 2022"
    percentile: float = number(90, 0, 100, grid=(90,))

    def _fit(self, data: FitData) -> None:
        self.mean_ = mean_of(data)

    def _prepare(self, dtype: np.dtype[Any]) -> Linear:
        contribution = self.mean_ * self.weight_
        kept = contribution > np.percentile(contribution, self.percentile)
        if not kept.any():
            self._warn(f"percentile {self.percentile:g} leaves no weight; every score is the same")
        return self._linear(dtype, np.where(kept, self.weight_, 0))

    def _score(self, rows: Rows, prepared: Linear) -> FloatArray:
        return prepared.energy(rows.features)


@register
class ReAct(_Shaper):
    """Energy after clipping features from above at a percentile of all fit activations.

    Parameters
    ----------
    percentile:
        Percentile of the fit set's activations, 0 to 100. (OpenOOD uses validation data, the paper training data.)
    """

    name = "react"
    title = "ReAct"
    citation = "Sun et al., ReAct: Out-of-distribution Detection With Rectified Activations, NeurIPS 2021"
    percentile: float = number(90, 0, 100, grid=(85, 90, 95, 99), refit=True)

    def _fit(self, data: FitData) -> None:
        (self.high_,) = percentiles(data, [self.percentile])

    def _score(self, rows: Rows, prepared: Linear) -> FloatArray:
        return prepared.energy(np.minimum(rows.features, self.high_))


@register
class VRA(_Shaper):
    """Energy after limiting features between two percentiles of all fit activations.

    Both thresholds are global, as in OpenOOD (pytorch-ood has one pair per dimension).

    Parameters
    ----------
    high, low:
        Percentiles of the fit set's activations, 0 to 100.
    below:
        ``"clip"`` raises features below the lower threshold to it, as OpenOOD does; ``"zero"`` sets them to zero, as
        the paper does.
    """

    name = "vra"
    title = "VRA"
    citation = "Xu et al., VRA: Variational Rectified Activation for Out-of-distribution Detection, NeurIPS 2023"
    high: float = number(90, 0, 100, grid=(85, 90, 95, 99), refit=True)
    low: float = number(10, 0, 100, grid=(1, 5, 10, 15), refit=True)
    below: str = choice("clip", "zero", searched=False)

    def _check(self) -> None:
        super()._check()
        if self.low > self.high:
            raise ToodError(f"low: expected at most high = {self.high}, found {self.low}")

    def _fit(self, data: FitData) -> None:
        self.low_, self.high_ = percentiles(data, [self.low, self.high])

    def _score(self, rows: Rows, prepared: Linear) -> FloatArray:
        features, low, high = rows.features, self.low_, self.high_
        shaped = np.clip(features, low, high)
        if self.below == "zero":
            shaped[features < low] = 0
        return prepared.energy(shaped)


@register
class ASH(_Pruner):
    """Energy of a feature of which only the largest activations are kept.

    ``b``: each kept activation becomes the sum of all activations divided by the number kept; ``s``: it is multiplied
    by ``exp(s1 / s2)``, the sums before and after pruning; ``p``: it stays. The method was made for rectified features,
    so sums run over the positive part: on signed features, the constant then cannot be negative and ``s1 / s2`` lies
    between 1 and D / k. A feature without a positive part has ratio 1, the lower bound. Of equal activations the first
    is kept.

    Parameters
    ----------
    variant:
        ``"b"``, ``"s"`` or ``"p"``.
    percentile:
        Percentage of activations that is pruned; if none would be left, one is kept, with a warning.
    """

    name = "ash"
    title = "ASH"
    citation = "Djurisic et al., Extremely Simple Activation Shaping for Out-of-Distribution Detection, ICLR 2023"
    variant: str = choice("b", "s", "p", searched=False)
    percentile: float = number(90, 0, 100, grid=(65, 70, 75, 80, 85, 90, 95))

    def _score(self, rows: Rows, prepared: tuple[Linear, int]) -> FloatArray:
        linear, kept = prepared
        features = rows.features
        mask = largest(features, kept)
        if self.variant == "b":
            constant = np.maximum(features, 0).sum(axis=1) / kept
            return linear.energy(mask.astype(features.dtype), constant)
        pruned = np.where(mask, features, features.dtype.type(0))
        if self.variant == "p":
            return linear.energy(pruned)
        return linear.energy(pruned, gain(features, kept))


@register
class SCALE(_Pruner):
    """Energy of a feature multiplied by ``exp(s1 / s2)``: its sum over the sum of its largest activations.

    Nothing is pruned. As for ASH, sums run over the positive part, and a feature without one has ratio 1.

    Parameters
    ----------
    percentile:
        Percentage of activations that s2 leaves out; if none would be left, one is kept, with a warning.
    """

    name = "scale"
    title = "SCALE"
    citation = "Xu et al., Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement, ICLR 2024"
    percentile: float = number(85, 0, 100, grid=(65, 70, 75, 80, 85, 90, 95))

    def _score(self, rows: Rows, prepared: tuple[Linear, int]) -> FloatArray:
        linear, kept = prepared
        return linear.energy(rows.features, gain(rows.features, kept))


@register
class RAS(_Shaper):
    """Energy of a feature whose activations are replaced by the fit samples' mean activation of the same rank.

    ``r`` is the mean over fit samples of the sorted feature; the i-th smallest activation becomes ``r_i``. Of equal
    activations, the first has the lowest rank.
    """

    name = "ras"
    title = "RAS"
    citation = (
        "Guglielmo and Masana, Ranked Activation Shift for Post-Hoc Out-of-Distribution Detection, 2026 "
        "(arXiv 2604.08572)"
    )

    def _fit(self, data: FitData) -> None:
        self.profile_ = mean_of(data, lambda rows: np.sort(rows.features, axis=1))  # [D], ascending

    def _score(self, rows: Rows, prepared: Linear) -> FloatArray:
        shifted = np.empty_like(rows.features)
        order = np.argsort(rows.features, axis=1, kind="stable")
        np.put_along_axis(shifted, order, self.profile_.astype(shifted.dtype)[None], axis=1)
        return prepared.energy(shifted)


def gain(features: FloatArray, kept: int) -> FloatArray:
    """``[n]``: exp of the sum of the positive part over the sum of its ``kept`` largest; e if there is none."""
    positive = np.maximum(features, 0)
    dimensions = features.shape[1]
    top = np.partition(positive, dimensions - kept, axis=1)[:, dimensions - kept :] if kept < dimensions else positive
    return np.exp(np.minimum(ratio(positive.sum(axis=1), top.sum(axis=1), otherwise=1), LARGEST_EXPONENT))


def largest(features: FloatArray, kept: int) -> npt.NDArray[np.bool_]:
    """``[n, D]``, boolean: exactly the ``kept`` largest of each row; of equals, the first."""
    dimensions = features.shape[1]
    if kept >= dimensions:
        return np.ones(features.shape, dtype=bool)
    threshold = np.partition(features, dimensions - kept, axis=1)[:, dimensions - kept]
    mask = features >= threshold[:, None]
    tied = np.flatnonzero(np.count_nonzero(mask, axis=1) > kept)
    if len(tied):
        equal = features[tied] == threshold[tied, None]
        above = mask[tied] & ~equal
        mask[tied] = above | (equal & (np.cumsum(equal, axis=1) <= kept - above.sum(axis=1, keepdims=True)))
    return mask
