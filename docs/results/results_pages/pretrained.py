"""The page about frozen pretrained features, and README's table, from the collected CSV files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from results_pages.claims import mean_gain
from results_pages.evidence import _summary as summary_of
from results_pages.frozen import FrozenRuns, Setting
from results_pages.markdown import drawings, spread_of, table
from tood.metrics import correlation
from tood.paper.reproduce import cells
from tood.report.appearance import label, remember_title
from tood.report.tables import LEARNERS, TOOD_VARIANTS
from tood.storage.files import write_text

__all__ = ["fill_readme", "write_pretrained"]

OURS = "tood_shrinkage"  # the default of version 0.2, with which these runs were measured
remember_title(OURS, "TOOD of 0.2")
SHOWN = tuple(dict.fromkeys(("energy", *TOOD_VARIANTS, OURS, "tood_joint", "typicality")))


def write_pretrained(metrics: Path, out: Path) -> Path:
    """Write ``pretrained.md``."""
    frozen = FrozenRuns(metrics)
    lines = [*_opening(frozen), *_claims(frozen), *_by_length(frozen)]
    for stream in frozen.streams():
        lines += _section(frozen, stream)
    lines += _ranks(frozen)
    for written in ("last-step.md", "unfrozen.md", "long.md"):  # measured apart, written by hand
        if (metrics / written).exists():
            lines += [(metrics / written).read_text(encoding="utf-8"), ""]
    if plots := list(drawings(metrics / "plots" / "pretrained", out)):
        lines += [
            "## Plots",
            "",
            "CIFAR-10 in 5 tasks, seed 0. Drawn by `tood report RUNS --plots` and `tood ablate RUNS --draws 3`.",
            "",
        ]
        lines += plots
    write_text(out / "pretrained.md", "\n".join(lines).rstrip() + "\n")
    return out / "pretrained.md"


def _opening(frozen: FrozenRuns) -> Iterator[str]:
    """What was run, the main results, how to read the tables, and what is missing."""
    yield from ("# Pretrained, frozen features", "")
    yield (
        "An EfficientNet-Lite0 with its ImageNet weights, frozen, at 96 pixels. A hidden layer of 512 units and the "
        "head are trained on its features, eight epochs per task (preset `frozen`: the original methods except LwF's "
        "weight and DER's β). Closed-form learners (NCM, SLDA, FeCAM, RanPAC) read the features directly."
    )
    yield from ("", "In short (a setting is a stream and a learner):", "")
    for who, name in (
        (f"{label(OURS)}, our default then,", OURS),
        *((f"The paper's {label(n)}", n) for n in TOOD_VARIANTS),
    ):
        gains = {s: float(np.mean(of)) for s in frozen.settings() if (of := frozen.changes(s, name, "avg_auroc"))}
        if gains:
            worst = min(gains, key=lambda setting: gains[setting])
            yield (
                f"- {who} has a higher Avg AUROC than energy in {sum(gain > 0 for gain in gains.values())} of "
                f"{len(gains)} settings. The mean gain is {np.mean(list(gains.values())):+.1f} points, the worst "
                f"{gains[worst]:+.1f} ({label(worst[1])} on {worst[0]})."
            )
    yield from ("", "How to read the tables:", "")
    yield (
        "- Avg AUROC is (mean of near + mean of far) / 2 along the stream, in percent: mean ± standard deviation over "
        "seeds. A value without ± has one seed.\n"
        "- BiC's logits are the corrected ones. Rows named `raw logits` score them as the authors of the paper did.\n"
        "- Gap: energy of the newest task in its own channel minus that of older tasks, at the last step.\n"
        "- Bold: the highest mean.\n"
    )
    yield from (
        "Made by `tood reproduce pretrained --out RUNS`, collected by `python -m results_pages.collect RUNS METRICS`.",
        "",
    )
    wanted: dict[str, dict[str, set[str]]] = {}  # seeds by stream and learner
    for cell in cells("pretrained", "runs"):
        identity = cell.config.identity
        wanted.setdefault(identity.stream, {}).setdefault(identity.learner, set()).add(str(identity.seed))
    rows = []
    for stream, learners in wanted.items():
        done = {learner: set(seeds) for (name, learner), seeds in frozen.runs.items() if name == stream}
        lacking = [name for name, seeds in learners.items() if seeds - done.get(name, set())]
        missing = ", ".join(map(label, lacking)) if len(lacking) < len(learners) else "every learner"
        rows.append((stream, str(len(done)), str(sum(map(len, done.values()))), missing or "none"))
    yield from table(("stream", "learners", "runs", "learners with fewer than three seeds"), rows)


def _claims(frozen: FrozenRuns) -> Iterator[str]:
    """The paper's claims, counted over settings of its five learners and of all."""
    groups = (frozen.settings(LEARNERS), frozen.settings())
    yield from ("## The paper's claims in this regime", "")
    yield (
        "Counted over settings (stream × learner). Means are over settings, with the 95 % interval over seeds; "
        "Pearson's r, Spearman's ρ. The gap is in units of each learner's logits, which differ (FeCAM's are large), so "
        "ρ is the safer one. Settings share learners and streams, so p-values are too small. Closed-form learners "
        "train no features and are left out of the rows about drift. DER and DER++ differ in one weight here. `BiC "
        "raw`: as the authors scored."
    )
    yield ""
    rows = []
    for name in TOOD_VARIANTS:
        for what, metric, better in (("raises Avg AUROC", "avg_auroc", 1), ("lowers D_avg", "d_avg", -1)):
            for raw, note in ((True, "BiC raw"), (False, "BiC corrected")):
                counts = (_count(frozen, group, name, metric, better, raw) for group in groups)
                rows.append((f"{label(name)} {what} against energy, {note}", *counts))
    for text, pair in {
        "mean shift's gain grows with the confidence gap": ("gain", "gap"),
        "feature drift goes with accuracy forgetting": ("drift", "accuracy_forgetting"),
        "feature drift goes with D_avg of energy": ("drift", "d_avg"),
    }.items():
        rows.append((text, *(_relation(frozen, group, *pair) for group in groups)))
    heads = (f"the paper's five learners ({len(groups[0])} settings)", f"all learners ({len(groups[1])} settings)")
    yield from table(("claim", *heads), rows)


