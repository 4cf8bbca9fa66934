"""The judgement on a run directory, whoever wrote it: figures, evidence, verdict."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tood.audit.evidence import distances, energy_gap, recentred_auroc, within_task_loss
from tood.audit.verdict import Repair, Verdict, diagnose, loss_error, recommend
from tood.errors import ToodError
from tood.metrics import accuracy_forgetting
from tood.runs.directory import Run
from tood.runs.measure import default_scorers, figures
from tood.runs.metrics_file import accuracy, detectors_of, save_metrics, trajectory
from tood.runs.score import Scorer
from tood.runs.steps import Step

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Audit", "audit"]

LOGITS = [(f"tood_{variant}", margin) for variant in ("robust_anchor", "mean_shift", "auto") for margin in (None, 0.0)]
FEATURES = [("tood_joint", None), ("typicality", None)]  # if they are among the detectors that are measured anyway


class Audit(NamedTuple):
    """A verdict, the figures it rests on, and what a reader should know of them."""

    run: Run
    verdict: Verdict
    table: pa.Table
    notes: tuple[str, ...]


def audit(
    run: Run,
    detectors: Sequence[str] | None = None,
    calibration: str | None = None,
    progress: Callable[[int, str], object] | None = None,
) -> Audit:
    """Measure a run and judge it.

    Parameters
    ----------
    run:
        A run with its steps complete from 0 on.
    detectors:
        Only these in the figures; every one that can be scored where it is None.
    calibration:
        Another source of calibration samples than the one in use.
    progress:
        Called with the step and the detector before each is scored.

    A plain audit writes ``metrics.parquet`` and the scores into the run; one of chosen detectors or another source
    leaves ``metrics.parquet`` as it is. In a directory that cannot be written nothing is kept, and the notes say so.
    """
    _check(run)
    scorers, notes = default_scorers(run, detectors, calibration)
    settings = [Scorer("energy"), *(_scorer(*repair, calibration) for repair in LOGITS)]
    writable = os.access(run.path, os.W_OK)
    with run.lock() if writable else contextlib.nullcontext():
        found = figures(run, _merged(scorers, settings), keep=writable, progress=progress)
        table = _rows_of(found.table, [scorer.detector for scorer in scorers])
        chosen = detectors is not None or "detectors" in run.manifest  # by the caller, or by whoever made the run
        if writable and not chosen and calibration in (None, run.calibration):
            save_metrics(table, run.metrics_path)
    if not writable:
        notes.append(f"{run.path} cannot be written: the figures are shown and not kept")
    verdict = judge(run, found.table, calibration)
    return Audit(run, verdict, table, tuple(dict.fromkeys([*notes, *found.notes])))


def judge(run: Run, table: pa.Table, calibration: str | None = None) -> Verdict:
    """The verdict on a run whose figures include energy and the settings of TOOD."""
    energy = trajectory(table, "energy").balanced()
    values, tasks = energy.mean(), len(energy)
    last = Step(run, tasks - 1)
    old = slice(0, tasks - 1)
    before, after = np.diagonal(values)[old], values[-1, old]
    counts = np.bincount(last.test_tasks())[old]
    error = loss_error(before.tolist(), after.tolist(), counts.tolist(), min(map(len, last.ood.values())))
    restored = float((recentred_auroc(last)[old] - after).mean()) if tasks > 1 else 0.0
    nearness = distances(run, tasks)
    measured = detectors_of(table)
    repairs = tuple(_repair(table, *repair) for repair in [*LOGITS, *FEATURES] if repair[0] in measured)
    by_task, _ = accuracy(table)
    lost, within = energy.average_forgetting(), within_task_loss(run, tasks)
    return Verdict(
        cause=diagnose(lost, error, restored, within, *((nearness.lost, nearness.nearer) if nearness else ())),
        tasks=tasks,
        forgetting=lost,
        error=error,
        by_task=tuple(energy.forgetting().tolist()),
        accuracy_forgetting=float(accuracy_forgetting(by_task).mean()) if tasks > 1 else 0.0,
        within_task=within,
        average=energy.average(),
        restored=restored,
        gap=energy_gap(last, calibration),
        distances=nearness,
        calibration=calibration or run.calibration,
        repairs=repairs,
        recommended=recommend(energy.average(), repairs),
        best=_best(table),
    )


def _check(run: Run) -> None:
    steps = run.steps()
    if not steps or steps != list(range(len(steps))):
        raise ToodError(
            f"{run.path}: expected the outputs of every step from 0 on, in steps/00/outputs and so on, found "
            f"{f'steps {steps}' if steps else 'none'}"
        )
    if not run.ood:
        raise ToodError(f'{run.path / "manifest.json"}: expected at least one OOD set in "ood", found none')


def _scorer(detector: str, margin: float | None, calibration: str | None = None) -> Scorer:
    return Scorer(detector, {} if margin is None else {"margin": margin}, calibration)


def _repair(table: pa.Table, detector: str, margin: float | None) -> Repair:
    found = trajectory(table, detector, settings=_scorer(detector, margin).settings()).balanced()
    return Repair(detector, margin, found.average(), found.average_forgetting())


def _best(table: pa.Table) -> tuple[str, float]:
    """The detector with the highest Avg AUROC at its defaults."""
    averages = {name: trajectory(table, name).balanced().average() for name in detectors_of(table)}
    name = max(averages, key=lambda name: averages[name])
    return name, averages[name]


def _merged(scorers: Sequence[Scorer], more: Sequence[Scorer]) -> list[Scorer]:
    """Both, without doing anything twice."""
    there = {(scorer.detector, scorer.settings()) for scorer in scorers}
    return [*scorers, *(scorer for scorer in more if (scorer.detector, scorer.settings()) not in there)]


def _rows_of(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Accuracy, and the figures of these detectors with their defaults."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pc.and_(pc.is_in(table["detector"], pa.array(names)), pc.equal(table["settings"], ""))
    return table.filter(pc.or_(wanted, pc.is_null(table["detector"]))).combine_chunks()
