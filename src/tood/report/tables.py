"""Tables in the form of the paper's, for any set of runs; :mod:`tood.report.render` writes them out.

Table 1: detectors × learners. Table 2: with and without fine-tuning by BER. Ranks: how often each detector is first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tood import detectors
from tood.report.appearance import label as title_of
from tood.report.appearance import spread
from tood.report.summary import (
    ACCURACY,
    HIGHER_IS_BETTER,
    Fpr,
    Key,
    Summary,
    best_keys,
    collect,
    learner_label,
    on_its_own,
    ranks,
    run_name,
)
from tood.runs.directory import Run
from tood.runs.identity import RunIdentity
from tood.runs.metrics_file import accuracy, trajectory

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Cell", "Column", "Table", "build", "overview_table", "tables_of"]

LEARNERS = ("icarl", "bic", "der", "wa", "lwf")  # in the paper's order; others follow alphabetically
TOOD_VARIANTS = ("tood_mean_shift", "tood_robust_anchor")
FPR_NOTES = {
    "ood": "FPR@95: the share of ID flagged when 95 % of OOD is caught (`fpr_at_ood_recall`, as OpenOOD and the "
    "paper's tables), each task with its own threshold.",
    "id": "FPR@95: the share of OOD accepted when 95 % of ID is accepted (`fpr_at_id_recall`, the paper's text), "
    "each task with its own threshold.",
}
AVERAGE_NOTE = "Avg: (mean over near-OOD sets + mean over far-OOD sets) / 2 of the average over steps and tasks seen."
BEST_NOTE = "Bold: the best of its column."
BOLD_NOTE = "Bold: within one standard deviation of the best of its column; ± is the deviation over seeds."
ACCURACY_NOTE = "accuracy: average incremental accuracy, the mean over steps of the accuracy on all test data seen."
PAPER_NOTE = "In brackets: the paper's figure, and ours minus it."
MISMATCH_NOTE = (
    "Some rows of the paper cannot be matched by a correct implementation: by its public code MDS lost its minus "
    "sign, NNGuide's bank holds the first task only, AdaScale's shift term vanishes at 64 features, and ViM's 256 "
    "dimensions exceed them."
)


@dataclass(frozen=True)
class Column:
    """A column under a group of columns: ``AUROC ↑`` of ``icarl``."""

    group: str
    name: str
    digits: int = 1


@dataclass(frozen=True)
class Cell:
    """A figure, whether it is among the best of its column, and the paper's figure if that was asked for."""

    value: Summary
    best: bool = False
    paper: Summary | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None else self.value.mean - self.paper.mean


