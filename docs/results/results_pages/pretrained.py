"""Results on frozen pretrained features: collected into two small CSV files, then written as a page.

``python -m results_pages.pretrained collect RUNS... docs/results/metrics`` reads finished runs of ``tood reproduce
pretrained``; ``python -m results_pages.pretrained page docs/results/metrics docs/results README.md`` writes
``pretrained.md``, its figures and README's table from the CSV files alone.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tood.files import write_text
from tood.metrics import confidence_gap, correlation
from tood.report.appearance import label
from tood.report.gather import Measured
from tood.report.summary import ACCURACY, learner_label, run_figures
from tood.runs import Run, Step, find_runs

SCORES, RUNS = "pretrained-scores.csv", "pretrained-runs.csv"
METRICS = ("avg_auroc", "near_auroc", "far_auroc", "d_avg", "old_auroc", "avg_fpr95")
PAPER = ("icarl", "bic", "der", "wa", "lwf")
VARIANTS = ("tood_mean_shift", "tood_robust_anchor")
RAW = " (logits=raw)"
Row = dict[str, str]


def collect(paths: Iterable[str], folder: Path) -> None:
    """Write one line per run and detector, and one line per run."""
    scores: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for run in find_runs([Path(path) for path in paths]):
        if not run.metrics_path.exists() or len(run.steps()) < len(run.partition):
            continue
        measured = Measured(run)
        who = {"stream": run.stream, "learner": learner(run), "seed": run.manifest.get("seed", 0)}
        figures = run_figures(measured.table, run.calibration)
        for detector in sorted({name for name, _ in figures if name != "-"}):
            values = {metric: figures.get((detector, metric)) for metric in METRICS}
            text = {metric: "" if value is None else f"{value:.2f}" for metric, value in values.items()}
            scores.append({**who, "detector": detector, **text})
        point = measured.point()
        runs.append(
            {
                **who,
                "tasks": len(run.partition),
                "accuracy": f"{figures['-', ACCURACY]:.2f}",
                "accuracy_forgetting": f"{point['f_avg']:.2f}",
                "drift": f"{point['drift']:.4f}",
                "gap": f"{gap(run):.3f}",
            }
        )
    if not runs:
        raise SystemExit("no finished runs found")
    write_csv(folder / SCORES, scores)
    write_csv(folder / RUNS, runs)
    print(f"{len(runs)} runs, {len(scores)} lines")


def learner(run: Run) -> str:
    """The learner without the options that every run of this regime has."""
    every = ("network", "frozen", "adapter")
    options = {name: v for name, v in (run.manifest.get("options") or {}).items() if name not in every}
    return learner_label(run).split(" (")[0] + (f" ({options})" if options else "")


def gap(run: Run) -> float:
    """How far old tasks' own-channel energy lies below the newest task's at the last step, mean over old tasks."""
    step = Step(run, len(run.partition) - 1)
    energies = np.asarray(confidence_gap(step.test.logits, step.test.labels, step.partition))
    return float(energies[-1] - energies[:-1].mean())


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows that share their keys."""
    lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
    write_text(path, "\n".join(lines) + "\n")


def read_csv(path: Path) -> list[Row]:
    """Rows as dictionaries of text."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


class Table:
    """Figures by stream, learner and detector, each a list over seeds."""

    def __init__(self, folder: Path) -> None:
        self.scores: dict[tuple[str, str, str], list[Row]] = {}
        for row in read_csv(folder / SCORES):
            self.scores.setdefault((row["stream"], row["learner"], row["detector"]), []).append(row)
        self.runs: dict[tuple[str, str], list[Row]] = {}
        for row in read_csv(folder / RUNS):
            self.runs.setdefault((row["stream"], row["learner"]), []).append(row)

    def values(self, stream: str, learner: str, detector: str, metric: str = "avg_auroc") -> list[float]:
        """One value per seed."""
        return [float(row[metric]) for row in self.scores.get((stream, learner, detector), ()) if row[metric]]

    def mean(self, stream: str, learner: str, detector: str, metric: str = "avg_auroc") -> float:
        """Mean over seeds; NaN without any."""
        values = self.values(stream, learner, detector, metric)
        return float(np.mean(values)) if values else float("nan")

    def streams(self) -> list[str]:
        """Streams, short ones first."""
        order = {"cifar10": 0, "cifar100": 1, "cifar100-20": 2, "cifar100-50": 3}
        return sorted({stream for stream, _ in self.runs}, key=lambda name: (order.get(name, 9), name))

    def learners(self, stream: str) -> list[str]:
        """Learners of a stream, the paper's five first."""
        found = {learner for name, learner in self.runs if name == stream}
        return sorted(found, key=lambda name: (PAPER.index(name) if name in PAPER else len(PAPER), name))

    def settings(self, learners: Sequence[str] | None = None) -> list[tuple[str, str]]:
        """Pairs of stream and learner."""
        return [(s, l) for s in self.streams() for l in self.learners(s) if learners is None or l in learners]


