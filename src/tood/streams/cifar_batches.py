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
from typing import Any, NamedTuple

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
LABELS = 1000  # bound of labels, far above CIFAR's 100, so that a damaged one is refused
MARK, ARRAY = object(), object()  # on the stack: where a group begins, and an array that has no content yet
PUSHES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "INT", "BINFLOAT"),
    *("SHORT_BINSTRING", "BINSTRING", "STRING", "BINUNICODE", "SHORT_BINUNICODE", "UNICODE"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}


class Name(NamedTuple):
    """A name that a pickle may use."""

    module: str
    name: str


class DType(NamedTuple):
    """An array's type of numbers."""

    name: str


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
            source = ArraySource(images, labels)
            return source, _classes(folder / meta, names, int(labels.max()))
    expected = " or ".join(", ".join(files[split]) for files, *_ in VERSIONS)
    raise ToodError(f"{folder}: expected {expected}, found neither")


def _classes(path: Path, key: str, highest: int) -> list[str]:
    """Class names from the meta file, or numbers without it; ``highest`` is the highest label."""
    named = read_batch(path).get(key) if path.is_file() else None
    if named is None:
        return [str(label) for label in range(highest + 1)]
    if not isinstance(named, list) or not all(isinstance(name, (str, bytes)) for name in named):
        raise ToodError(f"{path}: expected a list of texts as {key}, found {type(named).__name__}")
    if highest >= len(named):
        raise ToodError(f"{path}: expected a name for each label up to {highest} in {key}, found {len(named)} names")
    return [_text(name) for name in named]


def _images(path: Path, label: str) -> tuple[Any, Any]:
    """Images ``[n, 32, 32, 3]`` and labels ``[n]`` of one file; ``label`` is the key of the labels."""
    batch = read_batch(path)
    data, labels = batch.get("data"), batch.get(label)
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3072 or not isinstance(labels, list):
        raise ToodError(f"{path}: expected data [n, 3072] and {label}, found {', '.join(map(str, batch))}")
    if len(labels) != len(data) or not all(isinstance(value, int) for value in labels):
        raise ToodError(f"{path}: expected {len(data)} whole numbers as {label}, found {len(labels)} entries")
    if not all(0 <= value < LABELS for value in labels):
        raise ToodError(f"{path}: expected {label} from 0 to {LABELS - 1}, found {min(labels)} to {max(labels)}")
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
    except RecursionError as error:
        raise ToodError(f"{path}: not a batch of CIFAR: its values are nested too deeply") from error
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, UnicodeError, ValueError) as error:
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
        mark = len(stack) - 1
        while stack[mark] is not MARK:  # ends with an IndexError if there is none
            mark -= 1
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
    keys = values[::2]
    if not all(isinstance(key, (str, bytes)) for key in keys):  # hashing nested tuples may take forever
        raise ValueError("its pickle has a dictionary with a key that is no text")
    target.update(zip(keys, values[1::2], strict=True))
    return target


def _name(module: Any, name: Any) -> Any:
    found = Name(_text(module), _text(name))
    if found not in NAMES:
        raise ValueError(f"its pickle names {found.module}.{found.name}, which is not allowed")
    return found


def _called(function: Any, arguments: Any) -> Any:
    if not isinstance(function, Name) or not isinstance(arguments, tuple):
        raise ValueError("its pickle calls something that is no name")
    if function == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
        return _text(arguments[0]).encode("latin-1")
    return DType(_text(arguments[0])) if function == ("numpy", "dtype") else ARRAY


def _built(target: Any, state: Any) -> Any:
    """An array with its content: the state of a NumPy array is (version, shape, dtype, order, bytes)."""
    if target is not ARRAY:
        if not isinstance(target, DType):
            raise ValueError("its pickle sets the state of something that is no array")
        return target
    _, shape, dtype, fortran, content = state
    if not isinstance(dtype, DType) or not isinstance(fortran, int):
        raise ValueError("its pickle has an array without dtype or order")
    if dtype.name != "u1":
        raise ValueError(f"expected an array of bytes, found dtype {dtype.name}")
    raw = content.encode("latin-1") if isinstance(content, str) else content
    return np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")


def _text(value: Any) -> str:
    if not isinstance(value, (str, bytes)):  # the text of nested values may be endless
        raise ValueError(f"expected text, found {type(value).__name__}")
    return value.decode("latin-1") if isinstance(value, bytes) else value


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
