"""Results on frozen pretrained features: collected into three small CSV files, then written as a page.

``python -m results_pages.pretrained collect RUNS... docs/results/metrics`` reads the finished runs of ``tood reproduce
pretrained``; ``python -m results_pages.pretrained page docs/results/metrics docs/results README.md`` writes
``pretrained.md``, its figures and README's table from the CSV files alone. Any part of the grid will do.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from results_pages.drawings import drawings
from results_pages.facts import EXPLAINED, FACT_NAMES, Fact, fact_rows
from results_pages.gains import RAW, mean_over_learners
from results_pages.mechanisms import interval
from tood.files import write_text
from tood.metrics import correlation
from tood.paper.reproduce import cells
from tood.report.appearance import label
from tood.report.gather import Measured
from tood.report.summary import ACCURACY, learner_label, run_figures
from tood.report.tables import LEARNERS, TOOD_VARIANTS
from tood.runs import Run, Step, find_runs
from tood.runs.figures_only import energy_gap, step_facts
from tood.runs.measure import is_measured

SCORES, RUNS, FACTS = "pretrained-scores.csv", "pretrained-runs.csv", "pretrained-facts.csv"
METRICS = ("avg_auroc", "near_auroc", "far_auroc", "d_avg", "old_auroc", "avg_fpr95")
STREAMS = ("cifar10", "cifar100", "cifar100-20", "cifar100-50", "tinyimagenet", "tinyimagenet-100")
Row = dict[str, str]
Setting = tuple[str, str]  # stream and learner


def collect(paths: Iterable[str], folder: Path) -> None:
    """Write one line per run and detector, one line per run, and one line per step with numbers of the learner.

    Lines of runs collected earlier stay.
    """
    scores: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    facts: list[dict[str, Any]] = []
    unfinished = []
    for run in find_runs([Path(path) for path in paths]):
        if not is_measured(run.path, ()):
            unfinished.append(run.path.name)
            continue
        measured = Measured(run)
        who = {"stream": run.stream, "learner": learner(run), "seed": run.manifest.get("seed", 0)}
        figures = run_figures(measured.table, run.calibration)
        for detector in sorted({name for name, _ in figures if name != "-"}):
            values = {metric: figures.get((detector, metric)) for metric in METRICS}
            text = {metric: "" if value is None else f"{value:.2f}" for metric, value in values.items()}
            scores.append({**who, "detector": detector, **text})
        point, last = measured.point(), len(run.partition) - 1
        gap = energy_gap(Step(run, last)) if measured.has_outputs else step_facts(run, last)["gap"]
        runs.append(
            {
                **who,
                "tasks": last + 1,
                "accuracy": f"{figures['-', ACCURACY]:.2f}",
                "accuracy_forgetting": f"{point['f_avg']:.2f}",
                "drift": f"{point['drift']:.4f}",
                "gap": f"{gap:.3f}",
            }
        )
        for step in range(last + 1):
            known = {name: value for name, value in step_facts(run, step).items() if name in FACT_NAMES}
            facts += [{**who, "step": step, "fact": name, "value": f"{value:.4g}"} for name, value in known.items()]
    if not runs:
        raise SystemExit("no finished runs found")
    add({SCORES: scores, RUNS: runs, FACTS: facts}, folder)
    print(f"{len(runs)} runs collected; not finished: {', '.join(unfinished) or 'none'}")


def add(lines: Mapping[str, list[dict[str, Any]]], folder: Path) -> None:
    """Add lines to the CSV files; earlier lines of the same run, detector or step are replaced."""
    for name, new in lines.items():
        found = {identity(row): row for row in (*read_csv(folder / name), *new)}
        write_csv(folder / name, [found[key] for key in sorted(found)])


def identity(row: Mapping[str, Any]) -> tuple[str, str, str, str, int, str]:
    """What a line is about."""
    run = str(row["stream"]), str(row["learner"]), str(row["seed"])
    return *run, row.get("detector", ""), int(row.get("step", 0)), row.get("fact", "")


def learner(run: Run) -> str:
    """The learner, without the options that all runs of this regime share."""
    every = ("network", "frozen", "adapter")
    options = {name: v for name, v in (run.manifest.get("options") or {}).items() if name not in every}
    return learner_label(run).split(" (")[0] + (f" ({options})" if options else "")


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows that share their keys."""
    lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)] if rows else []
    write_text(path, "\n".join(lines) + "\n")


