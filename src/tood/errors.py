"""Errors and warnings: one base class; messages name the argument, what was found and what was expected."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

__all__ = ["MissingDependencyError", "NotFittedError", "ToodError", "UnknownNameError", "located", "warn"]


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


def warn(message: str) -> None:
    """Warn at the line of the caller's code, which is the nearest one outside this library."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("tood."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)
