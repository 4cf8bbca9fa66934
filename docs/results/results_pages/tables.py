"""Tables of the page about images and text, and of the README, from the benchmark's two CSV files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from results_pages.benchmark import Benchmark, Setting, summary_of
from results_pages.claims import mean_gain
from results_pages.evidence import relation
from results_pages.markdown import spread_of, table
from tood.report.appearance import label
from tood.report.tables import LEARNERS, TOOD_VARIANTS

__all__ = ["readme_blocks", "result_blocks"]

STREAMS = {
    "cifar10": "CIFAR-10, 5 tasks",
    "cifar100": "CIFAR-100, 10 tasks",
    "cifar100-50": "CIFAR-100, 50 tasks",
    "tinyimagenet-100": "Tiny ImageNet, 100 tasks",
    "clinc": "CLINC150, 15 tasks",
}
SHORT = ("energy", "tood_mean_shift", "tood", "tood_joint")
BACKBONE = " (backbone features)"
SHOWN = ("energy", *TOOD_VARIANTS, "tood", "tood_joint", "typicality" + BACKBONE)
PLACES = (("cifar10", "calibration"), ("cifar10", "memory"), ("cifar100", "calibration"), ("clinc", "calibration"))
FEWEST = 5  # learners behind a mean gain
SUMS = Setting("clinc", "slda", "all")  # fitted on every training sentence seen, whose vectors are the features
PAIRS = {
    ("drift", "d_avg"): "feature drift and OOD forgetting D_avg of energy",
    ("drift", "f_avg"): "feature drift and accuracy forgetting",
    ("old_accuracy", "d_avg"): "accuracy on old tasks and D_avg of energy",
    ("gap", "gain"): "confidence gap at the last step and gain of mean shift (paper)",
}


def result_blocks(metrics: Path) -> dict[str, Iterable[str]]:
    """The tables of the page, by the names of their places."""
    found = Benchmark(metrics)
    return {
        "images": _learners(found, "cifar10"),
        "text": _learners(found, "clinc"),
        "scores": _scores(found),
        "backbone": _backbone(found),
        "streams": _streams(found),
        "relations": _relations(found),
    }


def _learners(found: Benchmark, stream: str) -> Iterator[str]:
    """Avg AUROC of each learner, the largest gain of TOOD first."""
    names = [name for name in SHOWN if any((of, name) in found.scores for of in found.settings(stream, "calibration"))]
    rows = []
    for setting in found.settings(stream, "calibration"):
        cells = [spread_of(found.seeds(setting, name).values()) for name in names]
        accuracy = spread_of(found.of_run(setting, "accuracy"))
        gain = np.mean(found.gains(setting, "tood"))
        seeds = len(found.seeds(setting, "energy"))
        rows.append((gain, (label(setting.learner), str(seeds), accuracy, *cells)))
    rows.sort(key=lambda row: -row[0])
    yield from table(("learner", "seeds", "accuracy", *map(title, names)), [row for _, row in rows])


def title(detector: str) -> str:
    """A detector's title; features of the backbone are marked."""
    name = detector.removesuffix(BACKBONE)
    return label(name) + (", backbone" if name != detector else "")


def _scores(found: Benchmark) -> Iterator[str]:
    """Per place, the gain of each detector over energy: the mean over learners (the worst) [their number]."""
    gains: dict[str, dict[tuple[str, str], list[float]]] = {}
    for setting, detector in found.scores:
        if (place := (setting.stream, setting.track)) in PLACES and (own := found.gains(setting, detector)):
            gains.setdefault(detector, {}).setdefault(place, []).append(float(np.mean(own)))
    places = [of for of in PLACES if len(gains["energy"].get(of, ())) >= FEWEST]
    rows = []
    for detector, of in gains.items():
        own = [of.get(place, []) for place in places]
        judged = [values for values in own[:1] + own[-1:] if len(values) >= FEWEST]
        if detector != "energy" and len(judged) == 2:
            cells = (f"{np.mean(v):+.1f} ({min(v):+.1f}) [{len(v)}]" if len(v) >= FEWEST else "–" for v in own)
            rows.append((np.mean([np.mean(values) for values in judged]), (title(detector), *cells)))
    rows.sort(key=lambda row: -row[0])
    heads = (f"{STREAMS[stream]}, {track}" for stream, track in places)
    yield from table(("score", *heads), [row for _, row in rows])


