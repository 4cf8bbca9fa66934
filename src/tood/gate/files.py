"""A version from a folder: its decision file and ``.npz`` files of its outputs, laid out as in a step of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tood.decision.facts import load_decision
from tood.errors import ToodError
from tood.gate.versions import Version
from tood.outputs import Outputs, Run
from tood.storage.npz import read_npz

__all__ = ["read_version"]

ARRAYS = ("logits", "labels", "features", "ids", "classes", "predictions")


def read_version(
    folder: Path, decision: Path | None = None, threshold: float | None = None, alpha: float = 0.05
) -> Version:
    """Read ``decision.safetensors``, ``test.npz``, ``ood/NAME.npz``, ``traffic.npz`` and ``calibration.npz``.

    Parameters
    ----------
    folder:
        Has these files, or the ``.npz`` files in a folder ``outputs``, as a step of a run directory. Arrays of a file
        are ``logits``, and if there are any ``labels`` (columns), ``ids``, ``features``, ``predictions`` and, in
        ``test.npz``, ``classes`` (the names of the columns).
    decision:
        The decision file, if it is another one.
    threshold, alpha:
        As in :class:`Version`.
    """
    outputs = folder / "outputs" if (folder / "outputs").is_dir() else folder
    unknown = {path.stem: path for path in sorted((outputs / "ood").glob("*.npz"))}
    if reserved := {"known", "traffic", "calibration", "future"} & set(unknown):
        raise ToodError(f"{outputs / 'ood'}: no set of unknown samples may be named {', '.join(reserved)}")
    paths = {"known": outputs / "test.npz", **unknown}
    paths |= {name: path for name in ("traffic", "calibration") if (path := outputs / f"{name}.npz").exists()}
    arrays = {name: _read(path) for name, path in paths.items()}
    sets = {name: _outputs(found) for name, found in arrays.items()}
    if (labels := arrays["known"].get("labels")) is not None and labels.dtype.kind in "iu":
        future = labels >= sets["known"].logits.shape[-1]  # of classes that the version has not learned: unknown to it
        if future.any() and not future.all():
            parts = {
                name: {k: v if k == "classes" else v[rows] for k, v in arrays["known"].items()}
                for name, rows in (("known", ~future), ("future", future))
            }
            arrays |= parts
            sets["known"], sets["future"] = (_outputs(parts[name]) for name in ("known", "future"))
    names: Any = arrays["known"].get("classes")
    run = folder.resolve().parents[1]
    if names is None and folder.resolve().parent == run / "steps" and (run / "manifest.json").exists():
        names = Run(run).manifest.get("classes", [])[: arrays["known"]["logits"].shape[-1]] or None
    try:
        return Version(
            _load(decision or folder / "decision.safetensors"),
            sets.pop("known"),
            traffic=sets.pop("traffic", None),
            calibration=sets.pop("calibration", None),
            unknown=sets,
            classes=None if names is None else [str(name) for name in np.atleast_1d(names)],
            ids={name: found["ids"] for name, found in arrays.items() if "ids" in found},
            predictions=arrays["known"].get("predictions"),
            threshold=threshold,
            alpha=alpha,
        )
    except ToodError as error:
        raise ToodError(f"{folder}: {error}") from error


def _outputs(arrays: Mapping[str, npt.NDArray[Any]]) -> Outputs:
    return Outputs(arrays["logits"], arrays.get("features"), arrays.get("labels"))


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    arrays, _ = read_npz(path, ARRAYS)
    if "logits" not in arrays:
        raise ToodError(f"{path}: expected an array logits, found {', '.join(arrays) or 'none'}")
    for name, array in arrays.items():
        if name != "classes" and np.shape(array)[:1] != np.shape(arrays["logits"])[:1]:
            raise ToodError(f"{path}: {name}: expected as many rows as logits, found shape {array.shape}")
    return arrays


def _load(path: Path) -> Any:
    """The decision: a conformal one, a calibrator or a detector."""
    if not path.exists():
        raise ToodError(f"{path.name}: no such file; it is the decision that `tood calibrate --holdout 0.5` writes")
    return load_decision(path)
