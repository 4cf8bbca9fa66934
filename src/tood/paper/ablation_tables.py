"""The ablations of a set of runs: tables with a row a measurement, a summary beside the paper's findings, figures."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tood.files import write_text
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
SETTLED = 0.5  # points: B is enough where the mean stays this near to that with every stored sample
ENOUGH = "settled by B = 100, share of settings"
FIVE = "Five: iCaRL, BiC, DER, WA and LwF, over which the paper averages; all: every setting."
SETTING = "A setting is a learner on a stream, the mean over its seeds."
FIGURES = ("avg_auroc", "near_auroc", "far_auroc", "d_avg", "gain", "gain_low", "gain_high", "low", "high")
TERMS = (
    "Task rule: statistics of a group from all samples of its real task, as the authors' code does. Herding: against "
    "random draws, among the stored samples, at the largest B below all of them. Anchor: the largest change."
)
TWO_VALUES = (
    "The paper (means over five learners and both CIFAR streams) states +3.1 for TOOD beside these ablations; its own "
    "Table 1 averages +1.7 (robust anchor) and +1.9 (mean shift), which stand above."
)


def gather_ablations(
    runs: Iterable[Run], only: Sequence[str] = (), say: Callable[[str], object] | None = None, **options: int
) -> tuple[Rows, list[str]]:
    """The rows of every run, each with ``run``, ``stream``, ``learner`` and ``seed`` in front; and notes.

    Parameters
    ----------
    runs:
        Runs with outputs.
    only, options:
        As :func:`tood.paper.ablations.ablate` takes them.
    say:
        Called with the name of each run before it is worked on.
    """
    rows: Rows = {}
    notes: dict[str, list[str]] = {}
    for run in runs:
        if say is not None:
            say(run.path.name)
        identity: Row = {"run": run.path.name, "stream": run.stream, "learner": learner_label(run)}
        identity["seed"] = run.manifest.get("seed")
        found = ablate(run, only, **options)
        for name, cases in found.rows.items():
            rows.setdefault(name, []).extend(identity | case for case in cases)
        for note in found.notes:
            notes.setdefault(note, []).append(run.path.name)
    return rows, [f"{note} ({', '.join(names)})" for note, names in notes.items()]


def findings(rows: Rows) -> Iterator[tuple[str, str, list[float]]]:
    """What the paper's ablations ask, as ``(finding, learner, a figure a run)``; the learner is "" where all count."""
    for row_name in ("maximum of task energies", "temperature", "tood_prototype", PRIMARY, "tood_mean_shift"):
        yield row_name, "", [row["gain"] for row in rows.get("mechanism", ()) if row["mechanism"] == row_name]
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
            after = {"calibration": source}
            yield (
                f"calibrated on {source}, not train",
                "",
                differences(rows["source"], after, {"calibration": "train"}, "detector"),
            )


def over_seeds(rows: Rows) -> Rows:
    """The rows of settings: those that differ in their run and seed alone become one, with the mean of each figure."""
    found: Rows = {}
    for name, of in rows.items():
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in of:
            case = {k: v for k, v in row.items() if k not in ("run", "seed", *FIGURES)}
            groups.setdefault(tuple(case.items()), []).append(row)
        found[name] = [
            {"run": f"{seeds[0]['stream']} {seeds[0]['learner']}"}
            | {
                k: float(np.mean([row[k] for row in seeds])) if k in FIGURES else v
                for k, v in seeds[0].items()
                if k != "run"
            }
            for seeds in groups.values()
        ]
    return found


def differences(rows: Iterable[Row], after: Row, before: Row, within: str = "", largest: bool = False) -> list[float]:
    """For each run, avg_auroc of the rows that match ``after`` minus that of those that match ``before``.

    Rows are compared with those of equal ``within``, and the mean over its values is taken, or the ``largest`` change.
    """
    groups: dict[str, dict[Any, tuple[list[float], list[float]]]] = {}
    for row in rows:
        pair = groups.setdefault(row["run"], {}).setdefault(row.get(within), ([], []))
        for values, wanted in zip(pair, (after, before), strict=True):
            if all(row[name] == value for name, value in wanted.items()):
                values.append(row["avg_auroc"])
    found = []
    for of_run in groups.values():
        changes = [float(np.mean(a) - np.mean(b)) for a, b in of_run.values() if a and b]
        if changes:
            found.append(max(map(abs, changes)) if largest else float(np.mean(changes)))
    return found


def summarize(rows: Rows, notes: Sequence[str] = ()) -> Table:
    """The findings, means over runs, beside the paper's; over its five learners alone too, where there are others.

    Parameters
    ----------
    rows, notes:
        What :func:`gather_ablations` returned.
    """
    known = {(row["finding"], row["learner"]): row["value"] for row in table_rows("findings.csv")}
    settings = over_seeds(rows)
    five = {name: [row for row in found if row["learner"] in LEARNERS] for name, found in settings.items()}
    parts = {"": settings} if five == settings or not any(five.values()) else {"five": five, "all": settings}
    found = [{(name, learner): values for name, learner, values in findings(part)} for part in parts.values()]
    shown = []
    for name, learner in found[-1]:
        theirs = known.get((name.split(":")[0], learner))
        cells = [cell for part in found for cell in _cells(part.get((name, learner), []))]
        if any(cells):  # the paper's figure, over its five learners, after the first part
            cells.insert(len(STATISTICS), None if theirs is None else Cell(Summary(float(theirs), 0.0, 1)))
            shown.append((f"{name}, {label(learner)}" if learner else label(name), tuple(cells)))
    columns = [Column(part, name, 0 if name == "settings" else 2) for part in parts for name in STATISTICS]
    columns.insert(len(STATISTICS), Column(next(iter(parts)), "paper", 2))
    said = (
        "Changes of Avg AUROC in points: over energy; of TOOD on prototypes over prototypes; of margin 0.5 over 0; "
        "else against the default.",
        AVERAGE_NOTE,
        SETTING,
        *([FIVE] if len(parts) > 1 else []),
        TWO_VALUES,
        TERMS,
        f"Settled: from that B on the mean over draws stays within {SETTLED} points of that with every stored sample; "
        "the paper says from between 50 and 100 on.",
        *_agreement(found[0], known),
        *_anchors(rows),
        *_intervals(rows),
        *(f"{note}." for note in notes),
    )
    return Table("ablations", f"Ablations of {_named(rows)}", tuple(columns), tuple(shown), said, "finding")


