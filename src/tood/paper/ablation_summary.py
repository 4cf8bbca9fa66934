"""Ablations of several runs: tables as CSV and JSON, a summary with the paper's findings, figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tood.files import csv_text, file_name, write_text
from tood.paper.ablations import ablate
from tood.paper.reference import table_rows
from tood.report.appearance import label
from tood.report.summary import Summary, learner_label
from tood.report.tables import AVERAGE_NOTE, LEARNERS, Cell, Column, Table
from tood.runs.directory import Run

__all__ = ["draw_ablations", "findings", "gather_ablations", "over_seeds", "summarize", "write_ablations"]

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = dict[str, list[Row]]
PRIMARY = "tood_robust_anchor"
STATISTICS = ("mean", "lowest", "highest", "settings")
SETTLED = 0.5  # points: B is enough if the mean stays this close to the mean with the full stored set
ENOUGH = "settled by B = 100, share of settings"
FIVE = "Five: iCaRL, BiC, DER, WA and LwF, over which the paper averages. All: every setting."
SETTING = "A setting is a learner on a stream; its seeds are averaged."
FIGURES = ("avg_auroc", "near_auroc", "far_auroc", "d_avg", "gain", "gain_low", "gain_high", "low", "high")
TERMS = (
    "Task rule: statistics of a group from all samples of its real task, as in the authors' code. Herding: against "
    "random draws from the stored samples, at the largest B below their number. Anchor: the largest change."
)
TWO_VALUES = (
    "The paper states +3.1 for TOOD beside these ablations (mean over five learners and both CIFAR streams); its own "
    "Table 1 averages +1.7 (robust anchor) and +1.9 (mean shift), the values shown above."
)


def gather_ablations(
    runs: Iterable[Run], only: Sequence[str] = (), say: Callable[[str], object] | None = None, **options: int
) -> tuple[Rows, list[str]]:
    """Run the ablations on every run. Rows begin with ``run``, ``stream``, ``learner``, ``seed``, and
    ``preset`` if there are several.

    Parameters
    ----------
    runs:
        Runs with stored outputs.
    only, options:
        Passed to :func:`tood.paper.ablations.ablate`.
    say:
        Called with the name of each run before it starts.
    """
    rows: Rows = {}
    notes: dict[str, list[str]] = {}
    runs = list(runs)
    several = len({run.manifest.get("preset") for run in runs}) > 1
    for run in runs:
        if say is not None:
            say(run.path.name)
        identity: Row = {"run": run.path.name, "stream": run.stream, "learner": learner_label(run)}
        identity["seed"] = run.manifest.get("seed")
        identity |= {"preset": run.manifest.get("preset")} if several else {}
        result = ablate(run, only, **options)
        for name, cases in result.rows.items():
            rows.setdefault(name, []).extend(identity | case for case in cases)
        for note in result.notes:
            notes.setdefault(note, []).append(run.path.name)
    return rows, [f"{note} ({', '.join(names)})" for note, names in notes.items()]


def findings(rows: Rows) -> Iterator[tuple[str, str, list[float]]]:
    """The paper's questions as ``(finding, learner, one value per run)``; learner "" means all learners."""
    for name in ("maximum of task energies", "temperature", "tood_prototype", PRIMARY, "tood_mean_shift"):
        yield name, "", [row["gain"] for row in rows.get("mechanism", ()) if row["mechanism"] == name]
    for split in ("2", "3", "singletons"):
        for rule in ("group", "task"):
            name = f"split by {split}" + (", task rule" if rule == "task" else "")
            after = {"split": split, "statistics": rule}
            yield name, "", differences(rows.get("partition", ()), after, {"split": "1"}, "detector")
    buffer = rows.get("buffer", ())
    yield "herding", "", differences(_below_all(buffer), {"selection": "herding"}, {"selection": "random"})
    yield ENOUGH, "", [float(b is not None and b <= 100) for b in _settled(buffer)]
    margins = _as_in_the_paper([row for row in rows.get("margin", ()) if row["detector"] == PRIMARY])
    for learner in dict.fromkeys(row["learner"] for row in margins):
        own = [row for row in margins if row["learner"] == learner]
        yield "margin 0.5", learner, differences(own, {"margin": 0.5}, {"margin": 0.0})
    for reference in ("oldest", "widest", "mean"):
        after = {"reference": reference}
        moved = differences(rows.get("anchor", ()), after, {"reference": "latest"}, "detector", largest=True)
        yield f"anchor: {reference}", "", moved
    sources = dict.fromkeys(row["calibration"] for row in rows.get("source", ()))
    for source in sources:
        if source != "train" and "train" in sources:
            changes = differences(rows["source"], {"calibration": source}, {"calibration": "train"}, "detector")
            yield f"calibrated on {source}, not train", "", changes


