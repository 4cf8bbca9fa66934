"""YAML files of settings, and ``NAME=VALUE`` pairs on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from tood.errors import MissingDependencyError, ToodError
from tood.storage.files import write_text

__all__ = ["parse_settings", "read_yaml", "write_yaml"]

MOST, DEEPEST = 100_000, 50  # values in a file, aliases resolved, and how many are inside each other


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    yaml = _yaml()
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        _check_plain(content, count(1))
    except FileNotFoundError as error:
        raise ToodError(f"{path}: no such file") from error
    except Exception as error:  # of the parser, or of bytes that are no text
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark is not None else ""
        reason = (str(error) or repr(error)).splitlines()[0]
        raise ToodError(f"{path}{place}: cannot be read as YAML ({reason})") from error
    if not isinstance(content, dict):
        raise ToodError(f"{path}: expected a mapping of settings, found {type(content).__name__}")
    return content


def _check_plain(value: Any, counted: Iterator[int], depth: int = 0) -> None:
    """Raise unless a value is made of text, numbers, true, false, null, lists, and mappings with text as keys."""
    if next(counted) > MOST or depth > DEEPEST:
        raise ValueError(f"more than {MOST} values, or more than {DEEPEST} inside each other, with aliases resolved")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"expected text as a key, found {key!r}; put it in quotes")
    elif value is not None and not isinstance(value, (str, int, float, list)):
        raise ValueError(f"expected text, a number, a list or a mapping, found {value!r}; put it in quotes")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_plain(item, counted, depth + 1)


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
            _check_plain(settings[name], count(1))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ToodError(f"--set {pair!r}: the value cannot be read ({str(error).splitlines()[0]})") from error
    return settings


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError("PyYAML", "train", "a YAML file or setting") from error
    return yaml
