"""How things are written and coloured, wherever they are shown, and which of many are shown."""

from __future__ import annotations

import numpy as np

from tood import detectors

__all__ = ["COLOURS", "label", "spread"]

# Okabe and Ito's palette. One meaning a colour, in every figure and on the page.
COLOURS = {
    "id": "#0072B2",
    "near": "#E69F00",
    "far": "#D55E00",
    "tood": "#009E73",
    "energy": "#CC79A7",
    "accuracy": "#000000",
    "muted": "#767676",
}

NAMES = {
    "id": "ID",
    "near": "near-OOD",
    "far": "far-OOD",
    "accuracy": "accuracy",
    "icarl": "iCaRL",
    "bic": "BiC",
    "der": "DER",
    "derpp": "DER++",
    "wa": "WA",
    "lwf": "LwF",
    "er": "ER",
    "ewc": "EWC",
    "si": "SI",
    "gem": "GEM",
    "finetune": "Fine-tuning",
    "agem": "A-GEM",
    "naive": "Naive",
    "joint": "Joint",
}


def label(name: str) -> str:
    """How a learner, detector or group is written: ``icarl`` is iCaRL; a name that is not registered stays as it is."""
    if name in NAMES:
        return NAMES[name]
    head, mark, rest = name.partition(" ")  # "ash (variant=s)", "icarl (memory=500)"
    base, plus, finetune = head.partition("+")
    return NAMES.get(base, detectors.title(base)) + plus + finetune.upper() + mark + rest


def spread(count: int, most: int) -> list[int]:
    """At most ``most`` of the places 0 to ``count - 1``, evenly spaced, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})
