"""Data of the page, as plain values for JSON.

Shares are in [0, 1] and rounded to five decimals; the main table is in percent and not rounded. A triangle is the list
of the entries ``[t, i]``, i ≤ t, of a ``[T, T]`` array, row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tood import __version__
from tood.audit import read_verdict
from tood.evaluation.metrics_file import accuracy
from tood.report.appearance import spread
from tood.report.gather import MeasuredRun, StepScores, scores_at
from tood.report.summary import ACCURACY, Key, Summary, best_keys, collect, compared
from tood.report.tables import MISMATCH_NOTE

__all__ = ["content"]

Json: TypeAlias = dict[str, Any]

# Limits that keep the page small.
LONG = 20  # tasks; of longer streams, some steps and detectors are shown
MANY = 4  # runs; of more, only some detectors and no AUPR
METRICS = ("auroc", "fpr_at_ood_recall", "fpr_at_id_recall", "aupr_in", "aupr_out")
TABLE = ("avg_auroc", "near_auroc", "far_auroc", "d_avg", "avg_fpr95")
BINS = 100
DECIMALS = 5
BASELINES = ("finetune", "naive", "joint")  # learners without a method or without a stream, shown last
SOME, MOST = 8, 100  # detectors with trajectories, on large pages and on others
FEW = 3  # detectors with score distributions
NOT_AUDITED = "This run has not been audited since its metrics were computed: `tood audit` writes the verdict."


def chosen_runs(measured: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """The first run of each learner on each stream; these have a card and score distributions."""
    first = {(one.run.stream, one.learner): one for one in reversed(measured)}
    return [one for one in measured if first[one.run.stream, one.learner] is one]


def content(
    measured: Sequence[MeasuredRun], reference: Mapping[Key, Summary], verdicts: Mapping[Path, Json | None]
) -> Json:
    """Everything the page shows, with runs in the order given and published values next to ours."""
    chosen = chosen_runs(measured)
    large = len(measured) > MANY or max(one.steps for one in measured) > LONG
    judged = [_verdict(one, verdicts.get(one.run.path) or read_verdict(one.run)) for one in chosen]
    summaries = collect([(one.run, one.table) for one in measured], track=measured[0].track)
    return {
        "version": __version__,
        "verdicts": judged,
        "start": max(judged, key=lambda verdict: (not verdict["baseline"], verdict["telling"]))["run"],
        "accuracy": _rows(summaries, (ACCURACY,), reference),
        "table": _rows(summaries, TABLE, reference),
        "track": measured[0].track,
        "paper_note": MISMATCH_NOTE,
        "runs": [_run(one, large, judged[chosen.index(one)] if one in chosen else None) for one in measured],
    }


def _verdict(one: MeasuredRun, verdict: Json | None) -> Json:
    shown = {"run": one.name, "baseline": one.run.learner in BASELINES}
    if verdict is None:
        words = {"cause": "not known", "card": None, "sentences": [NOT_AUDITED], "findings": []}
        return {**shown, **words, "use": None, "telling": 0.0}
    losses = [judgement["loss"]["value"] for judgement in verdict["judgements"]]
    chosen = [one for one in (verdict["advice"]["logits"], verdict["advice"]["features"]) if one]
    gains = [one["gains"]["all"]["value"] for one in chosen if one["name"] == verdict["advice"]["best"]]
    return {
        **shown,
        **{name: verdict[name] for name in ("cause", "card", "sentences")},
        "findings": [finding["text"] for finding in verdict["findings"]],
        "use": verdict["advice"]["best"],
        # Largest for the most instructive run: much was lost, and a score restores it.
        "telling": max([0.0, *losses]) + 2 * sum(gains),
    }


def _rows(summaries: Mapping[Key, Summary], metrics: Sequence[str], reference: Mapping[Key, Summary]) -> list[Json]:
    """One row per stream, learner and detector, with the published value if there is one."""
    best, published = best_keys(summaries), compared(summaries, reference)
    rows: dict[tuple[str, ...], Json] = {}
    for key, value in summaries.items():
        if key.metric in metrics:
            place = {"stream": key.stream, "learner": key.learner, "detector": key.detector}
            row = rows.setdefault(tuple(place.values()), {**place, "values": {}})
            paper = published[key].mean if key in published else None
            row["values"][key.metric] = {**value._asdict(), "best": key in best, "paper": paper}
    return list(rows.values())


def _run(one: MeasuredRun, large: bool, verdict: Json | None) -> Json:
    manifest = one.run.manifest
    long = one.steps > LONG
    by_task, pooled = accuracy(one.table)
    classes = [str(name) for name in manifest.get("classes", [])]
    tasks = [[classes[c] if c < len(classes) else str(c) for c in task] for task in one.run.partition]
    config = one.run.path / "config.yaml"
    use = verdict["use"] if verdict else None
    kept = [*_shown(one, use, SOME if large else MOST), *one.raw]
    return {
        "name": one.name,
        "stream": one.run.stream,
        "learner": one.learner,
        "steps": one.steps,
        "tasks": tasks,
        "sets": {group: group for group in _groups(one)} if long else one.run.ood,
        "ood": one.run.ood,
        "detectors": kept,
        "accuracy": _triangle(by_task),
        "pooled_accuracy": _rounded(pooled),
        "metrics": _metrics(one, kept, METRICS[:2] if large else METRICS, long),
        "scores": _scores(one, use) if verdict and one.has_outputs else None,
        "settings": {name: value for name, value in manifest.items() if name not in ("tasks", "classes", "format")},
        "config": config.read_text(encoding="utf-8") if config.exists() else None,
        "folder": one.run.path.resolve().name,
    }


def _metrics(one: MeasuredRun, names: Sequence[str], metrics: Sequence[str], long: bool) -> Json:
    """Triangles by detector, metric and OOD set; on long streams by group of sets."""
    measured = set(one.table["metric"].unique().to_pylist())  # collected runs keep only some
    which = [("group", group) for group in _groups(one)] if long else [("ood_set", name) for name in one.run.ood]
    return {
        detector: {
            metric: {name: _triangle(one.trajectory(detector, metric, **{kind: name}).mean()) for kind, name in which}
            for metric in metrics
            if metric in measured
        }
        for detector in names
    }


def _groups(one: MeasuredRun) -> list[str]:
    return list(dict.fromkeys(one.run.ood.values()))


def _scores(one: MeasuredRun, use: str | None) -> Json | None:
    """Histograms of stored scores, None if there are none; the page computes no scores."""
    steps = spread(one.steps, LONG + 1)
    kept = scores_at(one.run, _shown(one, use, FEW), steps, one.track)
    return {detector: histograms(along, steps) for detector, along in kept.items()} or None


def _shown(one: MeasuredRun, use: str | None, limit: int) -> list[str]:
    """At most ``limit`` detectors: energy, TOOD, the recommended one, then the best others."""
    names = [*one.detectors, *([use] if use and one.has(use) and use not in one.detectors else [])]
    first = [name for name in dict.fromkeys(("energy", one.tood, use)) if name in names]
    averages = {name: one.trajectory(name).balanced().average() for name in names if name not in first}
    return [*first, *sorted(averages, key=lambda name: -averages[name])][:limit]


def histograms(along: Sequence[StepScores], steps: Sequence[int]) -> Json:
    """Histograms of scores per step, by task and by OOD set.

    Scores drift along a stream, so each step s has bins of its own: ``bins + 1`` edges, ``low + (high - low) * j /
    bins``, with ``low`` and ``high`` from ``ranges[s]``. Entry k counts the scores with exactly k edges at or below
    them. A threshold at edge j accepts exactly the samples counted after entry j.

    Parameters
    ----------
    along, steps:
        Scores of one detector at some steps, and these steps; the last of the stream is among them.
    """
    count = steps[-1] + 1
    tasks = range(count) if count <= LONG else spread(count, 5)
    known: Json = {name: [] for name in ("all", *map(str, tasks))}
    ood: Json = {name: [] for name in along[0].ood}
    ranges = []
    for scored in along:
        ends = [np.quantile(scores, (0.002, 0.998)) for scores in (scored.id, *scored.ood.values())]
        low, high = float(min(end[0] for end in ends)), float(max(end[1] for end in ends))
        low, high = (float(f"{end:.7g}") for end in ((low, high) if low < high else (low - 0.5, high + 0.5)))
        ranges.append([low, high])
        edges = low + (high - low) * np.arange(BINS + 1) / BINS
        known["all"].append(_counts(scored.id, edges))
        for task in tasks:
            own = scored.id[scored.tasks == task]
            known[str(task)].append(_counts(own, edges) if len(own) else None)
        for name, scores in scored.ood.items():
            ood[name].append(_counts(scores, edges))
    return {"ranges": ranges, "bins": BINS, "steps": list(steps), "id": known, "ood": ood}


def _counts(values: npt.NDArray[Any], edges: npt.NDArray[np.float64]) -> list[int]:
    places = np.searchsorted(edges, values.astype(np.float64), side="right")
    counts: list[int] = np.bincount(places, minlength=BINS + 2).tolist()
    return counts


def _triangle(values: npt.NDArray[np.float64]) -> list[float]:
    return _rounded(values[np.tril_indices(len(values))])


def _rounded(values: npt.NDArray[np.float64]) -> list[float]:
    return [round(float(value), DECIMALS) for value in values]
