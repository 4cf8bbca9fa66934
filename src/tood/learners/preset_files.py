"""Presets: data files with the settings of each learner on each stream."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from tood.errors import UnknownNameError
from tood.streams.catalog import family

__all__ = ["descriptions", "preset", "presets"]

FOLDER = files("tood.learners") / "presets"


def presets() -> list[str]:
    """The names of the presets."""
    return sorted(file.name.removesuffix(".yaml") for file in FOLDER.iterdir() if file.name.endswith(".yaml"))


@cache
def _read(name: str) -> dict[str, dict[str, Any]]:
    import yaml

    if name not in presets():
        raise UnknownNameError("preset", name, presets())
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


def preset(name: str, stream: str, learner: str, finetune: str = "none") -> dict[str, Any]:
    """The settings of a learner on a stream in a preset, as arguments of :func:`create`; may include ``network``.

    The file has tables from general to special: ``all``, the stream, the learner, the learner on the stream; later
    tables override earlier ones. A name such as ``cifar100-20`` uses the table of ``cifar100``; a stream of your own
    has no table. Settings that the learner does not have are left out.

    Examples
    --------
    >>> preset("paper", "cifar10", "lwf")["epochs"]
    170
    """
    from tood.learners import settings_of
    from tood.learners.base import LEARNERS

    tables, base = _read(name), LEARNERS.get(learner).name
    values: dict[str, Any] = {}
    for table in ("all", family(stream), base, f"{family(stream)}/{base}"):
        values |= tables.get(table) or {}
    known = {*settings_of(learner, finetune), "network", "adapter"}
    return {key: value for key, value in values.items() if key in known}


def descriptions() -> dict[str, str]:
    """A one-line description of each preset: the first sentence of its file."""
    comments = {name: (FOLDER / f"{name}.yaml").read_text("utf-8").replace("\n# ", " ") for name in presets()}
    return {name: re.split(r"(?<=\.)\s", text.removeprefix("# "), maxsplit=1)[0] for name, text in comments.items()}
