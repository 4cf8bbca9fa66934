"""One step of a run: reads its outputs, cut to the columns seen so far, and writes them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from tood.arrays import FloatArray, IntArray, as_array, finite, floats, indices, is_tensor, to_numpy
from tood.errors import ToodError, located
from tood.outputs.backbone import backbone_digest, backbone_file, read_backbone
from tood.outputs.directory import Arrays, PathLike, Run
from tood.outputs.outputs import Head, Outputs
from tood.storage.files import NAME, contained
from tood.storage.npz import npz_names, read_npz, write_npz

__all__ = ["FeatureKind", "LogitsKind", "Step", "write_step"]

HEAD = ("weight", "bias", "raw_weight", "raw_bias")  # the arrays of head.npz
OUTPUTS = ("logits", "raw_logits", "features", "labels", "rows", "predictions")  # those of the other files


LogitsKind: TypeAlias = Literal["corrected", "raw"]
FeatureKind: TypeAlias = Literal["trained", "backbone"]


class Step:
    """The outputs of one step as detectors read them: the columns of the tasks seen, in ascending order.

    Arrays are checked when they are first read, and kept.

    Parameters
    ----------
    run:
        The run it belongs to.
    index:
        Which step; it has seen the tasks 0 to ``index``.
    logits:
        ``"corrected"`` for the logits the learner answers with, ``"raw"`` for those before it corrects its head
        (BiC). At a step without a correction the two are the same, and stored once.
    features:
        ``"trained"`` for the features of the trained network, ``"backbone"`` for the vectors that it was trained on:
        those of a frozen network, which no task changes.

    Attributes
    ----------
    partition:
        The tasks seen, over the columns kept.
    columns:
        The columns of the stored logits that are kept; labels and predictions are mapped to places among them.
    """

    def __init__(
        self, run: Run, index: int, logits: LogitsKind = "corrected", features: FeatureKind = "trained"
    ) -> None:
        self.run = run
        self.index = index
        self.logits, self.features = logits, features
        self.folder = run.folder(index)
        self.partition, self.columns = run.partition.first(index + 1)
        self._prefix = "raw_" if logits == "raw" else ""
        self._files: dict[str, tuple[Arrays, str]] = {}
        self._sets: dict[str, Outputs] = {}
        self._others: dict[tuple[str, str], Step] = {}

    @cached_property
    def corrected(self) -> bool:
        """True if the learner corrected its head at this step, so that there are raw logits too. Reads no data."""
        return "raw_logits" in self._names("outputs/test.npz")

    def using(self, logits: LogitsKind = "corrected", features: FeatureKind = "trained") -> Step:
        """This step with one kind of logits and of features; what was read already is shared."""
        kinds = logits if self.corrected else self.logits, features
        if kinds == (self.logits, self.features):
            return self
        if kinds not in self._others:
            self._others[kinds] = Step(self.run, self.index, *kinds)
            self._others[kinds]._files = self._files
        return self._others[kinds]

    @cached_property
    def test(self) -> Outputs:
        """ID test data of all tasks seen."""
        outputs = self.outputs("outputs/test.npz")
        missing = set(range(len(self.partition))).difference(self.partition.column_tasks[outputs.labels].tolist())
        if missing:
            raise ToodError(f"{self.folder / 'outputs/test.npz'}: no sample of task {', '.join(map(str, missing))}")
        return outputs

    @cached_property
    def predictions(self) -> IntArray:
        """The predicted class of each test sample: as stored, else the largest logit among the columns seen."""
        arrays, _ = self._read("outputs/test.npz")
        if "predictions" not in arrays:
            return np.asarray(self.test.logits.argmax(axis=1), np.int64)
        with located(self.folder / "outputs/test.npz"):
            return self._places(arrays, "predictions")

    @property
    def ood(self) -> dict[str, Outputs]:
        """Every OOD set of the manifest."""
        return {name: self.outputs(f"outputs/ood/{name}.npz") for name in self.run.ood}

    @property
    def traffic(self) -> Outputs | None:
        """Unlabelled inputs of the deployed model; None if there are none."""
        return self.outputs("outputs/traffic.npz") if self._has("outputs/traffic.npz") else None

    @property
    def fit(self) -> Outputs | None:
        """The training data available at this step; None if it was not stored."""
        return self.outputs("outputs/fit.npz") if self.has_fit else None

    @property
    def has_fit(self) -> bool:
        """True if the training data available at this step was stored. Reads no data."""
        return self._has("outputs/fit.npz")

    @cached_property
    def head(self) -> Head | None:
        """The rows of the last linear layer for the columns seen; None if not stored, or if it has other features."""
        if self.features == "backbone" or not self._has("head.npz"):
            return None
        arrays, _ = self._read("head.npz")
        name, dim = f"{self._prefix}weight", None if self.test.features is None else self.test.features.shape[1]
        if self._prefix and name not in arrays:
            return None
        with located(self.folder / "head.npz"):
            weight, bias = _numbers(arrays, name, 2), _numbers(arrays, f"{self._prefix}bias", 1)
            if len(weight) <= self.columns[-1] or bias.shape != weight.shape[:1] or dim not in (None, weight.shape[1]):
                features = "" if dim is None else f" and D = {dim}, the number of features"
                raise ToodError(
                    f"expected {name} [C, D] and bias [C] with C at least {self.columns[-1] + 1}{features}, "
                    f"found {weight.shape} and {bias.shape}"
                )
        return Head(weight=weight[self.columns], bias=bias[self.columns])

    def calibration(self, source: str | None = None) -> Outputs:
        """The calibration set of a source; by default the one in use."""
        return self.outputs(self.calibration_file(source))

    def calibration_file(self, source: str | None = None) -> str:
        """The file that holds the calibration set of a source."""
        if source in (None, self.run.calibration):
            return "outputs/calibration.npz"
        if source not in (sources := self.calibration_sources()):
            raise ToodError(f"{self.folder}: no calibration set from {source!r}; there is {', '.join(sources)}")
        return f"outputs/calibration_{source}.npz"

    def calibration_sources(self) -> list[str]:
        """The sources of the stored calibration sets; the one in use comes first."""
        others = (f.stem.removeprefix("calibration_") for f in (self.folder / "outputs").glob("calibration_*.npz"))
        return list(dict.fromkeys([self.run.calibration, *sorted(others)]))

    def test_tasks(self) -> IntArray:
        """The task of each test sample."""
        return self.partition.column_tasks[self.test.labels]

    def has(self, array: str) -> bool:
        """True if every set of this step has ``array`` ("features"). Reads no data."""
        sets = ["test", "calibration", *(["fit"] if self.has_fit else []), *(f"ood/{name}" for name in self.run.ood)]
        files = [f"outputs/{name}.npz" for name in sets]
        if array == "features" and self.features == "backbone":
            if not all(backbone_file(self.run, file).is_file() for file in files):
                return False
            array, files = "rows", [file for file in files if "/ood/" not in file]
        return array in set.intersection(*(set(self._names(file)) for file in files))  # reads every list of names

    def unseen_columns(self) -> int:
        """Number of stored logit columns of tasks not seen yet, which are ignored."""
        return int(self._read("outputs/test.npz")[0]["logits"].shape[1]) - len(self.columns)

    def digest(self, name: str) -> str:
        """The hash of a file of this step, as it was read; with backbone features also of the file that has these."""
        if self.features == "backbone" and name.startswith("outputs/"):
            return f"{self._read(name)[1]} {backbone_digest(backbone_file(self.run, name))}"
        return self._read(name)[1]

    def _has(self, name: str) -> bool:
        return name in self._files or self._file(name).exists()

    def _names(self, name: str) -> Iterable[str]:
        """The names of the arrays in a file."""
        return self._files[name][0] if name in self._files else npz_names(self._file(name))

    def _read(self, name: str) -> tuple[Arrays, str]:
        if name not in self._files:
            self._files[name] = read_npz(self._file(name), HEAD if name == "head.npz" else OUTPUTS)
        return self._files[name]

    def _file(self, name: str) -> Path:
        return contained(self.run.path, self.folder / name)

    def outputs(self, name: str) -> Outputs:
        """A set by its file, such as ``outputs/test.npz``; checked when it is first asked for."""
        if name not in self._sets:
            arrays, _ = self._read(name)
            if self.features == "backbone":
                arrays = arrays | {"features": read_backbone(backbone_file(self.run, name), arrays.get("rows"))}
            with located(self.folder / name):
                self._sets[name] = self._checked(arrays, not name.startswith(("outputs/ood/", "outputs/traffic")))
        return self._sets[name]

    def _checked(self, arrays: Arrays, labelled: bool) -> Outputs:
        entry = f"{self._prefix}logits"
        logits = _numbers(arrays, entry, 2)
        if not len(logits):
            raise ToodError("expected at least one sample, found none")
        if logits.shape[1] <= self.columns[-1]:
            expected = f"expected at least {self.columns[-1] + 1} columns at step {self.index}"
            raise ToodError(f"{entry}: {expected}, found shape {logits.shape}")
        if logits.shape[1] != len(self.columns):
            logits = logits[:, self.columns]
        features = _numbers(arrays, "features", 2) if "features" in arrays else None
        if features is not None and len(features) != len(logits):
            raise ToodError(f"features: expected {len(logits)} rows, found shape {features.shape}")
        return Outputs(logits, features, self._places(arrays, "labels") if labelled else None)

    def _places(self, arrays: Arrays, name: str) -> IntArray:
        """Stored columns as positions among the columns seen."""
        stored = indices(_entry(arrays, name), name, length=len(arrays["logits"]))
        unseen = np.flatnonzero(~np.isin(stored, self.columns))
        if len(unseen):
            raise ToodError(
                f"{name}: expected columns of the tasks 0 to {self.index}, found {stored[unseen[0]]} at row {unseen[0]}"
            )
        return np.searchsorted(self.columns, stored)


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
    traffic: Any = None,
) -> None:
    """Write the outputs of one step. After all checks, which are those of reading, it appears whole, or not at all.

    Every set is a mapping or an :class:`~tood.detectors.Outputs` with ``logits`` ``[n, C]`` and, if known, ``features``
    ``[n, D]`` and ``raw_logits`` ``[n, C]``; arrays are NumPy or torch. Labels and predictions are logit columns. If
    the run has backbone features (:mod:`tood.outputs.backbone`), ``rows`` ``[n]`` are the places of samples in these.

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
    traffic:
        Unlabelled inputs of the deployed model; the audit then chooses the score by them (:func:`tood.choose`).
    """
    run = Run(run_dir)
    if not 0 <= step < len(run.partition):
        raise ToodError(f"step: expected 0 to {len(run.partition) - 1}, one per task of the manifest, found {step}")
    if set(ood) != set(run.ood):
        raise ToodError(f"ood: expected the sets of the manifest, {sorted(run.ood)}, found {sorted(ood)}")
    labelled = {"test": test, "calibration": calibration, "fit": fit}
    for source, outputs in (calibrations or {}).items():
        if not NAME.fullmatch(source):
            raise ToodError(f"calibrations: expected names of letters, digits and . _ + -, found {source!r}")
        labelled[f"calibration_{source}"] = outputs
    unlabelled = {f"ood/{name}": outputs for name, outputs in ood.items()} | {"traffic": traffic}
    files = {
        f"outputs/{name}.npz": _arrays(outputs, OUTPUTS[:5] if name in labelled else OUTPUTS[:3])
        for name, outputs in {**labelled, **unlabelled}.items()
        if outputs is not None
    }
    files["outputs/test.npz"] |= _arrays({"predictions": predictions}, OUTPUTS)
    if head is not None:
        files["head.npz"] = arrays = _arrays(head, HEAD)
        for weight in [name for name in ("weight", "raw_weight") if name in arrays]:
            arrays.setdefault(weight.replace("weight", "bias"), np.zeros(len(arrays[weight]), np.float32))
    trial = Step(run, step)
    trial._files = {name: (arrays, "") for name, arrays in files.items()}
    for each in (trial, trial.using("raw")):
        _ = each.test, each.predictions, each.head if head is not None else None
        for name in files.keys() - {"head.npz"}:
            each.outputs(name)
    with run.lock():
        _write(run.folder(step), files)


def _arrays(given: Any, names: Iterable[str]) -> Arrays:
    """The arrays of one set, or of a head, that are stored."""
    if not isinstance(given, Mapping):
        given = {"logits": given} if hasattr(given, "shape") else {name: getattr(given, name, None) for name in names}
    return {
        name: as_array(to_numpy(given[name]) if is_tensor(given[name]) else given[name], name)
        for name in names
        if given.get(name) is not None
    }


def _write(folder: Path, files: dict[str, Arrays]) -> None:
    """Write everything to a temporary folder, then move it in: while head and outputs disagree there is no step."""
    fresh, old = folder / ".outputs.writing", folder / ".outputs.old"
    for leftover in (fresh, old):
        shutil.rmtree(contained(folder, leftover), ignore_errors=True)
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


def _entry(arrays: Arrays, name: str) -> Any:
    if name not in arrays:
        raise ToodError(f"expected an array {name!r}, found {', '.join(arrays) or 'none'}")
    return arrays[name]


def _numbers(arrays: Arrays, name: str, ndim: int) -> FloatArray:
    return finite(floats(_entry(arrays, name), name, ndim), name)