def _cells(values: Sequence[float]) -> list[Cell | None]:
    if not values:
        return [None] * len(STATISTICS)
    figures = (float(np.mean(values)), min(values), max(values), float(len(values)))
    return [Cell(Summary(figure, 0.0, 1)) for figure in figures]


def write_ablations(rows: Rows, summary: Table, folder: Path) -> list[Path]:
    """Write ``NAME.csv`` and ``NAME.json`` for each ablation, and the summary as ``summary.md``; returns the files."""
    from tood.report.render import to_markdown

    folder.mkdir(parents=True, exist_ok=True)
    contents = {folder / "summary.md": to_markdown(summary)}
    for name, found in rows.items():
        contents[folder / f"{name}.csv"] = _csv(found)
        contents[folder / f"{name}.json"] = json.dumps(found, indent=1) + "\n"
    for path, text in contents.items():
        write_text(path, text)
    return list(contents)


def draw_ablations(rows: Rows, folder: Path) -> list[Path]:
    """The figures of each stream, as PNG and PDF, in a folder a stream; returns the files.

    Where the paper's five learners are among the runs, they alone are drawn: more lines could not be told apart, and
    bars are means. The tables have all.
    """
    from tood.report.figures import buffer_size, margin, mechanism
    from tood.report.figures.style import save

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
            note = f"{stream}: {runs} run{'s' * (runs > 1)} of {learners} learner{'s' * (learners > 1)}"
            note += "; TOOD (robust anchor)." if name != "mechanism" else "; TOOD on prototypes against prototypes."
            options = {"default": max(row["B"] for row in chosen)} if name == "buffer" else {}
            paths += save(draw(chosen, note=note, **options), folder / stream / file)
    return paths


def _anchors(rows: Rows) -> Iterator[str]:
    moved = [change for name, _, changes in findings(rows) if name.startswith("anchor") for change in changes]
    if moved:
        yield f"The anchor: the largest change in any run is {max(moved):.1g} points; the paper's is 0.00015."


def _intervals(rows: Rows) -> Iterator[str]:
    """In how many runs the bootstrap interval of a gain leaves out zero."""
    for detector in (PRIMARY, "tood_mean_shift"):
        own = [row for row in rows.get("interval", ()) if row["detector"] == detector]
        if own:
            up, down = sum(row["gain_low"] > 0 for row in own), sum(row["gain_high"] < 0 for row in own)
            yield (
                f"{label(detector)} over energy, 95 % bootstrap intervals: above zero in {up}, below in {down}, around "
                f"it in {len(own) - up - down} of {len(own)} runs."
            )


def _agreement(found: Mapping[tuple[str, str], list[float]], known: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Of changes that the paper states, which have its sign here."""
    signs: dict[bool, list[str]] = {True: [], False: []}
    for (name, learner), values in found.items():
        theirs = known.get((name, learner))
        if values and theirs is not None and name != ENOUGH:
            words = f"{name} ({label(learner)})" if learner else label(name)
            signs[float(theirs) * float(np.mean(values)) > 0].append(words)
    for same, names in signs.items():
        if names:
            yield f"{'The same sign as' if same else 'Another sign than'} the paper's: {', '.join(names)}."


def _named(rows: Rows) -> str:
    """How many runs of which streams."""
    streams = {row["run"]: row["stream"] for found in rows.values() for row in found}
    counts = Counter(streams.values())
    return ", ".join(f"{count} {stream} run{'s' * (count > 1)}" for stream, count in counts.items())


def _runs(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["run"] for row in rows))


def _below_all(buffer: Sequence[Row]) -> list[Row]:
    """Of each run the rows of its second largest B: with every stored sample both selections are the same set."""
    found = []
    for run in _runs(buffer):
        own = [row for row in buffer if row["run"] == run]
        *below, _ = sorted({row["B"] for row in own})
        found += [row for row in own if below and row["B"] == below[-1]]
    return found


def _as_in_the_paper(rows: Sequence[Row]) -> Sequence[Row]:
    """Those of CIFAR-10, the stream of the paper's figures on λ and B, where there are any."""
    return [row for row in rows if row["stream"] == "cifar10"] or rows


def _settled(buffer: Sequence[Row]) -> list[float | None]:
    """The smallest B from which on the mean over draws stays near that of the largest, a run; None if it is that."""
    drawn = [row for row in _as_in_the_paper(buffer) if row["selection"] == "random"]
    found: list[float | None] = []
    for run in _runs(drawn):
        own = [row for row in drawn if row["run"] == run]
        sizes = sorted({row["B"] for row in own})
        means = [float(np.mean([row["avg_auroc"] for row in own if row["B"] == size])) for size in sizes]
        far = [place for place, mean in enumerate(means) if abs(mean - means[-1]) > SETTLED]
        first = far[-1] + 1 if far else 0
        found.append(float(sizes[first]) if first < len(sizes) - 1 else None)
    return found


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
