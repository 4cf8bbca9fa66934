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
from tood.streams.bundled import open_clinc150, open_components, open_digits
from tood.streams.catalog import CATALOG, check_ood_names, open_named
from tood.streams.described import OPENERS, Place, check_mapping, check_ood, stream_name, with_more
from tood.streams.images import Resize
from tood.streams.stream import Stream, Tasks

__all__ = ["STREAMS", "check", "load", "names", "register"]

Factory: TypeAlias = Callable[..., Stream]

STREAMS: Registry[Factory] = Registry("stream", "tood.streams")
register = STREAMS.register
STREAMS.register("digits")(open_digits)
STREAMS.register("clinc150")(open_clinc150)
STREAMS.register("cifar10_components")(open_components)
for _name in CATALOG:
    STREAMS.register(_name)(functools.partial(open_named, _name))


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
        The folder of the image sets; by default see :func:`tood.streams.catalog.data_root`. What it may hold is on the
        page "Run and sweep".
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
    given = {"root": root, "order": order, "tasks": tasks, "size": size, "resize": resize}
    factory, arguments, more = _resolve(stream, given | options)
    try:
        made = factory(**arguments)
    except ToodError:
        raise
    except Exception as error:  # any error of a factory of the user
        raise ToodError(f"stream {name}: its factory failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, Stream):
        raise ToodError(f"stream {name}: expected its factory to return a Stream, found {type(made).__name__}")
    made = with_more(made, more, arguments.get("resize"), arguments.get("root")).with_ood(ood)
    reserve, seed = made.reserve if reserve is None else reserve, made.seed if seed is None else seed
    return dataclasses.replace(made, name=name, reserve=reserve, seed=seed)


def check(
    stream: str | Mapping[str, Any], *, order: int | str = "label", tasks: Tasks | None = None, ood: Sequence[str] = ()
) -> None:
    """Raise for an unknown stream, option or OOD set, as :func:`load` does; opens nothing.

    Only streams of the catalog with files are known to lack an OOD set before they are opened.
    """
    _, _, more = _resolve(stream, {"order": order, "tasks": tasks})
    named = stream.get("stream") if isinstance(stream, Mapping) else stream
    added = [ood_name for _, ood_name, _ in more]
    check_ood_names(str(named), [ood_name for ood_name in ood if ood_name not in added])


def _resolve(
    stream: str | Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Factory, dict[str, Any], list[Place]]:
    """The factory of a stream, its arguments (options that differ from the defaults), and further OOD sets.

    Raises for an option that the factory does not take.
    """
    arguments = {key: v for key, v in options.items() if v is not None and (key, v) != ("order", "label")}
    more: list[Place] = []
    if isinstance(stream, Mapping):
        kind, value, described = check_mapping(stream)
        more = check_ood(described.pop("ood", None))
        factory = _factory(value) if kind == "stream" else functools.partial(OPENERS[kind], value)
        arguments = described | arguments
    else:
        factory = _factory(stream)
    parameters = inspect.signature(factory).parameters
    for key in arguments:
        if key not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise UnknownNameError(f"option of the stream {stream_name(stream)}", key, {*parameters, "ood"})
    return factory, arguments, more


def _factory(name: str) -> Factory:
    """The factory of a name. It must be registered or annotated as one: a configuration must not call just anything."""
    factory = STREAMS.get(name)
    returns = getattr(factory, "__annotations__", {}).get("return")
    declared = returns is Stream or (isinstance(returns, str) and returns.rpartition(".")[2] == "Stream")
    if not declared and all(factory is not known for _, known in STREAMS.items()):
        raise ToodError(f"stream {name!r}: expected a function annotated '-> Stream', or registered, found {factory!r}")
    return factory
