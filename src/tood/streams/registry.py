"""Streams by name: built in, registered, entry points, ``package.module:factory``, or described by a mapping."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tood.errors import ToodError, UnknownNameError
from tood.registry import Registry
from tood.streams.arrival import Tasks
from tood.streams.catalog import CATALOG, check_ood_names, open_named
from tood.streams.described import (
    check_mapping,
    check_ood,
    open_folder,
    open_huggingface,
    open_npz,
    stream_name,
    with_more,
)
from tood.streams.images import Resize
from tood.streams.stream import Stream

__all__ = ["STREAMS", "check", "load", "names", "register"]

Factory: TypeAlias = Callable[..., Stream]

STREAMS: Registry[Factory] = Registry("stream", "tood.streams")
register = STREAMS.register
for _name in CATALOG:
    STREAMS.register(_name)(functools.partial(open_named, _name))

OPENERS: dict[str, Factory] = {"folder": open_folder, "npz": open_npz, "huggingface": open_huggingface}


def names() -> list[str]:
    """The named streams: built in, registered and installed."""
    return sorted(STREAMS.names())


def load(
    stream: str | Mapping[str, Any] = "digits",
    *,
    root: str | Path | None = None,
    order: int | str = "label",
    tasks: Tasks | None = None,
    reserve: int | None = None,
    seed: int | None = None,
    size: int | None = None,
    resize: Resize = None,
    ood: Sequence[str] = (),
    **options: Any,
) -> Stream:
    """A stream by name. Images are read when they are first used.

    Parameters
    ----------
    stream:
        One of :func:`names`; ``package.module:factory``, a function that returns a :class:`Stream`; or a mapping with
        one of ``folder``, ``npz``, ``huggingface`` or ``stream`` (a name) and options of it, such as ``tasks``,
        ``size`` and ``ood`` (see the page "Run and sweep").
    root:
        The folder of the packed sets (by default see :func:`tood.streams.catalog.data_root`), or OpenOOD's data
        folder: one with ``benchmark_imglist`` in it is read by its lists.
    order:
        ``"label"``, as in the paper, or the seed of a permutation of the classes.
    tasks:
        Their number, their sizes or their class ids, if not the stream's own.
    reserve, seed:
        Samples per class that are set aside and never trained on, and the seed of that choice, if not the stream's own.
    size, resize:
        Pixels per side, if not the stream's own; ``resize="squash"`` squashes images of other proportions instead of
        cropping them; a number of pixels is what the shorter side is scaled to before cropping.
    ood:
        Names of the OOD sets to use; all by default. Sets whose files are missing are left out with a warning.
    options:
        Further options of the factory.

    Examples
    --------
    >>> stream = load("digits", ood=["noise"])
    >>> len(stream), stream.sizes, [(s.name, s.group) for s in stream.ood]
    (4, (2, 2, 2, 2), [('noise', 'far')])
    """
    name = stream_name(stream)
    factory, arguments = _resolve(
        stream, order, {"root": root, "tasks": tasks, "size": size, "resize": resize} | options
    )
    made = _open(factory, name, arguments, tuple(ood))
    return dataclasses.replace(
        made,
        name=name,
        reserve=made.reserve if reserve is None else reserve,
        seed=made.seed if seed is None else seed,
    )


def check(
    stream: str | Mapping[str, Any], *, order: int | str = "label", tasks: Tasks | None = None, ood: Sequence[str] = ()
) -> None:
    """Raise for an unknown stream, option or OOD set, as :func:`load` does; opens nothing.

    Only streams of the catalog with files are known to lack an OOD set before they are opened.
    """
    factory, arguments = _resolve(stream, order, {"tasks": tasks})
    more = [] if _takes(factory, "ood") else [name for _, name, _ in check_ood(arguments.pop("ood", None))]
    _check_options(factory, stream_name(stream), arguments)
    named = stream.get("stream") if isinstance(stream, Mapping) else stream
    if isinstance(named, str):
        check_ood_names(named, [name for name in ood if name not in more])


def _resolve(
    stream: str | Mapping[str, Any], order: int | str, options: Mapping[str, Any]
) -> tuple[Factory, dict[str, Any]]:
    """The factory of a stream and its arguments: ``options`` that are not None, and those of a mapping."""
    arguments = {key: value for key, value in options.items() if value is not None}
    if order != "label":
        arguments["order"] = order
    if not isinstance(stream, Mapping):
        return STREAMS.get(stream), arguments
    kind, value, described = check_mapping(stream)
    factory = STREAMS.get(value) if kind == "stream" else functools.partial(OPENERS[kind], value)
    return factory, described | arguments


def _takes(factory: Factory, option: str) -> bool:
    parameters = inspect.signature(factory).parameters
    return option in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _open(factory: Factory, name: str, arguments: Mapping[str, Any], ood: Sequence[str]) -> Stream:
    """Call a factory; if it does not take the option ``ood``, the further OOD sets are added to its own."""
    if "ood" not in arguments or _takes(factory, "ood"):
        return _call(factory, name, arguments, ood)
    more = arguments["ood"]
    added = [ood_name for _, ood_name, _ in check_ood(more)]
    own = {key: value for key, value in arguments.items() if key != "ood"}
    made = _call(factory, name, own, [ood_name for ood_name in ood if ood_name not in added])
    size = made.train.shape[0] if len(made.train.shape) == 3 else None
    resize = own.get("resize", getattr(made.train, "resize", None))
    return with_more(made, more, size, resize, own.get("root")).with_ood(ood)


def _check_options(factory: Factory, name: str, arguments: Mapping[str, Any]) -> None:
    """Raise for an option that a factory does not take."""
    parameters = inspect.signature(factory).parameters
    for key in arguments:
        if not _takes(factory, key) or (key == "ood_names" and key in parameters):
            raise UnknownNameError(f"option of the stream {name}", key, {*parameters, "ood"} - {"ood_names"})


def _call(factory: Factory, name: str, arguments: Mapping[str, Any], ood: Sequence[str]) -> Stream:
    """Call a factory and pick OOD sets; an option that the factory does not take is an error."""
    _check_options(factory, name, arguments)
    # A factory with `ood_names` opens only these sets itself, and names those whose files are missing.
    picks = {"ood_names": ood} if "ood_names" in inspect.signature(factory).parameters else {}
    try:
        made = factory(**arguments, **picks)
    except ToodError:
        raise
    except Exception as error:  # any error of a factory of the user
        raise ToodError(f"stream {name}: its factory failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, Stream):
        raise ToodError(f"stream {name}: expected its factory to return a Stream, found {type(made).__name__}")
    return made if picks else made.with_ood(ood)
