"""One step of a run: reads its outputs, cut to the columns seen so far, and writes them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tood.arrays import FloatArray, IntArray, finite, floats, indices
from tood.detectors import Head, Outputs
from tood.errors import ToodError
from tood.files import NAME
from tood.npz_files import npz_names, read_npz, write_npz
from tood.partition import Partition
from tood.runs.directory import Arrays, PathLike, Run

__all__ = ["Step", "write_step"]

HEAD = {"weight": 2, "bias": 1, "raw_weight": 2, "raw_bias": 1}  # the arrays of head.npz and their dimensions
OUTPUTS = ("logits", "raw_logits", "features", "labels", "predictions")  # those of the other files


class Step:
    """The outputs of one step as detectors read them: the columns of the tasks seen, in ascending order.

    Parameters
    ----------
    run:
        The run it belongs to.
    index:
        Which step; it has seen the tasks 0 to ``index``.
    logits:
        ``"corrected"`` for the logits the learner answers with, ``"raw"`` for those before it corrects its head
        (BiC). At a step without a correction the two are the same, and stored once.
    """

    def __init__(self, run: Run, index: int, logits: Literal["corrected", "raw"] = "corrected") -> None:
        self.run = run
        self.index = index
        self.logits = logits
        self.folder = run.folder(index)
        self._files: dict[str, tuple[Arrays, str]] = {}
        self._calibrations: dict[str, Outputs] = {}
        self._other: Step | None = None

    @cached_property
    def _seen(self) -> tuple[Partition, IntArray]:
        return self.run.partition.first(self.index + 1)

    @property
    def partition(self) -> Partition:
        """The tasks seen, over the columns kept."""
        return self._seen[0]

    @property
    def columns(self) -> IntArray:
        """The columns of the stored logits that are kept; labels and predictions are mapped to places among them."""
        return self._seen[1]

    @cached_property
    def corrected(self) -> bool:
        """True if the learner corrected its head at this step, so that there are raw logits too. Reads no data."""
        name = "outputs/test.npz"
        if name in self._files:
            return "raw_logits" in self._files[name][0]
        return "raw_logits" in npz_names(self.folder / name)

    def using(self, logits: Literal["corrected", "raw"]) -> Step:
        """This step with one kind of logits; what was read already is shared."""
        if logits == self.logits or not self.corrected:
            return self
        if self._other is None:
            self._other = Step(self.run, self.index, logits)
            self._other._files = self._files
        return self._other

    @cached_property
    def test(self) -> Outputs:
        """ID test data of all tasks seen."""
        outputs = self._outputs("outputs/test.npz")
        missing = np.flatnonzero(np.bincount(self.test_tasks(outputs), minlength=len(self.partition)) == 0)
        if len(missing):
            raise ToodError(f"{self.folder / 'outputs/test.npz'}: no sample of task {', '.join(map(str, missing))}")
        return outputs

    @cached_property
    def predictions(self) -> IntArray:
        """The predicted class of each test sample: as stored, else the largest logit among the columns seen."""
        arrays, _ = self._read("outputs/test.npz")
        if "predictions" in arrays:
            file = self.folder / "outputs/test.npz"
            return self._places(arrays["predictions"], file, "predictions", len(arrays["logits"]))
        largest: IntArray = np.asarray(self.test.logits).argmax(axis=1)
        return largest

    @cached_property
    def ood(self) -> dict[str, Outputs]:
        """Every OOD set of the manifest."""
        return {name: self._outputs(f"outputs/ood/{name}.npz", labels=False) for name in self.run.ood}

    @cached_property
    def fit(self) -> Outputs | None:
        """The training data available at this step; None if it was not stored."""
        return self._outputs("outputs/fit.npz") if (self.folder / "outputs/fit.npz").exists() else None

    @cached_property
    def head(self) -> Head | None:
        """The rows of the last linear layer for the columns seen; None if it was not stored."""
        return self._checked_head() if (self.folder / "head.npz").exists() else None

    def _checked_head(self, features: FloatArray | None = None) -> Head | None:
        """The head; raises if it does not fit the columns or the features."""
        file = self.folder / "head.npz"
        arrays, _ = self._read("head.npz")
        if self._prefix and f"{self._prefix}weight" not in arrays:
            return None
        weight, bias = (_entry(arrays, f"{self._prefix}{name}", file) for name in ("weight", "bias"))
        width = int(self.columns[-1]) + 1
        if weight.ndim != 2 or len(weight) < width or bias.shape != weight.shape[:1]:
            raise ToodError(
                f"{file}: expected {self._prefix}weight [C, D] and bias [C] with C at least {width}, "
                f"found {weight.shape} and {bias.shape}"
            )
        if features is not None and weight.shape[1] != features.shape[1]:
            name = f"{self._prefix}weight"
            raise ToodError(
                f"{file}: {name}: expected {features.shape[1]} columns, one per feature, found {weight.shape}"
            )
        return Head(weight=weight[self.columns], bias=bias[self.columns])

    def calibration(self, source: str | None = None) -> Outputs:
        """The calibration set of a source; by default the one in use."""
        name = self.calibration_file(source)
        if name not in self._calibrations:
            self._calibrations[name] = self._outputs(name)
        return self._calibrations[name]

    def calibration_file(self, source: str | None = None) -> str:
        """The file that holds the calibration set of a source."""
        if source in (None, self.run.calibration):
            return "outputs/calibration.npz"
        name = f"outputs/calibration_{source}.npz"
        if not (self.folder / name).exists():
            stored = ", ".join(self.calibration_sources())
            raise ToodError(f"{self.folder}: no calibration set from {source!r}; there is {stored}")
        return name

    def calibration_sources(self) -> list[str]:
        """The sources of the stored calibration sets; the one in use comes first."""
        others = (f.stem.removeprefix("calibration_") for f in (self.folder / "outputs").glob("calibration_*.npz"))
        return list(dict.fromkeys([self.run.calibration, *sorted(others)]))

    def test_tasks(self, outputs: Outputs | None = None) -> IntArray:
        """The task of each test sample."""
        tasks: IntArray = self.partition.column_tasks[np.asarray((outputs or self.test).labels)]
        return tasks

    def has(self, array: str) -> bool:
        """True if every set of this step has ``array`` ("features"). Reads no data."""
        files = ["test", "calibration", *(f"ood/{name}" for name in self.run.ood)]
        if (self.folder / "outputs/fit.npz").exists():
            files.append("fit")
        stored = [npz_names(self.folder / "outputs" / f"{file}.npz") for file in files]
        return all(array in names for names in stored)

    def unseen_columns(self) -> int:
        """Number of stored logit columns of tasks not seen yet, which are ignored."""
        return int(self._read("outputs/test.npz")[0]["logits"].shape[1]) - len(self.columns)

    def digest(self, name: str) -> str:
        """The hash of a file of this step, as it was read."""
        return self._read(name)[1]

    @property
    def _prefix(self) -> str:
        return "raw_" if self.logits == "raw" else ""

    def _read(self, name: str) -> tuple[Arrays, str]:
        if name not in self._files:
            self._files[name] = read_npz(self.folder / name, HEAD if name == "head.npz" else OUTPUTS)
        return self._files[name]

    def _outputs(self, name: str, labels: bool = True) -> Outputs:
        arrays, _ = self._read(name)
        file = self.folder / name
        entry = f"{self._prefix}logits"
        logits = _finite(_entry(arrays, entry, file), entry, file)
        if logits.shape[1] <= self.columns[-1]:
            raise ToodError(
                f"{file}: {entry}: expected at least {self.columns[-1] + 1} columns at step {self.index}, "
                f"found shape {logits.shape}"
            )
        if len(logits) == 0:
            raise ToodError(f"{file}: expected at least one sample, found none")
        if logits.shape[1] != len(self.columns):
            logits = logits[:, self.columns]
        features = _finite(arrays["features"], "features", file) if "features" in arrays else None
        if features is not None and len(features) != len(logits):
            raise ToodError(f"{file}: features: expected {len(logits)} rows, found shape {features.shape}")
        places = self._places(_entry(arrays, "labels", file), file, "labels", len(logits)) if labels else None
        return Outputs(logits=logits, features=features, labels=places)

    def _places(self, columns: Any, file: Path, name: str, rows: int) -> IntArray:
        """Stored columns as positions among the columns seen."""
        try:
            checked = indices(columns, name, length=rows)
        except ToodError as error:
            raise ToodError(f"{file}: {error}") from error
        seen = np.isin(checked, self.columns)
        if not seen.all():
            raise ToodError(
                f"{file}: {name}: expected columns of the tasks 0 to {self.index}, found {checked[~seen][0]} "
                f"at row {np.flatnonzero(~seen)[0]}"
            )
        return np.searchsorted(self.columns, checked)


def write_step(
    run_dir: PathLike,
    step: int,
    *,
    test: Any,
    calibration: Any,
    ood: Mapping[str, Any],
    fit: Any = None,
    head: Any = None,
    predictions: Any = None,
    calibrations: Mapping[str, Any] | None = None,
) -> None:
    """Write the outputs of one step. After all checks it appears whole, or not at all.

    Every set is a mapping or an :class:`~tood.detectors.Outputs` with ``logits`` ``[n, C]`` and, if known, ``features``
    ``[n, D]`` and ``raw_logits`` ``[n, C]``; arrays are NumPy or torch. Labels and predictions are logit columns.

    Parameters
    ----------
    run_dir:
        The run directory; :func:`write_manifest` made it.
    step:
        The step, counted from 0.
    test:
        ID test data of all tasks seen, with ``labels``.
    calibration:
        The calibration set in use, with ``labels``, samples of every task seen.
    ood:
        The manifest's OOD sets by name; labels are not needed, and a bare array is read as logits.
    fit:
        The training data available, with ``labels``, for detectors that fit features.
    head:
        The last linear layer: an ``nn.Linear``, a :class:`~tood.detectors.Head`, or a mapping with ``weight`` and
        ``bias``, and with ``raw_weight`` and ``raw_bias`` if the learner corrects it.
    predictions:
        ``[n]``, the predicted class of each test sample if it is not the largest logit.
    calibrations:
        Calibration sets from other sources, by the source's name.
    """
    run = Run(run_dir)
    if set(ood) != set(run.ood):
        raise ToodError(f"ood: expected the sets of the manifest, {sorted(run.ood)}, found {sorted(ood)}")
    sets = {"test": test, "calibration": calibration}
    for source, outputs in (calibrations or {}).items():
        if not NAME.fullmatch(source):
            raise ToodError(f"calibrations: expected names of letters, digits and . _ + -, found {source!r}")
        sets[f"calibration_{source}"] = outputs
    if fit is not None:
        sets["fit"] = fit
    files = {f"outputs/{name}.npz": _arrays(outputs, name, labels=True) for name, outputs in sets.items()}
    for name, outputs in ood.items():
        files[f"outputs/ood/{name}.npz"] = _arrays(outputs, f"ood {name}", labels=False)
    if predictions is not None:
        files["outputs/test.npz"]["predictions"] = indices(predictions, "predictions")
    if head is not None:
        files["head.npz"] = _head_arrays(head)
    _check(run, step, files)
    with run.lock():
        _write(run.folder(step), files)


def _check(run: Run, step: int, files: dict[str, Arrays]) -> None:
    """Read the arrays as :class:`Step` reads the files, so that what is written can be read."""
    if not 0 <= step < len(run.partition):
        raise ToodError(f"step: expected 0 to {len(run.partition) - 1}, one per task of the manifest, found {step}")
    trial = Step(run, step)
    trial._files = {name: (arrays, "") for name, arrays in files.items()}
    for each in (trial, trial.using("raw")):
        for name in files:
            if name != "head.npz":
                each._outputs(name, labels="/ood/" not in name)
        if "head.npz" in files:
            each._checked_head(files["outputs/test.npz"].get("features"))
    _ = trial.test, trial.predictions


def _write(folder: Path, files: dict[str, Arrays]) -> None:
    """Write everything to a temporary folder, then move it in: while head and outputs disagree there is no step."""
    fresh, old = folder / ".outputs.writing", folder / ".outputs.old"
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        for name, arrays in files.items():
            write_npz(fresh / name.removeprefix("outputs/"), arrays)
        if (folder / "outputs").exists():
            (folder / "outputs").replace(old)
        if "head.npz" in files:
            (fresh / "head.npz").replace(folder / "head.npz")
        else:
            (folder / "head.npz").unlink(missing_ok=True)
        fresh.replace(folder / "outputs")
    except BaseException:  # such as Ctrl-C between two renames
        if old.exists() and not (folder / "outputs").exists():
            old.replace(folder / "outputs")
        raise
    finally:
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)


def _head_arrays(head: Any) -> Arrays:
    """The arrays of a head that are stored; a head without bias has zeros."""
    arrays: Arrays = {}
    for name, ndim in HEAD.items():
        value = _get(head, name)
        if value is None and name.endswith("bias") and name.replace("bias", "weight") in arrays:
            value = np.zeros(len(arrays[name.replace("bias", "weight")]), dtype=np.float32)
        if value is not None or not name.startswith("raw_"):
            arrays[name] = finite(floats(value, f"head {name}", ndim), f"head {name}")
    return arrays


def _arrays(outputs: Any, name: str, labels: bool) -> Arrays:
    """The arrays of one set that are stored."""
    if not isinstance(outputs, Mapping) and hasattr(outputs, "shape"):
        outputs = {"logits": outputs}
    try:
        arrays: Arrays = {"logits": floats(_get(outputs, "logits"), "logits", ndim=2)}
        for optional in ("features", "raw_logits"):
            if _get(outputs, optional) is not None:
                arrays[optional] = floats(_get(outputs, optional), optional, ndim=2)
        if labels:
            arrays["labels"] = indices(_get(outputs, "labels"), "labels")
    except ToodError as error:
        raise ToodError(f"{name}: {error}") from error
    return arrays


def _get(arrays: Any, name: str) -> Any:
    return arrays.get(name) if isinstance(arrays, Mapping) else getattr(arrays, name, None)


def _entry(arrays: Arrays, name: str, file: Path) -> Any:
    if name not in arrays:
        raise ToodError(f"{file}: expected an array {name!r}, found {', '.join(arrays) or 'none'}")
    return arrays[name]


def _finite(array: Any, name: str, file: Path) -> FloatArray:
    try:
        return finite(floats(array, name, ndim=2), name)
    except ToodError as error:
        raise ToodError(f"{file}: {error}") from error
