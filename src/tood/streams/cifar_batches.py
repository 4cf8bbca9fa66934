"""CIFAR's Python batches, read without unpickling.

``cifar-10-python.tar.gz`` and ``cifar-100-python.tar.gz`` hold pickles. A pickle is a program, and even a restricted
unpickler runs it. Here its instructions are read one by one, and only those that build dictionaries, lists, numbers,
text and one array of bytes are understood. The few names that NumPy's arrays need are matched as text and never
imported; anything else is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tood.errors import ToodError
from tood.streams.sources import ArraySource

__all__ = ["read_batch", "read_cifar_batches"]

VERSIONS = (  # CIFAR-10 and CIFAR-100: files per split, key of the labels, file and key of the class names
    (
        {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
        "labels",
        "batches.meta",
        "label_names",
    ),
    ({"train": ["train"], "test": ["test"]}, "fine_labels", "meta", "fine_label_names"),
)
RECONSTRUCT = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}
NAMES = {*RECONSTRUCT, ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
MARK, ARRAY = object(), object()  # on the stack: where a group begins, and an array that has no content yet
PUSHES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "INT", "BINFLOAT"),
    *("SHORT_BINSTRING", "BINSTRING", "STRING", "BINUNICODE", "SHORT_BINUNICODE", "UNICODE"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}


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
    if split not in ("train", "test"):
        raise ToodError(f"split: expected train or test, found {split!r}")
    for files, label, meta, names in VERSIONS:
        if all((folder / name).is_file() for name in files[split]):
            batches = [_images(folder / name, label) for name in files[split]]
            images = np.concatenate([images for images, _ in batches])
            labels = np.concatenate([labels for _, labels in batches])
            named = read_batch(folder / meta).get(names) if (folder / meta).is_file() else None
            classes = map(_text, named) if named else map(str, range(int(labels.max()) + 1))
            return ArraySource(images, labels), list(classes)
    expected = " or ".join(", ".join(files[split]) for files, *_ in VERSIONS)
    raise ToodError(f"{folder}: expected {expected}, found neither")


def _images(path: Path, label: str) -> tuple[Any, Any]:
    """Images ``[n, 32, 32, 3]`` and labels ``[n]`` of one file; ``label`` is the key of the labels."""
    batch = read_batch(path)
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
    try:
        return {_text(key): value for key, value in _value(path.read_bytes()).items()}
    except OSError as error:
        raise ToodError(f"{path}: cannot be read: {error.strerror}") from error
    except (AttributeError, IndexError, KeyError, TypeError, UnicodeError, ValueError) as error:
        raise ToodError(f"{path}: not a batch of CIFAR: {error}") from error


def _value(data: bytes) -> Any:
    """The value that a pickle describes. Instructions move values between a stack and a memo and call nothing."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in PUSHES:
            stack.append(argument)
        elif name in BUILDERS:
            stack.append(BUILDERS[name](*_operands(stack, opcode.stack_before)))
        elif name == "GLOBAL":
            stack.append(_name(*str(argument).split(" ", 1)))
        elif name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[argument])
        elif name == "POP":
            stack.pop()
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"its pickle has the instruction {name}, which is not followed")
    (result,) = stack
    return result


def _operands(stack: list[Any], kinds: list[Any]) -> list[Any]:
    """Take the operands of an instruction off the stack; values since the last mark are one list."""
    group: list[Any] = []
    if pickletools.markobject in kinds:
        mark = max(i for i, value in enumerate(stack) if value is MARK)
        group = [stack[mark + 1 :]]
        del stack[mark:]
        kinds = kinds[: kinds.index(pickletools.markobject)]
    first = len(stack) - len(kinds)
    operands = stack[first:] + group
    del stack[first:]
    return operands


def _extended(target: Any, values: list[Any]) -> Any:
    if not isinstance(target, list):
        raise ValueError("its pickle appends to something that is no list")
    target.extend(values)
    return target


def _updated(target: Any, values: list[Any]) -> Any:
    if not isinstance(target, dict):
        raise ValueError("its pickle sets entries of something that is no dictionary")
    target.update(zip(values[::2], values[1::2], strict=True))
    return target


def _name(module: Any, name: Any) -> Any:
    if (module, name) not in NAMES:
        raise ValueError(f"its pickle names {module}.{name}, which is not allowed")
    return module, name


def _called(function: Any, arguments: Any) -> Any:
    if function not in NAMES or not isinstance(arguments, tuple):
        raise ValueError("its pickle calls something that is no name")
    if function == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
        return str(arguments[0]).encode("latin-1")
    return ("dtype", _text(arguments[0])) if function == ("numpy", "dtype") else ARRAY


def _built(target: Any, state: Any) -> Any:
    """An array with its content: the state of a NumPy array is (version, shape, dtype, order, bytes)."""
    if target is not ARRAY:
        if not (isinstance(target, tuple) and target[:1] == ("dtype",)):
            raise ValueError("its pickle sets the state of something that is no array")
        return target
    _, shape, dtype, fortran, content = state
    if dtype != ("dtype", "u1") or fortran not in (0, 1):
        raise ValueError(f"expected an array of bytes, found dtype {dtype[1]}")
    raw = content.encode("latin-1") if isinstance(content, str) else content
    return np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


BUILDERS: dict[str, Callable[..., Any]] = {  # an instruction's result from its operands
    "MARK": lambda: MARK,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "TUPLE": tuple,
    "LIST": list,
    "DICT": lambda values: _updated({}, values),
    **dict.fromkeys(("TUPLE1", "TUPLE2", "TUPLE3"), lambda *values: values),
    "APPEND": lambda target, value: _extended(target, [value]),
    "APPENDS": _extended,
    "SETITEM": lambda target, key, value: _updated(target, [key, value]),
    "SETITEMS": _updated,
    "STACK_GLOBAL": _name,
    "REDUCE": _called,
    "BUILD": _built,
}