def read_csv(path: Path) -> list[Row]:
    """Rows as dictionaries of text; empty if there is no file."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []


class Table:
    """Collected values by stream, learner, detector and seed."""

    def __init__(self, folder: Path) -> None:
        self.scores: dict[tuple[str, str, str], dict[str, Row]] = {}
        for row in read_csv(folder / SCORES):
            self.scores.setdefault((row["stream"], row["learner"], row["detector"]), {})[row["seed"]] = row
        self.runs: dict[Setting, dict[str, Row]] = {}
        for row in read_csv(folder / RUNS):
            self.runs.setdefault((row["stream"], row["learner"]), {})[row["seed"]] = row
        self.facts = read_csv(folder / FACTS)

    def seeds(self, stream: str, learner: str, detector: str, metric: str = "avg_auroc") -> dict[str, float]:
        """The value of each seed."""
        rows = self.scores.get((stream, learner, detector), {})
        return {seed: float(row[metric]) for seed, row in rows.items() if row[metric]}

    def mean(self, stream: str, learner: str, detector: str, metric: str = "avg_auroc") -> float:
        """Mean over seeds; NaN if there are none."""
        values = self.seeds(stream, learner, detector, metric)
        return float(np.mean(list(values.values()))) if values else float("nan")

    def of_run(self, setting: Setting, name: str) -> list[float]:
        """A value of each run of a setting."""
        return [float(row[name]) for row in self.runs[setting].values()]

    def changes(self, setting: Setting, detector: str, metric: str, suffix: str = "") -> list[float]:
        """Per seed, the value of a detector minus the value of energy."""
        own, energy = (self.seeds(*setting, name + suffix, metric) for name in (detector, "energy"))
        return [own[seed] - energy[seed] for seed in own if seed in energy]

    def streams(self) -> list[str]:
        """Streams, short ones first."""
        found = {stream for stream, _ in self.runs}
        return sorted(found, key=lambda name: (STREAMS.index(name) if name in STREAMS else len(STREAMS), name))

    def learners(self, stream: str) -> list[str]:
        """Learners of a stream, the paper's five first."""
        found = {learner for name, learner in self.runs if name == stream}
        return sorted(found, key=lambda name: (LEARNERS.index(name) if name in LEARNERS else len(LEARNERS), name))

    def settings(self, learners: Sequence[str] | None = None) -> list[Setting]:
        """Pairs of stream and learner."""
        return [(s, l) for s in self.streams() for l in self.learners(s) if learners is None or l in learners]


Value = Callable[[Table, Setting], float]


def page(folder: Path, out: Path) -> None:
    """Write ``pretrained.md`` and its figures."""
    table = Table(folder)
    shown = [name for name in main_columns() if any(key[2] == name for key in table.scores)]
    lines = [*opening(table), *claims(table), *by_length(table)]
    for stream in table.streams():
        lines += section(table, stream, shown)
    lines += [*ranks(table), *facts(table)]
    for written in ("unfrozen.md", "long.md"):  # measured apart, by hand
        if (folder / written).exists():
            lines += ["", (folder / written).read_text(encoding="utf-8")]
    lines += figures(table, folder)
    write_text(out / "pretrained.md", "\n".join(lines) + "\n")


def default_detector() -> str:
    """The detector of ``TOOD()``'s default variant."""
    from tood import TOOD

    return f"tood_{TOOD([[0]]).variant}"


