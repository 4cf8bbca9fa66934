"""The audit of a run directory, whoever wrote it: figures, evidence, checks, verdict."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tood import detectors
from tood.audit.advice import advise, advise_without_ood, default_score
from tood.audit.causes import judge
from tood.audit.checks import Finding, check_calibration, check_energy, check_step
from tood.audit.distances import from_logs
from tood.audit.evidence import Collector, Evidence, combine
from tood.audit.gap import energy_gap
from tood.audit.verdict import Verdict, read_verdict, write_verdict
from tood.errors import ToodError
from tood.metrics import accuracy_forgetting
from tood.runs.directory import Run
from tood.runs.measure import default_scorers, figures
from tood.runs.metrics_file import accuracy, detectors_of, load_metrics, save_metrics, trajectory
from tood.runs.score import Scorer
from tood.runs.steps import Step

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Audit", "audit", "audit_seeds", "ensure_verdict"]

Progress = Callable[[int, str], object]


class Audit(NamedTuple):
    """A verdict, the figures and the evidence it rests on."""

    run: Run
    verdict: Verdict
    table: pa.Table
    evidence: Evidence | None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures should know."""
        return self.verdict.notes


def audit(
    run: Run,
    names: Sequence[str] | None = None,
    calibration: str | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Measure a run and judge it.

    An audit writes ``metrics.parquet``, ``verdict.json`` and the scores into the run. With another calibration source,
    or with chosen detectors if the run already has figures, it writes the scores only. If the directory cannot be
    written, nothing is kept and the notes say so.

    Parameters
    ----------
    run:
        A run with its steps complete from 0 on.
    names:
        Only these detectors, beside energy and TOOD's default; None: every one that the run can compute.
    calibration:
        Another source of calibration samples than the one in use.
    progress:
        Called with the step and the detector before each is scored.
    """
    steps = _check(run)
    scorers, notes = default_scorers(run, names, calibration)
    own = [Scorer(name, calibration=calibration) for name in ("energy", default_score()) if name]
    collector = Collector(run, steps)
    writable = os.access(run.path, os.W_OK)
    keep = (names is None or not run.metrics_path.exists()) and calibration in (None, run.calibration)
    with run.lock() if writable else contextlib.nullcontext():
        measured = figures(run, _merged(scorers, own), keep=writable, progress=progress, watch=collector)
        if not writable:
            notes.append(f"{run.path} cannot be written: the figures are shown and not kept")
        evidence = collector.evidence() if run.ood else None
        said = tuple(dict.fromkeys([*notes, *measured.notes]))
        verdict = _verdict(run, collector, evidence, measured.table, calibration, said)
        if writable and keep:
            if "detectors" not in run.manifest or not run.metrics_path.exists():  # else as whoever made the run chose
                save_metrics(measured.table, run.metrics_path)
            write_verdict(run, verdict)
    return Audit(run, verdict, measured.table, evidence)


def ensure_verdict(run: Run) -> dict[str, Any] | None:
    """The verdict on a measured run: as kept, else from the detectors that were measured; None without outputs."""
    kept = read_verdict(run)
    if kept is not None or not run.steps():
        return kept
    known = detectors.names()
    measured = [name for name in detectors_of(load_metrics(run.path)) if name in known]
    found = audit(run, measured)
    if os.access(run.path, os.W_OK):
        with run.lock():
            write_verdict(run, found.verdict)
    return found.verdict.to_dict()


def audit_seeds(audits: Sequence[Audit]) -> Verdict:
    """One verdict on runs that differ in their seed alone: intervals are over seeds and samples."""
    first = audits[0]
    parts = [one.evidence for one in audits if one.evidence is not None]
    if len(parts) < len(audits) or len({one.verdict.tasks for one in audits}) > 1:
        raise ToodError("runs: expected OOD sets in each, and as many steps in each")
    evidence = combine(parts)
    if evidence.scopes != first.evidence.scopes:  # type: ignore[union-attr]
        raise ToodError("runs: expected the same groups of OOD sets in each")
    means = [sum(values) / len(audits) for values in zip(*(one.verdict.by_task for one in audits), strict=True)]
    lost = sum(one.verdict.accuracy_forgetting for one in audits) / len(audits)
    changed = {
        "seeds": len(audits),
        "judgements": _judgements(evidence, first.verdict.tasks),
        "by_task": tuple(means),
        "accuracy_forgetting": lost,
        "advice": advise(evidence),
        "findings": _unique(finding for one in audits for finding in one.verdict.findings),
        "notes": tuple(dict.fromkeys(note for one in audits for note in one.verdict.notes)),
    }
    from dataclasses import replace

    return replace(first.verdict, **changed)  # type: ignore[arg-type]


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
    findings = [finding for index in sorted({0, tasks - 1}) for finding in check_step(Step(run, index), calibration)]
    findings += [*check_calibration(run, calibration, gap), *(check_energy(evidence) if evidence else [])]
    return Verdict(
        tasks=tasks,
        seeds=1,
        judgements=_judgements(evidence, tasks) if evidence else (),
        by_task=tuple(trajectory(table, "energy").balanced().forgetting().tolist()) if evidence else (),
        accuracy_forgetting=float(accuracy_forgetting(by_task).mean()) if tasks > 1 else 0.0,
        gap=gap,
        distances=from_logs(collector.distances) if len(collector.distances) == tasks else None,
        calibration=calibration or run.calibration,
        logits="the corrected logits, as the learner answers; raw ones are measured beside them"
        if any(Step(run, index).corrected for index in range(tasks))
        else "the logits as stored",
        advice=advise(evidence) if evidence else advise_without_ood(last, calibration),
        findings=_unique(findings),
        notes=notes,
    )


def _judgements(evidence: Evidence, tasks: int) -> tuple:  # type: ignore[type-arg]
    return tuple(judge(evidence, scope) for scope in evidence.scopes) if tasks > 1 else ()


def _unique(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The first of findings that differ in their figures alone."""
    found: dict[str, Finding] = {}
    for finding in findings:
        found.setdefault(re.sub(r"\(.*?\)|-?[\d.]+", "", finding.problem), finding)
    return tuple(found.values())


def _check(run: Run) -> int:
    steps = run.steps()
    if not steps or steps != list(range(len(steps))):
        raise ToodError(
            f"{run.path}: expected the outputs of every step from 0 on, in steps/00/outputs and so on, found "
            f"{f'steps {steps}' if steps else 'none; a run with `store: figures` keeps none'}"
        )
    return len(steps)


def _merged(scorers: Sequence[Scorer], more: Sequence[Scorer]) -> list[Scorer]:
    """Both, without doing anything twice; energy first, since the evidence starts from it."""
    there = {(scorer.detector, scorer.settings()) for scorer in scorers}
    added = [scorer for scorer in more if (scorer.detector, scorer.settings()) not in there]
    return sorted([*scorers, *added], key=lambda scorer: scorer.detector != "energy")
