"""The runs for each table of the paper; tables share runs, so nothing is trained twice."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from tood.errors import UnknownNameError

if TYPE_CHECKING:
    from tood.runs.config import RunConfig
    from tood.runs.sweep import Cell

__all__ = ["TARGETS", "cells", "presets_of"]

# The targets that train, with their number of seeds.
TARGETS = {"table1": 3, "table2": 3, "imagenet": 1, "vit": 1, "drift": 1, "pretrained": 3}


def presets_of(target: str) -> tuple[str, ...]:
    """The presets of a target; the first one is its default."""
    special = {"pretrained": ("frozen",), "vit": ("paper", "released")}
    return special.get(target, ("cpu", "paper", "released"))


def cells(target: str, out: str | Path, preset: str | None = None, seeds: int | None = None) -> list[Cell]:
    """The runs of a target.

    Parameters
    ----------
    target:
        A name in :data:`TARGETS`; its grid is the sweep file of that name in ``tood/paper/sweeps``.
    out:
        Parent folder of the run directories. Runs that another target has made there are reused.
    preset:
        ``"cpu"``, ``"paper"`` (settings in its text) or ``"released"`` (as its authors ran it); ``"frozen"`` for the
        target ``pretrained``. By default the first of :func:`presets_of`.
    seeds:
        Number of seeds, starting at 0; by default as in :data:`TARGETS`.

    Examples
    --------
    >>> [cell.config.name for cell in cells("imagenet", "runs", "paper")]
    ['imagenet1k-bic-paper-s0', 'imagenet1k-wa-paper-s0', 'imagenet1k-der-paper-s0']
    """
    from tood.runs.sweep import Cell

    if target not in TARGETS:
        raise UnknownNameError("target", target, TARGETS)
    allowed = presets_of(target)
    preset = allowed[0] if preset is None else preset
    if preset not in allowed:
        raise UnknownNameError(f"preset of {target}", preset, allowed)
    return [
        Cell(dataclasses.replace(config, preset=preset, seed=seed, track=track), Path(out))
        for seed in range(seeds or TARGETS[target])
        for config in _grid(target)
        for track in [config.track if preset == config.preset else ()]
    ]


@lru_cache
def _grid(target: str) -> tuple[RunConfig, ...]:
    """The configurations in the sweep file of a target."""
    from tood.runs.sweep import read_sweep

    with resources.as_file(resources.files("tood.paper") / "sweeps" / f"{target}.yaml") as file:
        return tuple(cell.config for cell in read_sweep(file, "runs"))
