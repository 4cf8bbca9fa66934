"""What the page shows of a set of runs, as plain values that JSON can hold.

Shares are in [0, 1] and rounded to five decimals; the main table is in percent and not rounded. A triangle is the
entries ``[t, i]``, i ≤ t, of a ``[T, T]`` array, row by row.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tood import __version__
from tood.audit import read_verdict
from tood.metrics import Trajectory
from tood.report.appearance import label, spread
from tood.report.gather import Measured, StepScores, score_steps
from tood.report.summary import ACCURACY, Key, Summary, best_keys, collect
from tood.report.tables import MISMATCH_NOTE
from tood.runs.metrics_file import accuracy

__all__ = ["content"]

Json: TypeAlias = dict[str, Any]

LONG = 20  # tasks: longer streams are thinned to keep the page small
MANY = 4  # runs: beyond, only the metrics that tables show
METRICS = ("auroc", "fpr_at_ood_recall", "fpr_at_id_recall", "aupr_in", "aupr_out")
TABLE = ("avg_auroc", "near_auroc", "far_auroc", "d_avg", "avg_fpr95")
BINS = 100
DISTRIBUTIONS = 6  # detectors with score distributions, a run
DECIMALS = 5
NOT_AUDITED = "This run has not been audited since its figures were measured: `tood audit` writes the verdict."


def chosen_runs(measured: Sequence[Measured]) -> list[Measured]:
    """The first seed of each learner on each stream: those with a card and score distributions."""
    first = {(one.run.stream, one.learner): one for one in reversed(measured)}
    return [one for one in measured if first[one.run.stream, one.learner] is one]


def content(
    measured: Sequence[Measured], reference: Mapping[Key, Summary], verdicts: Mapping[Path, Json | None]
) -> Json:
    """Everything the page shows, of runs in the order given; published figures stand beside ours."""
    chosen = chosen_runs(measured)
    metrics = METRICS[: 3 if len(measured) > MANY else None]
    summaries = collect([(one.run, one.table) for one in measured])
    return {
        "version": __version__,
        "verdicts": [_verdict(one, verdicts.get(one.run.path) or read_verdict(one.run)) for one in chosen],
        "overall": _overall(summaries),
        "accuracy": _rows(summaries, (ACCURACY,), reference),
        "table": _rows(summaries, TABLE, reference),
        "paper_note": MISMATCH_NOTE,
        "runs": [_run(one, metrics, with_scores=one in chosen) for one in measured],
    }


def _verdict(one: Measured, found: Json | None) -> Json:
    if found is None:
        return {"run": one.name, "cause": "not known", "card": None, "sentences": [NOT_AUDITED], "findings": []}
    words = {name: found[name] for name in ("cause", "card", "sentences")}
    return {"run": one.name, **words, "findings": [finding["text"] for finding in found["findings"]]}


def _overall(summaries: Mapping[Key, Summary]) -> list[str]:
    """For each stream with several learners, what TOOD does over them."""
    sentences = []
    for stream in sorted({key.stream for key in summaries}):
        learners = sorted({key.learner for key in summaries if key.stream == stream})
        gains = {}
        for learner in learners:
            energy, tood = (
                summaries.get(Key(stream, learner, name, "avg_auroc")) for name in ("energy", "tood_robust_anchor")
            )
            if energy and tood:
                gains[learner] = tood.mean - energy.mean
        if len(gains) > 1:
            best, worst = max(gains, key=gains.__getitem__), min(gains, key=gains.__getitem__)
            helped = sum(gain >= 0.5 for gain in gains.values())
            sentences.append(
                f"{stream}: TOOD (robust anchor) adds half a point of Avg AUROC or more to energy for {helped} of "
                f"{len(gains)} learners; most for {label(best)} ({gains[best]:+.1f}), least for {label(worst)} "
                f"({gains[worst]:+.1f})."
            )
    return sentences


def _rows(summaries: Mapping[Key, Summary], metrics: Sequence[str], reference: Mapping[Key, Summary]) -> list[Json]:
    """One row per stream, learner and detector, with the published figure if there is one."""
    best = best_keys(summaries)
    rows: dict[tuple[str, str, str], Json] = {}
    for key, value in summaries.items():
        if key.metric in metrics:
            row = rows.setdefault(
                key[:3], {"stream": key.stream, "learner": key.learner, "detector": key.detector, "values": {}}
            )
            theirs = reference.get(key)
            row["values"][key.metric] = {
                "mean": value.mean,
                "std": value.std,
                "seeds": value.seeds,
                "best": key in best,
                "paper": theirs.mean if theirs else None,
            }
    return list(rows.values())


def _run(one: Measured, metrics: Sequence[str], with_scores: bool) -> Json:
    manifest = one.run.manifest
    long = one.steps > LONG
    by_task, pooled = accuracy(one.table)
    classes = [str(name) for name in manifest.get("classes", [])]
    tasks = [[classes[c] if c < len(classes) else str(c) for c in task] for task in one.run.partition]
    return {
        "name": one.name,
        "stream": one.run.stream,
        "learner": one.learner,
        "steps": one.steps,
        "tasks": tasks,
        "sets": {group: group for group in _groups(one)} if long else one.run.ood,
        "ood": one.run.ood,
        "detectors": one.detectors,
        "accuracy": _triangle(by_task),
        "pooled_accuracy": _rounded(pooled),
        "metrics": _metrics(one, metrics[:2] if long else metrics, long),
        "scores": _scores(one) if with_scores and one.has_outputs else None,
        "settings": {name: value for name, value in manifest.items() if name not in ("tasks", "classes", "format")},
        "config": _config(one),
        "folder": one.run.path.resolve().name,
        "report": {"tood": __version__, "python": platform.python_version(), "numpy": np.__version__},
    }


def _metrics(one: Measured, metrics: Sequence[str], long: bool) -> Json:
    """Triangles by detector, metric and OOD set; of long streams by group."""
    found: Json = {}
    for detector in one.detectors:
        for metric in metrics:
            cube = one.trajectory(detector, metric)
            if long:
                parts = {group: cube.group(group).mean() for group in _groups(one)}
            else:
                parts = {name: one.trajectory(detector, metric, ood_set=name).mean() for name in one.run.ood}
            found.setdefault(detector, {})[metric] = {name: _triangle(values) for name, values in parts.items()}
    return found


def _groups(one: Measured) -> list[str]:
    return list(dict.fromkeys(one.run.ood.values()))


def _scores(one: Measured) -> Json:
    """Histograms of scores, whose edges are also the thresholds that can be chosen."""
    along = score_steps(one.run, _shown(one), one.steps)
    return {detector: histograms(steps) for detector, steps in along.items()}


def _shown(one: Measured) -> list[str]:
    """Energy, TOOD and MSP, then the best of the others."""
    limit = 3 if one.steps > LONG else DISTRIBUTIONS
    first = [name for name in ("energy", "tood_robust_anchor", "tood_mean_shift", "msp") if name in one.detectors]
    others = [name for name in one.detectors if name not in first]
    averages: dict[str, Trajectory] = {name: one.trajectory(name).balanced() for name in others}
    return [*first, *sorted(others, key=lambda name: -averages[name].average())][:limit]


def histograms(along: Sequence[StepScores]) -> Json:
    """Counts of scores between common edges at every step, by task and by OOD set.

    Entry k of a histogram counts the scores that have exactly k edges at or below them, so the samples accepted at a
    threshold ``edges[j]`` are those of the entries after j: read off exactly, whatever the bins.

    Parameters
    ----------
    along:
        The scores of one detector, step by step; long streams are thinned.
    """
    count = len(along)
    steps = spread(count, LONG + 1)
    tasks = list(range(count)) if count <= LONG else spread(count, 5)
    arrays = [values for step in steps for values in (along[step].id, *along[step].ood.values())]
    low = min(float(np.quantile(values, 0.002)) for values in arrays)
    high = max(float(np.quantile(values, 0.998)) for values in arrays)
    if not low < high:
        low, high = low - 0.5, high + 0.5
    edges = np.array([float(f"{edge:.7g}") for edge in np.linspace(low, high, BINS + 1)])

    def counts(values: npt.NDArray[Any]) -> list[int]:
        places = np.searchsorted(edges, values.astype(np.float64), side="right")
        return [int(count) for count in np.bincount(places, minlength=BINS + 2)]

    known: Json = {"all": [counts(along[step].id) for step in steps]}
    for task in tasks:
        own = [along[step].id[along[step].tasks == task] for step in steps]
        known[str(task)] = [counts(values) if len(values) else None for values in own]
    ood = {name: [counts(along[step].ood[name]) for step in steps] for name in along[0].ood}
    return {"edges": edges.tolist(), "steps": steps, "id": known, "ood": ood}


def _config(one: Measured) -> str | None:
    file = one.run.path / "config.yaml"
    return file.read_text(encoding="utf-8") if file.exists() else None


def _triangle(values: npt.NDArray[np.float64]) -> list[float]:
    return _rounded(values[np.tril_indices(len(values))])


def _rounded(values: npt.NDArray[np.float64]) -> list[float]:
    return [round(float(value), DECIMALS) for value in values]
