"""Image sets in the files of their publishers: CIFAR (binary and Python version), MNIST (IDX), SVHN (MATLAB).

A pickle is a program, so CIFAR's Python version is not unpickled. Its instructions are only listed: texts, numbers and
lists are taken from the list, and nothing is run.
"""

from __future__ import annotations

import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from tood.arrays import IntArray
from tood.errors import MissingDependencyError, ToodError
from tood.storage.files import reading
from tood.streams.images import Pixels

__all__ = ["read_published"]

PIXELS = 3 * 32 * 32
LABELS = 1000  # bound of labels, far above CIFAR's 100, so that a damaged one is refused
NOT_CIFAR = "not a batch of CIFAR"


def read_published(path: Path) -> tuple[Pixels, IntArray, list[str]]:
    """Images ``[N, H, W, 3]``, labels ``[N]`` and class names of a set.

    Parameters
    ----------
    path:
        CIFAR-10's ``data_batch_1`` (the other four are beside it) or ``test_batch``, CIFAR-100's ``train`` or ``test``
        (fine labels), each with or without ``.bin``; MNIST's ``…-images-idx3-ubyte``; SVHN's ``….mat``.
    """
    if path.suffix == ".mat":
        images, labels = _svhn(path)
    elif path.name.endswith("-images-idx3-ubyte"):
        labels = _idx(path.with_name(path.name.replace("images-idx3", "labels-idx1"))).astype(np.int64)
        images = np.repeat(_idx(path)[..., None], 3, axis=-1)  # grey as RGB
    else:
        return _cifar(path)
    if images.ndim != 4 or images.shape[3] != 3 or labels.shape != images.shape[:1] or not len(labels):
        raise ToodError(f"{path}: expected images and one label each, found shapes {images.shape} and {labels.shape}")
    return images, labels, [str(digit) for digit in range(10)]


def _svhn(path: Path) -> tuple[Pixels, IntArray]:
    """Cropped digits; the file has 10 in place of 0."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingDependencyError("scipy", "train", "SVHN's files") from error
    with reading(path, "not SVHN's cropped digits"):
        content = loadmat(path, variable_names=("X", "y"))
        images = np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2), np.uint8)
        return images, content["y"].ravel().astype(np.int64) % 10


def _idx(path: Path) -> Pixels:
    """The bytes of an IDX file, in the shape that its header says."""
    with reading(path, "not an IDX file of bytes"):
        data = path.read_bytes()
        if data[:3] != b"\0\0\x08":  # 8: unsigned bytes
            raise ValueError(f"it begins with {data[:3]!r}")
        start = 4 + 4 * data[3]
        shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
        return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _cifar(path: Path) -> tuple[Pixels, IntArray, list[str]]:
    """CIFAR-10 or CIFAR-100; without the file of the class names, classes are named by their numbers."""
    ten, binary = "batch" in path.name, path.suffix == ".bin"
    batches = range(1, 6) if "batch_1" in path.name else [1]
    paths = [path.with_name(path.name.replace("batch_1", f"batch_{i}")) for i in batches]
    if binary:  # in CIFAR-100, the coarse label comes before the fine one
        parts = [_binary(p, marks=1 if ten else 2) for p in paths]
        names = path.with_name("batches.meta.txt" if ten else "fine_label_names.txt")
    else:
        parts = [_pickled(p, "labels" if ten else "fine_labels") for p in paths]
        names = path.with_name("batches.meta" if ten else "meta")
    images = np.concatenate([part for part, _ in parts]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    labels = np.concatenate([part for _, part in parts])
    return np.ascontiguousarray(images), labels, _class_names(names, binary, int(labels.max(initial=0)))


def _binary(path: Path, marks: int) -> tuple[Pixels, IntArray]:
    """Pixels ``[n, 3072]`` and labels ``[n]`` of records with this many labels before the pixels."""
    with reading(path, NOT_CIFAR):
        records = np.fromfile(path, np.uint8)
    if not len(records) or len(records) % (marks + PIXELS):
        raise ToodError(f"{path}: {len(records)} bytes are not whole records of {marks + PIXELS}; truncated?")
    records = records.reshape(-1, marks + PIXELS)
    return records[:, marks:], records[:, marks - 1].astype(np.int64)


def _pickled(path: Path, key: str) -> tuple[Pixels, IntArray]:
    """Pixels ``[n, 3072]`` and labels ``[n]``, the list of this key."""
    content = _values(path)
    pixels, labels = content.get("data"), content.get(key)
    if pixels is None or not isinstance(labels, list) or len(labels) != len(pixels):
        raise ToodError(f"{path}: expected data [n, 3072] and as many {key}, found {', '.join(content) or 'neither'}")
    if not all(isinstance(label, int) and 0 <= label < LABELS for label in labels):
        raise ToodError(f"{path}: expected {key} from 0 to {LABELS - 1}, found others")
    return pixels, np.array(labels, np.int64)


def _values(path: Path) -> dict[str, Any]:
    """The lists of a pickled dictionary by the text before them, and its pixels as ``data``."""
    found: dict[str, Any] = {}
    items, key, before = None, "", ""
    with reading(path, NOT_CIFAR):
        for opcode, value, _ in pickletools.genops(path.read_bytes()):
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            if opcode.name == "EMPTY_LIST":
                items = found[key] = []
            elif opcode.name in ("APPEND", "APPENDS"):
                key = ""  # the next text is a key; a longer list has further numbers
            elif isinstance(text, str) and len(text) >= PIXELS and len(text) % PIXELS == 0:
                pixels = np.frombuffer(text.encode("latin-1"), np.uint8)
                found["data"] = pixels.reshape(-1, PIXELS, order="F" if before == "NEWTRUE" else "C")
            elif isinstance(text, str) and not (items is not None and key):
                key, items = text, None
            elif items is not None and opcode.name not in ("PUT", "BINPUT", "LONG_BINPUT", "PROTO", "FRAME"):
                items += [] if text is None else [text]
            before = opcode.name
    return found


def _class_names(path: Path, binary: bool, highest: int) -> list[str]:
    """The class names in a file, which must name every label; numbers without the file."""
    if not path.is_file():
        return [str(label) for label in range(highest + 1)]
    key = "label_names" if path.name == "batches.meta" else "fine_label_names"
    names: Any = path.read_text(errors="replace").split() if binary else _values(path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(names) <= highest:
        raise ToodError(f"{path}: expected a name for each label up to {highest}, found {names!r:.60}")
    return list(names)