Value = Callable[[Table, tuple[str, str]], float]


def page(folder: Path, out: Path) -> None:
    """Write ``pretrained.md`` and its figures."""
    table = Table(folder)
    shown = [name for name in main_columns() if any(key[2] == name for key in table.scores)]
    lines = [*opening(table), *claims(table)]
    for stream in table.streams():
        lines += section(table, stream, shown)
    lines += [*ranks(table), *figure(table, folder)]
    write_text(out / "pretrained.md", "\n".join(lines) + "\n")


def main_columns() -> list[str]:
    """Energy, the paper's two variants, the default of ``TOOD()``, and the score that also reads features."""
    from tood import TOOD

    default = f"tood_{TOOD([[0]]).variant}"
    return list(dict.fromkeys(["energy", *VARIANTS, default, "tood_auto", "tood_joint", "typicality"]))


def title(detector: str) -> str:
    """A detector's display name, and whether it read raw logits."""
    name, _, settings = detector.partition(" (")
    return label(name) + (" (raw logits)" if "logits=raw" in settings else "")


def opening(table: Table) -> Iterator[str]:
    """What the page shows and which commands made it."""
    seeds = sorted({row["seed"] for rows in table.runs.values() for row in rows})
    runs = sum(len(rows) for rows in table.runs.values())
    yield "# Pretrained, frozen features\n"
    yield (
        "An EfficientNet-Lite0 with its ImageNet weights, frozen, at 96 pixels; a trained layer of 512 on top, 8 "
        "epochs per task (preset `frozen`, original methods). Closed-form learners (NCM, SLDA, FeCAM, RanPAC) read the "
        f"features directly. {runs} runs, seeds {', '.join(seeds)}. Avg AUROC = (mean of near + mean of far) / 2 along "
        "the stream, in percent, mean ± standard deviation over seeds. BiC's head is corrected; rows that say so score "
        "its raw logits.\n"
    )
    yield (
        "Made by `tood reproduce pretrained --out RUNS`, then, with `PYTHONPATH=docs/results`, `python -m "
        "results_pages.pretrained collect RUNS docs/results/metrics` and `python -m results_pages.pretrained page "
        "docs/results/metrics docs/results README.md`.\n"
    )


def section(table: Table, stream: str, shown: Sequence[str]) -> Iterator[str]:
    """The table of one stream."""
    tasks = next(rows[0]["tasks"] for (name, _), rows in table.runs.items() if name == stream)
    yield f"\n## {stream}: {tasks} tasks\n"
    head = ["learner", "seeds", "accuracy", *(title(name) for name in shown), "D_avg: energy → default"]
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    default = shown[min(3, len(shown) - 1)]
    for learner in table.learners(stream):
        runs = table.runs[stream, learner]
        for suffix in ("", RAW):
            if not table.values(stream, learner, "energy" + suffix):
                continue
            cells = [spread(table.values(stream, learner, name + suffix)) for name in shown]
            means = [table.mean(stream, learner, name + suffix) for name in shown]
            best = int(np.nanargmax(means))
            cells[best] = f"**{cells[best]}**"
            forgotten = [table.mean(stream, learner, name + suffix, "d_avg") for name in ("energy", default)]
            row = [
                learner + (" (raw logits)" if suffix else ""),
                str(len(runs)),
                spread([float(run["accuracy"]) for run in runs]),
                *cells,
                f"{forgotten[0]:.1f} → {forgotten[1]:.1f}",
            ]
            yield "| " + " | ".join(row) + " |"


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    if not values:
        return "–"
    return f"{np.mean(values):.1f}" + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


def claims(table: Table) -> Iterator[str]:
    """The paper's claims, counted over settings (stream × learner) of its five learners and of all."""
    yield "\n## The paper's claims in this regime\n"
    yield "| claim | the paper's five learners | all learners |"
    yield "| --- | --- | --- |"
    groups = (table.settings(PAPER), table.settings())
    for name in VARIANTS:
        for what, metric, better in (("raises Avg AUROC", "avg_auroc", 1), ("lowers D_avg", "d_avg", -1)):
            cells = [count(table, group, name, metric, better) for group in groups]
            yield f"| {title(name)} {what} against energy | {' | '.join(cells)} |"
    relations: dict[str, tuple[Value, Value]] = {
        "mean shift's gain grows with the confidence gap": (gain, partial(of_run, name="gap")),
        "feature drift goes with accuracy forgetting": (
            partial(of_run, name="drift"),
            partial(of_run, name="accuracy_forgetting"),
        ),
        "feature drift goes with D_avg of energy": (partial(of_run, name="drift"), forgetting),
    }
    for text, (one, other) in relations.items():
        cells = [relation(table, group, one, other) for group in groups]
        yield f"| {text} | {' | '.join(cells)} |"


def forgetting(table: Table, setting: tuple[str, str]) -> float:
    """D_avg of energy."""
    return table.mean(*setting, "energy", "d_avg")


