"""The controlled toy: a stream whose geometry is known, so that what happens to the scores can be told apart.

Sixteen Gaussian classes (spread 1) arrive two at a time; their centres are random directions at a fixed distance from
the origin, and the OOD samples are one more such blob at the origin. An MLP with a growing head learns them task by
task. Three regimes change one thing each (paper, appendix "A Controlled Toy Experiment with Known Geometry"):

- ``separated``: centres 4 spreads out, exemplars replayed. The classes stay apart; only the scores drift.
- ``crowded``: the same with the centres pulled in to 1 spread, where all blobs, the OOD one too, overlap.
- ``no_replay``: as separated, but nothing is replayed; the exemplars only calibrate. The paper does not show this one.

Readings of what the paper leaves open: ReLU after both hidden layers; every layer and each task's new head columns
start uniform within ±1/√inputs, weight and bias; a batch is drawn from new samples and exemplars shuffled together,
the last one of an epoch being smaller; the learning rate is constant and the momentum starts from zero at each task;
exemplars are the first of each class's (random) training samples; the calibration set at a step is the exemplars of
every class seen, the newest included. A seed gives each regime the same directions, noise and initial weights.

The network is written out in NumPy: at this size that is several times faster than any framework, and needs none.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, IntArray
from tood.calibration import TOOD, Variant
from tood.energy import energy
from tood.errors import ToodError, UnknownNameError
from tood.metrics import Trajectory, auroc
from tood.partition import Partition

__all__ = ["MARGINS", "METHODS", "REGIMES", "Settings", "ToyRun", "check_seeds", "run", "runs", "sample"]

Float32Array: TypeAlias = npt.NDArray[np.float32]

MARGINS = tuple(k / 10 for k in range(11))  # λ, as in the paper's sweep
METHODS: dict[str, tuple[Variant, float] | None] = {
    "energy": None,
    "mean shift, λ=0": ("mean_shift", 0.0),
    "mean shift, λ=0.5": ("mean_shift", 0.5),
    "robust anchor, λ=0": ("robust_anchor", 0.0),
    "robust anchor, λ=0.5": ("robust_anchor", 0.5),
}


@dataclass(frozen=True)
class Regime:
    """What one regime changes: how far out the centres lie, and whether exemplars are replayed."""

    radius: float
    replay: bool


REGIMES = {"separated": Regime(4.0, True), "crowded": Regime(1.0, True), "no_replay": Regime(4.0, False)}


@dataclass(frozen=True)
class Settings:
    """The sizes of the toy; the defaults are the experiment's. Counts of samples are a class, except ``ood``."""

    dimensions: int = 16
    tasks: int = 8
    classes_per_task: int = 2
    train: int = 400
    exemplars: int = 30
    test: int = 400
    ood: int = 2000
    hidden: int = 64
    epochs: int = 60
    batch: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9

    @property
    def classes(self) -> int:
        """All classes of the stream."""
        return self.tasks * self.classes_per_task


class Samples(NamedTuple):
    """The data of one seed in one regime."""

    centres: Float32Array  # [C, D]
    train: Float32Array  # [C, train, D]
    test: Float32Array  # [C, test, D]
    ood: Float32Array  # [ood, D]


@dataclass(frozen=True)
class ToyRun:
    """Everything measured on one seed in one regime. T steps; AUROC in [0, 1]; NaN where a task is not seen yet."""

    regime: str
    seed: int
    accuracy: Float64Array  # [T], over the tasks seen
    auroc: dict[str, Float64Array]  # [T, T] for each of METHODS
    own_channel: Float64Array  # [T, T]: AUROC of task i by its own energy E_i alone
    margins: Float64Array  # [len(MARGINS), T, T]: AUROC of robust anchor at each λ
    gap: dict[str, Float64Array]  # [T]: newest minus first task, before and after re-centring, in energy units

    def trajectory(self, method: str, steps: int | None = None) -> Trajectory:
        """The trajectory of a method over the first ``steps`` steps, by default all."""
        return Trajectory(self.auroc[method][:steps, :steps])


# --- the network: parameters are [weight, bias] of each layer in turn


def linear(rng: np.random.Generator, inputs: int, outputs: int) -> list[Float32Array]:
    """The weight ``[inputs, outputs]`` and bias ``[outputs]`` of a new layer."""
    bound = inputs**-0.5
    return [rng.uniform(-bound, bound, shape).astype(np.float32) for shape in ((inputs, outputs), (outputs,))]


