"""What decisions need of a calibrator or detector: scores, winning tasks, and its file as bytes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tood.arrays import FloatArray, IntArray, floats, indices
from tood.calibration.tood import TOOD
from tood.storage.files import kind_of, write_atomically

__all__ = ["file_of", "from_file", "load_cal", "score_and_assign"]


def score_and_assign(cal: Any, logits: Any) -> tuple[FloatArray, IntArray | None]:
    """Scores and, if the calibrator assigns them, winning tasks, as NumPy arrays."""
    if hasattr(cal, "score_and_assign"):
        scores, tasks = cal.score_and_assign(logits)
    else:
        scores, tasks = cal.score(logits), cal.assign(logits) if hasattr(cal, "assign") else None
    scores = floats(scores, "scores", ndim=1)
    return scores, None if tasks is None else indices(tasks, "tasks", length=len(scores))


def file_of(cal: Any) -> npt.NDArray[np.uint8]:
    """The bytes of the file that ``cal.save`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        cal.save(Path(folder, "cal"))
        return np.frombuffer(Path(folder, "cal").read_bytes(), dtype=np.uint8)


def from_file(file: npt.NDArray[np.uint8]) -> Any:
    """The calibrator or detector whose bytes :func:`file_of` gave."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cal")
        write_atomically(path, lambda temporary: temporary.write_bytes(file.tobytes()))  # a full disk names the file
        return load_cal(path)


def load_cal(path: str | os.PathLike[str]) -> Any:
    """A calibrator or detector from its file."""
    if kind_of(path) != "tood-detector":
        return TOOD.load(path)
    from tood.detectors import Detector  # a tenth of a second, which scoring files does not need

    return Detector.load(path)
