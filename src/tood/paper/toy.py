"""Toy experiment: a class-incremental stream with known geometry (paper, appendix "A Controlled Toy Experiment").

Sixteen Gaussian classes with standard deviation 1 arrive two at a time. Their centres are random directions at a fixed
distance from the origin. The OOD samples are one more Gaussian at the origin. An MLP with a growing head learns the
tasks in turn. Each of three regimes changes one thing:

- ``separated``: centres at distance 4, exemplars replayed. The classes stay apart; only the scores drift.
- ``crowded``: centres at distance 1, so that all classes and the OOD samples overlap.
- ``no_replay``: as separated, without replay; the exemplars only calibrate. The paper does not show this regime.

A fourth, ``crowded_authors``, is run on request: the crowding of the authors' code, with centres at distance 1.4 and
OOD samples with standard deviation 0.35.

Choices the paper leaves open: ReLU after both hidden layers; weights and biases start uniform within ±1/√inputs;
batches mix new samples and exemplars, and the last batch of an epoch is smaller; constant learning rate; momentum
restarts at zero per task; exemplars are the first training samples of each class; the calibration set at a step is the
exemplars of all classes seen. A seed gives all regimes the same directions, noise and initial weights.

The network is plain NumPy: at this size it is several times faster than a framework, and needs none.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, IntArray
from tood.calibration import TOOD, Variant
from tood.energy import energy
from tood.errors import ToodError
from tood.metrics import Trajectory, auroc
from tood.partition import Partition

__all__ = ["MARGINS", "METHODS", "REGIMES", "SCORES", "STANDARD", "Settings", "ToyRun", "run", "runs", "sample"]

Float32Array: TypeAlias = npt.NDArray[np.float32]

MARGINS = tuple(k / 10 for k in range(11))  # values of λ in the paper's sweep
SCORES: dict[str, tuple[Variant, float]] = {  # every one that is measured, beside energy
    f"{variant.replace('_', ' ')}, λ={margin:g}": (variant, margin)
    for variant in ("mean_shift", "robust_anchor")
    for margin in MARGINS
}
METHODS = ("energy", *(name for name, (_, margin) in SCORES.items() if margin in (0, 0.5)))  # shown in tables


@dataclass(frozen=True)
class Regime:
    """A regime: distance of the class centres, whether exemplars are replayed, standard deviation of OOD samples."""

    radius: float
    replay: bool = True
    ood_std: float = 1.0


REGIMES = {
    "separated": Regime(4.0),
    "crowded": Regime(1.0),
    "no_replay": Regime(4.0, replay=False),
    "crowded_authors": Regime(1.4, ood_std=0.35),
}
STANDARD = ("separated", "crowded", "no_replay")


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment. Sample counts are per class, except ``ood``."""

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


class Samples(NamedTuple):
    """The data of one seed in one regime."""

    centres: Float32Array  # [C, D]
    train: Float32Array  # [C, train, D]
    test: Float32Array  # [C, test, D]
    ood: Float32Array  # [ood, D]


@dataclass(frozen=True)
class ToyRun:
    """Measurements of one seed in one regime over T steps. AUROC in [0, 1]; NaN for tasks not yet learned."""

    regime: str
    seed: int
    accuracy: Float64Array  # [T], over the tasks seen
    auroc: dict[str, Float64Array]  # [T, T] per score: energy and SCORES
    own_channel: Float64Array  # [T, T]: AUROC of task i scored by its own channel E_i alone
    gap: dict[str, Float64Array]  # [T]: newest minus first task in energy units, before and after TOOD

    def trajectory(self, method: str, steps: int | None = None) -> Trajectory:
        """The trajectory of a method over the first ``steps`` steps, by default all."""
        return Trajectory(self.auroc[method][:steps, :steps])


# --- the network: parameters are [weight, bias] of each layer in turn


def linear(rng: np.random.Generator, inputs: int, outputs: int) -> list[Float32Array]:
    """The weight ``[inputs, outputs]`` and bias ``[outputs]`` of a new layer."""
    bound = inputs**-0.5
    return [rng.uniform(-bound, bound, shape).astype(np.float32) for shape in ((inputs, outputs), (outputs,))]


def activations(parameters: Sequence[Float32Array], inputs: Float32Array) -> list[Float32Array]:
    """The inputs, the activations of each hidden layer, and the logits."""
    values = [inputs]
    for k in range(0, len(parameters), 2):
        out = values[-1] @ parameters[k]
        out += parameters[k + 1]
        if k + 2 < len(parameters):
            np.maximum(out, 0, out=out)
        values.append(out)
    return values


