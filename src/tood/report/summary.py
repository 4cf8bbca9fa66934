"""Summary values of runs for tables: a few numbers per run, then mean and standard deviation over seeds.

All values are in percent. "Avg" values are (mean over near sets + mean over far sets) / 2 of the average along the
stream (Eq. avg_auroc); if there are only near or only far sets, their mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from tood.errors import ToodError, UnknownNameError
from tood.metrics import mean_std
from tood.report.appearance import remember_title
from tood.runs.directory import Run
from tood.runs.identity import RunIdentity
from tood.runs.metrics_file import accuracy, trajectory

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Key", "Summary", "best_keys", "check_distinct", "collect", "labels_of", "ranks"]

Fpr: TypeAlias = Literal["ood", "id"]
FPR_METRICS = {"ood": "fpr_at_ood_recall", "id": "fpr_at_id_recall"}
ACCURACY = "avg_cil_acc"
RAW_LOGITS = "raw logits"  # before the correction, for a learner that corrects its head
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
    """Key of a summary value; ``detector`` is ``"-"`` for accuracy."""

    stream: str
    learner: str
    detector: str
    metric: str

    def published(self) -> Key:
        """The key of the paper's value: its labels have no preset."""
        return self._replace(learner=RunIdentity.from_label(self.learner).label)


class Summary(NamedTuple):
    """Mean and sample standard deviation over ``seeds`` runs, in percent."""

    mean: float
    std: float
    seeds: int


Summaries: TypeAlias = dict[Key, Summary]


def learner_label(run: Run) -> str:
    """Learner and options of a run: ``icarl``, ``icarl+ber``, ``icarl (memory=500)``. Remembers the learner's title."""
    remember_title(run.learner, str(run.manifest.get("learner_title") or ""))
    return run.identity.label


def labels_of(runs: Sequence[Run]) -> list[str]:
    """The label of each run, with its preset if the runs have several: ``icarl [cpu]``."""
    several = len({run.manifest.get("preset") for run in runs}) > 1
    return [learner_label(run) + f" [{run.manifest.get('preset')}]" * several for run in runs]


def check_distinct(runs: Sequence[Run]) -> None:
    """Raise if two runs have the same stream, label and seed."""
    seen: dict[tuple[str, str, str], Run] = {}
    for run, label in zip(runs, labels_of(runs), strict=True):
        other = seen.setdefault((run.stream, label, str(run.manifest.get("seed", run.path))), run)
        if other is not run:
            raise ToodError(
                f"{run.path}: same stream, learner and seed as {other.path}; "
                'give one of them, or distinguish them by "options" in the manifest'
            )


def run_name(run: Run, learner: str) -> str:
    """Name of a run in titles: ``iCaRL on digits, seed 0``; without what the manifest lacks, ``my-run``."""
    stream, seed = run.manifest.get("stream"), run.manifest.get("seed")
    return learner + (f" on {stream}" if stream else "") + ("" if seed is None else f", seed {seed}")


def on_its_own(learner: str) -> bool:
    """True if the label names a learner without BER and without options."""
    return RunIdentity.from_label(learner).plain


