"""Distance to the nearest class prototype, raw and with TOOD's per-task normalisation (paper, "manifold crowding")."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray
from tood.calibration.statistics import least_spread, task_statistics
from tood.detectors.bank import Bank
from tood.detectors.base import Detector, FitData, Rows, flag, number, register
from tood.detectors.distance import FEATURES_AND_LABELS, Means
from tood.detectors.statistics import class_means, class_sums, norms, own_columns, unit
from tood.energy import with_lead

TOOD_PAPER = (
    "ElAraby, Nashed and Paull, TOOD: Task-Aware Out-of-Distribution Score Calibration for Continual Learners, "
    "CoLLAs 2026"
)


def nearest(features: FloatArray, means: Means) -> Float64Array:
    """``[n]``: the distance of each feature to the nearest mean."""
    own, other = means.squared(features)
    return np.sqrt(np.maximum(own + other.min(axis=1), 0))


@register
class Prototype(Detector):
    """Minus the Euclidean distance to the nearest class mean.

    Classes without a fit sample are ignored.

    Parameters
    ----------
    normalize:
        Divide features, and then class means, by their length, as the TOOD authors' code does.
    """

    name = "prototype"
    title = "Prototype"
    needs = FEATURES_AND_LABELS
    citation = TOOD_PAPER
    version = 2
    normalize: bool = flag(True, refit=True)

    def _features(self, rows: Rows) -> FloatArray:
        return unit(rows.features.astype(np.float64)) if self.normalize else rows.features

    def _class_means(self, data: FitData) -> tuple[Float64Array, npt.NDArray[np.bool_]]:
        """``[C, D]`` and ``[C]``: the prototype of each class, and which classes have samples."""
        means, counts = class_means(data, lambda rows: (self._features(rows), rows.classes))
        return np.asarray(unit(means) if self.normalize else means), counts > 0

    def _fit(self, data: FitData) -> None:
        means, seen = self._class_means(data)
        self.means_ = means[seen]  # [K, D]

    def _prepare(self, dtype: np.dtype[Any]) -> Means:
        return Means.of(self.means_)

    def _score(self, rows: Rows, prepared: Means) -> FloatArray:
        return -nearest(self._features(rows), prepared)


@register
class TOODPrototype(Prototype):
    """Nearest-prototype distance, normalised within each task as TOOD normalises energies, scored by its maximum.

    ``D_t(x) = -min_{c in task t} ‖z - μ_c‖``; of each task, median and MAD of the fit samples' own-task distances give
    ``u_t = (D_t - median_t) / MAD_t``; the score is ``max_t u_t``, plus the margin times its lead over the second.
    It is fitted on the fit set, like the distance it normalises. Classes and tasks without a fit sample are ignored.

    Parameters
    ----------
    normalize:
        Divide features, and then class means, by their length, as the TOOD authors' code does.
    margin:
        λ ≥ 0, the weight of the gap between the two largest normalised distances.
    """

    name = "tood_prototype"
    title = "TOOD on prototypes"
    margin: float = number(0.0, 0, 1e6, grid=(0.0, 0.5))

    def _fit(self, data: FitData) -> None:
        task_of = data.tasks(self.name).column_tasks
        means, seen = self._class_means(data)
        order = np.argsort(task_of, kind="stable")
        order = order[seen[order]]
        tasks, self.starts_ = np.unique(task_of[order], return_index=True)
        self.means_ = means[order]  # [K, D], task by task
        prepared = self._prepare(data.dtype)
        places = [np.searchsorted(tasks, task_of[rows.classes]) for rows in data]
        own = [own_columns(self._by_task(rows, prepared), place) for rows, place in zip(data, places, strict=True)]
        statistics = task_statistics(np.concatenate(own), np.concatenate(places), len(tasks))
        self.median_, floor = statistics["median"], least_spread(statistics["median"])
        flat = statistics["mad"] < floor
        self.mad_ = np.where(flat, floor, statistics["mad"])
        if flat.any():
            self._warn(f"the distances of task {', '.join(map(str, tasks[flat]))} have no spread; it is floored")

    def _by_task(self, rows: Rows, means: Means) -> Float64Array:
        """``[n, N]``: minus the distance to the nearest prototype of each task seen."""
        own, other = means.squared(self._features(rows))
        return -np.sqrt(np.maximum(np.minimum.reduceat(other, self.starts_, axis=1) + own[:, None], 0))

    def _score(self, rows: Rows, prepared: Means) -> FloatArray:
        return with_lead((self._by_task(rows, prepared) - self.median_) / self.mad_, float(self.margin))


@register
class AnaNC(Detector):
    """Largest cosine to a class after a ridge regression of random features on targets that collapse each class.

    ``Z(h) = gelu(R h / ‖h‖)`` with a fixed Gaussian R (gelu in its tanh form). Class targets E are a simplex of as many
    corners as there are classes, rotated towards the class means ``m_c``; with a single class, or a partition of one
    task, they are the class means. ``θ = (Σ Z Zᵀ + ridge · I)⁻¹ Σ Z E_yᵀ``; the score is the largest cosine between
    ``Z(h)ᵀθ`` and ``Z(m_c)ᵀθ``. All is learned from sums, without a gradient step. Classes without a fit sample are
    ignored.

    Parameters
    ----------
    dim:
        Number of random features. The authors use 5,000; fitting costs ``dim²`` per sample.
    ridge:
        Weight of the regularisation.
    seed:
        Seed of R.
    """

    name = "ananc"
    title = "AnaNC"
    needs = FEATURES_AND_LABELS
    citation = "Momeni et al., Continual Out-of-Distribution Detection with Analytic Neural Collapse, AAAI 2026"
    dim: int = number(1000, 1, 1 << 14, whole=True, refit=True)
    ridge: float = number(100.0, 1e-6, 1e9, refit=True)
    seed: int = number(0, 0, 1 << 63, whole=True, refit=True)

    def _weight(self, dimensions: int) -> Float64Array:
        return np.random.default_rng(self.seed).normal(size=(dimensions, self.dim))

    def _fit(self, data: FitData) -> None:
        gram, sums, features, counts = np.zeros((self.dim, self.dim)), np.zeros(()), np.zeros(()), np.zeros(())
        for rows in data:
            z = random_features(rows.features, self._weight(data.dimensions))
            gram += z.T @ z
            sums = sums + class_sums(z, rows.classes, data.columns)
            features = features + class_sums(rows.features, rows.classes, data.columns)
            counts = counts + np.bincount(rows.classes, minlength=data.columns)
        seen = counts > 0
        targets = means = features[seen] / counts[seen, None]
        if len(means) > 1 and (data.partition is None or len(data.partition) > 1):
            corners = np.linalg.eigh(np.eye(len(means)) - 1 / len(means))[1][:, 1:]  # [K, K - 1], orthonormal
            left, _, right = np.linalg.svd(means.T @ corners, full_matrices=False)
            targets = corners @ (left @ right).T
        self.theta_ = np.linalg.solve(gram + self.ridge * np.eye(self.dim), sums[seen].T @ targets)  # [dim, D]
        self.classes_ = unit(random_features(means, self._weight(data.dimensions)) @ self.theta_)  # [K, D]

    def _prepare(self, dtype: np.dtype[Any]) -> list[FloatArray]:
        return [part.astype(dtype) for part in (self._weight(self.shape_[1]), self.theta_, self.classes_.T)]

    def _score(self, rows: Rows, prepared: list[FloatArray]) -> FloatArray:
        weight, theta, classes = prepared
        return (unit(random_features(rows.features, weight) @ theta) @ classes).max(axis=1)


def random_features(features: FloatArray, weight: FloatArray) -> FloatArray:
    """``[n, dim]``: gelu, in its tanh form, of the product of a feature's direction with each column of ``weight``."""
    z = unit(features) @ weight
    return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z * z * z)))


