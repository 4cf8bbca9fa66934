"""Names, colours and evenly spaced choices that tables, plots and the page share."""

from __future__ import annotations

import numpy as np

from tood import detectors
from tood.outputs.identity import split_method

__all__ = ["COLOURS", "LEARNERS", "label", "remember_title", "spread"]

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
# Title, colour and marker per learner, the paper's first; importing the learners' own titles would import torch.
# No two learners share both colour and marker; similar colours have different markers.
LEARNERS = {
    "icarl": ("iCaRL", "#332288", "o"),
    "bic": ("BiC", "#CC6677", "s"),
    "der": ("DER", "#999933", "D"),
    "wa": ("WA", "#4AA8DC", "^"),
    "lwf": ("LwF", "#882255", "v"),
    "er": ("ER", "#000000", "P"),
    "er_ace": ("ER-ACE", "#5E4FA2", "X"),
    "ssil": ("SS-IL", "#A6761D", "^"),
    "ewc": ("EWC", "#C9A227", "X"),
    "si": ("SI", "#767676", "<"),
    "agem": ("A-GEM", "#8C510A", ">"),
    "gem": ("GEM", "#C51B7D", "p"),
    "finetune": ("Fine-tuning", "#B2182B", "h"),
    "joint": ("Joint", "#1B7837", "*"),
    "derpp": ("DER++", "#6B6B00", "d"),
    "ncm": ("NCM", "#35978F", "8"),
    "slda": ("SLDA", "#9970AB", "H"),
    "fecam": ("FeCAM", "#01665E", "s"),
    "ranpac": ("RanPAC", "#D6604D", "D"),
}
_learner_titles = {name: title for name, (title, *_) in LEARNERS.items()}  # manifests add others


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
