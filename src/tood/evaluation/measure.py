"""Measuring a run: every metric of every (step, task, OOD set, detector), and pooled over tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from tood import detectors
from tood.errors import MissingDependencyError, ToodError
from tood.evaluation.metrics_file import Row, detectors_of, load_metrics, save_metrics, to_table
from tood.evaluation.score import Scored, Scorer, reads_backbone, scores, usable
from tood.evaluation.versions import outdated, with_versions
from tood.metrics import evaluate_tasks
from tood.outputs.directory import Arrays, Run
from tood.outputs.steps import LogitsKind, Step
from tood.partition import Partition

if TYPE_CHECKING:
    import pyarrow as pa

Progress: TypeAlias = Callable[[int, str], object]
Watch: TypeAlias = Callable[[Step, Scorer, Scored], object]
WHICH: dict[str, tuple[LogitsKind, ...]] = {"corrected": ("corrected",), "raw": ("raw",), "both": ("corrected", "raw")}


class Measured(NamedTuple):
    """The metrics of a run, and what a reader of them should know."""

    table: pa.Table
    notes: tuple[str, ...]


def default_scorers(
    run: Run,
    names: Sequence[str] | None = None,
    calibration: str | None = None,
    logits: Literal["auto", "corrected", "raw", "both"] = "auto",
    steps: Sequence[int] | None = None,
) -> tuple[list[Scorer], list[str]]:
    """Every detector that can be scored on what a run holds, with its defaults; and notes on those left out.

    If the run has features of a frozen backbone, detectors that read features are scored on these too.

    Parameters
    ----------
    run:
        The run.
    names:
        Only these detectors; all registered ones by default.
    calibration:
        The track; the one in use by default.
    logits:
        Which logits to score: ``"corrected"``, ``"raw"``, ``"both"``, or ``"auto"``: both if a step of the run has a
        corrected head (BiC), else the only ones.
    steps:
        Look at these steps; all complete ones by default.
    """
    wanted, left_out = detectors.loadable() if names is None else (list(dict.fromkeys(names)), {})
    looked_at = [Step(run, index) for index in (run.steps() if steps is None else steps)]
    if logits == "auto":
        logits = "both" if any(step.corrected for step in looked_at) else "corrected"
    scorers: list[Scorer] = []
    for which in WHICH[logits]:
        kept = wanted
        for step in looked_at:
            kept, why = usable(step.using(which), kept)
            left_out |= why
        scorers += [Scorer(name, calibration=calibration, logits=which) for name in kept]
    if looked_at and all(s.using(features="backbone").has("features") for s in looked_at):
        scorers += [Scorer(n, calibration=calibration, features="backbone") for n in wanted if reads_backbone(n)]
    if names is None:  # nobody expects those that run the network again
        left_out = {name: why for name, why in left_out.items() if "network" not in why}
    reasons = {why: sorted(name for name in left_out if left_out[name] == why) for why in left_out.values()}
    notes = [f"left out ({why}): {', '.join(those)}" for why, those in sorted(reasons.items())]
    if not scorers:
        raise ToodError(f"{run.path}: no detector can be scored; {'; '.join(notes) or 'there are no complete steps'}")
    return scorers, notes


def complete_metrics(folder: Path) -> pa.Table | None:
    """The metrics of a run if there are some of every step, of any version of the detectors; else None."""
    try:
        table = load_metrics(folder)
        return table if table["step"].unique().to_pylist() == list(range(len(Run(folder).partition))) else None
    except MissingDependencyError:
        raise
    except ToodError:  # none yet, or damaged
        return None


def measure(run: Run, scorers: Iterable[Scorer] | None = None) -> Measured:
    """Score and measure every complete step, and write ``metrics.parquet``.

    Parameters
    ----------
    run:
        The run.
    scorers:
        What to score with; by default every detector that can be scored.
    """
    with run.lock():
        measured = evaluate(run, scorers, keep=True)
        save_metrics(with_earlier(run, measured.table), run.metrics_path)
    return measured


def with_earlier(run: Run, table: pa.Table) -> pa.Table:
    """The metrics to write: with the present rows of other tracks, and of detectors that run the network (ODIN).

    The latter can be scored only while a run has its images, so a later measurement without them does not delete them.
    Rows of other outputs (their accuracies differ) or of an outdated version are dropped.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    stored = complete_metrics(run.path)
    accuracy = pc.field("metric") == "accuracy"
    if stored is None or not table.filter(accuracy).equals(stored.filter(accuracy)):
        return table
    new = set(table["detector"].unique().to_pylist())
    names = [name for name, kind in detectors.classes().items() if "network" in kind.needs and name not in new]
    tracks = set(run.manifest.get("tracks") or ()) - set(table["calibration"].unique().to_pylist())
    other = pc.is_in(stored["calibration"], pa.array(tracks, pa.string()))
    kept = stored.filter(pc.or_(other, pc.is_in(stored["detector"], pa.array(names, pa.string()))))
    if not kept.num_rows or outdated(stored, detectors_of(kept)):
        return table
    return with_versions(to_table([Row(*row.values()) for one in (table, kept) for row in one.to_pylist()]))


