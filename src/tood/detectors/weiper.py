"""WeiPer + KLD: activation histograms under a randomly perturbed head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tood.arrays import Float64Array, FloatArray
from tood.detectors.bank import balanced
from tood.detectors.base import Detector, Grid
from tood.detectors.outputs import FitData, Rows
from tood.detectors.registry import register
from tood.detectors.rowwise import norms
from tood.detectors.shaping import FEATURES_AND_HEAD

PERTURBED = 1 << 18  # perturbed logits held at once: 1 MiB of float32
FLOORS = 0.01, 0.025  # added to each bin of the densities of features and of perturbed logits


class Perturbed(NamedTuple):
    """Perturbed heads and mean densities, ready to score."""

    weight: FloatArray  # [D, repeats · C]
    bias: FloatArray  # [repeats · C]
    densities: list[Float64Array]  # [bins] each: mean density of features and of perturbed logits, with their floors


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
    grid: ClassVar[Grid] = {"lambda_1": (0.1, 1.0, 2.5), "lambda_2": (0.1, 1.0, 2.5)}
    refit = frozenset({"distance", "repeats", "samples", "bins", "seed"})
    version = 2
    passes = 2

    ranges_: Float64Array  # [2, 2], lowest and highest feature, lowest and highest perturbed logit
    densities_: Float64Array  # [2, bins], mean over the fit samples

    def __init__(
        self,
        distance: float = 2.1,
        repeats: int = 10,
        samples: int = 1000,
        bins: int = 100,
        smoothing: int = 20,
        smoothing_perturbed: int = 20,
        lambda_1: float = 1.0,
        lambda_2: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.distance = distance
        self.repeats = repeats
        self.samples = samples
        self.bins = bins
        self.smoothing = smoothing
        self.smoothing_perturbed = smoothing_perturbed
        self.lambda_1 = lambda_1
        self.lambda_2 = lambda_2
        self.seed = seed

    def _check(self) -> None:
        self._number("distance", 0, 1e3)
        self._number("lambda_1", 0, 1e6)
        self._number("lambda_2", 0, 1e6)
        self._number("repeats", 1, 1 << 16, whole=True)
        self._number("samples", 1, 1 << 31, whole=True)
        self._number("bins", 2, 1 << 16, whole=True)
        self._number("smoothing", 1, 1 << 16, whole=True)
        self._number("smoothing_perturbed", 1, 1 << 16, whole=True)
        self._number("seed", 0, 1 << 63, whole=True)

    def _head(self, dtype: np.dtype[Any]) -> tuple[FloatArray, FloatArray]:
        """``[D, repeats · C]`` and ``[repeats · C]``: all perturbed heads side by side."""
        weight = self.weight_.astype(np.float64)
        noise = np.random.default_rng(self.seed).normal(size=(self.repeats, *weight.shape))
        noise /= np.sqrt(np.einsum("rcd,rcd->rc", noise, noise))[..., None]
        noise *= self.distance * norms(weight)[:, None]
        perturbed = (weight + noise).reshape(-1, weight.shape[1])
        return perturbed.T.astype(dtype, order="C"), np.tile(self.bias_, self.repeats).astype(dtype)

    def _fit(self, data: FitData) -> None:
        head = self._head(np.dtype(np.float64))
        features = balanced(data, self.samples, self.seed).astype(np.float64)
        parts = list(self._activations(features, *head))
        ends = [[(x.min(), x.max()) for x in part] for part in zip(*parts, strict=True)]
        self.ranges_ = np.array([[min(low for low, _ in e), max(high for _, high in e)] for e in ends])
        sums = np.zeros((2, self.bins))
        for pair in parts:
            for i, x in enumerate(pair):
                sums[i] += histogram(x, self.bins, *self.ranges_[i]).sum(axis=0)
        self.densities_ = sums / len(features)

    def _activations(
        self, features: FloatArray, weight: FloatArray, bias: FloatArray
    ) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Features and perturbed logits, some rows at a time."""
        step = max(1, PERTURBED // len(bias))
        for start in range(0, len(features), step):
            z = features[start : start + step]
            yield z, z @ weight + bias

    def _windows(self) -> tuple[int, int]:
        return min(self.smoothing, self.bins), min(self.smoothing_perturbed, self.bins)

    def _prepare(self, dtype: np.dtype[Any]) -> Perturbed:
        densities = [floored(density[None], floor)[0] for density, floor in zip(self.densities_, FLOORS, strict=True)]
        return Perturbed(*self._head(dtype), densities)

    def _score(self, rows: Rows, prepared: Perturbed) -> FloatArray:
        confidences, histograms = [], [np.empty((0, self.bins))]
        for _, logits in self._activations(rows.features, prepared.weight, prepared.bias):
            by_head = logits.reshape(len(logits), self.repeats, -1)
            others = np.exp(by_head - by_head.max(axis=2, keepdims=True)).sum(axis=2)
            confidences.append((1 / others).mean(axis=1, dtype=np.float64))
            histograms.append(histogram(logits, self.bins, *self.ranges_[1]))
        score = float(self.lambda_2) * np.concatenate([np.empty(0), *confidences])
        parts = histogram(rows.features, self.bins, *self.ranges_[0]), np.concatenate(histograms)
        settings = zip(parts, prepared.densities, FLOORS, self._windows(), strict=True)
        for factor, (part, mean, floor, window) in zip((1.0, float(self.lambda_1)), settings, strict=True):
            density = floored(smooth(part, window), floor)
            score -= factor * ((density - mean) * np.log(density / mean)).sum(axis=1)
        return score


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
    result: Float64Array = counts / x.shape[1]
    return result


def smooth(density: Float64Array, window: int) -> Float64Array:
    """``[n, bins]``: running mean over ``window`` bins; beyond the ends, the value at the end."""
    before = (window - 1) // 2
    padded = np.pad(density, ((0, 0), (before, window - 1 - before)), mode="edge")
    total = np.pad(padded.cumsum(axis=1), ((0, 0), (1, 0)))
    result: Float64Array = (total[:, window:] - total[:, :-window]) / window
    return result


def floored(density: Float64Array, floor: float) -> Float64Array:
    """``[n, bins]``: a density with a floor added to each bin, summing to 1."""
    raised = np.maximum(density, 0) + floor
    result: Float64Array = raised / raised.sum(axis=1, keepdims=True)
    return result
