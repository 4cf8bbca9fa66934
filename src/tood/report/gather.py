"""Data of measured runs for plots and the page: read from their files, or computed from stored outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tood import detectors
from tood.arrays import Float64Array, IntArray
from tood.audit.advice import DEFAULT
from tood.evaluation.metrics_file import BACKBONE, RAW, accuracy, load_metrics, trajectory
from tood.evaluation.metrics_only import feature_drift, step_facts
from tood.evaluation.score import Scorer, kept_scores
from tood.metrics import Trajectory, accuracy_forgetting
from tood.outputs.directory import Run
from tood.outputs.steps import Step
from tood.report.appearance import label
from tood.report.summary import RAW_LOGITS, labels_of, learner_label, run_name

__all__ = ["MeasuredRun", "StepScores", "scores_at"]

Scores: TypeAlias = npt.NDArray[np.floating[Any]]

KINDS = {f"{RAW_LOGITS})": RAW, "backbone features)": BACKBONE}  # end of a name: settings
TOOD_DETECTORS = (DEFAULT, "tood_robust_anchor", "tood_mean_shift")  # the default, else the paper's


class StepScores(NamedTuple):
    """Scores of one detector at one step; higher means more in-distribution."""

    id: Scores  # [n], ID test samples
    tasks: IntArray  # [n], the task of each ID sample
    ood: dict[str, Scores]  # per OOD set


class MeasuredRun:
    """A measured run: its metrics, and diagnostics computed from its outputs.

    Parameters
    ----------
    run:
        A run with a ``metrics.parquet`` that covers steps 0, 1, … without a gap.
    learner:
        Its label; by default learner and options.
    track:
        The track to show; by default the run's first one.
    """

    def __init__(self, run: Run, learner: str = "", track: str = "") -> None:
        self.run = run
        self.track = track or run.calibration
        self.table = load_metrics(run.path)
        self.learner = learner or learner_label(run)
        self.steps = int(np.max(self.table["step"].to_numpy())) + 1

    @classmethod
    def all_of(cls, runs: Iterable[Run | MeasuredRun], track: str = "") -> list[MeasuredRun]:
        """Measured runs, with the preset in their labels if they have several; those measured already are kept."""
        runs = list(runs)
        labels = labels_of([one.run if isinstance(one, MeasuredRun) else one for one in runs])
        pairs = zip(runs, labels, strict=True)
        return [one if isinstance(one, MeasuredRun) else cls(one, name, track) for one, name in pairs]

    @property
    def name(self) -> str:
        """Name of the run in titles: ``iCaRL on digits, seed 0``."""
        return run_name(self.run, label(self.learner))

    @cached_property
    def has_outputs(self) -> bool:
        """True if the outputs of every measured step are stored; without them only the metrics can be shown."""
        return self.run.steps()[: self.steps] == list(range(self.steps))

    @cached_property
    def _measured(self) -> set[tuple[str, str]]:
        """Detectors and their settings, measured in the track."""
        rows = self.table.group_by(["detector", "settings", "calibration"]).aggregate([]).to_pylist()
        own = (row for row in rows if row["detector"] and row["calibration"] == self.track)
        return {(row["detector"], row["settings"]) for row in own}

    @cached_property
    def detectors(self) -> list[str]:
        """The detectors measured with default settings in the track."""
        return sorted(name for name, settings in self._measured if settings == "")

    @property
    def tood(self) -> str | None:
        """The TOOD variant that plots show."""
        return next((name for name in TOOD_DETECTORS if name in self.detectors), None)

    @cached_property
    def accuracy(self) -> Float64Array:
        """``[T, T]``: the accuracy on task i at step t."""
        return accuracy(self.table)[0]

    @property
    def raw(self) -> list[str]:
        """``energy (raw logits)`` and the same for the TOOD variant, if the learner corrects its head (BiC)."""
        return [f"{name} ({RAW_LOGITS})" for name in ("energy", self.tood) if (name, RAW) in self._measured]

    def has(self, detector: str) -> bool:
        """Whether a detector was measured, at its defaults or, for ``knn (backbone features)``, as its name says."""
        name, _, kind = detector.partition(" (")
        return (name, KINDS.get(kind, "")) in self._measured

    def trajectory(self, detector: str, metric: str = "auroc", **which: str) -> Trajectory:
        """The trajectory of a detector that the run :meth:`has`; ``group=`` or ``ood_set=`` narrows it."""
        name, _, kind = detector.partition(" (")
        settings = {"settings": KINDS[kind]} if kind else {}
        return trajectory(self.table, name, metric, calibration=self.track, **settings, **which)

    def point(self) -> dict[str, Any]:
        """The run as a point of plots over learners, in percent (drift: in [0, 1], NaN without features)."""
        energy = self.trajectory("energy").balanced()
        gain = self.trajectory(self.tood).balanced().average() - energy.average() if self.tood else np.nan
        return {
            "learner": self.learner,
            "drift": self.drift(),
            "d_avg": 100 * energy.average_forgetting(),
            "f_avg": 100 * float(accuracy_forgetting(self.accuracy).mean()) if self.steps > 1 else 0.0,
            "old_accuracy": 100 * float(self.accuracy[-1, :-1].mean()) if self.steps > 1 else np.nan,
            "gain": 100 * gain,
        }

    def drift(self) -> float:
        """Feature drift: 1 - CKA between a task's own step and the last step, mean over tasks; NaN without features."""
        if not self.has_outputs:  # a run with `store: metrics` keeps the number
            return step_facts(self.run, self.steps - 1).get("drift", float("nan"))
        return feature_drift(self.run, self.steps)


def scores_at(run: Run, names: Sequence[str], steps: Sequence[int], track: str | None) -> dict[str, list[StepScores]]:
    """Stored scores at some steps, for each detector that has them at all of these.

    Detectors that are not registered have none: a run that someone else made must not cause an import.
    """
    known = detectors.classes()
    found: dict[str, list[StepScores]] = {name: [] for name in names if name.partition(" (")[0] in known}
    for step in (Step(run, index) for index in steps):
        for name in list(found):
            base, _, kind = name.partition(" (")
            features: Literal["trained", "backbone"] = "backbone" if kind else "trained"
            scored = kept_scores(step, Scorer(base, calibration=track, features=features))
            if scored is None:
                del found[name]
            else:
                found[name].append(StepScores(scored.test, step.test_tasks(), scored.ood))
    return found
