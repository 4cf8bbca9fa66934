"""Presets: settings of each learner on each stream, as data files."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from tood.errors import UnknownNameError

__all__ = ["preset", "presets"]


def presets() -> list[str]:
    """The names of the presets."""
    folder = files("tood.learners") / "presets"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


@cache
def _read(name: str) -> dict[str, dict[str, Any]]:
    import yaml

    if name not in presets():
        raise UnknownNameError("preset", name, presets())
    text = (files("tood.learners") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    tables: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return tables


def preset(name: str, stream: str, learner: str) -> dict[str, Any]:
    """What a preset sets for a learner on a stream: arguments of :func:`create`, ``network`` among them.

    The tables of the file are read from general to special: ``all``, the stream, the learner, the learner on the
    stream. A name such as ``cifar100-20`` finds the table of ``cifar100``; a stream of your own finds none. What a
    learner has no setting for (the memory of one that keeps none) is left out.

    Examples
    --------
    >>> preset("paper", "cifar10", "lwf")["epochs"]
    170
    """
    from tood.learners import settings_of, split_name

    tables = _read(name)
    known = settings_of(learner)
    family, (base, _) = stream.split("-")[0], split_name(learner)
    found: dict[str, Any] = {}
    for table in ("all", family, base, f"{family}/{base}"):
        found |= tables.get(table) or {}
    return {key: value for key, value in found.items() if key in known or key in ("network", "adapter")}
