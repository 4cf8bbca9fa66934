"""CIFAR-10 and CIFAR-100 as published: the binary version, and the Python version without unpickling.

A pickle is a program. Here its instructions are only listed: texts, numbers and lists are taken from the list, and
nothing is run.
"""

from __future__ import annotations

import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from tood.arrays import IntArray
from tood.errors import ToodError
from tood.storage.files import reading
from tood.streams.images import Pixels
from tood.streams.sources import ArraySource

__all__ = ["read_cifar"]

BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
VERSIONS: tuple[tuple[list[str], list[str], str, int | str], ...] = (
    # Training files, test files and file of the class names; labels before each image, or the key of the labels.
    ([f"{name}.bin" for name in BATCHES], ["test_batch.bin"], "batches.meta.txt", 1),
    (["train.bin"], ["test.bin"], "fine_label_names.txt", 2),  # the coarse label comes before the fine one
    (BATCHES, ["test_batch"], "batches.meta", "labels"),
    (["train"], ["test"], "meta", "fine_labels"),
)
PIXELS = 3 * 32 * 32
LABELS = 1000  # bound of labels, far above CIFAR's 100, so that a damaged one is refused


def read_cifar(folder: str | Path, split: str) -> tuple[ArraySource, list[str]]:
    """Images and class names of CIFAR-10 or CIFAR-100 (fine labels), binary or Python version, unpacked.

    Without the file of the class names, classes are named by their numbers.

    Parameters
    ----------
    folder:
        ``cifar-10-batches-bin``, ``cifar-10-batches-py``, ``cifar-100-binary`` or ``cifar-100-python``.
    split:
        ``"train"`` or ``"test"``.
    """
    if split not in ("train", "test"):
        raise ToodError(f"split: CIFAR has train and test, found {split!r}")
    for train, test, names, layout in VERSIONS:
        paths = [Path(folder) / name for name in (train if split == "train" else test)]
        if paths[0].is_file():
            parts = [_binary(p, layout) if isinstance(layout, int) else _pickled(p, layout) for p in paths]
            images = np.concatenate([part for part, _ in parts]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            labels = np.concatenate([part for _, part in parts])
            classes = _classes(Path(folder) / names, layout, int(labels.max(initial=0)))
            return ArraySource(np.ascontiguousarray(images), labels), classes
    expected = " or ".join((train if split == "train" else test)[0] for train, test, *_ in VERSIONS)
    raise ToodError(f"{folder}: expected {expected}, found none of them")


def _binary(path: Path, labels: int) -> tuple[Pixels, IntArray]:
    """Pixels ``[n, 3072]`` and labels ``[n]`` of records with this many labels before the pixels."""
    with reading(path, "not a batch of CIFAR"):
        records = np.fromfile(path, np.uint8)
    if not len(records) or len(records) % (labels + PIXELS):
        raise ToodError(f"{path}: {len(records)} bytes are not whole records of {labels + PIXELS}; truncated?")
    records = records.reshape(-1, labels + PIXELS)
    return records[:, labels:], records[:, labels - 1].astype(np.int64)


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
    with reading(path, "not a batch of CIFAR"):
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


def _classes(path: Path, layout: int | str, highest: int) -> list[str]:
    """The class names in a file, which must name every label; numbers without the file."""
    if not path.is_file():
        return [str(label) for label in range(highest + 1)]
    names: Any = path.read_text(errors="replace").split() if isinstance(layout, int) else None
    if isinstance(layout, str):
        names = _values(path).get(layout.replace("labels", "label_names"))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(names) <= highest:
        raise ToodError(f"{path}: expected a name for each label up to {highest}, found {names!r:.60}")
    return list(names)
