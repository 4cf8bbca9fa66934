"""What a run's outputs say about why detection was lost: energies by task, what re-centring gives back, distances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tood import TOOD
from tood.arrays import Float64Array, IntArray
from tood.calibration import Variant, own_energies
from tood.metrics import confidence_gap, evaluate_tasks, nearest_distance
from tood.runs.directory import Run
from tood.runs.steps import Step

__all__ = ["Distances", "Gap", "distances", "energy_gap", "recentred_auroc", "within_task_loss"]


VARIANTS: tuple[Variant, ...] = ("mean_shift", "robust_anchor")
MOST = 2000  # ID samples at the last step, and samples of each OOD set, that distances are taken from and to


@dataclass(frozen=True)
class Gap:
    """Mean energy of each task's samples in their own channel at one step, and the spread of test samples in theirs."""

    calibration: tuple[float, ...]
    test: tuple[float, ...]
    spread: float

    @staticmethod
    def of_old(energies: Iterable[float]) -> float:
        """How far the old tasks lie below the latest one, on average."""
        *old, latest = energies
        return latest - float(np.mean(old)) if old else 0.0


@dataclass(frozen=True)
class Distances:
    """What the features alone tell: distances to the nearest of a set of ID test samples, the same number a class.

    Attributes
    ----------
    ood, known:
        The median at each step, of OOD samples (mean over sets) and of other ID test samples.
    lost:
        D_avg, in AUROC, of detecting OOD by this distance.
    """

    ood: tuple[float, ...]
    known: tuple[float, ...]
    lost: float

    @property
    def ratio(self) -> tuple[float, ...]:
        """How many times as far as ID itself OOD is from ID, at each step: free of the scale of the features."""
        return tuple(o / i if i > 0 else float("inf") for o, i in zip(self.ood, self.known, strict=True))

    @property
    def nearer(self) -> float:
        """The share by which that ratio has fallen between the first step and the last."""
        first, last = self.ratio[0], self.ratio[-1]
        return 1 - last / first if np.isfinite(first) and first > 0 else 0.0


def energy_gap(step: Step, calibration: str | None = None) -> Gap:
    """The confidence gap at one step, on the calibration set and on the test data."""
    given = step.calibration(calibration)
    tasks = step.test_tasks()
    own = own_energies(step.test.logits, tasks, step.partition)
    spread = np.sqrt(np.mean([own[tasks == task].var() for task in range(len(step.partition))]))
    return Gap(
        tuple(confidence_gap(given.logits, given.labels, step.partition).tolist()),
        tuple(confidence_gap(step.test.logits, step.test.labels, step.partition).tolist()),
        float(spread),
    )


def recentred_auroc(step: Step) -> Float64Array:
    """``[tasks]``: AUROC, (near + far) / 2, once every channel is re-centred on the test data's own statistics.

    So no luck of the draw is in it: a small calibration set may give old tasks a few points more or less, at the cost
    or to the good of the newest. Of mean shift and robust anchor, both without margin, the one that gives more over
    all is taken.
    """
    best = np.zeros(len(step.partition))
    for variant in VARIANTS:
        cal = TOOD(step.partition, variant=variant, margin=0.0).fit(step.test.logits, step.test.labels)
        ood = {name: np.asarray(cal.score(outputs.logits)) for name, outputs in step.ood.items()}
        found = _auroc_by_task(step, np.asarray(cal.score(step.test.logits)), step.test_tasks(), ood)
        best = found if found.mean() > best.mean() else best
    return best


def within_task_loss(run: Run, steps: int) -> float:
    """What accuracy lost between a task's own step and the last when the task is given: no gap between tasks enters."""
    at_learning, last = [], np.empty(0)
    for step in (Step(run, index) for index in range(steps)):
        logits, labels, tasks = np.asarray(step.test.logits), np.asarray(step.test.labels), step.test_tasks()
        own = np.where(step.partition.column_tasks == tasks[:, None], logits, -np.inf)
        right = own.argmax(axis=1) == labels
        last = np.bincount(tasks, weights=right) / np.bincount(tasks)
        at_learning.append(last[-1])
    return float(np.mean(np.array(at_learning[:-1]) - last[:-1])) if steps > 1 else 0.0


def distances(run: Run, steps: int) -> Distances | None:
    """How near OOD samples come to ID ones, step by step; None where some step has no features or too few samples."""
    if not all(Step(run, index).has("features") for index in range(steps)):
        return None
    a_class = max(1, MOST // (2 * run.partition.first(steps)[0].columns))
    ood_medians, known_medians, at_learning, last = [], [], [], np.empty(0)
    for step in (Step(run, index) for index in range(steps)):
        split = _split(step, a_class)
        if split is None:
            return None
        reference, others, tasks = split
        known = nearest_distance(others, reference)
        sets = {name: np.asarray(outputs.features) for name, outputs in step.ood.items()}
        ood = {name: nearest_distance(x[:: -(-len(x) // MOST)], reference) for name, x in sets.items()}
        ood_medians.append(float(np.mean([np.median(values) for values in ood.values()])))
        known_medians.append(float(np.median(known)))
        last = _auroc_by_task(step, -known, tasks, {name: -values for name, values in ood.items()})
        at_learning.append(last[-1])
    lost = float(np.mean(np.array(at_learning[:-1]) - last[:-1])) if steps > 1 else 0.0
    return Distances(tuple(ood_medians), tuple(known_medians), lost)


def _split(step: Step, a_class: int) -> tuple[Float64Array, Float64Array, IntArray] | None:
    """Features of test samples to measure distances to, of others to measure them from, and the tasks of these."""
    labels, features = np.asarray(step.test.labels), np.asarray(step.test.features)
    by_class = [np.flatnonzero(labels == label)[: 2 * a_class] for label in range(step.partition.columns)]
    reference, others = (np.concatenate([rows[half::2] for rows in by_class]) for half in (0, 1))
    tasks = step.test_tasks()[others]
    if len(np.unique(tasks)) < len(step.partition):
        return None
    return features[reference], features[others], tasks


def _auroc_by_task(step: Step, test: Any, tasks: IntArray, ood: Mapping[str, Any]) -> Float64Array:
    """``[tasks]``: AUROC against each OOD set, then the mean over groups of the mean over a group's sets."""
    groups = np.array([step.run.ood[name] for name in ood])
    cells = np.array([evaluate_tasks(test, tasks, scores, len(step.partition))[0]["auroc"] for scores in ood.values()])
    found: Float64Array = np.mean([cells[groups == group].mean(axis=0) for group in sorted(set(groups))], axis=0)
    return found
