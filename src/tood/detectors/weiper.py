"""WeiPer + KLD: activation histograms under a randomly perturbed head."""

from __future__ import annotations

from typing import Any

import numpy as np

from tood.arrays import Float64Array, FloatArray
from tood.detectors.bank import balanced
from tood.detectors.base import Detector, FitData, Rows, number, register
from tood.detectors.shaping import FEATURES_AND_HEAD
from tood.detectors.statistics import norms

FLOORS = 0.01, 0.025  # added to each bin of the densities of features and of perturbed logits


@register
class WeiPer(Detector):
    """Minus the divergence of two activation histograms from their mean over the fit samples, plus the mean confidence.

    The head's weights are perturbed ``repeats`` times: ``w̃_c = w_c + distance · ‖w_c‖ · u`` with u a random direction.
    Each sample has two histograms with ``bins`` bins between the extremes of the fit samples: one of its D features,
    one of its ``repeats · C`` perturbed logits. Each is smoothed by a running mean, gets a floor, and is compared with
    the mean histogram of the fit samples (with the same floor) by the symmetric Kullback-Leibler divergence. With MSP
    the mean over repeats of the largest softmax probability, the score is
    ``-KL(features) - lambda_1 KL(logits) + lambda_2 MSP``.

    A value counts in the two bins whose centres are nearest, in proportion; beyond the extremes, in the last bin. In
    the authors' code a value counts in one bin, and not at all beyond the extremes, so the last digit of a float can
    change a score.

    Parameters
    ----------
    distance:
        Length of a perturbation relative to the weight.
    repeats:
        Number of perturbed heads. The authors use up to 100; the cost of a sample is proportional to it.
    samples:
        Number of fit samples that the mean histograms are taken from: a seeded sample, balanced over classes.
    bins:
        Number of bins of a histogram.
    smoothing, smoothing_perturbed:
        Number of bins in the running mean of each histogram.
    lambda_1, lambda_2:
        Weights of the perturbed logits' divergence and of their confidence.
    seed:
        Seed of the perturbations.
    """

    name = "weiper"
    title = "WeiPer+KLD"
    needs = FEATURES_AND_HEAD
    citation = "Granz et al., WeiPer: OOD Detection using Weight Perturbations of Class Projections, NeurIPS 2024"
    version = 2
    distance: float = number(2.1, 0, 1e3, refit=True)
    repeats: int = number(10, 1, 1 << 16, whole=True, refit=True)
    samples: int = number(1000, 1, whole=True, refit=True)
    bins: int = number(100, 2, 1 << 16, whole=True, refit=True)
    smoothing: int = number(20, 1, 1 << 16, whole=True)
    smoothing_perturbed: int = number(20, 1, 1 << 16, whole=True)
    lambda_1: float = number(1.0, 0, 1e6, grid=(0.1, 1.0, 2.5))
    lambda_2: float = number(1.0, 0, 1e6, grid=(0.1, 1.0, 2.5))
    seed: int = number(0, 0, 1 << 63, whole=True, refit=True)

    def _width(self) -> int:
        return self.repeats * self.shape_[0]

    def _prepare(self, dtype: np.dtype[Any]) -> tuple[FloatArray, FloatArray]:
        """``[D, repeats · C]`` and ``[repeats · C]``: all perturbed heads side by side."""
        weight = self.weight_.astype(np.float64)
        noise = np.random.default_rng(self.seed).normal(size=(self.repeats, *weight.shape))
        noise /= np.sqrt(np.einsum("rcd,rcd->rc", noise, noise))[..., None]
        noise *= self.distance * norms(weight)[:, None]
        perturbed = (weight + noise).reshape(-1, weight.shape[1])
        return perturbed.T.astype(dtype, order="C"), np.tile(self.bias_, self.repeats).astype(dtype)

    def _fit(self, data: FitData) -> None:
        weight, bias = self._prepare(np.dtype(np.float64))
        features = balanced(data, self.samples, self.seed)[0].astype(np.float64)
        parts = (features, features @ weight + bias)
        self.ranges_ = np.array([[x.min(), x.max()] for x in parts])  # [2, 2], of features and of perturbed logits
        histograms = [histogram(x, self.bins, *ends) for x, ends in zip(parts, self.ranges_, strict=True)]
        self.densities_ = np.mean(histograms, axis=1)  # [2, bins]

    def _score(self, rows: Rows, prepared: tuple[FloatArray, FloatArray]) -> FloatArray:
        weight, bias = prepared
        logits = rows.features @ weight + bias
        by_head = logits.reshape(len(logits), self.repeats, -1)
        others = np.exp(by_head - by_head.max(axis=2, keepdims=True)).sum(axis=2)
        score = float(self.lambda_2) * (1 / others).mean(axis=1, dtype=np.float64)
        parts = ((1.0, rows.features, self.smoothing), (float(self.lambda_1), logits, self.smoothing_perturbed))
        for i, (factor, x, window) in enumerate(parts):
            shares = smooth(histogram(x, self.bins, *self.ranges_[i]), min(window, self.bins))
            density, mean = floored(shares, FLOORS[i]), floored(self.densities_[i : i + 1], FLOORS[i])
            score -= factor * ((density - mean) * np.log(density / mean)).sum(axis=1)
        return np.asarray(score)


def histogram(x: FloatArray, bins: int, low: float, high: float) -> Float64Array:
    """``[n, bins]``: share of each row's values near each of ``bins`` centres between two ends, linear in between."""
    place = (x - x.dtype.type(low)) * x.dtype.type((bins - 1) / (high - low) if high > low else 0.0)
    np.clip(place, 0, bins - 1, out=place)
    left = place.astype(np.intp)
    left += bins * np.arange(len(x))[:, None]
    size = bins * len(x)
    counts = np.bincount(left.reshape(-1), minlength=size).reshape(len(x), bins)
    places = np.bincount(left.reshape(-1), place.reshape(-1), minlength=size).reshape(len(x), bins)
    right = places - counts * np.arange(bins)  # what goes to the bin on the right; nothing from the last one
    counts = counts - right
    counts[:, 1:] += right[:, :-1]
    return counts / x.shape[1]


def smooth(density: Float64Array, window: int) -> Float64Array:
    """``[n, bins]``: running mean over ``window`` bins; beyond the ends, the value at the end."""
    before = (window - 1) // 2
    padded = np.pad(density, ((0, 0), (before, window - 1 - before)), mode="edge")
    total = np.pad(padded.cumsum(axis=1), ((0, 0), (1, 0)))
    return (total[:, window:] - total[:, :-window]) / window


def floored(density: Float64Array, floor: float) -> Float64Array:
    """``[n, bins]``: a density with a floor added to each bin, summing to 1."""
    raised = np.maximum(density, 0) + floor
    return raised / raised.sum(axis=1, keepdims=True)
