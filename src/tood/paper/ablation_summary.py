"""Ablations of several runs: tables as CSV, plots, and a summary beside the paper's findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tood.outputs.directory import Run
from tood.paper.ablations import ablate
from tood.paper.reference import stated
from tood.report.appearance import label
from tood.report.render import to_markdown
from tood.report.summary import Summary, labels_of
from tood.report.tables import AVERAGE_NOTE, LEARNERS, Column, Table, TableCell
from tood.storage.files import csv_text, file_name, write_text

__all__ = ["Ablations", "draw_ablations", "gather_ablations", "summarize", "write_ablations"]

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = dict[str, list[Row]]

PRIMARY = "tood_robust_anchor"
WHO = ("stream", "learner", "seed")  # the columns that identify a run; without a seed, a setting
VALUES = ("avg_auroc", "near_auroc", "far_auroc", "d_avg", "gain")
NOTES = (
    "Changes of Avg AUROC in points: over energy; TOOD on prototypes over prototypes; margin 0.5 over 0; otherwise "
    "over the default.",
    AVERAGE_NOTE,
    "A setting is a learner on a stream; its seeds are averaged. If any of iCaRL, BiC, DER, WA and LwF is there, other "
    "learners are only in the CSV files. BiC: corrected logits; the authors scored raw ones.",
    "The paper states +3.1 for TOOD beside these ablations (mean over five learners and both CIFAR streams); its own "
    "Table 1 averages +1.7 (robust anchor) and +1.9 (mean shift), the values shown above.",
    "Task rule: statistics of a group from all samples of its real task, as in the authors' code. Herding: against "
    "random draws from the stored samples, at the largest B below their number. Anchor: the largest change.",
)


class Ablations(NamedTuple):
    """Ablations of several runs: rows per ablation, their summary, and the files written."""

    rows: Rows
    summary: Table
    files: list[Path]


def write_ablations(
    runs: Iterable[Run],
    folder: Path,
    only: Sequence[str] = (),
    plots: bool = True,
    say: Callable[[str], object] = print,
    draws: int = 5,
) -> Ablations:
    """Run the ablations, and write ``NAME.csv`` for each, ``summary.md`` and the plots.

    Parameters
    ----------
    runs:
        Runs with stored outputs.
    folder:
        Where to write.
    only, draws:
        Passed to :func:`tood.paper.ablations.ablate`.
    plots:
        Draw plots too.
    say:
        Called with the name of each run before it starts.
    """
    rows = gather_ablations(runs, only, say, draws)
    summary = summarize(rows)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {folder / f"{name}.csv": csv_text(table) for name, table in rows.items()}
    contents[folder / "summary.md"] = to_markdown(summary)
    for path, text in contents.items():
        write_text(path, text)
    return Ablations(rows, summary, [*contents, *(draw_ablations(rows, folder) if plots else ())])


def gather_ablations(
    runs: Iterable[Run], only: Sequence[str] = (), say: Callable[[str], object] = print, draws: int = 5
) -> Rows:
    """Rows of every run and ablation. Rows begin with ``run``, ``stream``, ``learner`` and ``seed``."""
    rows: Rows = {}
    runs = list(runs)
    for run, learner in zip(runs, labels_of(runs), strict=True):
        say(run.path.name)
        who = {"run": run.path.name, "stream": run.stream, "learner": learner, "seed": run.manifest.get("seed")}
        for name, cases in ablate(run, only, draws).items():
            rows.setdefault(name, []).extend(who | case for case in cases)
    return rows


def summarize(rows: Rows) -> Table:
    """Table of the findings, averaged over settings, with the paper's values."""
    paper, shown = stated(), []
    for (name, learner), values in findings({key: over_seeds(_papers(table)) for key, table in rows.items()}).items():
        if values:
            title = f"{name}, {label(learner)}" if learner else label(name)
            ours = (float(np.mean(values)), min(values), max(values), float(len(values)))
            cells = [TableCell(Summary(value, 0.0, 1)) for value in ours]
            theirs = paper.get((name.split(":")[0], learner))
            shown.append((title, (*cells, None if theirs is None else TableCell(Summary(theirs, 0.0, 1)))))
    decimals = {"mean": 2, "lowest": 2, "highest": 2, "settings": 0, "paper": 2}
    columns = [Column("", name, digits) for name, digits in decimals.items()]
    streams = dict.fromkeys(row["stream"] for table in rows.values() for row in table)
    title = f"Ablations of runs on {', '.join(streams)}"
    return Table("ablations", title, tuple(columns), tuple(shown), NOTES, "finding")


def _papers(rows: Sequence[Row]) -> list[Row]:
    """The rows of the paper's five learners, over which it averages; all rows if there are none."""
    return [row for row in rows if row["learner"] in LEARNERS] or list(rows)


# --- the paper's questions: one value per setting; the learner is empty if a question is about all learners