def _count(frozen: FrozenRuns, group: Sequence[Setting], name: str, metric: str, better: int, raw: bool) -> str:
    """Number of settings in which a detector is better than energy, and the mean and median change."""
    changes = [frozen.changes(setting, name, metric, raw and setting[1] == "bic") for setting in group]
    changes = [of for of in changes if of]
    if not changes:
        return "not measured"
    means = [float(np.mean(of)) for of in changes]
    good = sum(better * mean > 0 for mean in means)
    return f"{good} of {len(means)}; mean {mean_gain([*map(summary_of, changes)])}, median {np.median(means):+.1f}"


def _relation(frozen: FrozenRuns, group: Sequence[Setting], one: str, other: str) -> str:
    """Pearson's r over settings, and Spearman's ρ, which is robust to outliers."""
    from scipy import stats

    pairs = np.array([(frozen.value(setting, one), frozen.value(setting, other)) for setting in group]).reshape(-1, 2)
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    if len(pairs) < 5 or pairs.std(axis=0).min() == 0:
        return f"too few settings ({len(pairs)})"
    r, p = correlation(pairs[:, 0], pairs[:, 1])
    rank = stats.spearmanr(pairs[:, 0], pairs[:, 1]).statistic
    small = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return f"r = {r:.2f}, {small}; ρ = {rank:.2f}; n = {len(pairs)}"


def _by_length(frozen: FrozenRuns) -> Iterator[str]:
    """Gain over energy by number of tasks."""
    streams = frozen.streams()
    everywhere = {learner for _, learner in frozen.runs if all((stream, learner) in frozen.runs for stream in streams)}
    groups = {"the paper's five": set(LEARNERS), "those of every stream": everywhere}
    rows = []
    for stream in streams:
        for who, learners in groups.items():
            own = [setting for setting in frozen.settings(learners) if setting[0] == stream]
            gains = [[c for s in own if (c := frozen.changes(s, name, "avg_auroc"))] for name in (*TOOD_VARIANTS, OURS)]
            if any(gains):
                energy = np.mean([np.mean(list(frozen.seeds(s, "energy").values())) for s in own])
                means = (str(mean_gain([*map(summary_of, of)])) if of else "–" for of in gains)
                rows.append((stream, frozen.tasks(stream), who, str(len(own)), f"{energy:.1f}", *means))
    yield from ("## Gain by length of the stream", "")
    yield from ("Avg AUROC of energy, and the gain over it: mean over learners with the 95 % interval over seeds.", "")
    yield from table(("stream", "tasks", "learners", "number", "Energy", *map(label, (*TOOD_VARIANTS, OURS))), rows)