def activations(parameters: Sequence[Float32Array], inputs: Float32Array) -> list[Float32Array]:
    """The inputs, what each hidden layer makes of them, and last the logits."""
    values = [inputs]
    for k in range(0, len(parameters), 2):
        out = values[-1] @ parameters[k]
        out += parameters[k + 1]
        if k + 2 < len(parameters):
            np.maximum(out, 0, out=out)
        values.append(out)
    return values


def gradients(parameters: Sequence[Float32Array], inputs: Float32Array, labels: IntArray) -> list[Float32Array]:
    """The gradient of the mean cross-entropy with respect to each parameter."""
    values = activations(parameters, inputs)
    delta = values.pop()  # becomes the loss's gradient at the output of the layer at hand
    delta -= delta.max(axis=1, keepdims=True)
    np.exp(delta, out=delta)
    delta /= delta.sum(axis=1, keepdims=True)
    delta[np.arange(len(labels)), labels] -= 1
    delta /= len(labels)
    found: list[Float32Array] = []
    for weight in parameters[-2::-2]:
        below = values.pop()
        found += [delta.sum(axis=0), below.T @ delta]
        if values:
            delta = (delta @ weight.T) * (below > 0)
    return found[::-1]


def train(
    parameters: Sequence[Float32Array],
    inputs: Float32Array,
    labels: IntArray,
    settings: Settings,
    rng: np.random.Generator,
) -> None:
    """SGD with momentum, in place."""
    rate, momentum = np.float32(settings.learning_rate), np.float32(settings.momentum)
    velocities = [np.zeros_like(parameter) for parameter in parameters]
    for _ in range(settings.epochs):
        order = rng.permutation(len(labels))
        shuffled, targets = inputs[order], labels[order]
        for start in range(0, len(labels), settings.batch):
            batch = slice(start, start + settings.batch)
            steps = gradients(parameters, shuffled[batch], targets[batch])
            for parameter, velocity, step in zip(parameters, velocities, steps, strict=True):
                velocity *= momentum
                velocity += step
                parameter -= rate * velocity


# --- the stream


def sample(regime: str, seed: int, settings: Settings | None = None) -> Samples:
    """The centres and all samples of one seed in one regime."""
    s = settings or Settings()
    if regime not in REGIMES:
        raise UnknownNameError("regime", regime, REGIMES)
    directions, noise, _, _ = _generators(seed)
    centres = directions.normal(size=(s.classes, s.dimensions))
    centres *= REGIMES[regime].radius / np.linalg.norm(centres, axis=1, keepdims=True)
    around = [(centres[:, None] + noise.normal(size=(s.classes, n, s.dimensions))) for n in (s.train, s.test)]
    arrays = (centres, *around, noise.normal(size=(s.ood, s.dimensions)))
    return Samples(*(array.astype(np.float32) for array in arrays))


def _generators(seed: int) -> list[np.random.Generator]:
    """Independent sources for directions, noise, weights and batches, so that regimes differ in nothing else."""
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(4)]


def run(regime: str, seed: int, settings: Settings | None = None) -> ToyRun:
    """Learn the stream of one seed in one regime, and measure every step.

    Parameters
    ----------
    regime:
        One of ``REGIMES``.
    seed:
        0 or more; the same seed gives the same figures.
    settings:
        The sizes; by default the experiment's.

    Examples
    --------
    >>> result = run("separated", seed=0, settings=Settings(tasks=2, epochs=20))
    >>> result.auroc["energy"].shape
    (2, 2)
    """
    s = settings or Settings()
    samples = sample(regime, seed, s)
    _, _, weights, batches = _generators(seed)
    body = linear(weights, s.dimensions, s.hidden) + linear(weights, s.hidden, s.hidden)
    head = [np.empty((s.hidden, 0), dtype=np.float32), np.empty(0, dtype=np.float32)]
    result = _empty(regime, seed, s)
    for step in range(s.tasks):
        grown = linear(weights, s.hidden, s.classes_per_task)
        head = [np.concatenate([old, new], axis=-1) for old, new in zip(head, grown, strict=True)]
        seen = head[1].size
        old = seen - s.classes_per_task
        inputs, labels = _flat(samples.train[old:seen], first=old)
        if REGIMES[regime].replay:
            exemplars, of = _flat(samples.train[:old, : s.exemplars])
            inputs, labels = np.concatenate([inputs, exemplars]), np.concatenate([labels, of])
        train([*body, *head], inputs, labels, s, batches)
        _measure([*body, *head], samples, s, step, result)
    return result


