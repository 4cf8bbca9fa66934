"""The page about frozen pretrained features, written from three small CSV files.

``python -m results_pages.pretrained collect RUNS... docs/results/metrics`` reads the finished runs of ``tood reproduce
pretrained``; ``python -m results_pages.pretrained page docs/results/metrics docs/results README.md`` writes
``pretrained.md``, its figures and README's table from the CSV files alone. Any part of the grid will do.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from results_pages.facts import EXPLAINED, Fact, fact_rows
from results_pages.gains import RAW, mean_over_learners
from results_pages.last_step import every_detector
from results_pages.markdown import grid
from results_pages.mechanisms import interval
from results_pages.pretrained_data import Setting, Table, collect
from results_pages.pretrained_figures import figures
from tood.files import write_text
from tood.metrics import correlation
from tood.paper.reproduce import cells
from tood.report.appearance import label
from tood.report.tables import LEARNERS, TOOD_VARIANTS

SHORT = ("cifar10", "cifar100")  # streams on which more detectors were measured
RANK_HEADS = ("detector", "mean rank", "Avg AUROC", "near", "far", "D_avg")


def page(folder: Path, out: Path) -> None:
    """Write ``pretrained.md`` and its figures."""
    table = Table(folder)
    shown = [name for name in main_columns() if any(key[2] == name for key in table.scores)]
    lines = [*opening(table), *claims(table), *by_length(table)]
    for stream in table.streams():
        lines += section(table, stream, shown)
    lines += [*ranks(table), *every_detector(folder), *facts(table)]
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


def opening(table: Table) -> Iterator[str]:
    """Opening of the page: what was run, the main results, how to read the tables, and what is missing."""
    yield "# Pretrained, frozen features\n"
    yield (
        "An EfficientNet-Lite0 with its ImageNet weights, frozen, at 96 pixels. A hidden layer of 512 units and the "
        "head are trained on its features, eight epochs per task (preset `frozen`: the original methods except LwF's "
        "weight and DER's β). Closed-form learners (NCM, SLDA, FeCAM, RanPAC) read the features directly.\n"
    )
    yield from in_short(table)
    yield "How to read the tables:\n"
    yield (
        "- Avg AUROC is (mean of near + mean of far) / 2 along the stream, in percent: mean ± standard deviation over "
        "seeds. A value without ± has one seed; a number in brackets is the number of seeds, if it is smaller than "
        "the row's.\n"
        "- BiC's logits are the corrected ones. Rows named `raw logits` score them as the authors of the paper did.\n"
        "- Gap: energy of the newest task in its own channel minus that of older tasks, at the last step.\n"
        "- Bold: the highest mean over the seeds that all scores of the row have.\n"
    )
    yield (
        "Made by `tood reproduce pretrained --out RUNS`, then, with `PYTHONPATH=docs/results`, `python -m "
        "results_pages.pretrained collect RUNS docs/results/metrics` and `make results`. The sweep measures 32 "
        "detectors at every step. Many runs here were measured with 8 to 11 of them, and take longer with all.\n"
    )
    yield from grid(
        ("stream", "learners", "seeds", "runs", "with all detectors", "minutes per run", "core-hours", "missing"),
        coverage(table),
    )
    yield (
        "\nMinutes: processor time on one core, mean over the runs that recorded it, with features already extracted. "
        "Core-hours: of all learners and seeds of that stream; ≥ if the time of some learners is not known."
    )


def in_short(table: Table) -> Iterator[str]:
    """The main results in a few lines: gains over energy, the worst setting, and the best score per stream."""
    if not table.settings():
        return
    yield "In short (a setting is a stream and a learner):\n"
    for who, name in (("Our default", default_detector()), *((f"The paper's {label(n)}", n) for n in TOOD_VARIANTS)):
        gains = {s: float(np.mean(of)) for s in table.settings() if (of := table.changes(s, name, "avg_auroc"))}
        if not gains:
            continue
        worst = min(gains, key=lambda setting: gains[setting])
        higher = sum(gain > 0 for gain in gains.values())
        yield (
            f"- {who} has a higher Avg AUROC than energy in {higher} of {len(gains)} settings. "
            f"The mean gain is {np.mean(list(gains.values())):+.1f} points, the worst "
            f"{gains[worst]:+.1f} ({label(worst[1])} on {worst[0]})."
        )
    yield ""


def coverage(table: Table) -> Iterator[tuple[str, ...]]:
    """Rows: per stream the numbers of learners, seeds and runs, the time per run, and what is missing."""
    wanted: dict[str, dict[str, set[str]]] = {stream: {} for stream in table.streams()}  # seeds by stream and learner
    complete: Counter[str] = Counter()  # runs by stream that were measured with every detector of the sweep
    for cell in cells("pretrained", "runs"):
        identity = cell.config.identity
        measured = (table.seeds(identity.stream, identity.learner, name) for name in cell.config.detectors)
        complete[identity.stream] += all(str(identity.seed) in seeds for seeds in measured)
        wanted.setdefault(identity.stream, {}).setdefault(identity.learner, set()).add(str(identity.seed))
    for stream, learners in wanted.items():
        done = {learner: set(seeds) for (name, learner), seeds in table.runs.items() if name == stream}
        missing: dict[str, list[str]] = {}  # learners by the seeds they lack
        for learner, seeds in learners.items():
            if lacking := seeds - done.get(learner, set()):
                missing.setdefault(", ".join(sorted(lacking)), []).append(label(learner))
        words = [
            f"seed {seeds}: {'every learner' if len(names) == len(learners) else ', '.join(names)}"
            for seeds, names in missing.items()
        ]
        seeds_done = ", ".join(sorted(set().union(*done.values()))) or "–"
        runs = sum(len(seeds) for seeds in done.values())
        minutes = {name: times for name in done if (times := table.of_run((stream, name), "minutes"))}
        each, hours = "–", "–"
        if minutes:
            each = f"{np.mean([time for times in minutes.values() for time in times]):.1f}"
            total = sum(np.mean(times) * len(learners.get(name, ())) for name, times in minutes.items()) / 60
            hours = "≥ " * (len(minutes) < len(learners)) + f"{total:.1f}"
        full = str(complete[stream])
        yield stream, str(len(done)), seeds_done, str(runs), full, each, hours, "; ".join(words) or "none"


def section(table: Table, stream: str, shown: Sequence[str]) -> Iterator[str]:
    """The table of one stream."""
    learners, default = table.learners(stream), default_detector()
    yield f"\n## {stream}: {table.tasks(stream)} tasks\n"
    rows = []
    for learner in learners:
        for suffix in ("", RAW):
            if not table.seeds(stream, learner, "energy" + suffix):
                continue
            accuracy = table.of_run((stream, learner), "accuracy")
            seeds = len(accuracy)
            cells_ = [spread_of(table.seeds(stream, learner, name + suffix).values(), seeds) for name in shown]
            seeds_in_common = table.compared(stream, learner, [name + suffix for name in shown])
            best = int(np.nanargmax([float(np.mean(of)) if of else np.nan for of in seeds_in_common]))
            cells_[best] = f"**{cells_[best]}**"
            forgotten = table.compared(stream, learner, ["energy" + suffix, default + suffix], "d_avg")
            gap = "–" if suffix else f"{table.value((stream, learner), 'gap'):.1f}"
            name = label(learner) + suffix
            rows.append((name, str(seeds), spread_of(accuracy), gap, *cells_, arrow(forgotten)))
    yield from grid(("learner", "seeds", "accuracy", "gap", *map(label, shown), "D_avg: energy → default"), rows)


def arrow(pair: Sequence[Sequence[float]]) -> str:
    """``12.3 → 4.5``: the mean over seeds of either; a dash if there are none."""
    return " → ".join(f"{np.mean(seeds):.1f}" if seeds else "–" for seeds in pair)


def spread_of(values: Iterable[float], of: int = 0) -> str:
    """Mean ± standard deviation, and the number of seeds if it is below ``of``; a dash without values."""
    seeds = list(values)
    if not seeds:
        return "–"
    spread = f" ± {np.std(seeds, ddof=1):.1f}" if len(seeds) > 1 else ""
    return f"{np.mean(seeds):.1f}{spread}" + (f" ({len(seeds)})" if len(seeds) < of else "")


def claims(table: Table) -> Iterator[str]:
    """The paper's claims, counted over settings (stream × learner) of its five learners and of all."""
    groups = (table.settings(LEARNERS), table.settings())
    yield "\n## The paper's claims in this regime\n"
    yield (
        "Counted over settings (stream × learner). Means are over settings, with the 95 % interval over seeds; "
        "Pearson's r with the 95 % interval over settings (Fisher's z), Spearman's ρ. The gap is in units of each "
        "learner's logits, which differ (FeCAM's are large), so ρ is the safer one. Settings share learners and "
        "streams, so p-values are too small. Closed-form learners train no features and are left out of the rows "
        "about drift. DER and DER++ differ in one weight here. `BiC raw`: as the authors scored.\n"
    )
    rows = []
    for name in TOOD_VARIANTS:
        for what, metric, better in (("raises Avg AUROC", "avg_auroc", 1), ("lowers D_avg", "d_avg", -1)):
            for suffix in ("", RAW):
                note = ", BiC raw" if suffix else ", BiC corrected"
                counts = (count(table, group, name, metric, better, suffix) for group in groups)
                rows.append((f"{label(name)} {what} against energy{note}", *counts))
    relations = {
        "mean shift's gain grows with the confidence gap": ("gain", "gap"),
        "feature drift goes with accuracy forgetting": ("drift", "accuracy_forgetting"),
        "feature drift goes with D_avg of energy": ("drift", "d_avg"),
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
    everywhere = [
        name for name in table.learners(table.streams()[0]) if all((s, name) in table.runs for s in table.streams())
    ]
    groups = {
        "the paper's five": table.settings(LEARNERS),
        "those of every stream": table.settings(everywhere),
        "all": table.settings(),
    }
    same = set(groups["all"]) == set(groups["those of every stream"])
    if same:
        del groups["those of every stream"]
    rows = []
    for stream in table.streams():
        for who, group in groups.items():
            own = [setting for setting in group if setting[0] == stream]
            changes = [[c for c in (table.changes(s, name, "avg_auroc") for s in own) if c] for name in names]
            if any(changes):
                energy = np.mean([table.mean(*setting, "energy") for setting in own])
                cells_ = (gain_of(of, len(own)) for of in changes)
                rows.append((stream, table.tasks(stream), who, str(len(own)), f"{energy:.1f}", *cells_))
    yield "\n## Gain by length of the stream\n"
    compare = "" if same else " To see what length does, compare the rows of the learners that every stream has."
    yield (
        f"Avg AUROC of energy, and the gain over it: mean over learners with the 95 % interval over seeds.{compare} "
        "`1 of 3`: only one of three learners has this score.\n"
    )
    yield from grid(("stream", "tasks", "learners", "number", "Energy", *map(label, names)), rows)


def gain_of(changes: Sequence[Sequence[float]], learners: int) -> str:
    """Mean gain over learners, and over how many if not over all."""
    if not changes:
        return "–"
    return f"{mean_over_learners(changes)}" + (f", {len(changes)} of {learners}" if len(changes) < learners else "")


def relation(table: Table, group: Sequence[Setting], one: str, other: str) -> str:
    """Pearson's r over settings with its 95 % interval, and Spearman's ρ, which is robust to outliers."""
    from scipy import stats

    pairs = np.array([(table.value(setting, one), table.value(setting, other)) for setting in group]).reshape(-1, 2)
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    if len(pairs) < 5 or pairs.std(axis=0).min() == 0:
        return f"too few settings ({len(pairs)})"
    r, p = correlation(pairs[:, 0], pairs[:, 1])
    low, high = interval(r, len(pairs))
    rank = stats.spearmanr(pairs[:, 0], pairs[:, 1]).statistic
    small = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return f"r = {r:.2f} [{low:.2f}, {high:.2f}], {small}; ρ = {rank:.2f}; n = {len(pairs)}"


def ranks(table: Table) -> Iterator[str]:
    """Tables of mean rank and mean Avg AUROC of detectors: over all streams, and over those that have more of them."""
    settings = [s for s in table.settings() if table.seeds(*s, "energy")]
    short = [s for s in settings if s[0] in SHORT]
    common, more = measured_in_most(table, settings), measured_in_most(table, short)
    groups = [("all streams", settings, common)]
    if set(more) > set(common):
        groups.append(("CIFAR-10 and CIFAR-100", short, more))
        groups.append(("the longer streams", [s for s in settings if s not in short], more))
    tables: list[str] = []
    for who, group, names in groups:
        if names and (ranked := rank_rows(table, group, names)):
            some = sorted({label(learner) for _, learner in ranked.settings})
            every = len(ranked.settings) == len(group)
            learners = "" if every else f" ({', '.join(some)})"
            tables += [f"\nOver {who}, {len(ranked.settings)} settings{learners}:\n", *grid(RANK_HEADS, ranked.cells)]
    if tables:
        yield "\n## Detectors compared along the stream\n"
        yield (
            "Means over the settings (stream × learner) in which each of these detectors was measured at every step, "
            "and over the seeds that all of them have; rank 1 is best."
        )
        yield from tables


def measured_in_most(table: Table, settings: Sequence[Setting]) -> list[str]:
    """The detectors measured in at least four fifths of these settings."""
    names = sorted({key[2] for key in table.scores if "(" not in key[2]})
    return [name for name in names if sum(bool(table.seeds(*s, name)) for s in settings) >= 0.8 * len(settings)]


class Ranked(NamedTuple):
    """Rows of a table of ranks, and the settings they are means over."""

    cells: list[tuple[str, ...]]
    settings: list[Setting]


def rank_rows(table: Table, settings: Sequence[Setting], names: Sequence[str]) -> Ranked | None:
    """One row per detector, the best mean rank first; None if no setting has a seed with all of them."""
    seeds = {s: set.intersection(*(set(table.seeds(*s, name)) for name in names)) for s in settings}
    settings = [s for s in settings if seeds[s]]
    if not settings:
        return None

    def mean(setting: Setting, name: str, metric: str = "avg_auroc") -> float:
        values = table.seeds(*setting, name, metric)
        return float(np.mean([values[seed] for seed in seeds[setting]]))

    values = np.array([[mean(s, name) for name in names] for s in settings])
    places = 1.0 + (values[:, None, :] > values[:, :, None]).sum(axis=2)
    rows = []
    for j in np.argsort(places.mean(axis=0)):
        metrics = ("near_auroc", "far_auroc", "d_avg")
        others = [np.mean([mean(s, names[j], metric) for s in settings]) for metric in metrics]
        numbers = (places[:, j].mean(), values[:, j].mean(), *others)
        rows.append((label(names[j]), *(f"{value:.1f}" for value in numbers)))
    return Ranked(rows, settings)


def facts(table: Table) -> Iterator[str]:
    """Table of corrections that learners made to the newest task."""
    read = (Fact(row["stream"], row["fact"], int(row["step"]), float(row["value"])) for row in table.facts)
    if rows := list(fact_rows(read)):
        yield "\n## What learners did to the newest task\n"
        yield f"{EXPLAINED}\n"
        yield from grid(("learner", "stream", "step: value"), rows)


def short_table(table: Table) -> Iterator[str]:
    """README's table: one row per learner, with columns for CIFAR-10 and CIFAR-100."""
    default = default_detector()
    rows = []
    for learner in (*LEARNERS, "er", "finetune"):
        row = [label(learner)]
        for stream in ("cifar10", "cifar100"):
            pair = ["energy", default]
            row += [spread_of(seeds) for seeds in table.compared(stream, learner, pair)]
            row.append(arrow(table.compared(stream, learner, pair, "d_avg")))
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