def gradients(parameters: Sequence[Float32Array], inputs: Float32Array, labels: IntArray) -> list[Float32Array]:
    """Gradient of the mean cross-entropy with respect to each parameter."""
    values = activations(parameters, inputs)
    delta = values.pop()  # becomes the gradient of the loss at the output of the current layer
    delta -= delta.max(axis=1, keepdims=True)
    np.exp(delta, out=delta)
    delta /= delta.sum(axis=1, keepdims=True)
    delta[np.arange(len(labels)), labels] -= 1
    delta /= len(labels)
    result: list[Float32Array] = []
    for weight in parameters[-2::-2]:
        below = values.pop()
        result += [delta.sum(axis=0), below.T @ delta]
        if values:
            delta = (delta @ weight.T) * (below > 0)
    return result[::-1]


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
    directions, noise, _, _ = _generators(seed)
    centres = directions.normal(size=(s.tasks * s.classes_per_task, s.dimensions))
    centres *= REGIMES[regime].radius / np.linalg.norm(centres, axis=1, keepdims=True)
    around = [(centres[:, None] + noise.normal(size=(len(centres), n, s.dimensions))) for n in (s.train, s.test)]
    arrays = (centres, *around, REGIMES[regime].ood_std * noise.normal(size=(s.ood, s.dimensions)))
    return Samples(*(array.astype(np.float32) for array in arrays))


def _generators(seed: int) -> list[np.random.Generator]:
    """Independent generators for directions, noise, weights and batches, shared by all regimes of a seed."""
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(4)]


def run(regime: str, seed: int, settings: Settings | None = None) -> ToyRun:
    """Train on the stream of one seed in one regime, and measure every step.

    Parameters
    ----------
    regime:
        One of ``REGIMES``.
    seed:
        0 or more; the same seed gives the same results.
    settings:
        Sizes; the paper's by default.

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
    square = np.full((s.tasks, s.tasks), np.nan)
    result = ToyRun(
        regime,
        seed,
        accuracy=np.empty(s.tasks),
        auroc={name: square.copy() for name in ("energy", *SCORES)},
        own_channel=square.copy(),
        gap={name: np.empty(s.tasks) for name in ("before", "mean_shift", "robust_anchor")},
    )
    for step in range(s.tasks):
        grown = linear(weights, s.hidden, s.classes_per_task)
        head = [np.concatenate([old, new], axis=-1) for old, new in zip(head, grown, strict=True)]
        seen = head[1].size
        old = seen - s.classes_per_task
        inputs, labels = _flat(samples.train[old:seen], first=old)
        if REGIMES[regime].replay:
            exemplars, exemplar_labels = _flat(samples.train[:old, : s.exemplars])
            inputs, labels = np.concatenate([inputs, exemplars]), np.concatenate([labels, exemplar_labels])
        train([*body, *head], inputs, labels, s, batches)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # channels without spread and logits out of range are expected
            _measure([*body, *head], samples, s, step, result)
    return result


def runs(seeds: Sequence[int], settings: Settings | None = None, regimes: Sequence[str] = STANDARD) -> Iterator[ToyRun]:
    """All seeds of all regimes, regime by regime.

    Parameters
    ----------
    seeds:
        Distinct integers, 0 or more.
    settings:
        Sizes; the paper's by default.
    regimes:
        Names in :data:`REGIMES`; by default all but the authors' crowding.
    """
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ToodError(f"seeds: expected distinct integers, 0 or more, found {list(seeds)}")
    for regime in regimes:
        yield from (run(regime, seed, settings) for seed in seeds)


def _flat(blobs: Float32Array, first: int = 0) -> tuple[Float32Array, IntArray]:
    """``[classes, n, D]`` as samples ``[classes · n, D]`` and their labels, starting at ``first``."""
    return blobs.reshape(-1, blobs.shape[-1]), np.repeat(np.arange(first, first + len(blobs)), blobs.shape[1])


def _measure(parameters: Sequence[Float32Array], samples: Samples, s: Settings, step: int, result: ToyRun) -> None:
    """Measure one step, and store it in row ``step`` of the result."""
    partition = Partition.from_sizes([s.classes_per_task] * (step + 1))
    seen = partition.columns
    test, labels = _flat(samples.test[:seen])
    exemplars, exemplar_labels = _flat(samples.train[:seen, : s.exemplars])
    test, ood, exemplars = (activations(parameters, x)[-1] for x in (test, samples.ood, exemplars))
    result.accuracy[step] = (test.argmax(axis=1) == labels).mean()

    def by_task(id_scores: Any, ood_scores: Any) -> list[float]:
        # Samples are sorted by task, the same number per task.
        return [auroc(own, ood_scores) for own in np.split(id_scores, step + 1)]

    result.auroc["energy"][step, : step + 1] = by_task(energy(test), energy(ood))
    cal = TOOD(partition).fit(exemplars, exemplar_labels)
    for name, (variant, margin) in SCORES.items():
        cal.set_params(variant=variant, margin=margin)
        result.auroc[name][step, : step + 1] = by_task(cal.score(test), cal.score(ood))
    raw, raw_ood = cal.task_energies(test), cal.task_energies(ood)
    for task, own in enumerate(np.split(raw, step + 1)):
        result.own_channel[step, task] = auroc(own[:, task], raw_ood[:, task])
    result.gap["before"][step] = _gap(raw)
    for variant in ("mean_shift", "robust_anchor"):
        cal.set_params(variant=variant)
        result.gap[variant][step] = _gap(cal.normalized_energies(test))


def _gap(energies: npt.NDArray[Any]) -> float:
    """Mean own-channel energy of the newest task minus the mean own-channel energy of the first task."""
    tasks = np.split(energies, energies.shape[1])
    return float(tasks[-1][:, -1].mean(dtype=np.float64) - tasks[0][:, 0].mean(dtype=np.float64))
