"""Corrections of the newest task's logits at each step: WA's alignment, BiC's scale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from tood.report.appearance import spread

__all__ = ["EXPLAINED", "FACT_NAMES", "Fact", "fact_rows"]

FACT_NAMES = {"alignment": "WA: γ of the new weights", "scale": "BiC: scale of the new logits"}
EXPLAINED = (
    "WA multiplies the weights of the new columns by γ, BiC multiplies their logits by a scale. Below 1, the new "
    "task's logits were too large. Means over seeds, at ten steps or fewer. Runs made before these numbers were kept "
    "are not here."
)
MOST_STEPS = 10


class Fact(NamedTuple):
    """A number that a learner computed at one step."""

    stream: str
    name: str
    step: int
    value: float


def fact_rows(facts: Iterable[Fact]) -> Iterator[tuple[str, str, str]]:
    """Rows: learner and number, stream, ``step: mean over seeds``."""
    by_step: dict[tuple[str, str], dict[int, list[float]]] = {}
    for fact in facts:
        if fact.name in FACT_NAMES:
            by_step.setdefault((fact.name, fact.stream), {}).setdefault(fact.step, []).append(fact.value)
    for (name, stream), of_step in sorted(by_step.items()):
        steps = sorted(of_step)
        shown = [steps[place] for place in spread(len(steps), MOST_STEPS)]
        yield FACT_NAMES[name], stream, ", ".join(f"{step}: {np.mean(of_step[step]):.2f}" for step in shown)
