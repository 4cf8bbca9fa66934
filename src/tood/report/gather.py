"""Data of measured runs for figures and the page: read from their files, or computed from stored outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tood import detectors
from tood.arrays import Float64Array, IntArray
from tood.audit.distances import distances
from tood.decision import threshold
from tood.energy import energy, task_energies
from tood.errors import ToodError
from tood.metrics import Trajectory, accuracy_forgetting, auroc, confidence_gap, nearest_distance
from tood.report.appearance import label
from tood.report.summary import RAW_LOGITS, labels_of, learner_label, run_name
from tood.runs.directory import Run
from tood.runs.figures_only import feature_drift, step_facts
from tood.runs.metrics_file import RAW, accuracy, detectors_of, load_metrics, trajectory
from tood.runs.score import Scorer, kept_scores, scores
from tood.runs.steps import Step

__all__ = ["Measured", "StepScores", "by_group", "fixed_threshold", "score_steps"]

Scores: TypeAlias = npt.NDArray[np.floating[Any]]

TOOD_DETECTORS = ("tood_robust_anchor", "tood_mean_shift")  # the paper's primary variant first
MOST_NEAREST = 2000  # OOD samples per step whose nearest ID sample is searched


class StepScores(NamedTuple):
    """Scores of one detector at one step; higher means more in-distribution."""

    id: Scores  # [n], ID test samples
    tasks: IntArray  # [n], the task of each ID sample
    ood: dict[str, Scores]  # per OOD set


class Measured:
    """A measured run: its metrics, and diagnostics computed from its outputs.

    Parameters
    ----------
    run:
        A run with a ``metrics.parquet`` that covers steps 0, 1, … without a gap.
    learner:
        Its label; by default learner and options.
    """

    def __init__(self, run: Run, learner: str = "") -> None:
        self.run = run
        self.table = load_metrics(run.path)
        self.learner = learner or learner_label(run)
        self.seed = run.manifest.get("seed")
        self.steps = int(np.max(self.table["step"].to_numpy())) + 1

    @classmethod
    def all_of(cls, runs: Iterable[Run]) -> list[Measured]:
        """Measured runs, with the preset in their labels if they have several."""
        runs = list(runs)
        return [cls(run, learner) for run, learner in zip(runs, labels_of(runs), strict=True)]

    @property
    def name(self) -> str:
        """Name of the run in titles: ``iCaRL on digits, seed 0``."""
        return run_name(self.run, label(self.learner))

    @cached_property
    def has_outputs(self) -> bool:
        """True if the outputs of every measured step are stored; without them only the metrics can be shown."""
        return self.run.steps()[: self.steps] == list(range(self.steps))

    @cached_property
    def detectors(self) -> list[str]:
        """The detectors measured with default settings and the calibration set in use."""
        return [name for name in detectors_of(self.table) if self._has(name)]

    @property
    def tood(self) -> str | None:
        """The TOOD variant that figures show."""
        return next((name for name in TOOD_DETECTORS if name in self.detectors), None)

    @cached_property
    def accuracy(self) -> Float64Array:
        """``[T, T]``: the accuracy on task i at step t."""
        return accuracy(self.table)[0]

    @cached_property
    def raw(self) -> list[str]:
        """``energy (raw logits)`` and the same for the TOOD variant, if the learner corrects its head (BiC)."""
        names = (f"{name} ({RAW_LOGITS})" for name in ("energy", self.tood) if name)
        return [name for name in names if self._has(name)]

    def trajectory(self, detector: str, metric: str = "auroc", **which: str) -> Trajectory:
        """The trajectory of a detector at its defaults, or of one in ``raw``; ``group=`` or ``ood_set=`` narrows it."""
        name, _, kind = detector.partition(" (")
        settings = {"settings": RAW} if kind == f"{RAW_LOGITS})" else {}
        return trajectory(self.table, name, metric, calibration=self.run.calibration, **settings, **which)

    def steps_of(self) -> Iterable[Step]:
        """The steps, opened one at a time so that only one is in memory."""
        return (Step(self.run, index) for index in range(self.steps))

    def point(self) -> dict[str, Any]:
        """The run as a point of figures over learners, in percent (drift: in [0, 1], NaN without features)."""
        energy = self.trajectory("energy").balanced()
        gain = self.trajectory(self.tood).balanced().average() - energy.average() if self.tood else np.nan
        last = self.accuracy[-1]
        return {
            "learner": self.learner,
            "seed": self.seed,
            "drift": self.drift(),
            "d_avg": 100 * energy.average_forgetting(),
            "f_avg": 100 * float(accuracy_forgetting(self.accuracy).mean()) if self.steps > 1 else 0.0,
            "accuracy": 100 * float(accuracy(self.table)[1].mean()),
            "recent_accuracy": 100 * float(last[-1]),
            "old_accuracy": 100 * float(last[:-1].mean()) if self.steps > 1 else np.nan,
            "gain": 100 * gain,
        }

    def drift(self) -> float:
        """Feature drift: 1 - CKA between a task's own step and the last step, mean over tasks; NaN without features."""
        if not self.has_outputs:  # a run with `store: figures` keeps the number
            return step_facts(self.run, self.steps - 1).get("drift", float("nan"))
        return feature_drift(self.run, self.steps)

    def own_energies(self) -> Float64Array:
        """``[T, T]``: the mean energy of task i's samples in their own channel at step t."""
        values = np.full((self.steps, self.steps), np.nan)
        for step in self.steps_of():
            test = step.test
            values[step.index, : step.index + 1] = confidence_gap(test.logits, test.labels, step.partition)
        return values

    def along(self) -> dict[str, list[float]]:
        """Diagnostics per step; empty without outputs.

        ``task0_energy``, ``ood_energy``
            Mean energy of task 0 and of the OOD sets.
        ``nearest``, ``distance_ratio``
            Distance of OOD samples to the nearest ID sample: the median over ``crowding_set``, and the geometric mean
            over all sets in units of the distance between ID samples. Only with features.
        ``own_channel``
            Per task, at the last step: AUROC of the energy of its own channel alone.
        """
        if not self.has_outputs:
            return {}
        values: dict[str, list[float]] = {"task0_energy": [], "ood_energy": []}
        for step in self.steps_of():
            task0 = energy(step.test.logits)[step.test_tasks() == 0]
            values["task0_energy"].append(float(task0.mean()))
            by_set = [energy(outputs.logits).mean() for outputs in step.ood.values()]
            values["ood_energy"].append(float(np.mean(by_set)))
            if step.has("features"):
                ood = np.asarray(step.ood[self.crowding_set].features)[:MOST_NEAREST]
                distance = nearest_distance(ood, np.asarray(step.test.features))
                values.setdefault("nearest", []).append(float(np.median(distance)))
        if self.steps > 1:
            values["own_channel"] = self._own_channels(Step(self.run, self.steps - 1))
        relative = distances(self.run, self.steps)
        if relative is not None:
            values["distance_ratio"] = list(relative.ratio)
        return values

    @property
    def crowding_set(self) -> str:
        """The OOD set in figures of distances: SVHN as in the paper, else the last far-OOD set."""
        far = [name for name, group in self.run.ood.items() if group == "far"]
        return "svhn" if "svhn" in far else (far or list(self.run.ood))[-1]

    def _own_channels(self, step: Step) -> list[float]:
        """AUROC per task by the energy of its own channel alone, near and far weighted equally."""
        energies, tasks = task_energies(step.test.logits, step.partition), step.test_tasks()
        by_group: dict[str, list[list[float]]] = {}
        for name, outputs in step.ood.items():
            ood = task_energies(outputs.logits, step.partition)
            aurocs = [auroc(energies[tasks == task, task], ood[:, task]) for task in range(len(step.partition))]
            by_group.setdefault(self.run.ood[name], []).append(aurocs)
        means: list[float] = np.mean([np.mean(sets, axis=0) for sets in by_group.values()], axis=0).tolist()
        return means

    def _has(self, detector: str) -> bool:
        try:
            self.trajectory(detector)
        except ToodError:  # measured only with other settings or calibration samples
            return False
        return True


