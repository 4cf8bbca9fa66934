"""The figures that tables show: each run reduced to a few numbers, then mean and deviation over seeds.

Everything is in percent. "Avg" figures are (mean over near sets + mean over far sets) / 2 of the average along the
stream (Eq. avg_auroc); with sets of one group only, that group's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from tood.errors import ToodError, UnknownNameError
from tood.metrics import mean_std
from tood.report.appearance import remember_title
from tood.runs.directory import Run
from tood.runs.identity import RunIdentity
from tood.runs.metrics_file import accuracy, trajectory

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Key", "Summary", "best_keys", "collect", "ranks"]

Fpr: TypeAlias = Literal["ood", "id"]
FPR_METRICS = {"ood": "fpr_at_ood_recall", "id": "fpr_at_id_recall"}
ACCURACY = "avg_cil_acc"
RAW_LOGITS = "raw logits"  # of a learner that corrects its head, before the correction
HIGHER_IS_BETTER = {
    ACCURACY: True,
    "avg_auroc": True,
    "near_auroc": True,
    "far_auroc": True,
    "avg_fpr95": False,
    "old_auroc": True,
    "d_avg": False,
    "near_d_avg": False,
    "far_d_avg": False,
}


class Key(NamedTuple):
    """Where a figure belongs; ``detector`` is ``"-"`` for accuracy."""

    stream: str
    learner: str
    detector: str
    metric: str


class Summary(NamedTuple):
    """Mean and sample deviation over ``seeds`` runs, in percent."""

    mean: float
    std: float
    seeds: int


Summaries: TypeAlias = dict[Key, Summary]


def learner_label(run: Run) -> str:
    """A learner and what sets it apart: ``icarl``, ``icarl+ber``, ``icarl (memory=500)``. Its title is kept."""
    remember_title(run.learner, str(run.manifest.get("learner_title") or ""))
    return run.identity.label


def run_name(run: Run, learner: str) -> str:
    """A name for people, without what the manifest does not say: ``iCaRL on digits, seed 0``, ``my-run``."""
    stream, seed = run.manifest.get("stream"), run.manifest.get("seed")
    return learner + (f" on {stream}" if stream else "") + ("" if seed is None else f", seed {seed}")


def on_its_own(learner: str) -> bool:
    """No variation of another: neither fine-tuned (BER) nor with options."""
    return RunIdentity.from_label(learner).plain


def collect(measured: Iterable[tuple[Run, pa.Table]], fpr: Fpr = "ood") -> Summaries:
    """The summaries of a set of runs; those that differ in their seed alone become one.

    Parameters
    ----------
    measured:
        Runs, each with its figures (:func:`~tood.runs.load_metrics`).
    fpr:
        Which FPR@95 ``avg_fpr95`` is: ``"ood"``, the share of ID flagged when 95 % of OOD is caught (what OpenOOD
        and the paper's tables compute), or ``"id"``, the share of OOD accepted when 95 % of ID is (the paper's text).
    """
    if fpr not in FPR_METRICS:
        raise UnknownNameError("fpr", fpr, FPR_METRICS)
    figures: dict[Key, list[float]] = {}
    seen: dict[tuple[str, str, str], Run] = {}
    measured = list(measured)
    presets = {run.manifest.get("preset") for run, _ in measured}
    for run, table in measured:
        label = learner_label(run) + (f" [{run.manifest.get('preset')}]" if len(presets) > 1 else "")
        identity = (run.stream, label, str(run.manifest.get("seed", run.path)))
        if identity in seen:
            raise ToodError(
                f"{run.path}: same stream, learner and seed as {seen[identity].path}; "
                'give one of them, or distinguish them by "options" in the manifest'
            )
        seen[identity] = run
        for (detector, metric), value in run_figures(table, run.calibration, fpr).items():
            figures.setdefault(Key(run.stream, label, detector, metric), []).append(value)
    if not seen:
        raise ToodError("runs: expected at least one, found none")
    return {key: _summary(values) for key, values in figures.items()}


def run_figures(table: pa.Table, source: str, fpr: Fpr = "ood") -> dict[tuple[str, str], float]:
    """One run's figures, in percent, by detector and metric; ``source`` is that of the calibration set in use."""
    _, pooled = accuracy(table)
    found = {("-", ACCURACY): float(pooled.mean())}
    for detector, calibration, settings in _variants(table):
        name = row_label(detector, settings, "" if calibration == source else calibration)
        pick = {"detector": detector, "calibration": calibration, "settings": settings}
        auroc = trajectory(table, **pick)
        found[name, "avg_auroc"] = auroc.balanced().average()
        found[name, "d_avg"] = auroc.balanced().average_forgetting()
        if len(auroc) > 1:  # what old tasks have left at the last step
            found[name, "old_auroc"] = float(auroc.balanced().mean()[-1, :-1].mean())
        for group in dict.fromkeys(auroc.groups or ()):
            found[name, f"{group}_auroc"] = auroc.group(group).average()
            found[name, f"{group}_d_avg"] = auroc.group(group).average_forgetting()
        found[name, "avg_fpr95"] = trajectory(table, metric=FPR_METRICS[fpr], **pick).balanced().average()
    return {key: 100 * value for key, value in found.items()}


