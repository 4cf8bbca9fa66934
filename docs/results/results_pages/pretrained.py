"""Tables of the benchmark on frozen pretrained features, from two CSV files.

``python -m results_pages.pretrained collect RUNS…`` adds finished runs to the CSV files and fills the pages again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from results_pages.claims import mean_gain
from results_pages.evidence import summary_of
from results_pages.frozen import FrozenRuns, Setting, read_csv
from results_pages.markdown import spread_of, table
from results_pages.tracks import TRACKS
from tood import detectors
from tood.report.appearance import label, remember_title
from tood.report.tables import LEARNERS

__all__ = ["pretrained_blocks", "readme_table"]

EARLIER = "tood_shrinkage"  # shown until the benchmark has been measured with the present default
remember_title(EARLIER, "TOOD of 0.2")
STREAMS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cifar100-50": "CIFAR-100",
    "tinyimagenet-100": "Tiny ImageNet",
}


def _shown(frozen: FrozenRuns) -> tuple[str, ...]:
    """Energy and the three scores beside it."""
    ours = "tood" if any(detector == "tood" for *_, detector in frozen.scores) else EARLIER
    return "energy", "tood_mean_shift", ours, "tood_joint"


def pretrained_blocks(metrics: Path) -> dict[str, Iterable[str]]:
    """The tables of the page, by the names of their places."""
    frozen = FrozenRuns(metrics)
    tables = {f"learners on {stream}": _by_learner(frozen, stream) for stream in ("cifar10", "cifar100")}
    return {"streams": _by_stream(frozen), **tables, "ranks": _ranks(frozen)}


def _by_stream(frozen: FrozenRuns) -> Iterator[str]:
    """Avg AUROC of energy and the gains over it, per stream: over all learners and over the paper's five."""
    names, rows = _shown(frozen), []
    for stream in frozen.streams():
        for who, learners in (("all", None), ("the paper's five", LEARNERS)):
            own = [setting for setting in frozen.settings(learners) if setting[0] == stream]
            energy = [np.mean(seeds) for s in own if (seeds := list(frozen.seeds(s, "energy").values()))]
            cells = []
            for name in names[1:]:
                gains = {s: of for s in own if (of := frozen.changes(s, name, "avg_auroc"))}
                gain = mean_gain([*map(summary_of, gains.values())]) if gains else None
                worst = min((float(np.mean(of)) for of in gains.values()), default=0.0)
                cells.append(f"{gain.value:+.1f} ± {gain.high - gain.value:.1f} ({worst:+.1f})" if gain else "–")
            title = f"{STREAMS.get(stream, stream)}, {frozen.tasks(stream)} tasks"
            rows.append((title, f"{who} ({len(own)})", f"{np.mean(energy):.1f}", *cells))
    tracks = sorted({row["track"] for seeds in frozen.runs.values() for row in seeds.values() if row.get("track")})
    yield from table(("stream", "learners", *map(label, names)), rows)
    yield from ("", f"Detectors were fitted on the track: {', '.join(tracks)}.") if tracks else ()
    if EARLIER in names:
        yield from ("", f"`{label(EARLIER)}` and `{label(names[3])}` are those of version 0.2.")


def _by_learner(frozen: FrozenRuns, stream: str) -> Iterator[str]:
    """Accuracy and Avg AUROC of each learner, the largest gain of TOOD first; BiC also on raw logits."""
    names, rows = _shown(frozen), []
    for setting in frozen.settings():
        for raw in (False, True):
            if setting[0] == stream and frozen.seeds(setting, "energy", raw=raw):
                seeds = [list(frozen.seeds(setting, name, raw=raw).values()) for name in names]
                gain = np.mean(seeds[2]) - np.mean(seeds[0]) if seeds[2] else -np.inf
                name = label(setting[1]) + " (raw logits)" * raw
                rows.append((gain, (name, f"{_accuracy(frozen, setting):.1f}", *map(spread_of, seeds))))
    rows.sort(key=lambda row: -row[0])
    yield from table(("learner", "accuracy", *map(label, names)), [row for _, row in rows])


def _accuracy(frozen: FrozenRuns, setting: Setting) -> float:
    return float(np.mean(frozen.of_run(setting, "accuracy")))


def _ranks(frozen: FrozenRuns) -> Iterator[str]:
    """Mean rank over settings and mean Avg AUROC of the detectors measured in every setting."""
    settings = frozen.settings()
    names = sorted({name for *_, name in frozen.scores if name in (*detectors.names(), EARLIER)})
    names = [name for name in names if all(frozen.seeds(setting, name) for setting in settings)]
    values = np.array([[np.mean(list(frozen.seeds(s, name).values())) for name in names] for s in settings])
    places = 1.0 + (values[:, None] > values[:, :, None]).sum(axis=2)
    rows = sorted(zip(places.mean(axis=0), values.mean(axis=0), map(label, names), strict=True))
    shown = [(name, f"{place:.1f}", f"{mean:.1f}") for place, mean, name in rows]
    yield from table(("detector", f"mean rank in {len(settings)} settings", "Avg AUROC"), shown)


def readme_table(metrics: Path) -> Iterator[str]:
    """Learners on CIFAR-10 and on CLINC150, track ``calibration``: energy and three scores, the largest gain first."""
    names, rows = ("energy", "tood_mean_shift", "tood", "tood_joint"), []
    for file, title in ((TRACKS, "images"), ("text-scores.csv", "text")):
        found: dict[str, dict[str, list[float]]] = {}
        for row in read_csv(metrics / file):
            if row.get("track", "calibration") == "calibration" and row["stream"] in ("cifar10", "clinc"):
                found.setdefault(row["learner"], {}).setdefault(row["detector"], []).append(float(row["avg_auroc"]))
        for learner, of in found.items():
            if learner in (*LEARNERS, "er", "finetune"):
                cells = (f"{np.mean(of[name]):.1f}" if name in of else "–" for name in names)
                rows.append((np.mean(of["tood"]) - np.mean(of["energy"]), (f"{title}, {label(learner)}", *cells)))
    rows.sort(key=lambda row: -row[0])
    yield from table(("stream, learner", *map(label, names)), [row for _, row in rows])


if __name__ == "__main__":
    from results_pages.__main__ import write_results
    from results_pages.collect import collect

    if sys.argv[1:2] != ["collect"]:
        sys.exit("usage: python -m results_pages.pretrained collect RUNS…")
    home = Path(__file__).parents[1]
    print(f"{collect(map(Path, sys.argv[2:]), home / 'metrics')} runs")
    print(*write_results(home / "metrics", home, home.parents[1] / "README.md"), sep="\n")