def kept_steps(run: Run, names: Sequence[str], steps: Sequence[int]) -> dict[str, list[StepScores]]:
    """Stored scores at some steps, for each detector that has current ones at all of them.

    Detectors that are not registered are left out: a run that someone else made must not cause an import.
    """
    kept: dict[str, list[StepScores]] = {name: [] for name in names if name in detectors.classes()}
    for step in (Step(run, index) for index in steps):
        for name in list(kept):
            scored = kept_scores(step, Scorer(name))
            if scored is None:
                del kept[name]
            else:
                kept[name].append(StepScores(scored.test, step.test_tasks(), scored.ood))
    return kept


def score_steps(run: Run, detectors: Sequence[str], steps: int) -> dict[str, list[StepScores]]:
    """Scores of several detectors at the first ``steps`` steps: read if stored, else computed."""
    by_detector: dict[str, list[StepScores]] = {name: [] for name in detectors}
    for index in range(steps):
        step = Step(run, index)
        tasks = step.test_tasks()
        for name in detectors:
            scored = scores(step, Scorer(name), keep=False)
            by_detector[name].append(StepScores(scored.test, tasks, scored.ood))
    return by_detector


def by_group(scored: StepScores, groups: Mapping[str, str], task: int | None = None) -> dict[str, Scores]:
    """Scores of ``"id"`` (one task, or all), ``"near"`` and ``"far"`` samples; the sets of a group are joined."""
    by_group = {"id": scored.id if task is None else scored.id[scored.tasks == task]}
    for group in ("near", "far"):
        sets = [values for name, values in scored.ood.items() if groups[name] == group]
        if sets:
            by_group[group] = np.concatenate(sets)
    return by_group


def fixed_threshold(along: Sequence[StepScores]) -> tuple[float, Float64Array, dict[str, Float64Array]]:
    """Effect of a threshold that accepts 95 % of the ID samples of step 0 and is then kept.

    Parameters
    ----------
    along:
        Scores of one detector, one entry per step.

    Returns
    -------
    The threshold; the accepted share of task i at step t ``[T, T]``; and per OOD set the rejected share at each step
    ``[T]``.
    """
    limit = threshold(along[0].id, 0.95)
    accepted = np.full((len(along), len(along)), np.nan)
    for step, scored in enumerate(along):
        counts = np.bincount(scored.tasks, minlength=step + 1)
        accepted[step, : step + 1] = np.bincount(scored.tasks, scored.id >= limit, step + 1) / counts
    caught = {name: np.array([np.mean(scored.ood[name] < limit) for scored in along]) for name in along[0].ood}
    return limit, accepted, caught