def main_columns() -> list[str]:
    """Energy, the paper's two variants, the default of ``TOOD()``, and the scores that also read features."""
    return list(dict.fromkeys(["energy", *TOOD_VARIANTS, default_detector(), "tood_auto", "tood_joint", "typicality"]))


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A Markdown table."""
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"


def opening(table: Table) -> Iterator[str]:
    """Opening of the page: its content, the commands that made it, and the missing runs."""
    yield "# Pretrained, frozen features\n"
    yield (
        "An EfficientNet-Lite0 with its ImageNet weights, frozen, at 96 pixels; a trained layer of 512 on top, 8 "
        "epochs per task (preset `frozen`: the original methods). Closed-form learners (NCM, SLDA, FeCAM, RanPAC) read "
        "the features directly. Avg AUROC = (mean of near + mean of far) / 2 along the stream, in percent, mean ± "
        "standard deviation over seeds. BiC's logits are the corrected ones; rows that say so score its raw logits, as "
        "the authors of the paper did.\n"
    )
    yield (
        "Made by `tood reproduce pretrained --out RUNS`, then, with `PYTHONPATH=docs/results`, `python -m "
        "results_pages.pretrained collect RUNS docs/results/metrics` and `make results`.\n"
    )
    wanted: dict[Setting, set[str]] = {}
    for cell in cells("pretrained", "runs"):
        identity = cell.config.identity
        wanted.setdefault((identity.stream, identity.learner), set()).add(str(identity.seed))
    rows = []
    for stream in dict.fromkeys([*table.streams(), *(s for s, _ in wanted)]):
        here = {of: set(seeds) for (name, of), seeds in table.runs.items() if name == stream}
        absent: dict[str, list[str]] = {}
        for (name, of), seeds in wanted.items():
            if name == stream and seeds - here.get(of, set()):
                absent.setdefault(", ".join(sorted(seeds - here.get(of, set()))), []).append(label(of))
        done = sum(len(seeds) for seeds in here.values())
        seeds = ", ".join(sorted(set().union(*here.values()))) if here else "–"
        every = sum(name == stream for name, _ in wanted)
        shown = {of: "every learner" if len(names) == every else ", ".join(names) for of, names in absent.items()}
        gaps = "; ".join(f"seed {of}: {names}" for of, names in shown.items())
        rows.append((stream, str(len(here)), seeds, str(done), gaps or "none"))
    yield from grid(("stream", "learners", "seeds", "runs", "missing"), rows)


def section(table: Table, stream: str, shown: Sequence[str]) -> Iterator[str]:
    """The table of one stream."""
    learners, default = table.learners(stream), default_detector()
    yield f"\n## {stream}: {tasks_of(table, stream)} tasks\n"
    rows = []
    for learner in learners:
        for suffix in ("", RAW):
            if not table.seeds(stream, learner, "energy" + suffix):
                continue
            cells_ = [spread_of(table.seeds(stream, learner, name + suffix).values()) for name in shown]
            best = int(np.nanargmax([table.mean(stream, learner, name + suffix) for name in shown]))
            cells_[best] = f"**{cells_[best]}**"
            forgotten = [table.mean(stream, learner, name + suffix, "d_avg") for name in ("energy", default)]
            accuracy = table.of_run((stream, learner), "accuracy")
            name = label(learner) + suffix
            rows.append((name, str(len(accuracy)), spread_of(accuracy), *cells_, arrow(forgotten)))
    yield from grid(("learner", "seeds", "accuracy", *map(label, shown), "D_avg: energy → default"), rows)


def arrow(values: Sequence[float]) -> str:
    """``12.3 → 4.5``; a dash for a value that was not measured."""
    return " → ".join(f"{value:.1f}" if np.isfinite(value) else "–" for value in values)


def spread_of(values: Iterable[float]) -> str:
    """Mean ± standard deviation; a dash without values."""
    found = list(values)
    if not found:
        return "–"
    return f"{np.mean(found):.1f}" + (f" ± {np.std(found, ddof=1):.1f}" if len(found) > 1 else "")


def claims(table: Table) -> Iterator[str]:
    """The paper's claims, counted over settings (stream × learner) of its five learners and of all."""
    groups = (table.settings(LEARNERS), table.settings())
    yield "\n## The paper's claims in this regime\n"
    yield (
        "Counted over settings (stream × learner). Means are over settings, with the 95 % interval over seeds; "
        "Pearson's r with the 95 % interval over settings (Fisher's z), Spearman's ρ. The gap is in units of each "
        "learner's logits, which differ (FeCAM's are large), so ρ is the safer one. `BiC raw`: as the authors scored.\n"
    )
    rows = []
    for name in TOOD_VARIANTS:
        for what, metric, better in (("raises Avg AUROC", "avg_auroc", 1), ("lowers D_avg", "d_avg", -1)):
            for suffix in ("", RAW):
                found = [count(table, group, name, metric, better, suffix) for group in groups]
                note = ", BiC raw" if suffix else ", BiC corrected"
                rows.append((f"{label(name)} {what} against energy{note}", *found))
    relations: dict[str, tuple[Value, Value]] = {
        "mean shift's gain grows with the confidence gap": (gain, partial(of_run, name="gap")),
        "feature drift goes with accuracy forgetting": (
            partial(of_run, name="drift"),
            partial(of_run, name="accuracy_forgetting"),
        ),
        "feature drift goes with D_avg of energy": (partial(of_run, name="drift"), forgetting),
    }
    for text, (one, other) in relations.items():
        rows.append((text, *(relation(table, group, one, other) for group in groups)))
    heads = (f"the paper's five learners ({len(groups[0])} settings)", f"all learners ({len(groups[1])} settings)")
    yield from grid(("claim", *heads), rows)


