"""Names, colours and evenly spaced choices that tables, plots and the page share."""

from __future__ import annotations

import numpy as np

from tood import detectors
from tood.outputs.identity import split_method

__all__ = ["COLOURS", "label", "remember_title", "spread"]

# The Okabe-Ito palette. One meaning per colour, in every plot and on the page.
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
_learner_titles = {  # manifests add others; importing the learners' own titles would import torch
    "icarl": "iCaRL",
    "bic": "BiC",
    "der": "DER",
    "wa": "WA",
    "lwf": "LwF",
    "er": "ER",
    "er_ace": "ER-ACE",
    "ssil": "SS-IL",
    "ewc": "EWC",
    "si": "SI",
    "agem": "A-GEM",
    "gem": "GEM",
    "finetune": "Fine-tuning",
    "joint": "Joint",
    "expandable": "Expandable DER",
    "derpp": "DER++",
    "ncm": "NCM",
    "slda": "SLDA",
    "fecam": "FeCAM",
    "ranpac": "RanPAC",
}


def remember_title(learner: str, title: str) -> None:
    """Show the learner as ``title`` from now on; an empty title changes nothing."""
    if title:
        _learner_titles[learner] = title


def label(name: str) -> str:
    """The title of a learner, detector or group: ``icarl`` is iCaRL. An unknown name is its own title."""
    if name in GROUPS:
        return GROUPS[name]
    head, mark, rest = name.partition(" ")  # "ash (variant=s)", "icarl (memory=500)"
    base, finetune = split_method(head)
    title = detectors.title(base)
    if title == base:
        title = _learner_titles.get(base, base)
    return title + ("" if finetune == "none" else f"+{finetune.upper()}") + mark + rest


def spread(count: int, most: int) -> list[int]:
    """At most ``most`` of the indices 0 to ``count - 1``, evenly spaced; the first and the last are included."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})