@register
class GROOD(Bank):
    """Minus the distance from a sample's gradient to the nearest gradient of a fit sample.

    Prototypes are the class means ``p_c`` and one of the unknown, ``p_0``. With the logits ``-‖z - p_k‖``, the gradient
    of the cross-entropy with respect to ``p_0`` is ``π_0 (z - p_0) / ‖z - p_0‖``, where ``π_0`` is the softmax
    probability of the unknown; no backward pass is needed. Gradients of the correctly classified fit samples make the
    bank (of all fit samples if none is correct). All-zero features say nothing about a class and are left out of it.

    ``p_0`` is the mean over the fit samples of ``(z + p_second) / 2``, with the class of the second largest logit. The
    authors mix the maps of an early layer in this way, or use noise images or OOD validation samples instead. Outputs
    hold the penultimate features, so the mixture is made there.

    ``π_0`` falls exponentially with distances. If they reach about 100, scores of samples near a class are 0 in float32
    and tie; float64 outputs keep them apart.

    Parameters
    ----------
    size:
        Keep at most this many gradients, a seeded sample balanced over classes; None keeps all.
    seed:
        Seed of that sample.
    """

    name = "grood"
    title = "GROOD"
    needs = frozenset({"logits", "features", "labels"})
    citation = "ElAraby et al., GROOD: Gradient-Aware Out-of-Distribution Detection, TMLR 2025"
    size: int | None = number(10_000, 1, whole=True, none=True, refit=True)
    seed: int = number(0, 0, 1 << 63, whole=True, refit=True)

    def _fit(self, data: FitData) -> None:
        means, counts = class_means(data, lambda rows: (rows.features, rows.classes))
        seen = np.flatnonzero(counts)
        self.prototypes_ = means[seen]
        mixed, self._any_usable = np.zeros(data.dimensions), False
        for rows in data:
            among = rows.logits[:, seen]
            if len(seen) > 1:
                among[np.arange(len(among)), among.argmax(axis=1)] = -np.inf
            second = among.argmax(axis=1)
            mixed += (rows.features + self.prototypes_[second]).sum(axis=0) / 2
            self._any_usable |= bool(usable(rows).any())
        self.unknown_ = mixed / counts.sum()
        super()._fit(data)

    def _usable(self, rows: Rows) -> Any:
        return usable(rows) if self._any_usable else slice(None)

    def _entries(self, rows: Rows) -> FloatArray:
        return gradients(rows.features, self._means(), self.unknown_)

    def _means(self) -> Means:
        return Means.of(np.concatenate([self.prototypes_, self.unknown_[None]]))

    def _prepare(self, dtype: np.dtype[Any]) -> tuple[Means, Float64Array, Float64Array]:
        """Prototypes, the bank ``[N, D]`` and half the squared lengths ``[N]`` of its gradients."""
        bank = self.bank_.astype(np.float64)
        return self._means(), bank, np.einsum("nd,nd->n", bank, bank) / 2

    def _score(self, rows: Rows, prepared: tuple[Means, Float64Array, Float64Array]) -> FloatArray:
        prototypes, bank, half_squares = prepared
        queries = gradients(rows.features, prototypes, self.unknown_)
        nearest = (queries @ bank.T - half_squares).argmax(axis=1)
        return -norms(queries - bank[nearest])


def usable(rows: Rows) -> npt.NDArray[np.bool_]:
    """``[n]``: correctly classified, and not all zero."""
    return (rows.logits.argmax(axis=1) == rows.classes) & rows.features.any(axis=1)


def gradients(features: FloatArray, prototypes: Means, unknown: Float64Array) -> Float64Array:
    """``[n, D]``: the gradient of each sample's loss with respect to the prototype of the unknown."""
    own, distances = prototypes.squared(features)
    distances += own[:, None]
    np.sqrt(np.maximum(distances, 0, out=distances), out=distances)
    np.subtract(distances[:, -1:], distances, out=distances)
    with np.errstate(over="ignore"):  # its probability is then 0
        unknown_probability = 1 / np.exp(distances, out=distances).sum(axis=1)
    away = features - unknown
    length = norms(away)
    return away * (unknown_probability / np.where(length > 0, length, 1))[:, None]