def count(table: Table, group: Sequence[Setting], name: str, metric: str, better: int, suffix: str) -> str:
    """Number of settings in which a detector is better than energy, and the mean and median change."""
    changes = [table.changes(setting, name, metric, suffix * (setting[1] == "bic")) for setting in group]
    changes = [of for of in changes if of]
    if not changes:
        return "not measured"
    means = [float(np.mean(of)) for of in changes]
    good = sum(better * mean > 0 for mean in means)
    return f"{good} of {len(means)}; mean {mean_over_learners(changes)}, median {np.median(means):+.1f}"


def by_length(table: Table) -> Iterator[str]:
    """Table: gain over energy by number of tasks."""
    names = (*TOOD_VARIANTS, default_detector())
    rows = []
    for stream in table.streams():
        for who, group in (("the paper's five", table.settings(LEARNERS)), ("all", table.settings())):
            own = [setting for setting in group if setting[0] == stream]
            changes = [[c for c in (table.changes(s, name, "avg_auroc") for s in own) if c] for name in names]
            if any(changes):
                energy = np.mean([table.mean(*setting, "energy") for setting in own])
                cells_ = (f"{mean_over_learners(of)}" if of else "–" for of in changes)
                rows.append((stream, tasks_of(table, stream), who, str(len(own)), f"{energy:.1f}", *cells_))
    yield "\n## Gain by length of the stream\n"
    yield "Avg AUROC of energy, and the gain over it: mean over learners with the 95 % interval over seeds.\n"
    yield from grid(("stream", "tasks", "learners", "number", "Energy", *map(label, names)), rows)


def tasks_of(table: Table, stream: str) -> str:
    """The number of tasks of a stream."""
    return next(row["tasks"] for (name, _), seeds in table.runs.items() if name == stream for row in seeds.values())


def gain(table: Table, setting: Setting) -> float:
    """Avg AUROC of mean shift minus Avg AUROC of energy."""
    return table.mean(*setting, TOOD_VARIANTS[0]) - table.mean(*setting, "energy")


def forgetting(table: Table, setting: Setting) -> float:
    """D_avg of energy."""
    return table.mean(*setting, "energy", "d_avg")


def of_run(table: Table, setting: Setting, name: str) -> float:
    """A value of the runs of a setting, mean over seeds."""
    return float(np.mean(table.of_run(setting, name)))


def relation(table: Table, group: Sequence[Setting], one: Value, other: Value) -> str:
    """Pearson's r over settings with its 95 % interval, and Spearman's ρ, which is robust to outliers."""
    from scipy import stats

    pairs = np.array([(one(table, setting), other(table, setting)) for setting in group]).reshape(-1, 2)
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    if len(pairs) < 5 or pairs.std(axis=0).min() == 0:
        return f"too few settings ({len(pairs)})"
    r, p = correlation(pairs[:, 0], pairs[:, 1])
    low, high = interval(r, len(pairs))
    rank = stats.spearmanr(pairs[:, 0], pairs[:, 1]).statistic
    small = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return f"r = {r:.2f} [{low:.2f}, {high:.2f}], {small}; ρ = {rank:.2f}; n = {len(pairs)}"


def ranks(table: Table) -> Iterator[str]:
    """Table of mean rank and mean Avg AUROC, for detectors measured in at least nine tenths of the settings."""
    names = sorted({key[2] for key in table.scores if "(" not in key[2]})
    settings = [s for s in table.settings() if table.seeds(*s, "energy")]
    common = [name for name in names if sum(bool(table.seeds(*s, name)) for s in settings) >= 0.9 * len(settings)]
    values = np.array([[table.mean(*s, name) for name in common] for s in settings])
    places = np.array([[1 + np.nansum(row > value) for value in row] for row in values])
    yield "\n## Every detector\n"
    yield f"Mean over {len(settings)} settings (stream × learner); rank 1 is best.\n"
    rows = []
    for j in np.argsort(places.mean(axis=0)):
        metrics = ("near_auroc", "far_auroc", "d_avg")
        others = [np.nanmean([table.mean(*s, common[j], metric) for s in settings]) for metric in metrics]
        numbers = (places[:, j].mean(), np.nanmean(values[:, j]), *others)
        rows.append((label(common[j]), *(f"{value:.1f}" for value in numbers)))
    yield from grid(("detector", "mean rank", "Avg AUROC", "near", "far", "D_avg"), rows)


def facts(table: Table) -> Iterator[str]:
    """Table of corrections that learners made to the newest task."""
    read = (Fact(row["stream"], row["fact"], int(row["step"]), float(row["value"])) for row in table.facts)
    if rows := list(fact_rows(read)):
        yield "\n## What learners did to the newest task\n"
        yield f"{EXPLAINED}\n"
        yield from grid(("learner", "stream", "step: value"), rows)