def _section(frozen: FrozenRuns, stream: str) -> Iterator[str]:
    """The table of one stream."""
    rows = []
    for setting in (setting for setting in frozen.settings() if setting[0] == stream):
        for raw in (False, True):
            if frozen.seeds(setting, "energy", raw=raw):
                seeds = [list(frozen.seeds(setting, name, raw=raw).values()) for name in SHOWN]
                cells_ = [spread_of(of) for of in seeds]
                best = int(np.nanargmax([np.mean(of) if of else np.nan for of in seeds]))
                cells_[best] = f"**{cells_[best]}**"
                lost = (list(frozen.seeds(setting, name, "d_avg", raw).values()) for name in ("energy", OURS))
                about = spread_of(frozen.of_run(setting, "accuracy")), f"{frozen.value(setting, 'gap'):.1f}"
                name = label(setting[1]) + " (raw logits)" * raw
                rows.append((name, *about, *cells_, " → ".join(f"{np.mean(of):.1f}" if of else "–" for of in lost)))
    yield from (f"## {stream}: {frozen.tasks(stream)} tasks", "")
    yield from table(("learner", "accuracy", "gap", *map(label, SHOWN), f"D_avg: energy → {label(OURS)}"), rows)


def _ranks(frozen: FrozenRuns) -> Iterator[str]:
    """Mean rank and mean Avg AUROC of the detectors measured in at least four fifths of all settings."""
    settings = [s for s in frozen.settings() if frozen.seeds(s, "energy")]
    names = sorted({name for *_, name in frozen.scores if "(" not in name})
    names = [name for name in names if sum(bool(frozen.seeds(s, name)) for s in settings) >= 0.8 * len(settings)]
    settings = [s for s in settings if all(frozen.seeds(s, name) for name in names)]
    if not settings:
        return
    values = np.array([[np.mean(list(frozen.seeds(s, name).values())) for name in names] for s in settings])
    places = (1.0 + (values[:, None, :] > values[:, :, None]).sum(axis=2)).mean(axis=0)
    means = values.mean(axis=0)
    yield from ("## Detectors compared along the stream", "")
    yield from (
        f"Means over {len(settings)} settings (stream × learner) in which each was measured at every step; 1 is best.",
        "",
    )
    yield from table(
        ("detector", "mean rank", "Avg AUROC"),
        [(label(names[j]), f"{places[j]:.1f}", f"{means[j]:.1f}") for j in np.argsort(places)],
    )


def fill_readme(metrics: Path, readme: Path) -> None:
    """Replace the table between ``<!-- pretrained -->`` and ``<!-- end -->``: energy and our default, per learner."""
    frozen = FrozenRuns(metrics)
    rows = []
    for learner in (*LEARNERS, "er", "finetune"):
        row = [label(learner)]
        for stream in ("cifar10", "cifar100"):
            row += [spread_of(frozen.seeds((stream, learner), name).values()) for name in ("energy", OURS)]
            lost = (list(frozen.seeds((stream, learner), name, "d_avg").values()) for name in ("energy", OURS))
            row.append(" → ".join(f"{np.mean(of):.1f}" if of else "–" for of in lost))
        rows.append(row)
    heads = [
        head
        for name in ("CIFAR-10", "CIFAR-100")
        for head in (f"{name}: energy", f"{name}: {label(OURS)}", "OOD forgetting")
    ]
    before, start, rest = readme.read_text(encoding="utf-8").partition("<!-- pretrained -->")
    lines = "\n".join(table(("learner", *heads), rows))
    write_text(readme, f"{before}{start}\n\n{lines}\n{rest[rest.index('<!-- end -->') :]}")
