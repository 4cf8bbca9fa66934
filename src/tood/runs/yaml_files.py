"""YAML files of settings, and ``NAME=VALUE`` pairs on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tood.errors import MissingDependencyError, ToodError
from tood.files import DAMAGE, write_text

__all__ = ["parse_settings", "read_yaml", "write_yaml"]


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    yaml = _yaml()
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ToodError(f"{path}: no such file") from error
    except (yaml.YAMLError, *DAMAGE) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark is not None else ""
        reason = (str(error) or repr(error)).splitlines()[0]
        raise ToodError(f"{path}{place}: cannot be read as YAML ({reason})") from error
    if not isinstance(content, dict):
        raise ToodError(f"{path}: expected a mapping of settings, found {type(content).__name__}")
    return content


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping as YAML, atomically."""
    write_text(path, _yaml().safe_dump(dict(content), sort_keys=False))


def parse_settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    """``("epochs=3", "loss=ce")`` as a mapping, with values read as YAML.

    >>> parse_settings(("epochs=3", "loss=ce"))
    {'epochs': 3, 'loss': 'ce'}
    """
    yaml = _yaml()
    settings = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not (name and sign):
            raise ToodError(f"--set: expected NAME=VALUE, found {pair!r}")
        try:
            settings[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ToodError(f"--set {pair!r}: the value cannot be read ({str(error).splitlines()[0]})") from error
    return settings


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError("PyYAML", "train", "a YAML file or setting") from error
    return yaml