def over_seeds(rows: Rows) -> Rows:
    """Average over seeds: rows that differ only in run and seed become one row with the mean of each value."""
    averaged: Rows = {}
    for name, table in rows.items():
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in table:
            case = {k: v for k, v in row.items() if k not in ("run", "seed", *FIGURES)}
            groups.setdefault(tuple(case.items()), []).append(row)
        averaged[name] = []
        for seeds in groups.values():
            means = {k: float(np.mean([row[k] for row in seeds])) for k in seeds[0] if k in FIGURES}
            setting = {"run": " ".join(str(seeds[0].get(k, "")) for k in ("stream", "learner", "preset")).rstrip()}
            averaged[name].append(seeds[0] | setting | means)
    return averaged


def differences(rows: Iterable[Row], after: Row, before: Row, within: str = "", largest: bool = False) -> list[float]:
    """Per run: mean avg_auroc of the rows that match ``after`` minus the mean of those that match ``before``.

    Only rows with the same value of ``within`` are compared; the result is the mean over these values, or with
    ``largest`` the largest absolute change.
    """
    groups: dict[str, dict[Any, tuple[list[float], list[float]]]] = {}
    for row in rows:
        pair = groups.setdefault(row["run"], {}).setdefault(row.get(within), ([], []))
        for values, wanted in zip(pair, (after, before), strict=True):
            if all(row[name] == value for name, value in wanted.items()):
                values.append(row["avg_auroc"])
    by_run = []
    for pairs in groups.values():
        changes = [float(np.mean(values) - np.mean(base)) for values, base in pairs.values() if values and base]
        if changes:
            by_run.append(max(map(abs, changes)) if largest else float(np.mean(changes)))
    return by_run


def summarize(rows: Rows, notes: Sequence[str] = ()) -> Table:
    """Table of the findings, averaged over runs, with the paper's; separately for the paper's five learners.

    Parameters
    ----------
    rows, notes:
        Results of :func:`gather_ablations`.
    """
    known = {(row["finding"], row["learner"]): row["value"] for row in table_rows("findings.csv")}
    settings = over_seeds(rows)
    five = {name: [row for row in table if row["learner"] in LEARNERS] for name, table in settings.items()}
    parts = {"": settings} if five == settings or not any(five.values()) else {"five": five, "all": settings}
    measured = [{(name, learner): values for name, learner, values in findings(part)} for part in parts.values()]
    shown = []
    for name, learner in measured[-1]:
        theirs = known.get((name.split(":")[0], learner))
        cells = [cell for part in measured for cell in _cells(part.get((name, learner), []))]
        if any(cells):  # the paper's value, over its five learners, follows the first part
            cells.insert(len(STATISTICS), None if theirs is None else Cell(Summary(float(theirs), 0.0, 1)))
            shown.append((f"{name}, {label(learner)}" if learner else label(name), tuple(cells)))
    columns = [Column(part, name, 0 if name == "settings" else 2) for part in parts for name in STATISTICS]
    columns.insert(len(STATISTICS), Column(next(iter(parts)), "paper", 2))
    remarks = (
        "Changes of Avg AUROC in points: over energy; TOOD on prototypes over prototypes; margin 0.5 over 0; otherwise "
        "over the default.",
        AVERAGE_NOTE,
        SETTING,
        *([FIVE] if len(parts) > 1 else []),
        TWO_VALUES,
        TERMS,
        f"Settled: from this B on the mean over draws stays within {SETTLED} points of that of the full set; the "
        "paper says from between 50 and 100 on.",
        *_agreement(measured[0], known),
        *_anchors(rows),
        *_intervals(rows),
        *(f"{note}." for note in notes),
    )
    return Table("ablations", f"Ablations of {_run_counts(rows)}", tuple(columns), tuple(shown), remarks, "finding")


def _cells(values: Sequence[float]) -> list[Cell | None]:
    if not values:
        return [None] * len(STATISTICS)
    figures = (float(np.mean(values)), min(values), max(values), float(len(values)))
    return [Cell(Summary(figure, 0.0, 1)) for figure in figures]


def write_ablations(rows: Rows, summary: Table, folder: Path) -> list[Path]:
    """Write ``NAME.csv`` and ``NAME.json`` per ablation, and ``summary.md``; returns the files."""
    from tood.report.render import to_markdown

    folder.mkdir(parents=True, exist_ok=True)
    contents = {folder / "summary.md": to_markdown(summary)}
    for name, table in rows.items():
        contents[folder / f"{name}.csv"] = csv_text(table)
        contents[folder / f"{name}.json"] = json.dumps(table, indent=1) + "\n"
    for path, text in contents.items():
        write_text(path, text)
    return list(contents)