def findings(rows: Rows) -> dict[tuple[str, str], list[float]]:
    """Answers to the paper's questions about the parts of TOOD, by question and learner."""
    found = {
        (name, ""): [row["gain"] for row in rows.get("mechanism", ()) if row["mechanism"] == name]
        for name in ("maximum of task energies", "temperature", "tood_prototype", PRIMARY, "tood_mean_shift")
    }
    for split in ("2", "3", "singletons"):
        for rule, words in (("group", ""), ("task", ", task rule")):
            after = {"split": split, "statistics": rule}
            found[f"split by {split}{words}", ""] = differences(rows.get("partition", ()), after, {"split": "1"})
    found["herding", ""] = _herding(rows.get("buffer", ()))
    margins = _as_in_the_paper([row for row in rows.get("margin", ()) if row["detector"] == PRIMARY])
    for learner in dict.fromkeys(row["learner"] for row in margins):
        own = [row for row in margins if row["learner"] == learner]
        found["margin 0.5", learner] = differences(own, {"margin": 0.5}, {"margin": 0.0})
    for reference in ("oldest", "widest", "mean"):
        after, before = {"reference": reference}, {"reference": "latest"}
        found[f"anchor: {reference}", ""] = differences(rows.get("anchor", ()), after, before, largest=True)
    return found


def _herding(rows: Sequence[Row]) -> list[float]:
    """Herding against random draws, at the second largest B: at the largest both are the full stored set."""
    found = []
    for own in _by_setting(rows).values():
        *_, below, _ = [0, *sorted({row["B"] for row in own})]
        own = [row for row in own if row["B"] == below]
        found += differences(own, {"selection": "herding"}, {"selection": "random"})
    return found


def _as_in_the_paper(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows of CIFAR-10, as in the paper's values of λ and B; all rows if there are none."""
    return [row for row in rows if row["stream"] == "cifar10"] or rows


def _by_setting(rows: Iterable[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows of each stream and learner, and of each seed if seeds are not averaged."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in WHO), []).append(row)
    return groups


def over_seeds(rows: Sequence[Row]) -> list[Row]:
    """Rows that differ only in run and seed become one row with the mean of each value."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        case = {name: value for name, value in row.items() if name not in ("run", "seed", *VALUES)}
        groups.setdefault(tuple(case.items()), []).append(row)
    return [
        dict(case) | {name: float(np.mean([row[name] for row in seeds])) for name in VALUES if name in seeds[0]}
        for case, seeds in groups.items()
    ]


def differences(rows: Iterable[Row], after: Row, before: Row, largest: bool = False) -> list[float]:
    """Per setting: mean avg_auroc of the rows that match ``after`` minus the mean of those that match ``before``.

    Rows of different detectors are not compared; the result is the mean over detectors, or with ``largest`` the
    largest absolute change.
    """
    found = []
    for own in _by_setting(rows).values():
        changes = []
        for detector in dict.fromkeys(row.get("detector") for row in own):
            alike = [row for row in own if row.get("detector") == detector]
            pair = [[row["avg_auroc"] for row in alike if row.items() >= case.items()] for case in (after, before)]
            if all(pair):
                changes.append(float(np.mean(pair[0]) - np.mean(pair[1])))
        if changes:
            found.append(max(map(abs, changes)) if largest else float(np.mean(changes)))
    return found


# --- plots


def draw_ablations(rows: Rows, folder: Path) -> list[Path]:
    """Draw the values as PNG and PDF, in one folder per stream; returns the files.

    Only the paper's five learners are drawn if there are any, because more lines are hard to distinguish.
    """
    from tood.report.plots import buffer_size, margin, save

    paths = []
    for stream, own in _drawn(rows, "buffer", lambda row: row["selection"] == "random"):
        figure = buffer_size(own, max(row["B"] for row in own), _caption(own, "robust anchor (paper)"))
        paths += save(figure, folder / stream / "buffer-size")
    for stream, own in _drawn(rows, "margin", lambda row: row["detector"] == PRIMARY):
        paths += save(margin(own, _caption(own, "robust anchor (paper)")), folder / stream / "margin")
    return paths


def _drawn(rows: Rows, ablation: str, keep: Callable[[Row], bool]) -> Iterator[tuple[str, list[Row]]]:
    """The folder of each stream and the rows to draw for it."""
    for stream in dict.fromkeys(row["stream"] for row in rows.get(ablation, ())):
        yield file_name(stream), _papers([row for row in rows[ablation] if row["stream"] == stream and keep(row)])


def _caption(rows: Sequence[Row], what: str) -> str:
    from tood.report.plots.style import as_text

    runs, learners = (len({row[name] for row in rows}) for name in ("run", "learner"))
    who = f"{runs} run{'s' * (runs > 1)} of {learners} learner{'s' * (learners > 1)}"
    return f"{as_text(rows[0]['stream'])}: {who}; {what}."