def row_label(detector: str, settings: str, calibration: str) -> str:
    """A detector and what differs from its defaults: ``ash (variant=s)``, ``energy (raw logits)``, ``vim [memory]``."""
    named = json.loads(settings) if settings else {}
    raw = [RAW_LOGITS] if named.pop("logits", None) == "raw" else []
    said = ", ".join([*raw, *(f"{name}={value}" for name, value in named.items())])
    label = f"{detector} ({said})" if said else detector
    return label + (f" [{calibration}]" if calibration else "")


def best_keys(summaries: Mapping[Key, Summary]) -> set[Key]:
    """The entries within one deviation of the best of their stream, learner and metric, as the paper's bold marks.

    The deviation is that of the best entry; of several equally good, the largest.
    """
    columns: dict[tuple[str, str, str], list[Key]] = {}
    for key in summaries:
        if key.detector != "-":
            columns.setdefault((key.stream, key.learner, key.metric), []).append(key)
    chosen: set[Key] = set()
    for (_, _, metric), keys in columns.items():
        sign = 1 if HIGHER_IS_BETTER[metric] else -1
        top = max(sign * summaries[key].mean for key in keys)
        reach = max(summaries[key].std for key in keys if sign * summaries[key].mean == top)
        # The paper's figures have one decimal: 72.9 is within 0.3 of 73.2, whatever binary fractions make of it.
        chosen |= {key for key in keys if sign * summaries[key].mean >= top - reach - 1e-9}
    return chosen


def ranks(summaries: Mapping[Key, Summary], metric: str = "avg_auroc") -> dict[str, list[int]]:
    """The rank of each detector in every (stream, learner), 1 for the best; ties share the better rank."""
    columns: dict[tuple[str, str], list[Key]] = {}
    for key in summaries:
        if key.metric == metric and key.detector != "-":
            columns.setdefault((key.stream, key.learner), []).append(key)
    sign = 1 if HIGHER_IS_BETTER[metric] else -1
    found: dict[str, list[int]] = {}
    for keys in columns.values():
        values = {key: sign * summaries[key].mean for key in keys}
        for key, value in values.items():
            found.setdefault(key.detector, []).append(1 + sum(other > value for other in values.values()))
    return found


def _variants(table: pa.Table) -> Sequence[tuple[str, str, str]]:
    """Every (detector, calibration, settings) that has figures."""
    rows = table.group_by(["detector", "calibration", "settings"]).aggregate([]).to_pylist()
    return sorted((row["detector"], row["calibration"], row["settings"]) for row in rows if row["detector"])


def _summary(values: list[float]) -> Summary:
    mean, std = mean_std(values)
    return Summary(float(np.asarray(mean)), float(np.asarray(std)), len(values))
