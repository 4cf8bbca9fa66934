"""Detectors and learners of the user's own: a digest of their source, and errors that name the class."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

from tood.errors import ToodError
from tood.registry import described

__all__ = ["naming_errors", "source_digest"]

DIGESTS: dict[type, str] = {}  # of source_digest


def _is_own(kind: type) -> bool:
    """True for a class that is not the library's."""
    return kind.__module__.partition(".")[0] != "tood"


def source_digest(kind: type) -> str:
    """SHA-256 of the module that defines a class of the user's own; empty for the library's classes.

    Read once per class, on its first use: an edit of the file does not change a class that is already loaded.
    """
    if kind not in DIGESTS:
        DIGESTS[kind] = _read_digest(kind) if _is_own(kind) else ""
    return DIGESTS[kind]


def _read_digest(kind: type) -> str:
    module: Any = sys.modules.get(kind.__module__, kind)
    for source in (module, kind):
        with contextlib.suppress(OSError, TypeError):  # without a file, as in a console
            return hashlib.sha256(inspect.getsource(source).encode()).hexdigest()
    return described(kind)


@contextlib.contextmanager
def naming_errors(kind: type, stage: str) -> Iterator[None]:
    """Context in which an error of a class of the user's own becomes a ToodError that names the class and the stage."""
    try:
        yield
    except ToodError:
        raise
    except Exception as error:  # any error of the user's class
        if not _is_own(kind):
            raise
        reason = next(iter(str(error).strip().splitlines()), "")
        shown = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        raise ToodError(f"{described(kind)}: {stage} failed: {shown} (`tood --debug …` shows where)") from error
