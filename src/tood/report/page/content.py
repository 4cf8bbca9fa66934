"""Data of the page, as plain values for JSON.

Shares are in [0, 1] and rounded to five decimals; the main table is in percent and not rounded. A triangle is the list
of the entries ``[t, i]``, i ≤ t, of a ``[T, T]`` array, row by row.
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
from tood.report.appearance import spread
from tood.report.gather import Measured, StepScores, kept_steps
from tood.report.summary import ACCURACY, Key, Summary, best_keys, collect
from tood.report.tables import MISMATCH_NOTE
from tood.runs.metrics_file import accuracy

__all__ = ["content"]

Json: TypeAlias = dict[str, Any]

# Limits that keep the page small.
LONG = 20  # tasks; of longer streams, some steps and detectors are shown
MANY = 4  # runs; with more, only the metrics of the tables
SWEEP = 20  # runs; with more, only AUROC
METRICS = ("auroc", "fpr_at_ood_recall", "fpr_at_id_recall", "aupr_in", "aupr_out")
TABLE = ("avg_auroc", "near_auroc", "far_auroc", "d_avg", "avg_fpr95")
BINS = 100
DISTRIBUTIONS = 6  # detectors per run with score distributions
DECIMALS = 5
BASELINES = ("finetune", "naive", "joint")  # learners without a method or without a stream, shown last
LONG_DETECTORS = 8  # detectors with trajectories on long streams
PREFERRED = ("energy", "tood_shrinkage", "tood_robust_anchor", "tood_mean_shift", "msp")  # shown before others
TERMS = {
    "OOD": "Out-of-distribution: inputs of classes the network has not learned. It should reject them.",
    "ID": "In-distribution: inputs of the classes the network has learned so far. It should accept them.",
    "near-OOD": "Unknown inputs that resemble what was learned, such as other animals.",
    "far-OOD": "Unknown inputs that look different, such as street numbers or noise.",
    "AUROC": "The chance that a known input scores higher than an unknown one: 100 is perfect, 50 is a coin toss.",
    "energy": "The usual score: how strongly the network responds over all its classes (log-sum-exp of the logits).",
    "step": "The moment after one more task has been learned.",
    "task": "Classes that are learned together; tasks come one after another.",
    "D_avg": "AUROC that tasks have lost: AUROC when a task was learned minus AUROC at the end, mean over tasks.",
    "FPR@95": "How many known inputs are rejected when 95 % of the unknown ones are caught.",
    "score": "A number per input; inputs that score below a threshold are rejected.",
}
NOT_AUDITED = "This run has not been audited since its metrics were computed: `tood audit` writes the verdict."


def chosen_runs(measured: Sequence[Measured]) -> list[Measured]:
    """The first run of each learner on each stream; these have a card and score distributions."""
    first = {(one.run.stream, one.learner): one for one in reversed(measured)}
    return [one for one in measured if first[one.run.stream, one.learner] is one]


def content(
    measured: Sequence[Measured], reference: Mapping[Key, Summary], verdicts: Mapping[Path, Json | None]
) -> Json:
    """Everything the page shows, with runs in the order given and published values next to ours."""
    chosen = chosen_runs(measured)
    metrics = METRICS[: 1 if len(measured) > SWEEP else 3 if len(measured) > MANY else None]
    judged = [_verdict(one, verdicts.get(one.run.path) or read_verdict(one.run)) for one in chosen]
    limit = DISTRIBUTIONS if len(chosen) <= MANY else 2
    summaries = collect([(one.run, one.table) for one in measured])
    return {
        "version": __version__,
        "verdicts": judged,
        "start": _start(judged),
        "terms": TERMS,
        "accuracy": _rows(summaries, (ACCURACY,), reference),
        "table": _rows(summaries, TABLE, reference),
        "paper_note": MISMATCH_NOTE,
        "runs": [_run(one, metrics, limit if one in chosen else 0) for one in measured],
    }


def _verdict(one: Measured, verdict: Json | None) -> Json:
    shown = {"run": one.name, "baseline": one.run.learner in BASELINES}
    if verdict is None:
        empty = {"card": None, "sentences": [NOT_AUDITED], "findings": [], "use": None, "telling": 0.0}
        return {**shown, "cause": "not known", **empty}
    losses = [judgement["loss"]["value"] for judgement in verdict["judgements"]]
    gain = verdict["advice"]["gain"]
    return {
        **shown,
        **{name: verdict[name] for name in ("cause", "card", "sentences")},
        "findings": [finding["text"] for finding in verdict["findings"]],
        "use": verdict["advice"]["best"],
        # Largest for the most instructive run: much was lost, and a score restores it.
        "telling": max([0.0, *losses]) + 2 * (gain["value"] if gain else 0.0),
    }


def _start(verdicts: Sequence[Json]) -> str:
    """The run that the page shows first: the most instructive one."""
    own = [verdict for verdict in verdicts if not verdict["baseline"]] or verdicts
    return str(max(own, key=lambda verdict: verdict["telling"])["run"])


def _rows(summaries: Mapping[Key, Summary], metrics: Sequence[str], reference: Mapping[Key, Summary]) -> list[Json]:
    """One row per stream, learner and detector, with the published value if there is one."""
    best = best_keys(summaries)
    rows: dict[tuple[str, str, str], Json] = {}
    for key, value in summaries.items():
        if key.metric in metrics:
            row = rows.setdefault(
                key[:3], {"stream": key.stream, "learner": key.learner, "detector": key.detector, "values": {}}
            )
            paper = reference.get(key.published())
            row["values"][key.metric] = {
                **value._asdict(),
                "best": key in best,
                "paper": paper.mean if paper else None,
            }
    return list(rows.values())


def _run(one: Measured, metrics: Sequence[str], distributions: int) -> Json:
    manifest = one.run.manifest
    long = one.steps > LONG
    by_task, pooled = accuracy(one.table)
    classes = [str(name) for name in manifest.get("classes", [])]
    tasks = [[classes[c] if c < len(classes) else str(c) for c in task] for task in one.run.partition]
    config = one.run.path / "config.yaml"
    return {
        "name": one.name,
        "stream": one.run.stream,
        "learner": one.learner,
        "steps": one.steps,
        "tasks": tasks,
        "sets": {group: group for group in _groups(one)} if long else one.run.ood,
        "ood": one.run.ood,
        "detectors": _kept(one),
        "accuracy": _triangle(by_task),
        "pooled_accuracy": _rounded(pooled),
        "metrics": _metrics(one, metrics[:2] if long else metrics, long),
        "scores": _scores(one, distributions) if distributions and one.has_outputs else None,
        "settings": {name: value for name, value in manifest.items() if name not in ("tasks", "classes", "format")},
        "config": config.read_text(encoding="utf-8") if config.exists() else None,
        "folder": one.run.path.resolve().name,
        "report": {"tood": __version__, "python": platform.python_version(), "numpy": np.__version__},
    }


def _metrics(one: Measured, metrics: Sequence[str], long: bool) -> Json:
    """Triangles by detector, metric and OOD set; on long streams by group of sets."""
    measured = set(one.table["metric"].unique().to_pylist())  # collected runs keep only some
    metrics = [metric for metric in metrics if metric in measured]
    triangles: Json = {}
    for detector in _kept(one):
        for metric in metrics:
            if long:
                cube = one.trajectory(detector, metric)
                matrices = {group: cube.group(group).mean() for group in _groups(one)}
            else:
                matrices = {name: one.trajectory(detector, metric, ood_set=name).mean() for name in one.run.ood}
            triangles.setdefault(detector, {})[metric] = {name: _triangle(values) for name, values in matrices.items()}
    return triangles


def _groups(one: Measured) -> list[str]:
    return list(dict.fromkeys(one.run.ood.values()))


def _kept(one: Measured) -> list[str]:
    """The detectors with trajectories, on long streams the best ones; then those on raw logits."""
    return [*(_shown(one, LONG_DETECTORS) if one.steps > LONG else one.detectors), *one.raw]


def _scores(one: Measured, limit: int) -> Json | None:
    """Histograms of stored scores, None if there are none; the page computes no scores."""
    steps = spread(one.steps, LONG + 1)
    kept = kept_steps(one.run, _shown(one, 3 if one.steps > LONG else limit), steps)
    return {detector: histograms(along, steps) for detector, along in kept.items()} or None


def _shown(one: Measured, limit: int) -> list[str]:
    """At most ``limit`` detectors: energy, then the best others. All, in the preferred order, if they are no more."""
    order = sorted(one.detectors, key=lambda name: PREFERRED.index(name) if name in PREFERRED else len(PREFERRED))
    if limit >= len(order):
        return order
    averages = {name: one.trajectory(name).balanced().average() for name in order[1:]}
    return [order[0], *sorted(averages, key=lambda name: -averages[name])[: max(1, limit - 1)]]


def histograms(along: Sequence[StepScores], steps: Sequence[int] | None = None) -> Json:
    """Histograms of scores per step, by task and by OOD set.

    Scores drift along a stream, so each step s has bins of its own: ``bins + 1`` edges, ``low + (high - low) * j /
    bins``, with ``low`` and ``high`` from ``ranges[s]``. Entry k counts the scores with exactly k edges at or below
    them. A threshold at edge j accepts exactly the samples counted after entry j.

    Parameters
    ----------
    along:
        Scores of one detector, one entry per step.
    steps:
        The steps of the entries. By default 0, 1, …; of a long stream only some are then kept.
    """
    if steps is None:
        steps = spread(len(along), LONG + 1)
        along = [along[step] for step in steps]
    count = steps[-1] + 1
    tasks = list(range(count)) if count <= LONG else spread(count, 5)
    ranges = []
    for scored in along:
        values = [scored.id, *scored.ood.values()]
        low = min(float(np.quantile(scores, 0.002)) for scores in values)
        high = max(float(np.quantile(scores, 0.998)) for scores in values)
        ends = (low, high) if low < high else (low - 0.5, high + 0.5)
        ranges.append([float(f"{end:.7g}") for end in ends])
    edges = [low + (high - low) * np.arange(BINS + 1) / BINS for low, high in ranges]

    def counts(values: npt.NDArray[Any], place: int) -> list[int]:
        bins = np.searchsorted(edges[place], values.astype(np.float64), side="right")
        return [int(count) for count in np.bincount(bins, minlength=BINS + 2)]

    known: Json = {"all": [counts(scored.id, place) for place, scored in enumerate(along)]}
    for task in tasks:
        own = [scored.id[scored.tasks == task] for scored in along]
        known[str(task)] = [counts(values, place) if len(values) else None for place, values in enumerate(own)]
    names = along[0].ood
    ood = {name: [counts(scored.ood[name], place) for place, scored in enumerate(along)] for name in names}
    return {"ranges": ranges, "bins": BINS, "steps": list(steps), "id": known, "ood": ood}


def _triangle(values: npt.NDArray[np.float64]) -> list[float]:
    return _rounded(values[np.tril_indices(len(values))])


def _rounded(values: npt.NDArray[np.float64]) -> list[float]:
    return [round(float(value), DECIMALS) for value in values]
