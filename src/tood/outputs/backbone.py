"""Features of a frozen backbone: no task changes them, so a run keeps them once, and its steps name their rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from tood.arrays import FloatArray, IntArray
from tood.errors import ToodError
from tood.outputs.directory import PathLike, Run
from tood.storage.files import contained, reading, sha256, write_file

__all__ = ["backbone_digest", "backbone_file", "read_backbone", "write_backbone"]


def write_backbone(run_dir: PathLike, features: Mapping[str, FloatArray]) -> None:
    """Write features ``[N, D]`` of the sources of a run: ``train``, ``test`` and each ``ood/NAME``, as float32."""
    run = Run(run_dir)

    def write(path: Path, array: FloatArray) -> None:
        np.lib.format.open_memmap(path, "w+", np.float32, array.shape)[...] = array

    with run.lock():
        for name, array in features.items():
            file = contained(run.path, run.path / "backbone" / f"{name}.npy")
            write_file(file, lambda path, array=array: write(path, array))  # type: ignore[misc]


def backbone_file(run: Run, outputs: str) -> Path:
    """The file with the backbone features of a set such as ``outputs/calibration.npz``."""
    part = outputs.removeprefix("outputs/").removesuffix(".npz")
    source = part if part == "test" or part.startswith("ood/") else "train"
    return contained(run.path, run.path / "backbone" / f"{source}.npy")


def read_backbone(file: Path, rows: IntArray | None) -> FloatArray:
    """Some rows of a file, or all."""
    with reading(file, "truncated, or not an .npy file of numbers"):
        stored = np.load(file, mmap_mode="r", allow_pickle=False)
        if rows is None:
            return np.asarray(stored)
        places = np.asarray(rows, dtype=np.int64)
        if stored.ndim != 2 or not (places.min(initial=0) >= 0 and places.max(initial=0) < len(stored)):
            raise ToodError(f"{file}: expected [N, D] with N above every entry of rows, found shape {stored.shape}")
        return np.asarray(stored[places])


def backbone_digest(file: Path) -> str:
    """SHA-256 of a file, once per process unless it changes."""
    status = file.stat()
    return _digest(file, status.st_size, status.st_mtime_ns)


@cache
def _digest(file: Path, size: int, changed: int) -> str:
    return sha256(file)
