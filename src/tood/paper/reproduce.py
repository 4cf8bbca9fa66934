"""``tood reproduce``: the runs behind each table of the paper. Tables share runs, so nothing is trained twice."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from importlib import resources
from pathlib import Path

from tood.errors import UnknownNameError
from tood.runs.config import RunConfig
from tood.runs.sweep import Cell, read_sweep

__all__ = ["PRESETS", "TARGETS", "cells", "command_of", "notes"]

PRESETS = ("cpu", "paper", "released")
# The targets that train, and how many seeds each has.
TARGETS = {"table1": 3, "table2": 3, "imagenet": 1, "vit": 1, "drift": 1, "tinyimagenet": 1, "variations": 1}
FROM_SCRATCH = (
    "vit, preset cpu: the own small ViT, from scratch, stands in for the pretrained ViT-B/16, which needs its weights "
    "and a GPU (--preset paper); its figures do not compare with the paper's"
)


def cells(target: str, out: str | Path, preset: str = "cpu", seeds: int | None = None) -> list[Cell]:
    """The runs of a target.

    Parameters
    ----------
    target:
        A name in :data:`TARGETS`; the grid is the sweep file of that name in ``tood/paper/sweeps``.
    out:
        The parent of the run directories. A run that another target has already made there is not made again.
    preset:
        ``"cpu"``, ``"paper"`` (its text) or ``"released"`` (its authors' settings).
    seeds:
        How many, from 0 on; by default as many as the paper has, or one.

    Examples
    --------
    >>> [cell.config.name for cell in cells("imagenet", "runs", "paper")]
    ['imagenet1k-bic-paper-s0', 'imagenet1k-wa-paper-s0', 'imagenet1k-der-paper-s0']
    """
    if target not in TARGETS:
        raise UnknownNameError("target", target, TARGETS)
    if preset not in PRESETS:
        raise UnknownNameError("preset", preset, PRESETS)
    return [
        Cell(dataclasses.replace(config, preset=preset, seed=seed), Path(out))
        for seed in range(seeds or TARGETS[target])
        for config in _grid(target, preset)
    ]


@lru_cache
def _grid(target: str, preset: str) -> tuple[RunConfig, ...]:
    """The sweep file of a target, or its own one for a preset."""
    folder = resources.files("tood.paper") / "sweeps"
    special = folder / f"{target}-{preset}.yaml"
    with resources.as_file(special if special.is_file() else folder / f"{target}.yaml") as file:
        return tuple(cell.config for cell in read_sweep(file, "runs"))


def notes(target: str, preset: str) -> list[str]:
    """What a reader of a target's figures must know."""
    return [FROM_SCRATCH] if (target, preset) == ("vit", "cpu") else []


def command_of(name: str, preset: str) -> str | None:
    """The command that makes the run called ``name``; None where no target has it."""
    if preset in PRESETS:
        for target in TARGETS:
            if any(cell.config.name == name for cell in cells(target, "runs", preset, seeds=max(TARGETS.values()))):
                return f"tood reproduce {target} --preset {preset}"
    return None