def runs(seeds: Sequence[int], settings: Settings | None = None, workers: int = 1) -> Iterator[ToyRun]:
    """Every regime on every seed, in that order.

    Parameters
    ----------
    seeds:
        Different whole numbers, 0 or more.
    settings:
        The sizes; by default the experiment's.
    workers:
        With more than one, runs go to as many processes, each with one BLAS thread: at these sizes further threads
        cost many times what they save. The figures of a run do not depend on its neighbours.
    """
    check_seeds(seeds)
    regimes, of = zip(*((regime, seed) for regime in REGIMES for seed in seeds), strict=True)
    if workers <= 1:
        yield from map(run, regimes, of, repeat(settings))
        return
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ.setdefault(variable, "1")  # read by the workers when they import NumPy
    with ProcessPoolExecutor(min(workers, len(of)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(run, regimes, of, repeat(settings))


def check_seeds(seeds: Sequence[int]) -> None:
    """Complain unless these are different whole numbers, 0 or more."""
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ToodError(f"seeds: expected different whole numbers, 0 or more, found {list(seeds)}")


def _flat(blobs: Float32Array, first: int = 0) -> tuple[Float32Array, IntArray]:
    """``[classes, n, D]`` as samples ``[classes · n, D]`` and their labels, counted from ``first``."""
    return blobs.reshape(-1, blobs.shape[-1]), np.repeat(np.arange(first, first + len(blobs)), blobs.shape[1])


def _empty(regime: str, seed: int, s: Settings) -> ToyRun:
    square = (s.tasks, s.tasks)
    return ToyRun(
        regime,
        seed,
        accuracy=np.empty(s.tasks),
        auroc={method: np.full(square, np.nan) for method in METHODS},
        own_channel=np.full(square, np.nan),
        margins=np.full((len(MARGINS), *square), np.nan),
        gap={name: np.empty(s.tasks) for name in ("before", "mean_shift", "robust_anchor")},
    )


def _measure(parameters: Sequence[Float32Array], samples: Samples, s: Settings, step: int, result: ToyRun) -> None:
    """Fill in the row of one step."""
    partition = Partition.from_sizes([s.classes_per_task] * (step + 1))
    seen = partition.columns
    test, labels = _flat(samples.test[:seen])
    exemplars, exemplar_labels = _flat(samples.train[:seen, : s.exemplars])
    test, ood, exemplars = (activations(parameters, x)[-1] for x in (test, samples.ood, exemplars))
    result.accuracy[step] = (test.argmax(axis=1) == labels).mean()

    def by_task(id_scores: Any, ood_scores: Any) -> list[float]:
        # Samples come task by task, as many of each.
        return [auroc(own, ood_scores) for own in np.split(id_scores, step + 1)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a channel without spread is a finding here, not an accident
        cal = TOOD(partition).fit(exemplars, exemplar_labels)
    for method, setting in METHODS.items():
        if setting is None:
            result.auroc[method][step, : step + 1] = by_task(energy(test), energy(ood))
        else:
            cal.set_params(variant=setting[0], margin=setting[1])
            result.auroc[method][step, : step + 1] = by_task(cal.score(test), cal.score(ood))
    cal.set_params(variant="robust_anchor")
    for k, margin in enumerate(MARGINS):
        cal.set_params(margin=margin)
        result.margins[k, step, : step + 1] = by_task(cal.score(test), cal.score(ood))
    raw, raw_ood = cal.task_energies(test), cal.task_energies(ood)
    for task, own in enumerate(np.split(raw, step + 1)):
        result.own_channel[step, task] = auroc(own[:, task], raw_ood[:, task])
    result.gap["before"][step] = _gap(raw)
    for variant in ("mean_shift", "robust_anchor"):
        cal.set_params(variant=variant)
        result.gap[variant][step] = _gap(cal.normalized_energies(test))


def _gap(energies: npt.NDArray[Any]) -> float:
    """How far the newest task's mean energy in its own channel lies above the first task's in its own."""
    tasks = np.split(energies, energies.shape[1])
    return float(tasks[-1][:, -1].mean(dtype=np.float64) - tasks[0][:, 0].mean(dtype=np.float64))
