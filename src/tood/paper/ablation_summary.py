"""Ablations of several runs: tables as CSV and JSON, a summary beside the paper's findings, plots."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tood.outputs.directory import Run
from tood.paper.ablations import ablate
from tood.paper.findings import PRIMARY, SETTLED, Finding, Row, Rows, findings, over_seeds
from tood.paper.reference import stated
from tood.report.appearance import label
from tood.report.render import to_markdown
from tood.report.summary import Summary, learner_label
from tood.report.tables import AVERAGE_NOTE, LEARNERS, TOOD_VARIANTS, Column, Table, TableCell
from tood.storage.files import csv_text, file_name, write_text

__all__ = ["Ablations", "draw_ablations", "gather_ablations", "summarize", "write_ablations"]

STATISTICS = ("mean", "lowest", "highest", "settings")
NOTES = (
    "Changes of Avg AUROC in points: over energy; TOOD on prototypes over prototypes; margin 0.5 over 0; otherwise "
    "over the default.",
    AVERAGE_NOTE,
    "A setting is a learner on a stream; its seeds are averaged. BiC: corrected logits; the authors scored raw ones.",
    "The paper states +3.1 for TOOD beside these ablations (mean over five learners and both CIFAR streams); its own "
    "Table 1 averages +1.7 (robust anchor) and +1.9 (mean shift), the values shown above.",
    "Task rule: statistics of a group from all samples of its real task, as in the authors' code. Herding: against "
    "random draws from the stored samples, at the largest B below their number. Anchor: the largest change.",
    f"Settled: from this B on the mean over draws stays within {SETTLED} points of that of the full set; the paper "
    "says from between 50 and 100 on.",
)
FIVE = "Five: iCaRL, BiC, DER, WA and LwF, over which the paper averages. All: every setting."


class Ablations(NamedTuple):
    """Ablations of several runs: rows per ablation, their summary, notes, and the files written."""

    rows: Rows
    summary: Table
    notes: list[str]
    files: list[Path]


def write_ablations(
    runs: Iterable[Run],
    folder: Path,
    only: Sequence[str] = (),
    plots: bool = True,
    say: Callable[[str], object] = print,
    **options: int,
) -> Ablations:
    """Run the ablations, and write ``NAME.csv`` and ``NAME.json`` for each, ``summary.md`` and the plots.

    Parameters
    ----------
    runs:
        Runs with stored outputs.
    folder:
        Where to write.
    only, options:
        Passed to :func:`tood.paper.ablations.ablate`.
    plots:
        Draw plots too.
    say:
        Called with the name of each run before it starts.
    """
    rows, notes = gather_ablations(runs, only, say, **options)
    summary = summarize(rows, notes)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {folder / "summary.md": to_markdown(summary)}
    for name, table in rows.items():
        contents[folder / f"{name}.csv"] = csv_text(table)
        contents[folder / f"{name}.json"] = json.dumps(table, indent=1) + "\n"
    for path, text in contents.items():
        write_text(path, text)
    return Ablations(rows, summary, notes, [*contents, *(draw_ablations(rows, folder) if plots else ())])


def gather_ablations(
    runs: Iterable[Run], only: Sequence[str] = (), say: Callable[[str], object] = print, **options: int
) -> tuple[Rows, list[str]]:
    """Rows of every run and ablation, and notes. Rows begin with ``run``, ``stream``, ``learner``, ``seed``, and
    ``preset`` if there are several.
    """
    rows: Rows = {}
    notes: dict[str, list[str]] = {}
    runs = list(runs)
    several = len({run.manifest.get("preset") for run in runs}) > 1
    for run in runs:
        say(run.path.name)
        who: Row = {"run": run.path.name, "stream": run.stream, "learner": learner_label(run)}
        who |= {"seed": run.manifest.get("seed")} | ({"preset": run.manifest.get("preset")} if several else {})
        result = ablate(run, only, **options)
        for name, cases in result.rows.items():
            rows.setdefault(name, []).extend(who | case for case in cases)
        for note in result.notes:
            notes.setdefault(note, []).append(run.path.name)
    return rows, [f"{note} ({', '.join(names)})" for note, names in notes.items()]


def summarize(rows: Rows, notes: Sequence[str] = ()) -> Table:
    """Table of the findings, averaged over settings, with the paper's; separately for the paper's five learners.

    Parameters
    ----------
    rows, notes:
        Results of :func:`gather_ablations`.
    """
    paper = stated()
    settings = {name: over_seeds(table) for name, table in rows.items()}
    five = {name: [row for row in table if row["learner"] in LEARNERS] for name, table in settings.items()}
    parts = {"": settings} if five == settings or not any(five.values()) else {"five": five, "all": settings}
    found = [{(one.name, one.learner): one for one in findings(part)} for part in parts.values()]
    shown = []
    for key, finding in found[-1].items():
        first, *others = (_cells(part[key].values if key in part else []) for part in found)
        theirs = paper.get((finding.name.split(":")[0], finding.learner))
        published = None if theirs is None else TableCell(Summary(theirs, 0.0, 1))
        cells = [*first, published, *(cell for of_part in others for cell in of_part)]
        if finding.values:
            shown.append((_title(finding), tuple(cells)))
    columns = [Column(part, name, 0 if name == "settings" else 2) for part in parts for name in STATISTICS]
    columns.insert(len(STATISTICS), Column(next(iter(parts)), "paper", 2))
    remarks = [*NOTES, *([FIVE] if len(parts) > 1 else []), *_anchors(rows)]
    remarks += [*_intervals(rows.get("interval", [])), *(f"{note}." for note in notes)]
    streams = Counter({row["run"]: row["stream"] for table in rows.values() for row in table}.values())
    counts = ", ".join(f"{count} {stream} run{'s' * (count > 1)}" for stream, count in streams.items())
    return Table("ablations", f"Ablations of {counts}", tuple(columns), tuple(shown), tuple(remarks), "finding")


def _title(finding: Finding) -> str:
    return f"{finding.name}, {label(finding.learner)}" if finding.learner else label(finding.name)


def _cells(values: Sequence[float]) -> list[TableCell | None]:
    if not values:
        return [None] * len(STATISTICS)
    shown = (float(np.mean(values)), min(values), max(values), float(len(values)))
    return [TableCell(Summary(value, 0.0, 1)) for value in shown]


def _anchors(rows: Rows) -> Iterator[str]:
    moved = [change for one in findings(rows) if one.name.startswith("anchor") for change in one.values]
    if moved:
        yield f"Anchor: the largest change in any run is {max(moved):.1g} points; the paper's is 0.00015."


def _intervals(rows: Sequence[Row]) -> Iterator[str]:
    """Number of runs whose bootstrap interval of the gain excludes zero."""
    for detector in TOOD_VARIANTS:
        own = [row for row in rows if row["detector"] == detector]
        if own:
            up, down = sum(row["gain_low"] > 0 for row in own), sum(row["gain_high"] < 0 for row in own)
            yield (
                f"{label(detector)} over energy, 95 % bootstrap intervals: above zero in {up}, below in {down}, with "
                f"zero inside in {len(own) - up - down} of {len(own)} runs."
            )


def draw_ablations(rows: Rows, folder: Path) -> list[Path]:
    """Draw the values as PNG and PDF, in one folder per stream; returns the files.

    Only the paper's five learners are drawn if there are any, because more lines are hard to distinguish. The tables
    have all learners.
    """
    from tood.report.plots import buffer_size, margin, mechanism, save

    paths = []
    for stream, own in _drawn(rows, "buffer", lambda row: row["selection"] == "random"):
        figure = buffer_size(own, max(row["B"] for row in own), _caption(own, "robust anchor (paper)"))
        paths += save(figure, folder / stream / "buffer-size")
    for stream, own in _drawn(rows, "margin", lambda row: row["detector"] == PRIMARY):
        paths += save(margin(own, _caption(own, "robust anchor (paper)")), folder / stream / "margin")
    for stream, own in _drawn(rows, "mechanism", lambda row: row["mechanism"] != "prototype"):
        note = _caption(own, "TOOD on prototypes against prototypes")
        paths += save(mechanism(over_seeds(own), note), folder / stream / "mechanism")
    return paths


def _drawn(rows: Rows, ablation: str, keep: Callable[[Row], bool]) -> Iterator[tuple[str, list[Row]]]:
    """The folder of each stream and the rows to draw for it."""
    for stream in dict.fromkeys(row["stream"] for row in rows.get(ablation, ())):
        own = [row for row in rows[ablation] if row["stream"] == stream and keep(row)]
        yield file_name(stream), [row for row in own if row["learner"] in LEARNERS] or own


def _caption(rows: Sequence[Row], what: str) -> str:
    from tood.report.plots.style import as_text

    runs, learners = (len({row[name] for row in rows}) for name in ("run", "learner"))
    who = f"{runs} run{'s' * (runs > 1)} of {learners} learner{'s' * (learners > 1)}"
    return f"{as_text(rows[0]['stream'])}: {who}; {what}."