def draw_ablations(rows: Rows, folder: Path) -> list[Path]:
    """Draw the figures as PNG and PDF, in one folder per stream; returns the files.

    Only the paper's five learners are drawn if there are any, because more lines are hard to distinguish. The tables
    have all learners.
    """
    from tood.report.figures import buffer_size, margin, mechanism
    from tood.report.figures.style import as_text, save

    drawn: dict[str, tuple[str, Callable[..., Any], Callable[[Row], bool]]] = {
        "buffer": ("buffer-size", buffer_size, lambda row: row["selection"] == "random"),
        "margin": ("margin", margin, lambda row: row["detector"] == PRIMARY),
        "mechanism": ("mechanism", mechanism, lambda row: row["mechanism"] != "prototype"),
    }
    paths = []
    for name, (file, draw, keep) in drawn.items():
        for stream in dict.fromkeys(row["stream"] for row in rows.get(name, ())):
            chosen = [row for row in rows[name] if row["stream"] == stream and keep(row)]
            chosen = [row for row in chosen if row["learner"] in LEARNERS] or chosen
            runs = len({row["run"] for row in chosen})
            if name == "mechanism":
                chosen = over_seeds({name: chosen})[name]
            learners = len({row["learner"] for row in chosen})
            note = f"{as_text(stream)}: {runs} run{'s' * (runs > 1)} of {learners} learner{'s' * (learners > 1)}"
            note += "; TOOD (robust anchor)." if name != "mechanism" else "; TOOD on prototypes against prototypes."
            options = {"default": max(row["B"] for row in chosen)} if name == "buffer" else {}
            paths += save(draw(chosen, note=note, **options), folder / file_name(stream) / file)
    return paths


def _anchors(rows: Rows) -> Iterator[str]:
    moved = [change for name, _, changes in findings(rows) if name.startswith("anchor") for change in changes]
    if moved:
        yield f"Anchor: the largest change in any run is {max(moved):.1g} points; the paper's is 0.00015."


def _intervals(rows: Rows) -> Iterator[str]:
    """Number of runs whose bootstrap interval of the gain excludes zero."""
    for detector in (PRIMARY, "tood_mean_shift"):
        own = [row for row in rows.get("interval", ()) if row["detector"] == detector]
        if own:
            up, down = sum(row["gain_low"] > 0 for row in own), sum(row["gain_high"] < 0 for row in own)
            yield (
                f"{label(detector)} over energy, 95 % bootstrap intervals: above zero in {up}, below in {down}, with "
                f"zero inside in {len(own) - up - down} of {len(own)} runs."
            )


def _agreement(measured: Mapping[tuple[str, str], list[float]], known: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """The changes stated in the paper that have the same sign here, and those that do not."""
    signs: dict[bool, list[str]] = {True: [], False: []}
    for (name, learner), values in measured.items():
        theirs = known.get((name, learner))
        if values and theirs is not None and name != ENOUGH:
            words = f"{name} ({label(learner)})" if learner else label(name)
            signs[float(theirs) * float(np.mean(values)) > 0].append(words)
    for same, names in signs.items():
        if names:
            yield f"{'Same sign as' if same else 'Opposite sign to'} the paper: {', '.join(names)}."


def _run_counts(rows: Rows) -> str:
    """The number of runs per stream, in words."""
    streams = {row["run"]: row["stream"] for table in rows.values() for row in table}
    counts = Counter(streams.values())
    return ", ".join(f"{count} {stream} run{'s' * (count > 1)}" for stream, count in counts.items())


def _runs(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["run"] for row in rows))


def _below_all(buffer: Sequence[Row]) -> list[Row]:
    """The rows of each run at its second largest B; at the largest, both selections are the full stored set."""
    chosen = []
    for run in _runs(buffer):
        own = [row for row in buffer if row["run"] == run]
        *below, _ = sorted({row["B"] for row in own})
        chosen += [row for row in own if below and row["B"] == below[-1]]
    return chosen


def _as_in_the_paper(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows of CIFAR-10, as in the paper's figures of λ and B; all rows if there are none."""
    return [row for row in rows if row["stream"] == "cifar10"] or rows


def _settled(buffer: Sequence[Row]) -> list[float | None]:
    """Per run: the smallest B from which on the mean over draws is settled; None if only the largest is."""
    drawn = [row for row in _as_in_the_paper(buffer) if row["selection"] == "random"]
    smallest: list[float | None] = []
    for run in _runs(drawn):
        own = [row for row in drawn if row["run"] == run]
        sizes = sorted({row["B"] for row in own})
        means = [float(np.mean([row["avg_auroc"] for row in own if row["B"] == size])) for size in sizes]
        far = [place for place, mean in enumerate(means) if abs(mean - means[-1]) > SETTLED]
        first = far[-1] + 1 if far else 0
        smallest.append(float(sizes[first]) if first < len(sizes) - 1 else None)
    return smallest