def figures(table: Table, folder: Path) -> Iterator[str]:
    """Scatter plots with one point per setting: gain by confidence gap, and both kinds of forgetting by drift."""
    x_gap, x_drift = partial(of_run, name="gap"), partial(of_run, name="drift")
    gap_text = "confidence gap at the last step (energy of the newest task above old ones)"
    drift_text = "feature drift, 1 - CKA"
    drawn = {
        "gap": [(x_gap, gain, gap_text, "mean shift − energy, Avg AUROC")],
        "drift": [
            (x_drift, partial(of_run, name="accuracy_forgetting"), drift_text, "accuracy forgetting"),
            (x_drift, forgetting, drift_text, "D_avg of energy"),
        ],
    }
    heads = {"gap": "Gain against the confidence gap", "drift": "Feature drift against forgetting"}
    for name, panels in drawn.items():
        scatter(table, panels, folder / "figures" / f"pretrained-{name}.png")
        yield f"\n## {heads[name]}\n"
        yield f"![One point per stream and learner.](metrics/figures/pretrained-{name}.png)\n"
    if lines := list(drawings(folder / "figures" / "pretrained", folder.parent)):
        yield "\n## Figures\n"
        yield (
            "CIFAR-10 in 5 tasks, seed 0. Drawn by `tood report RUNS --figures`, and the ablations by "
            "`tood ablate RUNS --only buffer,margin,mechanism --draws 3`. In brackets: the name in the paper.\n"
        )
        yield from lines


def scatter(table: Table, panels: Sequence[tuple[Value, Value, str, str]], file: Path) -> None:
    """Draw one panel per pair of values; colours are learners, markers are streams."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    learners = list(dict.fromkeys(of for _, of in sorted(table.settings(), key=lambda s: s[1] not in LEARNERS)))
    colours = dict(zip(learners, plt.get_cmap("tab20").colors, strict=False))  # type: ignore[attr-defined]
    marks = dict(zip(table.streams(), "os^Dv*", strict=False))
    drawn, axes = plt.subplots(
        1, len(panels), figsize=(5.2 * len(panels) + 1.6, 4), layout="constrained", squeeze=False
    )
    for plot, (x, y, x_text, y_text) in zip(axes[0], panels, strict=True):
        for setting in table.settings():
            place = (x(table, setting), y(table, setting))
            if np.isfinite(place).all():
                style = {"color": colours.get(setting[1], "0.5"), "marker": marks.get(setting[0], "x")}
                plot.scatter(*place, s=34, edgecolors="black", linewidths=0.4, **style)
                plot.annotate(label(setting[1]), place, (4, 3), textcoords="offset points", fontsize=5.5)
        plot.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        plot.set_xlabel(x_text, fontsize=8)
        plot.set_ylabel(y_text, fontsize=8)
    handles = [Line2D([], [], linestyle="", marker=marks[s], color="0.3", label=s) for s in marks]
    handles += [Line2D([], [], linestyle="", marker="s", color=colours[of], label=label(of)) for of in colours]
    drawn.legend(handles=handles, loc="outside right upper", fontsize=7, frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(file, dpi=150)
    plt.close(drawn)


def short_table(table: Table) -> Iterator[str]:
    """README's table: one row per learner, with columns for CIFAR-10 and CIFAR-100."""
    default = default_detector()
    rows = []
    for learner in (*LEARNERS, "er", "finetune"):
        row = [label(learner)]
        for stream in ("cifar10", "cifar100"):
            row += [spread_of(table.seeds(stream, learner, name).values()) for name in ("energy", default)]
            row.append(arrow([table.mean(stream, learner, name, "d_avg") for name in ("energy", default)]))
        rows.append(row)
    of_streams = [(f"{name}: energy", f"{name}: TOOD", "OOD forgetting") for name in ("CIFAR-10", "CIFAR-100")]
    yield from grid(("learner", *of_streams[0], *of_streams[1]), rows)


def fill_readme(folder: Path, readme: Path) -> None:
    """Replace the table between ``<!-- pretrained -->`` and ``<!-- end -->``."""
    before, start, rest = readme.read_text(encoding="utf-8").partition("<!-- pretrained -->")
    lines = "\n".join(short_table(Table(folder)))
    write_text(readme, f"{before}{start}\n\n{lines}\n\n{rest[rest.index('<!-- end -->') :]}")


def main() -> int:
    """Collect runs, or write the page."""
    command, *rest = sys.argv[1:]
    if command == "collect":
        collect(rest[:-1], Path(rest[-1]))
    else:
        page(Path(rest[0]), Path(rest[1]))
        fill_readme(Path(rest[0]), Path(rest[2]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