def evaluate(
    run: Run,
    scorers: Iterable[Scorer] | None = None,
    keep: bool = False,
    progress: Progress | None = None,
    watch: Watch | None = None,
    task_given: bool = False,
) -> Measured:
    """Like :func:`measure`, without writing ``metrics.parquet``: for other settings or sources.

    Parameters
    ----------
    run, scorers:
        As for :func:`measure`.
    keep:
        Write the scores to the run.
    progress:
        Called with the step and the detector before each is scored.
    watch:
        Called with the step, the scorer and its scores once they are measured.
    task_given:
        Task-incremental evaluation: the task of each sample is known at test time, so accuracy and scores use that
        task's columns alone, and detectors are fitted per task. Nothing is kept.

    Examples
    --------
    A sweep over λ of a stored run, in seconds and without an image::

        table, _ = evaluate(run, [Scorer("tood_mean_shift", {"margin": m}) for m in (0.0, 0.25, 0.5)])
        trajectory(table, "tood_mean_shift", settings='{"margin": 0.25}').average()
    """
    steps = run.steps()
    if not steps:
        raise ToodError(f"{run.path}: expected the outputs of at least one step in steps/00/outputs, found none")
    notes: list[str] = []
    if scorers is None:
        scorers, notes = default_scorers(run)
    scorers = list(scorers)
    if len(steps) < len(run.partition):
        notes.append(f"{len(steps)} of {len(run.partition)} steps are complete")
    tables = []
    for index in steps:
        step = Step(run, index)
        if task_given:
            rows, step_notes = measure_given_task(step, scorers)
        else:
            rows, step_notes = measure_step(step, scorers, keep, progress, watch)
        tables.append(to_table(rows))
        notes += step_notes
    import pyarrow as pa

    table = pa.concat_tables(tables).combine_chunks()  # sorted, because the step is the first column
    return Measured(with_versions(table), tuple(dict.fromkeys(notes)))


def measure_step(
    step: Step,
    scorers: Sequence[Scorer],
    keep: bool = False,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> tuple[list[Row], tuple[str, ...]]:
    """The metrics of one step, and notes."""
    run, index = step.run, step.index
    tasks = step.test_tasks()
    notes: list[str] = []
    correct = step.predictions == step.test.labels
    known = len(step.partition)
    accuracies = np.bincount(tasks, correct, known) / np.bincount(tasks, minlength=known)
    rows = [
        Row(index, task, None, None, None, "accuracy", value, run.calibration, "")
        for task, value in [(None, float(correct.mean())), *enumerate(accuracies.tolist())]
    ]
    for scorer in scorers:
        if progress is not None:
            progress(index, scorer.detector)
        scored = scores(step, scorer, keep)
        notes += scored.notes
        detector = scorer.described
        source, settings = scorer.calibration or run.calibration, scorer.settings
        for name, values in scored.ood.items():
            by_task, pooled = evaluate_tasks(scored.test, tasks, values, len(step.partition))
            for metric, total in pooled.items():
                for task, value in [(None, total), *enumerate(by_task[metric].tolist())]:
                    rows.append(Row(index, task, name, run.ood[name], detector.name, metric, value, source, settings))
        if watch is not None:
            watch(step, scorer, scored)
    if step.unseen_columns():
        notes.append("logit columns of tasks not seen yet were ignored")
    return rows, tuple(dict.fromkeys(notes))


class GivenTask(Step):
    """One task of a step: its columns, its samples of labelled sets, and all OOD samples."""

    def __init__(self, step: Step, task: int) -> None:
        super().__init__(step.run, step.index, step.logits, step.features)
        self.step, self.task = step, task
        self.columns = np.sort(step.columns[list(step.partition.tasks[task])])
        self.partition = Partition.from_sizes([len(self.columns)])

    def using(self, *kinds: Any, **named: Any) -> Step:
        """This task with one kind of logits and features."""
        return GivenTask(self.step.using(*kinds, **named), self.task)

    def _read(self, name: str) -> tuple[Arrays, str]:
        arrays, digest = self.step._read(name)
        if "labels" in arrays:
            own = np.isin(arrays["labels"], self.columns)
            arrays = {key: array[own] for key, array in arrays.items() if key != "predictions"}
        return arrays, digest


def measure_given_task(step: Step, scorers: Sequence[Scorer]) -> tuple[list[Row], tuple[str, ...]]:
    """The metrics of one step if tasks are given: each detector is fitted and scored per task."""
    rows: list[Row] = []
    notes: list[str] = []
    right = np.zeros(2)
    for task in range(len(step.partition)):
        own = GivenTask(step, task)
        measured, said = measure_step(own, scorers)
        rows += [row._replace(task=task) for row in measured if row.task == 0]
        right += (own.predictions == own.test.labels).sum(), len(own.predictions)
        notes += said
    pooled = Row(step.index, None, None, None, None, "accuracy", right[0] / right[1], step.run.calibration, "")
    return [pooled, *rows], tuple(note for note in dict.fromkeys(notes) if "not seen yet" not in note)
