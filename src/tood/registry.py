"""Registry: detectors, learners and streams by name, built in or from any other package.

A name is one of four things, tried in this order:

1. built in;
2. registered by code that has run: ``@detectors.register``;
3. an entry point of an installed package (groups ``tood.detectors``, ``tood.learners``, ``tood.networks``,
   ``tood.streams``), imported on first use;
4. ``package.module:Attribute``, imported from the installed packages or else from the current directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, overload

from tood.errors import ToodError, UnknownNameError

Item = TypeVar("Item", bound=Callable[..., Any])
Registered = TypeVar("Registered", bound=Callable[..., Any])

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Registry(Generic[Item]):
    """Items of one kind by name.

    Parameters
    ----------
    kind:
        The word for an item in messages: ``"detector"``.
    group:
        The entry-point group of installed packages: ``"tood.detectors"``.
    base:
        The class that every item must inherit from; an item's name is then its class attribute ``name``. None for
        factories, which are registered under a name: ``@register("name")``.

    Examples
    --------
    >>> streams = Registry("stream", "tood.streams")
    >>> @streams.register("squares")
    ... def squares(tasks=2):
    ...     return [[i * i] for i in range(tasks)]
    >>> streams.get("squares")(tasks=3)
    [[0], [1], [4]]
    >>> streams.get("squared")
    Traceback (most recent call last):
    tood.errors.UnknownNameError: unknown stream 'squared'; did you mean 'squares'?
    """

    def __init__(self, kind: str, group: str, base: type | None = None) -> None:
        self.kind = kind
        self.group = group
        self.base = base
        self._items: dict[str, Item] = {}

    @overload
    def register(self, item: str) -> Callable[[Registered], Registered]: ...
    @overload
    def register(self, item: Registered) -> Registered: ...
    def register(self, item: Any) -> Any:
        """Add an item; a decorator for a class with a ``name``, or for a factory as ``@register("name")``.

        Registering the same class or function again replaces it, so that a notebook cell can run twice.
        """
        if isinstance(item, str):
            if self.base:
                raise ToodError(f"{self.kind}: write @register, without a name: it is the class attribute `name`")
            return lambda factory: self._add(item, factory)
        return self._add(getattr(item, "name" if self.base else "__name__", ""), item)

    def names(self) -> list[str]:
        """Every name: built in, registered, then entry points; imports nothing."""
        installed = sorted({point.name for point in self._entry_points()})
        return [*self._items, *(name for name in installed if name not in self._items)]

    def known(self, name: str) -> Item | None:
        """The item of a name that is built in or registered, else None; imports nothing.

        For readers of files: a file that someone else wrote must not cause an import.
        """
        return self._items.get(name)

    def get(self, name: str) -> Item:
        """The item of a name, or of ``package.module:Attribute``, which is imported."""
        if not isinstance(name, str):
            raise ToodError(f"{self.kind}: expected a name or 'package.module:Attribute', found {name!r}")
        if name in self._items:
            return self._items[name]
        if ":" in name:
            return self._import(name)
        for point in self._entry_points():
            if point.name == name:
                return self._load(point)
        error = UnknownNameError(self.kind, name, self.names())
        if re.fullmatch(r"\w+(\.\w+)+", name):
            raise ToodError(f"{error}; for a {self.kind} of your own write '{':'.join(name.rsplit('.', 1))}'")
        raise error

    def items(self) -> Iterable[tuple[str, Item]]:
        """Name and item of everything built in or registered; imports nothing."""
        return list(self._items.items())

    def _add(self, name: str, item: Registered) -> Registered:
        self._check(item, described(item))
        if not NAME.fullmatch(name):
            raise ToodError(f"name of {described(item)}: expected letters, digits, '_', '-' and '.', found {name!r}")
        if name in self._items and origin(self._items[name]) != origin(item):
            raise ToodError(
                f"{self.kind} {name!r}: {described(self._items[name])} has this name already; "
                f"give {described(item)} another one"
            )
        self._items[name] = item  # type: ignore[assignment]
        return item

    def _check(self, item: Any, source: str) -> None:
        """Raise unless ``item`` is of this registry's kind."""
        if self.base is None:
            if not callable(item):
                raise ToodError(f"{self.kind} {source}: expected a function or class, found {item!r}")
        elif not (isinstance(item, type) and issubclass(item, self.base)):
            raise ToodError(f"{self.kind} {source}: expected a subclass of {described(self.base)}, found {item!r}")
        elif not isinstance(getattr(item, "name", None), str):
            raise ToodError(f'{self.kind} {source}: expected a class attribute name = "...", found none')

    def _import(self, path: str) -> Item:
        """The item at ``package.module:Attribute``; a class is registered under its own name."""
        module_name, _, attribute = path.partition(":")
        if not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
            raise ToodError(f"{self.kind} {path!r}: expected 'package.module:Attribute'")
        if os.getcwd() not in sys.path and "" not in sys.path:
            sys.path.append(os.getcwd())  # a console script lacks it; last, so that it shadows nothing
        with self._naming_errors(path, f"importing {module_name}"):
            module = importlib.import_module(module_name)
        if not hasattr(module, attribute):
            public = [name for name in vars(module) if not name.startswith("_")]
            raise UnknownNameError(f"attribute of {module_name} in {self.kind} {path!r}", attribute, public)
        item: Item = getattr(module, attribute)
        self._check(item, repr(path))
        return self._add(item.name, item) if self.base else item  # type: ignore[attr-defined]

    def _load(self, point: EntryPoint) -> Item:
        name, owner = point.name, point.dist.name if point.dist else "an unknown package"
        others = {other.value for other in self._entry_points() if other.name == name} - {point.value}
        if others:
            raise ToodError(f"{self.kind} {name!r}: {point.value} and {min(others)} have this name; use a path")
        with self._naming_errors(name, f"loading {point.value} of the package {owner}"):
            item: Item = point.load()
        self._check(item, repr(name))
        if self.base and item.name != name:  # type: ignore[attr-defined]
            raise ToodError(f"{self.kind} {name!r}: {described(item)} of {owner} has another name")
        return self._add(name, item)

    @contextlib.contextmanager
    def _naming_errors(self, name: str, stage: str) -> Iterator[None]:
        """Context in which any error of the user's module becomes a ToodError."""
        try:
            yield
        except Exception as error:
            where = f" (searched: installed packages, {os.getcwd()})" if isinstance(error, ModuleNotFoundError) else ""
            raise ToodError(f"{self.kind} {name!r}: {stage} failed: {type(error).__name__}: {error}{where}") from error

    def _entry_points(self) -> Iterable[EntryPoint]:
        return entry_points(group=self.group)


def described(item: Any) -> str:
    """Module and name of a class or function."""
    return f"{getattr(item, '__module__', '?')}:{getattr(item, '__qualname__', repr(item))}"


def origin(item: Any) -> tuple[str, str]:
    """Source file and name: equal for a class that is defined again, and for one seen as ``__main__`` and by import."""
    module = getattr(item, "__module__", "")
    file = getattr(sys.modules.get(module), "__file__", None) or module
    return os.path.realpath(file), getattr(item, "__qualname__", repr(item))


def _is_own(kind: type) -> bool:
    """True for a class that is not the library's."""
    return kind.__module__.partition(".")[0] != "tood"


def source_digest(kind: Any) -> str:
    """SHA-256 of the module that defines a class of the user's own; empty for the library's classes.

    Read once per class, on its first use: an edit of the file does not change a class that is already loaded.
    """
    return _read_digest(kind) if _is_own(kind) else ""


@cache
def _read_digest(kind: Any) -> str:
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
