"""Errors: one base class; messages name the argument, what was found and what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

__all__ = ["MissingDependencyError", "NotFittedError", "ToodError", "UnknownNameError", "located"]


class ToodError(ValueError):
    """Bad input: the message names the argument or file, what was found and what was expected."""


class NotFittedError(ToodError, AttributeError):
    """A result was requested before ``fit``."""


class UnknownNameError(ToodError):
    """Unknown name; the message suggests the nearest known one."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        known = sorted(known)
        near = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        super().__init__(f"unknown {kind} {name!r}; {hint}")


class MissingDependencyError(ToodError, ImportError):
    """An optional package is missing; the message has the command that installs it.

    It installs an extra of this package, or with ``extra`` empty the other package itself.
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        install = f'"tood[{extra}]"' if extra else package
        super().__init__(f"{purpose} needs {package}: pip install {install}")


@contextmanager
def located(place: object) -> Iterator[None]:
    """Context in which a ToodError gets a prefix: the file or argument that it is about."""
    try:
        yield
    except ToodError as error:
        raise ToodError(f"{place}: {error}") from error