def collect(measured: Iterable[tuple[Run, pa.Table]], fpr: Fpr = "ood") -> Summaries:
    """Summaries of a set of runs; runs that differ only in their seed are averaged.

    Parameters
    ----------
    measured:
        Runs, each with its table of metrics (:func:`~tood.runs.load_metrics`).
    fpr:
        The meaning of ``avg_fpr95``: ``"ood"``, the share of ID rejected when 95 % of OOD is rejected (OpenOOD and the
        paper's tables), or ``"id"``, the share of OOD accepted when 95 % of ID is accepted (the paper's text).
    """
    if fpr not in FPR_METRICS:
        raise UnknownNameError("fpr", fpr, FPR_METRICS)
    figures: dict[Key, list[float]] = {}
    steps: dict[tuple[str, str], tuple[int, Run]] = {}
    measured = list(measured)
    if not measured:
        raise ToodError("runs: expected at least one, found none")
    runs = [run for run, _ in measured]
    check_distinct(runs)
    for (run, table), label in zip(measured, labels_of(runs), strict=True):
        own = len(table["step"].unique())
        number, other = steps.setdefault((run.stream, label), (own, run))
        if own != number:
            raise ToodError(
                f"{run.path}: has figures of {own} steps, {other.path} of {number}; seeds are averaged over the same "
                "steps: finish the shorter one, or leave it out"
            )
        for (detector, metric), value in run_figures(table, run.calibration, fpr).items():
            figures.setdefault(Key(run.stream, label, detector, metric), []).append(value)
    means = {key: mean_std(values) for key, values in figures.items()}
    return {key: Summary(float(mean), float(std), len(figures[key])) for key, (mean, std) in means.items()}


def run_figures(table: pa.Table, source: str, fpr: Fpr = "ood") -> dict[tuple[str, str], float]:
    """Summary values of one run, in percent, by detector and metric; ``source``: the calibration set in use."""
    _, pooled = accuracy(table)
    figures = {("-", ACCURACY): float(pooled.mean())}
    variants = table.group_by(["detector", "calibration", "settings"]).aggregate([]).to_pylist()
    scored = (tuple(variant.values()) for variant in variants if variant["detector"])
    for detector, calibration, settings in sorted(scored):
        name = row_label(detector, settings, "" if calibration == source else calibration)
        pick = {"detector": detector, "calibration": calibration, "settings": settings}
        auroc = trajectory(table, **pick)
        figures[name, "avg_auroc"] = auroc.balanced().average()
        figures[name, "d_avg"] = auroc.balanced().average_forgetting()
        if len(auroc) > 1:
            figures[name, "old_auroc"] = float(auroc.balanced().mean()[-1, :-1].mean())
        for group in dict.fromkeys(auroc.groups or ()):
            figures[name, f"{group}_auroc"] = auroc.group(group).average()
            figures[name, f"{group}_d_avg"] = auroc.group(group).average_forgetting()
        figures[name, "avg_fpr95"] = trajectory(table, metric=FPR_METRICS[fpr], **pick).balanced().average()
    return {key: 100 * value for key, value in figures.items()}


def row_label(detector: str, settings: str, calibration: str) -> str:
    """Detector and settings that are not defaults: ``ash (variant=s)``, ``energy (raw logits)``, ``vim [memory]``."""
    values = json.loads(settings) if settings else {}
    words = [RAW_LOGITS] if values.pop("logits", None) == "raw" else []
    words += [f"{name}={value}" for name, value in values.items()]
    label = f"{detector} ({', '.join(words)})" if words else detector
    return label + (f" [{calibration}]" if calibration else "")


def best_keys(summaries: Mapping[Key, Summary]) -> set[Key]:
    """Entries within one deviation of the best for their stream, learner and metric: the paper's bold entries.

    The deviation is the best entry's; if several are equally good, the largest of theirs.
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
        # The tolerance makes 72.9 count as within 0.3 of 73.2 in spite of binary rounding.
        chosen |= {key for key in keys if sign * summaries[key].mean >= top - reach - 1e-9}
    return chosen


def ranks(summaries: Mapping[Key, Summary]) -> dict[str, list[int]]:
    """Ranks of each detector by Avg AUROC, one per (stream, learner), 1 for the best; ties share the better rank."""
    columns: dict[tuple[str, str], dict[str, float]] = {}
    for key, summary in summaries.items():
        if key.metric == "avg_auroc":
            columns.setdefault((key.stream, key.learner), {})[key.detector] = summary.mean
    by_detector: dict[str, list[int]] = {}
    for means in columns.values():
        for detector, mean in means.items():
            by_detector.setdefault(detector, []).append(1 + sum(other > mean for other in means.values()))
    return by_detector
