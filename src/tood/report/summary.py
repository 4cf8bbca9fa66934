"""Summary values of runs for tables: a few numbers per run, then mean and standard deviation over seeds.

All values are in percent. "Avg" values are (mean over near sets + mean over far sets) / 2 of the average along the
stream (Eq. avg_auroc); if there are only near or only far sets, their mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tood.errors import ToodError
from tood.evaluation.metrics_file import accuracy, trajectory
from tood.metrics import mean_std
from tood.outputs.directory import Run
from tood.outputs.identity import RunIdentity
from tood.report.appearance import remember_title

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Key", "Summary", "best_keys", "check_distinct", "collect", "compared", "labels_of", "ranks"]

ACCURACY = "avg_cil_acc"
RAW_LOGITS = "raw logits"  # before the correction, for a learner that corrects its head
RAW_SUFFIX = f" ({RAW_LOGITS})"
LOWER_IS_BETTER = {"avg_fpr95", "d_avg", "near_d_avg", "far_d_avg"}


class Key(NamedTuple):
    """Key of a summary value; ``detector`` is ``"-"`` for accuracy."""

    stream: str
    learner: str
    detector: str
    metric: str

    @property
    def raw(self) -> bool:
        """True for scores of raw logits, before a learner's correction (BiC)."""
        return self.detector.endswith(RAW_SUFFIX)

    def published(self) -> Key:
        """The key of the paper's value: without the preset; its authors scored BiC's raw logits."""
        detector = self.detector.removesuffix(RAW_SUFFIX)
        return self._replace(learner=RunIdentity.from_label(self.learner).label, detector=detector)


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


def collect(measured: Iterable[tuple[Run, pa.Table]], track: str = "") -> Summaries:
    """Summaries of a set of runs; runs that differ only in their seed are averaged.

    Parameters
    ----------
    measured:
        Runs, each with its table of metrics (:func:`~tood.runs.load_metrics`).
    track:
        The track to show; by default each run's first one.
    """
    values: dict[Key, list[float]] = {}
    steps: dict[tuple[str, str], tuple[int, Run]] = {}
    measured = list(measured)
    runs = [run for run, _ in measured]
    if not runs:
        raise ToodError("runs: expected at least one, found none")
    check_distinct(runs)
    for (run, table), label in zip(measured, labels_of(runs), strict=True):
        own = len(table["step"].unique())
        number, other = steps.setdefault((run.stream, label), (own, run))
        if own != number:
            raise ToodError(
                f"{run.path}: has metrics of {own} steps, {other.path} of {number}; seeds are averaged over the same "
                "steps: finish the shorter one, or leave it out"
            )
        for (detector, metric), value in run_figures(table, track or run.calibration).items():
            values.setdefault(Key(run.stream, label, detector, metric), []).append(value)
    means = {key: mean_std(seeds) for key, seeds in values.items()}
    return {key: Summary(float(mean), float(std), len(values[key])) for key, (mean, std) in means.items()}


def compared(summaries: Mapping[Key, Summary], reference: Mapping[Key, Summary]) -> Summaries:
    """The published value to show beside each of ours; of a learner that corrects its head, beside raw logits."""
    raw = {key.published() for key in summaries if key.raw}
    pairs = {key: key.published() for key in summaries if key.raw or key.published() not in raw}
    return {key: reference[published] for key, published in pairs.items() if published in reference}


def run_figures(table: pa.Table, track: str) -> dict[tuple[str, str], float]:
    """Summary values of one run in one track, in percent, by detector and metric."""
    _, pooled = accuracy(table)
    values = {("-", ACCURACY): float(pooled.mean())}
    variants = table.group_by(["detector", "calibration", "settings"]).aggregate([]).to_pylist()
    scored = [(v["detector"], v["settings"]) for v in variants if v["detector"] and v["calibration"] == track]
    if not scored and variants[1:]:
        found = ", ".join(sorted({v["calibration"] for v in variants if v["detector"]}))
        raise ToodError(f"track: expected one that was measured ({found}), found {track!r}")
    for detector, settings in sorted(scored):
        name = row_label(detector, settings)
        pick = {"detector": detector, "calibration": track, "settings": settings}
        cube = trajectory(table, **pick)
        auroc = cube.balanced()
        values[name, "avg_auroc"], values[name, "d_avg"] = auroc.average(), auroc.average_forgetting()
        if len(auroc) > 1:
            values[name, "old_auroc"] = float(auroc.mean()[-1, :-1].mean())
        for group in dict.fromkeys(cube.groups or ()):
            values[name, f"{group}_auroc"] = cube.group(group).average()
            values[name, f"{group}_d_avg"] = cube.group(group).average_forgetting()
        values[name, "avg_fpr95"] = trajectory(table, metric="fpr_at_ood_recall", **pick).balanced().average()
    return {key: 100 * value for key, value in values.items()}


def row_label(detector: str, settings: str) -> str:
    """Detector and settings that are not defaults: ``ash (variant=s)``, ``energy (raw logits)``."""
    values = json.loads(settings) if settings else {}
    words = [RAW_LOGITS] if values.pop("logits", None) == "raw" else []
    words += ["backbone features"] if values.pop("features", None) == "backbone" else []
    words += [f"{name}={value}" for name, value in values.items()]
    return f"{detector} ({', '.join(words)})" if words else detector


def best_keys(summaries: Mapping[Key, Summary]) -> set[Key]:
    """Entries within one deviation of the best for their stream, learner and metric: the paper's bold entries.

    The deviation is the best entry's; if several are equally good, the largest of theirs.
    """
    columns: dict[tuple[str, str, str], dict[Key, Summary]] = {}
    for key, summary in summaries.items():
        if key.detector != "-":
            columns.setdefault((key.stream, key.learner, key.metric), {})[key] = summary
    best: set[Key] = set()
    for (_, _, metric), column in columns.items():
        sign = -1 if metric in LOWER_IS_BETTER else 1
        top, reach = max((sign * summary.mean, summary.std) for summary in column.values())
        # The tolerance makes 72.9 count as within 0.3 of 73.2 in spite of binary rounding.
        best |= {key for key, summary in column.items() if sign * summary.mean >= top - reach - 1e-9}
    return best


def ranks(summaries: Mapping[Key, Summary]) -> dict[str, list[int]]:
    """The ranks of each detector by Avg AUROC, one per (stream, learner); 1 is the best, ties share the better rank."""
    pairs: dict[tuple[str, str], dict[str, float]] = {}
    for key, summary in summaries.items():
        if key.metric == "avg_auroc":
            pairs.setdefault((key.stream, key.learner), {})[key.detector] = summary.mean
    by_detector: dict[str, list[int]] = {}
    for means in pairs.values():
        for name, mean in means.items():
            by_detector.setdefault(name, []).append(1 + sum(other > mean for other in means.values()))
    return by_detector
