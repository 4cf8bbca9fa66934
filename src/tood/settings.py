"""One validator of settings: values are checked by annotations, with ranges in ``Annotated``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args, get_origin

from tood.errors import ToodError, UnknownNameError

__all__ = ["Above0", "AtLeast0", "Count", "CountOrNone", "From0Below1", "From0To1", "Range", "checked"]

KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


class Range(NamedTuple):
    """Allowed values, and how a message describes them."""

    expected: str
    allows: Callable[[Any], bool]


Above0: TypeAlias = Annotated[float, Range("a number above 0", lambda value: value > 0)]
AtLeast0: TypeAlias = Annotated[float, Range("0 or more", lambda value: value >= 0)]
From0To1: TypeAlias = Annotated[float, Range("a number from 0 to 1", lambda value: 0 <= value <= 1)]
From0Below1: TypeAlias = Annotated[float, Range("0 or more and below 1", lambda value: 0 <= value < 1)]
Count: TypeAlias = Annotated[int, Range("1 or more", lambda value: value >= 1)]
CountOrNone: TypeAlias = Annotated[int, Range("0 or more", lambda value: value >= 0)]


def checked(name: str, value: Any, hint: Any) -> Any:
    """``value``, if it fits an annotation; otherwise raises an error that names the setting.

    An annotation is a plain type, a ``Literal``, a tuple of one type, or one of these in ``Annotated`` with a
    :class:`Range`. Other annotations, such as mappings and unions, are checked by their range alone.

    >>> checked("lr", 1, Above0), checked("milestones", [60, 100], tuple[int, ...])
    (1.0, (60, 100))
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        value = checked(name, value, arguments[0])
        if not arguments[1].allows(value):
            raise ToodError(f"{name}: expected {arguments[1].expected}, found {value!r}")
    elif origin is Literal:
        if value not in arguments:
            raise UnknownNameError(name, value, filter(None, arguments))
    elif origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ToodError(f"{name}: expected a list, found {value!r}")
        value = tuple(checked(name, item, arguments[0]) for item in value)
    elif hint in KINDS:
        value = float(value) if hint is float and type(value) is int else value
        if type(value) is not hint or (hint is float and not math.isfinite(value)):
            raise ToodError(f"{name}: expected {KINDS[hint]}, found {value!r}")
    return value