def _backbone(found: Benchmark) -> Iterator[str]:
    """Scores of the backbone's features, over learners and seeds; no task changes them."""
    values: dict[str, dict[str, list[float]]] = {}
    for setting, detector in found.scores:
        name = detector.removesuffix(BACKBONE) if setting != SUMS else detector
        if detector != "energy" and (name != detector or setting == SUMS):
            own = found.seeds(setting, detector).values()
            values.setdefault(name, {}).setdefault(f"{setting.stream}, {setting.track}", []).extend(own)
    rows = []
    for name, of in values.items():
        cells = [of.get(place, []) for place in ("cifar10, calibration", "clinc, calibration", "clinc, all")]
        if cells[0]:
            rows.append((-np.mean(cells[0]), (label(name), *map(spread_of, cells))))
    heads = ("score", "CIFAR-10, 200 images per class", "CLINC150, 10 sentences per intent", "CLINC150, all sentences")
    yield from table(heads, [row for _, row in sorted(rows)])


def _streams(found: Benchmark) -> Iterator[str]:
    """Avg AUROC of energy and the gain of the paper's variants, per stream: all learners, and the paper's five."""
    rows = []
    for stream in STREAMS:
        for who, learners in (("all", ()), ("the paper's five", LEARNERS)):
            own = found.settings(stream, "train", learners)
            cells = []
            for name in TOOD_VARIANTS:
                gains = [of for setting in own if (of := found.gains(setting, name))]
                gain = mean_gain([summary_of(of) for of in gains]) if gains else None
                worst = min((float(np.mean(of)) for of in gains), default=0.0)
                cells.append(f"{gain.value:+.1f} ± {gain.high - gain.value:.1f} ({worst:+.1f})" if gain else "–")
            if own:
                energy = np.mean([np.mean([*found.seeds(setting, "energy").values()]) for setting in own])
                rows.append((STREAMS[stream], f"{who} ({len(own)})", f"{energy:.1f}", *cells))
    yield from table(("stream", "learners", "Energy", *map(label, TOOD_VARIANTS)), rows)


def _relations(found: Benchmark) -> Iterator[str]:
    """Correlations over learners, for images and text."""
    points = {
        "images, CIFAR-10": [*found.points("cifar10", "train")],
        "text, CLINC150": [*found.points("clinc", "calibration")],
    }
    rows = [
        (text, *(re.sub(" leaving one out| learners", "", str(relation(of, *pair) or "–")) for of in points.values()))
        for pair, text in PAIRS.items()
    ]
    yield from table(("over learners", *points), rows)


def readme_blocks(metrics: Path) -> dict[str, Iterable[str]]:
    """The README's table: learners on CIFAR-10 and CLINC150, four scores, means over seeds, the largest gain first."""
    found, rows = Benchmark(metrics), []
    for stream, kind in (("cifar10", "images"), ("clinc", "text")):
        for setting in found.settings(stream, "calibration", (*LEARNERS, "er", "finetune")):
            seeds = [[*found.seeds(setting, name).values()] for name in SHORT]
            cells = (f"{np.mean(of):.1f}" if of else "–" for of in seeds)
            rows.append((np.mean(seeds[2]) - np.mean(seeds[0]), (f"{kind}, {label(setting.learner)}", *cells)))
    rows.sort(key=lambda row: -row[0])
    return {"pretrained": table(("stream, learner", *map(label, SHORT)), [row for _, row in rows])}
