"""Markdown of the figures that are stored with the results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tood.report.appearance import label

OVER_LEARNERS = {
    "whiskers": "scores of the first task and of OOD, per learner (whisker)",
    "drift": "feature drift against both kinds of forgetting (cka)",
    "forgetting-accuracy": "OOD forgetting against accuracy",
    "buffer-size": "calibration size (buffer_ablation)",
    "margin": "margin weight (ablation_lambda)",
    "mechanism": "TOOD, temperature and prototypes (mechanism_dissociation)",
    "balance": "accuracy on new and old tasks, and the gain of TOOD",
}
OF_ONE = {  # files are named learner-figure
    "task0": "first task along the stream (main_panel)",
    "ridges": "score distributions per step (ridge)",
    "tsne": "features per step (tsne_crowding)",
    "nearest": "distance of OOD samples to the ID features (nn_distance)",
}


def drawings(folder: Path, out: Path) -> Iterator[str]:
    """Every figure of a folder with its caption, figures of one learner first; links are relative to ``out``."""
    of_one = [(file, kind) for kind in OF_ONE for file in sorted(folder.glob(f"*-{kind}.png"))]
    of_all = [(file, kind) for kind in OVER_LEARNERS if (file := folder / f"{kind}.png").exists()]
    for file, kind in (*of_one, *of_all):
        learner = label(file.stem.removesuffix(f"-{kind}"))
        text = (
            f"{folder.name}, {learner}: {OF_ONE[kind]}" if kind in OF_ONE else f"{folder.name}: {OVER_LEARNERS[kind]}"
        )
        yield from (f"![{text}]({link(file, out)})", "", f"*{text}*", "")


def link(file: Path, out: Path) -> str:
    """The path of a file relative to the folder of the page."""
    return Path(os.path.relpath(file, out)).as_posix()
