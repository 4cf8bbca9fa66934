"""How things are written and coloured, wherever they are shown, and which of many are shown."""

from __future__ import annotations

import numpy as np

from tood import detectors
from tood.runs.identity import split_method

__all__ = ["COLOURS", "label", "remember_title", "spread"]

# Okabe and Ito's palette. One meaning per colour, in every figure and on the page.
COLOURS = {
    "id": "#0072B2",
    "near": "#E69F00",
    "far": "#D55E00",
    "tood": "#009E73",
    "energy": "#CC79A7",
    "accuracy": "#000000",
    "muted": "#767676",
}

GROUPS = {"id": "ID", "near": "near-OOD", "far": "far-OOD", "accuracy": "accuracy"}
# Titles of learners, and what manifests say of others: importing the learners would import torch.
_learner_titles = {
    "agem": "A-GEM",
    "bic": "BiC",
    "der": "DER",
    "derpp": "DER++",
    "er": "ER",
    "ewc": "EWC",
    "fecam": "FeCAM",
    "finetune": "Fine-tuning",
    "gem": "GEM",
    "icarl": "iCaRL",
    "joint": "Joint",
    "lwf": "LwF",
    "ncm": "NCM",
    "ranpac": "RanPAC",
    "si": "SI",
    "slda": "SLDA",
    "wa": "WA",
}


def remember_title(learner: str, title: str) -> None:
    """Write a learner of this name as ``title`` from now on; for the title that a run's manifest holds."""
    if title:
        _learner_titles[learner] = title


def label(name: str) -> str:
    """How a learner, detector or group is written: ``icarl`` is iCaRL; a name that is not known stays as it is."""
    if name in GROUPS:
        return GROUPS[name]
    head, mark, rest = name.partition(" ")  # "ash (variant=s)", "icarl (memory=500)"
    base, finetune = split_method(head)
    return _title(base) + ("" if finetune == "none" else f"+{finetune.upper()}") + mark + rest


def _title(name: str) -> str:
    title = detectors.title(name)
    return title if title != name else _learner_titles.get(name, name)


def spread(count: int, most: int) -> list[int]:
    """At most ``most`` of the places 0 to ``count - 1``, evenly spaced, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})
