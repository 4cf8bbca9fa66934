"""Tables like the paper's, for any set of runs; :mod:`tood.report.render` formats them.

Detectors × learners: Avg AUROC and FPR@95 (Tables 1 and 2), near and far, forgetting; ranks; the ten best scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tood import detectors
from tood.audit.advice import DEFAULT
from tood.outputs.directory import Run
from tood.outputs.identity import RunIdentity
from tood.report.appearance import label as title_of
from tood.report.summary import (
    ACCURACY,
    Key,
    Summary,
    best_keys,
    collect,
    compared,
    on_its_own,
    ranks,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Column", "Table", "TableCell", "best_tables", "build", "tables_of"]

BEST = 10  # scores in the short table
SETTINGS = 3  # ranks over fewer mean little
LEARNERS = ("icarl", "bic", "der", "wa", "lwf")  # the paper's order; others follow alphabetically
TOOD_VARIANTS = ("tood_mean_shift", "tood_robust_anchor")
ACCURACY_ROW = "accuracy ↑"
HEADINGS = {
    "avg_auroc": "AUROC ↑",
    "avg_fpr95": "FPR@95 ↓",
    "near_auroc": "near ↑",
    "far_auroc": "far ↑",
    "d_avg": "D_avg ↓",
    "near_d_avg": "near D_avg ↓",
    "far_d_avg": "far D_avg ↓",
}
FORGETTING = ("d_avg", "near_d_avg", "far_d_avg")
FPR_NOTE = (
    "FPR@95: the share of ID flagged when 95 % of OOD is caught (`fpr_at_ood_recall`, as OpenOOD and the paper's "
    "tables), each task with its own threshold."
)
AVERAGE_NOTE = "Avg: (mean over near-OOD sets + mean over far-OOD sets) / 2 of the average over steps and tasks seen."
BEST_NOTE = "Bold: the best of its column."
BOLD_NOTE = "Bold: within one standard deviation of the best of its column; ± is the deviation over seeds."
ACCURACY_NOTE = "accuracy: average incremental accuracy, the mean over steps of the accuracy on all test data seen."
FORGETTING_NOTE = "D_avg: AUROC of a task at its own step minus that at the last, mean over tasks; positive is a loss."
PAPER_NOTE = (
    "In brackets: the paper's value, and ours minus it. With BiC it stands beside raw logits, as its authors scored."
)
MISMATCH_NOTE = (
    "Some rows of the paper cannot be matched by a correct implementation: by its public code MDS lost its minus "
    "sign, NNGuide's bank holds the first task only, AdaScale's shift term vanishes at 64 features, and ViM's 256 "
    "dimensions exceed them."
)


@dataclass(frozen=True)
class Column:
    """A column and the heading of its group: ``AUROC ↑`` of ``icarl``."""

    group: str
    name: str
    digits: int = 1


@dataclass(frozen=True)
class TableCell:
    """A value, whether it is among the best of its column, and the paper's value if asked for."""

    value: Summary
    best: bool = False
    paper: Summary | None = None


Rows: TypeAlias = tuple[tuple[str, tuple[TableCell | None, ...]], ...]


