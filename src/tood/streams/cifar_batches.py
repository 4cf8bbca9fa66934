"""CIFAR's Python batches, read without unpickling.

``cifar-10-python.tar.gz`` and ``cifar-100-python.tar.gz`` hold pickles. A pickle is a program, and even a restricted
unpickler runs it. Here its instructions are read one by one and only those that build dictionaries, lists, numbers,
text and one array of bytes are understood. The few names that NumPy's arrays need are matched as text and never
imported; anything else is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tood.errors import ToodError
from tood.streams.sources import ArraySource

__all__ = ["read_batch", "read_cifar_batches"]

SPLITS = {  # split: file names of CIFAR-10 and of CIFAR-100
    "train": (tuple(f"data_batch_{i}" for i in range(1, 6)), ("train",)),
    "test": (("test_batch",), ("test",)),
}
ARRAY = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}
NAMES = {*ARRAY, ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
MARK = object()
PUSHES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "INT", "BINFLOAT"),
    *("SHORT_BINSTRING", "BINSTRING", "STRING", "BINUNICODE", "SHORT_BINUNICODE", "UNICODE"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}


class _Name(NamedTuple):
    """A global of the pickle, as text."""

    module: str
    name: str


class _Array:
    """An array under construction; ``state`` is what the pickle says of it."""

    state: Any = None


def read_cifar_batches(folder: str | Path, split: str) -> tuple[ArraySource, list[str]]:
    """Images and class names of an extracted ``cifar-10-batches-py`` or ``cifar-100-python`` folder.

    Parameters
    ----------
    folder:
        The extracted folder.
    split:
        ``"train"`` or ``"test"``.
    """
    folder = Path(folder)
    if split not in SPLITS:
        raise ToodError(f"split: expected train or test, found {split!r}")
    for files, label, meta, names in zip(
        SPLITS[split],
        ("labels", "fine_labels"),
        ("batches.meta", "meta"),
        ("label_names", "fine_label_names"),
        strict=True,
    ):
        if all((folder / name).is_file() for name in files):
            batches = [read_batch(folder / name) for name in files]
            parts = [_images(batch, label, folder / name) for batch, name in zip(batches, files, strict=True)]
            images, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
            classes = read_batch(folder / meta).get(names) if (folder / meta).is_file() else None
            return ArraySource(images, labels), list(classes or map(str, range(int(labels.max()) + 1)))
    expected = " or ".join(", ".join(files) for files in SPLITS[split])
    raise ToodError(f"{folder}: expected {expected}, found neither")


def _images(batch: dict[str, Any], label: str, path: Path) -> tuple[Any, Any]:
    data, labels = batch.get("data"), batch.get(label)
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3072 or not isinstance(labels, list):
        raise ToodError(f"{path}: expected data [n, 3072] and {label}, found {', '.join(map(str, batch))}")
    if len(labels) != len(data) or not all(isinstance(value, int) for value in labels):
        raise ToodError(f"{path}: expected {len(data)} whole numbers as {label}, found {len(labels)} entries")
    images = data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.array(labels, dtype=np.int64)


def read_batch(path: str | Path) -> dict[str, Any]:
    """The dictionary in one file, with text keys; arrays are uint8.

    Raises a :class:`~tood.ToodError` for an instruction or a name that CIFAR's files do not need.
    """
    path = Path(path)
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(path.read_bytes()):
            machine.step(opcode.name, argument)
        (result,) = machine.stack
        content = {_text(key): _finished(value) for key, value in result.items()}
    except OSError as error:
        raise ToodError(f"{path}: cannot be read: {error.strerror}") from error
    except (AttributeError, IndexError, KeyError, TypeError, UnicodeError, ValueError) as error:
        raise ToodError(f"{path}: not a batch of CIFAR: {error}") from error
    return content


class _Machine:
    """A stack and a memo; instructions move values between them and call nothing."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.simple: dict[str, Callable[[Any], object]] = {
            "EMPTY_DICT": lambda _: self.stack.append({}),
            "EMPTY_LIST": lambda _: self.stack.append([]),
            "EMPTY_TUPLE": lambda _: self.stack.append(()),
            "NONE": lambda _: self.stack.append(None),
            "NEWTRUE": lambda _: self.stack.append(True),
            "NEWFALSE": lambda _: self.stack.append(False),
            "MARK": lambda _: self.stack.append(MARK),
            "POP": lambda _: self.stack.pop(),
            "TUPLE": lambda _: self.stack.append(tuple(self._to_mark())),
            "LIST": lambda _: self.stack.append(self._to_mark()),
            "DICT": lambda _: self.stack.append(self._pairs({}, self._to_mark())),
            "TUPLE1": lambda _: self._tuple(1),
            "TUPLE2": lambda _: self._tuple(2),
            "TUPLE3": lambda _: self._tuple(3),
            "APPEND": lambda _: self._extend([self.stack.pop()]),
            "APPENDS": lambda _: self._extend(self._to_mark()),
            "SETITEM": lambda _: self._update([self.stack.pop(-2), self.stack.pop()]),
            "SETITEMS": lambda _: self._update(self._to_mark()),
            "GLOBAL": lambda argument: self._name(*str(argument).split(" ", 1)),
            "STACK_GLOBAL": lambda _: self._name(self.stack.pop(-2), self.stack.pop()),
            "REDUCE": lambda _: self._reduce(self.stack.pop(-2), self.stack.pop()),
            "BUILD": lambda _: self._build(self.stack.pop()),
            "MEMOIZE": lambda _: self.memo.__setitem__(len(self.memo), self.stack[-1]),
        }

    def step(self, name: str, argument: Any) -> None:
        """Follow one instruction."""
        if name in PUSHES:
            self.stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[int(argument)] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self.stack.append(self.memo[int(argument)])
        elif name in self.simple:
            self.simple[name](argument)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"its pickle has the instruction {name}, which is not followed")

    def _to_mark(self) -> list[Any]:
        place = len(self.stack) - 1 - self.stack[::-1].index(MARK)
        values = self.stack[place + 1 :]
        del self.stack[place:]
        return values

    def _tuple(self, size: int) -> None:
        values = tuple(self.stack[-size:])
        del self.stack[-size:]
        self.stack.append(values)

    def _extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("its pickle appends to something that is no list")
        self.stack[-1].extend(values)

    def _update(self, values: list[Any]) -> None:
        self._pairs(self.stack[-1], values)

    def _pairs(self, target: Any, values: list[Any]) -> Any:
        if not isinstance(target, dict):
            raise ValueError("its pickle sets entries of something that is no dictionary")
        target.update(zip(values[::2], values[1::2], strict=True))
        return target

    def _name(self, module: Any, name: Any) -> None:
        if (module, name) not in NAMES:
            raise ValueError(f"its pickle names {module}.{name}, which is not allowed")
        self.stack.append(_Name(module, name))

    def _reduce(self, called: Any, arguments: Any) -> None:
        if not isinstance(called, _Name) or not isinstance(arguments, tuple):
            raise ValueError("its pickle calls something that is no name")
        if called == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
            self.stack.append(str(arguments[0]).encode("latin-1"))
        elif called == ("numpy", "dtype"):
            self.stack.append(("dtype", _text(arguments[0])))
        else:
            self.stack.append(_Array())

    def _build(self, state: Any) -> None:
        target = self.stack[-1]
        if isinstance(target, _Array):
            target.state = state
        elif not (isinstance(target, tuple) and target[:1] == ("dtype",)):
            raise ValueError("its pickle sets the state of something that is no array")


def _finished(value: Any) -> Any:
    """A value with its array built: the state of a NumPy array is (version, shape, dtype, order, bytes)."""
    if isinstance(value, _Array):
        _, shape, dtype, fortran, content = value.state
        if dtype != ("dtype", "u1") or fortran not in (0, 1):
            raise ValueError(f"expected an array of bytes, found dtype {dtype[1]}")
        raw = content.encode("latin-1") if isinstance(content, str) else content
        return np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")
    if isinstance(value, list):
        return [_text(entry) if isinstance(entry, (bytes, str)) else entry for entry in value]
    return value


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
