"""The audit of a run directory, whichever tool wrote it: metrics, evidence, checks, verdict."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tood import detectors
from tood.audit.advice import DEFAULT, advise, advise_without_ood, choose_by_traffic
from tood.audit.causes import Judgement, judge
from tood.audit.checks import check_calibration, check_step, check_swapped
from tood.audit.evidence import Collector, Evidence
from tood.audit.gap import energy_gap
from tood.audit.kept import kept_decision
from tood.audit.verdict import Verdict, read_verdict, write_verdict
from tood.errors import ToodError
from tood.evaluation.measure import Progress, default_scorers, evaluate, with_earlier
from tood.evaluation.metrics_file import accuracy, detectors_of, load_metrics, save_metrics, trajectory
from tood.evaluation.score import Scorer
from tood.evaluation.versions import describe, outdated
from tood.metrics import accuracy_forgetting
from tood.outputs.directory import Run
from tood.outputs.steps import Step

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Audit", "audit", "ensure_verdict"]


class Audit(NamedTuple):
    """A verdict, with the metrics and the evidence behind it."""

    run: Run
    verdict: Verdict
    table: pa.Table
    evidence: Evidence | None


def audit(
    run: Run,
    names: Sequence[str] | None = None,
    calibration: str | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Measure a run and judge it.

    An audit writes ``metrics.parquet``, ``verdict.json`` and the scores into the run. It writes only the scores if
    another calibration source is given, or if detectors are named and the run already has metrics of these outputs. If
    the directory cannot be written, nothing is kept and the notes say so.

    Parameters
    ----------
    run:
        A run with all steps from 0 on.
    names:
        Only these detectors, besides energy and TOOD's default; None for all that the run can compute.
    calibration:
        Another source of calibration samples than the one in use.
    progress:
        Called with the step and the detector before each is scored.
    """
    steps = _count_steps(run)
    scorers, notes = default_scorers(run, names, calibration)
    collector = Collector(run, steps)
    writable = os.access(run.path, os.W_OK)
    with run.lock() if writable else contextlib.nullcontext():
        needed = _with_default(scorers, calibration)
        measured = evaluate(run, needed, keep=writable, progress=progress, watch=collector)
        if not writable:
            notes.append(f"{run.path} cannot be written: the metrics are shown but not kept")
        evidence = collector.evidence() if run.ood else None
        all_notes = tuple(dict.fromkeys([*notes, *measured.notes]))
        verdict = _verdict(run, collector, evidence, measured.table, calibration, all_notes)
        if writable and calibration in (None, run.calibration):
            verdict = _store(run, verdict, measured.table, named=names is not None)
    return Audit(run, verdict, measured.table, evidence)


def _store(run: Run, verdict: Verdict, table: pa.Table, named: bool) -> Verdict:
    """Write metrics and verdict, but do not replace metrics of the same outputs that hold more.

    These are metrics of more detectors than the user names now, or of those that `tood run` was given.
    """
    stored = None
    with contextlib.suppress(ToodError):  # none yet, or damaged
        stored = load_metrics(run.path)
    if stored is not None and not _agree(stored, table):
        verdict = replace(verdict, notes=(*verdict.notes, "metrics.parquet was of other outputs and has been replaced"))
        stored = None
    if stored is not None and named:
        return verdict
    if stored is None or "detectors" not in run.manifest:
        save_metrics(with_earlier(run, table), run.metrics_path)
    elif stale := outdated(stored):
        verdict = replace(verdict, notes=(*verdict.notes, f"metrics.parquet: {describe(stale)}"))
    write_verdict(run, verdict)
    return verdict


def _agree(stored: pa.Table, measured: pa.Table) -> bool:
    """Whether accuracy and the AUROC of energy are the same wherever both tables have them."""
    import pyarrow.compute as pc

    energy = (pc.field("metric") == "auroc") & (pc.field("detector") == "energy") & (pc.field("settings") == "")
    kept = [table.filter(energy | (pc.field("metric") == "accuracy")).to_pylist() for table in (stored, measured)]
    before, now = ({(row["step"], row["task"], row["ood_set"]): row["value"] for row in rows} for rows in kept)
    return all(np.isclose(before[place], now[place], rtol=0, atol=1e-9) for place in before.keys() & now.keys())


def ensure_verdict(run: Run) -> dict[str, Any] | None:
    """The stored verdict of a measured run; else a new one, from the detectors measured. None without outputs."""
    stored = read_verdict(run)
    if stored is not None or not run.steps():
        return stored
    measured = {*detectors_of(load_metrics(run.path))}
    verdict = audit(run, [name for name in detectors.names() if name in measured]).verdict
    if os.access(run.path, os.W_OK):
        with run.lock():
            write_verdict(run, verdict)
    return verdict.to_dict()


def _verdict(
    run: Run,
    collector: Collector,
    evidence: Evidence | None,
    table: pa.Table,
    calibration: str | None,
    notes: tuple[str, ...],
) -> Verdict:
    tasks = collector.steps
    last = Step(run, tasks - 1)
    gap = energy_gap(last, calibration)
    by_task, _ = accuracy(table)
    findings = [*check_step(last, calibration)]
    findings += check_calibration(run, calibration, gap)
    findings += check_swapped(evidence, float(by_task[-1, -1])) if evidence else []
    return Verdict(
        tasks=tasks,
        judgements=_judgements(evidence, tasks) if evidence else (),
        by_task=tuple(trajectory(table, "energy").balanced().forgetting().tolist()) if evidence else (),
        accuracy_forgetting=float(accuracy_forgetting(by_task).mean()) if tasks > 1 else 0.0,
        gap=gap,
        calibration=calibration or run.calibration,
        advice=advise(evidence) if evidence else advise_without_ood(last, calibration),
        findings=tuple(findings),
        notes=notes,
        kept=kept_decision(run, calibration),
        traffic=choice.to_dict() if (choice := choose_by_traffic(last, calibration)) else None,
    )


def _judgements(evidence: Evidence, tasks: int) -> tuple[Judgement, ...]:
    return tuple(judge(evidence, scope) for scope in evidence.scopes) if tasks > 1 else ()


def _count_steps(run: Run) -> int:
    """The number of steps; raises if there is none, or a gap."""
    steps = run.steps()
    if not steps or steps != list(range(len(steps))):
        found = f"steps {steps}" if steps else "none; a run with `store: metrics` keeps none"
        raise ToodError(
            f"{run.path}: expected the outputs of every step from 0 on, in steps/00/outputs and so on, found {found}"
        )
    return len(steps)


def _with_default(scorers: Sequence[Scorer], calibration: str | None) -> list[Scorer]:
    """The scorers, with energy first, since the evidence starts from it, and TOOD's default."""
    present = {(scorer.detector, scorer.settings) for scorer in scorers}
    needed = [Scorer(name, calibration=calibration) for name in ("energy", DEFAULT)]
    added = [scorer for scorer in needed if (scorer.detector, scorer.settings) not in present]
    return sorted([*scorers, *added], key=lambda scorer: scorer.detector != "energy")