@dataclass(frozen=True)
class Table:
    """Rows of cells under two lines of headings, with notes below."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Rows
    notes: tuple[str, ...] = ()
    corner: str = "detector"

    def records(self) -> list[dict[str, Any]]:
        """One dictionary per value, for JSON and CSV; metrics have plain names, and accuracy is a column of its own."""
        records, keys = [], {heading: metric for metric, heading in HEADINGS.items()}
        for label, cells in self.rows:
            for column, cell in zip(self.columns, cells, strict=True):
                if cell is not None:
                    metric = "accuracy" if label == ACCURACY_ROW else keys.get(column.name, column.name)
                    row = label.removesuffix(" ↑")
                    place = {"table": self.name, "row": row, "group": column.group, "column": metric}
                    record = {**place, **cell.value._asdict(), "best": cell.best}
                    if cell.paper:
                        record |= {"paper": cell.paper.mean, "difference": cell.value.mean - cell.paper.mean}
                    records.append(record)
        return records


def tables_of(
    measured: Iterable[tuple[Run, pa.Table]],
    reference: Mapping[Key, Summary] | None = None,
    track: str = "",
) -> list[Table]:
    """All tables of a set of measured runs.

    Parameters
    ----------
    measured:
        Runs, each with its table of metrics (:func:`~tood.runs.load_metrics`).
    reference:
        Published values, shown next to ours with the difference.
    track:
        The track to show; by default each run's first one.
    """
    measured = list(measured)
    return build(collect(measured, track), reference or {}, _tracks(measured, track))


def _tracks(measured: Iterable[tuple[Run, pa.Table]], track: str) -> str:
    return track or " and ".join(sorted({run.calibration for run, _ in measured}))


def build(summaries: Mapping[Key, Summary], reference: Mapping[Key, Summary], track: str = "") -> list[Table]:
    """All tables of summaries, each entry compared with the same entry of ``reference`` if there is one.

    Titles name the ``track``: what detectors were fitted on.
    """
    cells = _cells(summaries, reference)
    notes = (AVERAGE_NOTE, FPR_NOTE, *([PAPER_NOTE] if reference else []))
    tables = []
    for stream in sorted({key.stream for key in cells}):
        compared = any(cell.paper for key, cell in cells.items() if key.stream == stream)
        below = (ACCURACY_NOTE, *notes, _seeds_note(cells, stream), *([MISMATCH_NOTE] if compared else []))
        tables += [
            _grid(cells, stream, "main", "Avg AUROC and Avg FPR@95", ("avg_auroc", "avg_fpr95"), below),
            _grid(cells, stream, "groups", "Avg AUROC on near- and far-OOD sets", ("near_auroc", "far_auroc")),
            _grid(cells, stream, "forgetting", "OOD forgetting D_avg", FORGETTING, (FORGETTING_NOTE,)),
        ]
    return _named([*(table for table in tables if table.columns), *_ranks(summaries)], track)


def _named(tables: list[Table], track: str) -> list[Table]:
    """Tables whose titles name the track."""
    return [replace(table, title=f"{table.title} (track: {track})") for table in tables] if track else tables


def best_tables(measured: Iterable[tuple[Run, pa.Table]], track: str = "") -> list[Table]:
    """Per stream the ten best scores by Avg AUROC, mean over learners, best first; energy and TOOD in any case."""
    measured = list(measured)
    cells, tables = _cells(collect(measured, track), {}), []
    for stream in sorted({key.stream for key in cells}):
        learners = _learners(cells, stream)
        averages = {  # scores that not every learner has come last
            name: [cell.value.mean for one in learners if (cell := cells.get(Key(stream, one, name, "avg_auroc")))]
            for name in _detectors(cells, stream)
        }
        ranked = sorted(averages, key=lambda name: (-len(averages[name]), -float(np.mean(averages[name]))))
        kept = [name for place, name in enumerate(ranked) if place < BEST or name in ("energy", DEFAULT)]
        metrics = (
            ("avg_auroc",) if len(learners) > 1 else ("avg_auroc", "near_auroc", "far_auroc", "d_avg", "avg_fpr95")
        )
        title = f"the {min(BEST, len(ranked))} best of {len(ranked)} scores, by Avg AUROC"
        tables.append(_grid(cells, stream, "best", title, metrics, names=kept))
    return _named(tables, _tracks(measured, track))


def _cells(summaries: Mapping[Key, Summary], reference: Mapping[Key, Summary]) -> dict[Key, TableCell]:
    best, published = best_keys(summaries), compared(summaries, reference)
    return {key: TableCell(value, key in best, published.get(key)) for key, value in summaries.items()}


def _grid(
    cells: Mapping[Key, TableCell],
    stream: str,
    name: str,
    title: str,
    metrics: Sequence[str],
    notes: tuple[str, ...] = (),
    names: Sequence[str] | None = None,
) -> Table:
    """Scores × learners, and the accuracy of each learner in the first column of its group if there is Avg AUROC."""
    measured = {key.metric for key in cells if key.stream == stream}
    shown = [(one, metric) for one in _learners(cells, stream) for metric in metrics if metric in measured]
    keys = {
        name: [Key(stream, one, name, metric) for one, metric in shown] for name in names or _detectors(cells, stream)
    }
    if metrics[0] == "avg_auroc":
        first = {"avg_auroc": ACCURACY}
        keys = {ACCURACY_ROW: [Key(stream, one, "-", first.get(metric, "")) for one, metric in shown], **keys}
    rows = tuple((name, tuple(cells.get(key) for key in own)) for name, own in keys.items())
    columns = tuple(Column(learner, HEADINGS[metric]) for learner, metric in shown)
    return Table(f"{stream}-{name}", f"{stream}: {title}, percent", columns, rows, notes)


def _plain(values: Iterable[float]) -> tuple[TableCell, ...]:
    """Cells of single values, without seeds."""
    return tuple(TableCell(Summary(float(value), 0.0, 1)) for value in values)


def _seeds_note(cells: Mapping[Key, TableCell], stream: str) -> str:
    """The meaning of bold, and the number of seeds per learner."""
    seeds = {key.learner: cells[key].value.seeds for key in sorted(cells) if key.stream == stream}
    if set(seeds.values()) == {1}:
        return f"{BEST_NOTE} One seed."
    return f"{BOLD_NOTE} Seeds: {', '.join(f'{title_of(learner)} {count}' for learner, count in seeds.items())}."


def _ranks(summaries: Mapping[Key, Summary]) -> Iterator[Table]:
    """Ranks of each detector by Avg AUROC over streams and learners, if there are three settings or more.

    Left out: runs with BER or options, and detectors on raw logits or with settings.
    """
    plain = {key: value for key, value in summaries.items() if on_its_own(key.learner) and " " not in key.detector}
    by_detector = ranks(plain or summaries)
    pairs = max(map(len, by_detector.values()), default=0)
    if pairs < SETTINGS:
        return
    means = {name: sum(own) / len(own) for name, own in by_detector.items()}
    ordered = sorted(by_detector.items(), key=lambda entry: (-len(entry[1]), means[entry[0]], entry[0]))
    rows = [(name, _plain((means[name], own.count(1), own.count(2), len(own)))) for name, own in ordered]
    columns = (Column("", "mean rank"), Column("", "first", 0), Column("", "second", 0), Column("", "of", 0))
    note = f"Ranked by Avg AUROC in each of {pairs} (stream, learner) pairs; ties share the better rank."
    yield Table("ranks", "Ranks by Avg AUROC", columns, tuple(rows), (note,))


def _learners(cells: Mapping[Key, TableCell], stream: str) -> list[str]:
    names = {key.learner for key in cells if key.stream == stream}
    return sorted(names, key=lambda name: (place(RunIdentity.from_label(name).learner, LEARNERS), name))


def _detectors(cells: Mapping[Key, TableCell], stream: str) -> list[str]:
    names = {key.detector for key in cells if key.stream == stream} - {"-"}
    order = detectors.names()
    return sorted(names, key=lambda name: (place(name.split(" ")[0], order), name))


def place(name: str, order: Sequence[str]) -> int:
    """Index of a name in ``order``; after all others if it is not there."""
    return order.index(name) if name in order else len(order)