def count(table: Table, group: Sequence[tuple[str, str]], name: str, metric: str, better: int) -> str:
    """In how many settings a detector is better than energy."""
    changes = [table.mean(s, l, name, metric) - table.mean(s, l, "energy", metric) for s, l in group]
    changes = [change for change in changes if np.isfinite(change)]
    good = sum(better * change > 0 for change in changes)
    return f"{good} of {len(changes)}; mean {np.mean(changes):+.1f}, median {np.median(changes):+.1f}"


def gain(table: Table, setting: tuple[str, str]) -> float:
    """Mean shift's Avg AUROC above energy's."""
    return table.mean(*setting, VARIANTS[0]) - table.mean(*setting, "energy")


def of_run(table: Table, setting: tuple[str, str], name: str) -> float:
    """A value of the runs of a setting, mean over seeds."""
    return float(np.mean([float(row[name]) for row in table.runs[setting]]))


def relation(
    table: Table,
    group: Sequence[tuple[str, str]],
    one: Value,
    other: Value,
) -> str:
    """Pearson's r over settings, with its 95 % interval (Fisher's z)."""
    pairs = np.array([(one(table, setting), other(table, setting)) for setting in group])
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    if len(pairs) < 5 or pairs.std(axis=0).min() == 0:
        return f"too few settings ({len(pairs)})"
    r, p = correlation(pairs[:, 0], pairs[:, 1])
    low, high = np.tanh(np.arctanh(r) + np.array([-1.96, 1.96]) / np.sqrt(len(pairs) - 3))
    return f"r = {r:.2f} [{low:.2f}, {high:.2f}], p = {p:.3f}, n = {len(pairs)}"


def ranks(table: Table) -> Iterator[str]:
    """Every detector: mean rank and mean Avg AUROC over settings."""
    names = sorted({key[2] for key in table.scores if "(" not in key[2]})
    settings = [s for s in table.settings() if all(table.values(*s, name) for name in ("energy",))]
    common = [name for name in names if sum(bool(table.values(*s, name)) for s in settings) >= 0.9 * len(settings)]
    values = np.array([[table.mean(*s, name) for name in common] for s in settings])
    places = np.array([[1 + np.nansum(row > value) for value in row] for row in values])
    yield "\n## Every detector\n"
    yield f"Mean over {len(settings)} settings (stream × learner); rank 1 is best.\n"
    yield "| detector | mean rank | Avg AUROC | near | far | D_avg |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for j in np.argsort(places.mean(axis=0)):
        metrics = ("near_auroc", "far_auroc", "d_avg")
        others = [np.nanmean([table.mean(*s, common[j], metric) for s in settings]) for metric in metrics]
        cells = [f"{value:.1f}" for value in (places[:, j].mean(), np.nanmean(values[:, j]), *others)]
        yield f"| {title(common[j])} | {' | '.join(cells)} |"


def figure(table: Table, folder: Path) -> Iterator[str]:
    """Gain of mean shift against the confidence gap; one point per setting."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    points = [(of_run(table, s, "gap"), gain(table, s), s) for s in table.settings()]
    points = [point for point in points if np.isfinite(point[1])]
    drawn, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
    marks = dict(zip(table.streams(), "os^Dv", strict=False))
    for stream in table.streams():
        own = [point for point in points if point[2][0] == stream]
        axes.scatter([p[0] for p in own], [p[1] for p in own], marker=marks.get(stream, "x"), label=stream, s=28)
        for x, y, (_, name) in own:
            axes.annotate(name, (x, y), fontsize=6, xytext=(3, 2), textcoords="offset points")
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.set_xlabel("confidence gap at the last step (energy of the newest task above old ones)")
    axes.set_ylabel("mean shift − energy, Avg AUROC")
    axes.margins(x=0.12)
    axes.legend(fontsize=8, loc="lower right", title="stream", title_fontsize=8)
    drawn.savefig(folder / "figures" / "pretrained-gap.png", dpi=150)
    plt.close(drawn)
    yield "\n## Gain against the confidence gap\n"
    yield "![One point per stream and learner.](metrics/figures/pretrained-gap.png)\n"


def short_table(table: Table) -> Iterator[str]:
    """README's table: one row per learner, CIFAR-10 and CIFAR-100 side by side."""
    default = main_columns()[3]
    columns = "{0}: energy | {0}: TOOD | OOD forgetting"
    yield f"| learner | {columns.format('CIFAR-10')} | {columns.format('CIFAR-100')} |"
    yield "|" + " --- |" * 7
    for learner in (*PAPER, "er", "finetune"):
        row = [label(learner)]
        for stream in ("cifar10", "cifar100"):
            row += [spread(table.values(stream, learner, name)) for name in ("energy", default)]
            row.append(" → ".join(f"{table.mean(stream, learner, name, 'd_avg'):.1f}" for name in ("energy", default)))
        yield f"| {' | '.join(row)} |"


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