@dataclass(frozen=True)
class Table:
    """Rows of cells under two lines of headings, with what a reader must know below."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    notes: tuple[str, ...] = ()
    corner: str = "detector"

    def records(self) -> list[dict[str, Any]]:
        """One dictionary per figure, for JSON and CSV."""
        found = []
        for label, cells in self.rows:
            for column, cell in zip(self.columns, cells, strict=True):
                if cell is not None:
                    ours = {
                        "mean": cell.value.mean,
                        "std": cell.value.std,
                        "seeds": cell.value.seeds,
                        "best": cell.best,
                    }
                    theirs = {"paper": cell.paper.mean, "difference": cell.difference} if cell.paper else {}
                    place = {"table": self.name, "row": label, "group": column.group, "column": column.name}
                    found.append({**place, **ours, **theirs})
        return found


def tables_of(
    measured: Iterable[tuple[Run, pa.Table]], reference: Mapping[Key, Summary] | None = None, fpr: Fpr = "ood"
) -> list[Table]:
    """Every table that a set of measured runs gives.

    Parameters
    ----------
    measured:
        Runs, each with its figures (:func:`~tood.runs.load_metrics`).
    reference:
        Published figures; each is put beside ours, with the difference.
    fpr:
        Which FPR@95 to show; see :func:`~tood.report.summary.collect`.
    """
    return build(collect(measured, fpr), reference or {}, fpr)


def build(summaries: Mapping[Key, Summary], reference: Mapping[Key, Summary], fpr: Fpr = "ood") -> list[Table]:
    """The tables of summaries, each compared with ``reference`` if that has the same entry."""
    best = best_keys(summaries)
    # A preset in brackets sets runs of one learner apart; the paper knows the learner alone.
    plain = {key: key._replace(learner=RunIdentity.from_label(key.learner).label) for key in summaries}
    cells = {key: Cell(value, key in best, reference.get(plain[key])) for key, value in summaries.items()}
    notes = (AVERAGE_NOTE, FPR_NOTES[fpr], *([PAPER_NOTE] if reference else []))
    found = []
    for stream in sorted({key.stream for key in cells}):
        found += _main(cells, stream, notes)
        found += _fine_tuning(cells, stream, notes)
    return [*found, _ranks(summaries)]


def overview_table(table: pa.Table, names: Sequence[str], run: Run, most: int = 20) -> Table:
    """AUROC along the stream of a few detectors, over the tasks seen and for the oldest task, beside accuracy."""
    _, pooled = accuracy(table)
    means = {name: trajectory(table, name, calibration=None).balanced().mean() for name in names}
    rows = []
    for step in spread(len(pooled), most):
        seen = [float(np.nanmean(values[step])) for values in means.values()]
        oldest = [float(values[step, 0]) for values in means.values()]
        figures = [*seen, *oldest, float(pooled[step])]
        rows.append((str(step), tuple(Cell(Summary(100 * figure, 0.0, 1)) for figure in figures)))
    columns = [Column(group, title_of(name)) for group in ("tasks seen", "task 0") for name in names]
    note = "AUROC: (near + far) / 2. Accuracy: all test data seen."
    name = run_name(run, title_of(learner_label(run)))
    title = f"{name}: AUROC and accuracy after each step, percent"
    return Table("along", title, (*columns, Column("", "accuracy")), tuple(rows), (note,), corner="step")


def _main(cells: Mapping[Key, Cell], stream: str, notes: tuple[str, ...]) -> list[Table]:
    """Table 1, and beside it near against far, and the forgetting."""
    learners = _learners(cells, stream)
    layouts = {
        "main": ("Avg AUROC and Avg FPR@95", (ACCURACY, "avg_auroc", "avg_fpr95")),
        "groups": ("Avg AUROC on near- and far-OOD sets", ("near_auroc", "far_auroc")),
        "forgetting": ("OOD forgetting D_avg", ("d_avg", "near_d_avg", "far_d_avg")),
    }
    lost = "D_avg: AUROC of a task at its own step minus that at the last, mean over tasks; positive is a loss."
    tables = []
    for name, (title, metrics) in layouts.items():
        shown = tuple(metric for metric in metrics if metric != ACCURACY)
        shown = tuple(metric for metric in shown if any(k.metric == metric and k.stream == stream for k in cells))
        rows = []
        if ACCURACY in metrics:
            accuracy = (cells.get(Key(stream, learner, "-", ACCURACY)) for learner in learners)
            rows.append(("accuracy ↑", _spread(accuracy, len(shown))))
        for detector in _detectors(cells, stream):
            keys = (Key(stream, learner, detector, metric) for learner in learners for metric in shown)
            rows.append((detector, tuple(cells.get(key) for key in keys)))
        columns = tuple(Column(learner, _heading(metric)) for learner in learners for metric in shown)
        compared = any(cell and cell.paper for _, cells in rows for cell in cells)
        said = {
            "main": (ACCURACY_NOTE, *notes, *_seeds(cells, stream), *([MISMATCH_NOTE] if compared else [])),
            "groups": (),
            "forgetting": (lost,),
        }[name]
        if shown:
            tables.append(Table(f"{stream}-{name}", f"{stream}: {title}, percent", columns, tuple(rows), said))
    return tables


def _seeds(cells: Mapping[Key, Cell], stream: str) -> Iterator[str]:
    """What bold means, and how many seeds are behind the figures of each learner."""
    seeds = {key.learner: cells[key].value.seeds for key in sorted(cells) if key.stream == stream}
    if set(seeds.values()) == {1}:
        yield f"{BEST_NOTE} One seed."
    else:
        yield f"{BOLD_NOTE} Seeds: {', '.join(f'{title_of(learner)} {count}' for learner, count in seeds.items())}."


def _fine_tuning(cells: Mapping[Key, Cell], stream: str, notes: tuple[str, ...]) -> list[Table]:
    """Table 2, if there are runs with and without BER."""
    present = {name: RunIdentity.from_label(name) for name in _learners(cells, stream)}
    tuned = {
        name: other
        for name, identity in present.items()
        for other, its in present.items()
        if identity.finetune == "none" and its == replace(identity, finetune="ber")
    }
    if not tuned:
        return []
    metrics = ("avg_auroc", "avg_fpr95")
    rows = []
    for names, prefix in ((list(tuned), ""), (list(tuned.values()), "BER + ")):
        for detector in ("energy", "tood_mean_shift", "tood_robust_anchor"):
            keys = (Key(stream, learner, detector, metric) for learner in names for metric in metrics)
            rows.append((prefix + detector, [cells.get(key) for key in keys]))
    for place in range(len(tuned) * len(metrics)):  # the best of a column, over both halves
        sign = 1 if HIGHER_IS_BETTER[metrics[place % 2]] else -1
        top = max((sign * row[place].value.mean for _, row in rows if row[place]), default=None)  # type: ignore[union-attr]
        for _, row in rows:
            cell = row[place]
            row[place] = cell and Cell(cell.value, sign * cell.value.mean == top, cell.paper)
    columns = tuple(Column(learner, _heading(metric)) for learner in tuned for metric in metrics)
    said = (*notes, BEST_NOTE)
    title = f"{stream}: calibration after training against fine-tuning (BER), percent"
    return [Table(f"{stream}-ber", title, columns, tuple((label, tuple(row)) for label, row in rows), said)]


def _ranks(summaries: Mapping[Key, Summary]) -> Table:
    """How each detector ranks by Avg AUROC over all streams and learners; BER and other settings of one aside."""
    plain = {key: value for key, value in summaries.items() if on_its_own(key.learner)}
    summaries = plain or summaries
    found = ranks(summaries)
    settings = {(key.stream, key.learner) for key in summaries}
    repaired = [place for name in TOOD_VARIANTS for place in found.get(name, ())]
    rows = []
    for name in sorted(found, key=lambda name: (sum(found[name]) / len(found[name]), name)):
        places = found[name]
        figures = (sum(places) / len(places), places.count(1), places.count(2), len(places))
        rows.append((name, tuple(Cell(Summary(float(figure), 0.0, 1)) for figure in figures)))
    columns = (Column("", "mean rank"), Column("", "first", 0), Column("", "second", 0), Column("", "of", 0))
    notes = [f"Ranked by Avg AUROC in each of {len(settings)} (stream, learner) pairs; ties share the better rank."]
    if repaired:
        top = _tood_on_top(summaries)
        notes.append(
            f"Mean shift or robust anchor is first or second in {top} of {len(settings)}, of {len(found)} detectors."
        )
    return Table("ranks", "Ranks by Avg AUROC", columns, tuple(rows), tuple(notes))


def _tood_on_top(summaries: Mapping[Key, Summary]) -> int:
    """In how many (stream, learner) pairs a TOOD variant is first or second."""
    count = 0
    for pair in {(key.stream, key.learner) for key in summaries}:
        own = {key: value for key, value in summaries.items() if (key.stream, key.learner) == pair}
        count += any(name in TOOD_VARIANTS and places[0] <= 2 for name, places in ranks(own).items())
    return count


def _learners(cells: Mapping[Key, Cell], stream: str) -> list[str]:
    names = {key.learner for key in cells if key.stream == stream}
    return sorted(names, key=lambda name: (place(RunIdentity.from_label(name).learner, LEARNERS), name))


def _detectors(cells: Mapping[Key, Cell], stream: str) -> list[str]:
    names = {key.detector for key in cells if key.stream == stream} - {"-"}
    order = detectors.names()
    return sorted(names, key=lambda name: (place(name.split(" ")[0], order), name))


def place(name: str, order: Sequence[str]) -> int:
    """Where a name stands in ``order``; after all others if it is not among them."""
    return order.index(name) if name in order else len(order)


def _spread(cells: Iterable[Cell | None], width: int) -> tuple[Cell | None, ...]:
    """Each cell followed by blanks, so that it stands under the first column of its group."""
    return tuple(entry for cell in cells for entry in (cell, *[None] * (width - 1)))


def _heading(metric: str) -> str:
    names = {
        "avg_auroc": "AUROC",
        "avg_fpr95": "FPR@95",
        "near_auroc": "near AUROC",
        "far_auroc": "far AUROC",
        "d_avg": "D_avg",
        "near_d_avg": "near D_avg",
        "far_d_avg": "far D_avg",
    }
    return f"{names[metric]} {'↑' if HIGHER_IS_BETTER[metric] else '↓'}"
