"""Measuring a run: every metric of every (step, task, OOD set, detector), and pooled over tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from tood import detectors
from tood.detectors.registry import REGISTRY
from tood.errors import MissingDependencyError, ToodError
from tood.metrics import evaluate_tasks
from tood.runs.config import MEASURING, RunConfig
from tood.runs.directory import Run
from tood.runs.metrics_file import Row, joined, load_metrics, save_metrics, to_table
from tood.runs.score import Scored, Scorer, reads_calibration, scores, usable
from tood.runs.steps import Step
from tood.runs.versions import Outdated, outdated, with_versions
from tood.runs.yaml_files import read_yaml

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Measured",
    "default_scorers",
    "figures",
    "is_measured",
    "is_measured_as",
    "measure",
    "measure_step",
    "outdated_figures",
]

Progress: TypeAlias = Callable[[int, str], object]
Watch: TypeAlias = Callable[[Step, Scorer, Scored], object]
WHICH: dict[str, tuple[Literal["corrected", "raw"], ...]] = {
    "corrected": ("corrected",),
    "raw": ("raw",),
    "both": ("corrected", "raw"),
}


class Measured(NamedTuple):
    """The metrics of a run, and what a reader of them should know."""

    table: pa.Table
    notes: tuple[str, ...]


def default_scorers(
    run: Run,
    names: Sequence[str] | None = None,
    calibration: str | None = None,
    logits: Literal["corrected", "raw", "both"] | None = None,
    steps: Iterable[int] | None = None,
) -> tuple[list[Scorer], list[str]]:
    """Every detector that can be scored on what a run holds, with its defaults; and notes on those left out.

    Parameters
    ----------
    run:
        The run.
    names:
        Only these detectors; all registered ones by default.
    calibration:
        The source of the calibration set; the one in use by default.
    logits:
        Which logits to score: ``"corrected"``, ``"raw"`` or ``"both"``; by default both if a step of the run has a
        corrected head (BiC), else the only ones.
    steps:
        Look at these steps; all complete ones by default.
    """
    registered, left_out = detectors.loadable() if names is None else ([], {})
    wanted = list(dict.fromkeys(registered if names is None else names))
    looked_at = [Step(run, index) for index in (run.steps() if steps is None else steps)]
    if logits is None:
        logits = "both" if any(step.corrected for step in looked_at) else "corrected"
    scorers: list[Scorer] = []
    for which in WHICH[logits]:
        kept = wanted
        for step in looked_at:
            kept, why = usable(step.using(which), kept)
            left_out |= why
        scorers += [Scorer(name, calibration=calibration, logits=which) for name in kept]
    if names is None:  # nobody expects those that run the network again
        left_out = {name: why for name, why in left_out.items() if "network" not in why}
    reasons = {why: sorted(name for name in left_out if left_out[name] == why) for why in left_out.values()}
    notes = [f"left out ({why}): {', '.join(those)}" for why, those in sorted(reasons.items())]
    if not scorers:
        raise ToodError(f"{run.path}: no detector can be scored; {'; '.join(notes) or 'there are no complete steps'}")
    return scorers, notes


def is_measured(folder: Path, names: Iterable[str] = ()) -> bool:
    """True if a run has metrics of every step and of every detector in ``names``, of any version."""
    try:
        table = load_metrics(folder)
        asked = {REGISTRY.get(name).name for name in names}
        complete = table["step"].unique().to_pylist() == list(range(len(Run(folder).partition)))
        return complete and asked <= set(table["detector"].unique().to_pylist())
    except MissingDependencyError:
        raise
    except ToodError:  # none yet, or damaged, or a detector that cannot be imported
        return False


def is_measured_as(config: RunConfig, folder: Path) -> bool:
    """True if a run has the metrics that a configuration asks for, of any version of the detectors.

    A run without a ``config.yaml`` counts as made with this configuration.
    """
    measured, file = is_measured(folder, config.detectors), folder / "config.yaml"
    if not (measured and file.exists()):
        return measured
    before, now = RunConfig().to_mapping() | read_yaml(file), config.to_mapping()
    if before["detectors"] and not now["detectors"]:  # now all are asked for
        return False
    return all(before[name] == now[name] for name in MEASURING)


def outdated_figures(folder: Path, names: Iterable[str]) -> list[Outdated]:
    """The detectors in ``names``, by default all, whose metrics in a measured run were made by another version."""
    return outdated(load_metrics(folder), names)


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
        measured = figures(run, scorers, keep=True)
        save_metrics(measured.table, run.metrics_path)
    return measured


def figures(
    run: Run,
    scorers: Iterable[Scorer] | None = None,
    keep: bool = False,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Measured:
    """Like :func:`measure`, without writing ``metrics.parquet``: for other settings, buffer sizes, or sources.

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

    Examples
    --------
    A sweep over λ of a stored run, in seconds and without an image::

        table, _ = figures(run, [Scorer("tood_mean_shift", {"margin": m}) for m in (0.0, 0.25, 0.5)])
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
        notes.append(f"{len(steps)} of {len(run.partition)} steps are complete: {_ranges(steps)}")
    tables = []
    noted: dict[str, list[int]] = {}
    # The next step's files are read while this one is scored: reading takes as long as scoring with two detectors
    # (benchmarks/long_streams.py).
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(_read, run, steps[0])
        for index, following in zip(steps, [*steps[1:], None], strict=True):
            step = coming.result()
            if following is not None:
                coming = thread.submit(_read, run, following)
            rows, step_notes = measure_step(step, scorers, keep, progress, watch)
            tables.append(to_table(rows))
            for note in step_notes:
                noted.setdefault(note, []).append(index)
    notes += [note if at == steps else f"{note} ({_ranges(at)})" for note, at in noted.items()]
    return Measured(with_versions(joined(tables)), tuple(notes))


def _read(run: Run, index: int) -> Step:
    """A step whose files are in memory; an error in a file is raised again when the file is used."""
    step = Step(run, index)
    with suppress(ToodError):
        step.test, step.ood, step.head, step.calibration()
    return step


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
    substituted = set()
    for scorer in scorers:
        if progress is not None:
            progress(index, scorer.detector)
        scored = scores(step, scorer, keep)
        notes += scored.notes
        detector = scorer.create()
        if detector.fits_on == "fit" and reads_calibration(step, detector):
            substituted.add(detector.name)
        source, settings = scorer.calibration or run.calibration, scorer.settings()
        for name, values in scored.ood.items():
            by_task, pooled = evaluate_tasks(scored.test, tasks, values, len(step.partition))
            for metric, total in pooled.items():
                for task, value in [(None, total), *enumerate(by_task[metric].tolist())]:
                    rows.append(Row(index, task, name, run.ood[name], detector.name, metric, value, source, settings))
        if watch is not None:
            watch(step, scorer, scored)
    if substituted:
        notes.append(f"no fit set: fitted on the calibration set instead: {', '.join(sorted(substituted))}")
    if step.unseen_columns():
        notes.append("logit columns of tasks not seen yet were ignored")
    return rows, tuple(dict.fromkeys(notes))


def _ranges(steps: Sequence[int]) -> str:
    """``steps 0 to 3`` if they are consecutive, else each of them."""
    if len(steps) > 2 and steps[-1] - steps[0] == len(steps) - 1:
        return f"steps {steps[0]} to {steps[-1]}"
    return f"{'step' if len(steps) == 1 else 'steps'} {', '.join(map(str, steps))}"
