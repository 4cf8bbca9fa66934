"""Scores of a step: a detector fitted on what was kept, every set scored, the result kept under a hash of its origin.

A score file names everything it derives from: the bytes of the files read, the detector with all its settings, the
partition and the code. Where any of that has changed the file is computed anew, so a stale score cannot be used.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tood import detectors
from tood.arrays import IntArray
from tood.detectors import Detector, Outputs
from tood.errors import ToodError, UnknownNameError
from tood.files import read_npz, write_npz
from tood.runs.steps import Step

__all__ = ["Scorer", "fit_and_score", "keep_scores", "kept_scores", "scores", "usable"]

ScoreArray: TypeAlias = npt.NDArray[Any]
FitOn: TypeAlias = Literal["calibration", "fit", "both"]


class Scored(NamedTuple):
    """One score a sample, higher = ID, and what the detector warned of."""

    test: ScoreArray
    ood: dict[str, ScoreArray]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scorer:
    """A detector, its settings, and which samples it is fitted on.

    Parameters
    ----------
    detector:
        A registered name.
    params:
        Settings that differ from the detector's defaults.
    calibration:
        The source of the calibration set; the one in use where it is None.
    size:
        B, only this many calibration samples over all classes of the stream, drawn class-balanced; a step gets the
        share of the classes it has seen. All of them where it is None.
    seed:
        Of that draw.
    fit_on:
        Fit on the ``"calibration"`` set, the ``"fit"`` set or ``"both"``; as the detector declares where it is None.
        A fit set that is asked for must be there: the calibration set does not stand in for it.
    """

    detector: str
    params: Mapping[str, Any] = field(default_factory=dict)
    calibration: str | None = None
    size: int | None = None
    seed: int = 0
    fit_on: FitOn | None = None

    def __post_init__(self) -> None:
        if self.fit_on is not None and self.fit_on not in get_args(FitOn):
            raise UnknownNameError("fit_on", self.fit_on, get_args(FitOn))

    def create(self) -> Detector:
        """The detector, not fitted yet."""
        detector = detectors.create(self.detector, **self.params)
        if self.fit_on is not None and (detector.fits_on == "none" or "network" in detector.needs):
            why = "runs the network again" if "network" in detector.needs else "is not fitted"
            raise ToodError(f"fit_on: expected None for {self.detector}, which {why}, found {self.fit_on!r}")
        return detector

    def settings(self) -> str:
        """JSON of what differs from the defaults; empty where nothing does."""
        detector, default = self.create(), detectors.create(self.detector).get_params()
        differing = {name: v for name, v in detector.get_params().items() if v != default[name]}
        if self.size is not None:
            differing |= {"calibration_size": self.size, "calibration_seed": self.seed}
        if self.fit_on not in (None, detector.fits_on):
            differing |= {"fit_on": self.fit_on}
        return json.dumps(differing, sort_keys=True, default=str) if differing else ""


def usable(step: Step, names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Which detectors can be scored on what a step holds, and why the others cannot."""
    have = {"features": step.has("features"), "head": step.head is not None, "network": False, "inputs": False}
    reasons = {"features": "no features", "head": "no head.npz", "network": "it runs the network again"}
    kept, left_out = [], {}
    for name in names:
        lacking = {need for need in detectors.create(name).needs if not have.get(need, True)}
        if lacking:
            shown = {"network"} if "network" in lacking else lacking
            left_out[name] = " and ".join(reasons.get(need, f"no {need}") for need in sorted(shown))
        else:
            kept.append(name)
    return kept, left_out


def scores(step: Step, scorer: Scorer, keep: bool = True) -> Scored:
    """The scores of the test data and of every OOD set, computed or, where nothing has changed, read.

    Parameters
    ----------
    step:
        The step to score.
    scorer:
        What scores it.
    keep:
        Write new scores to the step's ``scores`` folder.
    """
    found = kept_scores(step, scorer)
    if found is None:
        found = fit_and_score(step, scorer)
        if keep:
            keep_scores(step, scorer, found)
    return found


def kept_scores(step: Step, scorer: Scorer) -> Scored | None:
    """The scores on disk, if there are any and nothing they derive from has changed."""
    file = _file(step, scorer)
    if not file.exists():
        return None
    try:
        stored, _ = read_npz(file)
    except ToodError:  # damaged: scores are derived, so they are simply made again
        return None
    if str(stored.get("key", "")) != _key(step, scorer):
        return None
    ood = {name: stored[f"ood/{name}"] for name in step.run.ood}
    return Scored(stored["test"], ood, tuple(map(str, stored["notes"])))


def keep_scores(step: Step, scorer: Scorer, found: Scored) -> None:
    """Write scores to the step's ``scores`` folder."""
    arrays = {"key": np.array(_key(step, scorer)), "notes": np.array(found.notes, dtype=str), "test": found.test}
    with step.run.lock():
        write_npz(_file(step, scorer), arrays | {f"ood/{name}": values for name, values in found.ood.items()})


def fit_and_score(step: Step, scorer: Scorer) -> Scored:
    """Fit the detector on what it is fitted on, and score the test data and every OOD set."""
    detector = scorer.create()
    if "network" in detector.needs:
        raise ToodError(
            f"{step.folder}: {scorer.detector} runs the network again and has not been scored; "
            f"`tood run … --detectors {scorer.detector}` does it"
        )
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            detector.fit(fit_outputs(step, detector, scorer), partition=step.partition, head=step.head)
            test = np.asarray(detector.score(step.test))
            ood = {name: np.asarray(detector.score(outputs)) for name, outputs in step.ood.items()}
    except ToodError as error:
        on = f" (fit_on {scorer.fit_on})" if scorer.fit_on else ""
        raise ToodError(f"{step.folder}: {scorer.detector}{on}: {error}") from error
    return Scored(test, ood, tuple(dict.fromkeys(str(warning.message) for warning in warned)))


def fit_outputs(step: Step, detector: Detector, scorer: Scorer) -> list[Outputs] | None:
    """What a detector is fitted on: nothing, the calibration set, the fit set or both."""
    if detector.fits_on == "none":
        return None
    calibrated, fitted = _fit_sets(step, detector, scorer)
    found = []
    if calibrated:
        outputs = step.calibration(scorer.calibration)
        if scorer.size is not None:
            outputs = draw(outputs, scorer.size * len(step.columns) // step.run.partition.columns, scorer.seed)
        found.append(outputs)
    if fitted:
        if step.fit is None:
            raise ToodError("outputs/fit.npz: no such file; expected the fit set")
        found.append(step.fit)
    return found


def _fit_sets(step: Step, detector: Detector, scorer: Scorer) -> tuple[bool, bool]:
    """Which of two is it fitted on: the calibration set, the fit set? As asked for; else the former may stand in."""
    if scorer.fit_on is not None:
        return scorer.fit_on != "fit", scorer.fit_on != "calibration"
    calibrated = reads_calibration(step, detector)
    return calibrated, detector.fits_on == "fit" and not calibrated


def reads_calibration(step: Step, detector: Detector) -> bool:
    """Is this detector fitted on the calibration set, by its nature or for want of a fit set?"""
    return detector.fits_on == "calibration" or (
        detector.fits_on == "fit" and not (step.folder / "outputs/fit.npz").exists()
    )


def draw(outputs: Outputs, size: int, seed: int) -> Outputs:
    """``size`` of the samples, the same number of each class up to one."""
    labels = np.asarray(outputs.labels)
    if not 1 <= size <= len(labels):
        raise ToodError(f"size: expected 1 to {len(labels)} calibration samples, found {size}")
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    turn = np.empty(len(labels), dtype=np.int64)  # the how-manieth of its class each sample is
    for label in np.unique(labels):
        own = shuffled[labels[shuffled] == label]
        turn[own] = np.arange(len(own))
    rows: IntArray = np.sort(shuffled[np.argsort(turn[shuffled], kind="stable")][:size])
    return outputs[rows]


def _key(step: Step, scorer: Scorer) -> str:
    detector = scorer.create()
    calibrated, fitted = _fit_sets(step, detector, scorer)
    files = ["outputs/test.npz", *(f"outputs/ood/{name}.npz" for name in step.run.ood)]
    files += [step.calibration_file(scorer.calibration)] * calibrated + ["outputs/fit.npz"] * fitted
    if "head" in detector.needs:
        files.append("head.npz")
    weights = step.folder / "model.safetensors"
    origin = {
        "code": _code(),
        "network": hashlib.sha256(weights.read_bytes()).hexdigest() if "network" in detector.needs else None,
        "detector": scorer.detector,
        "params": {name: repr(value) for name, value in detector.get_params().items()},
        "draw": [scorer.size, scorer.seed] if calibrated else None,
        "partition": step.partition.tasks,
        "columns": step.columns.tolist(),
        "files": {name: step.digest(name) for name in files},
    }
    return hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()


def _file(step: Step, scorer: Scorer) -> Path:
    """Named after the detector, with a tag where something is not as usual."""
    folder = step.folder / "scores"
    source = scorer.calibration if scorer.calibration != step.run.calibration else None
    if not scorer.settings() and source is None:
        return folder / f"{scorer.detector}.npz"
    tag = hashlib.sha256(json.dumps([scorer.settings(), source]).encode()).hexdigest()[:12]
    return folder / f"{scorer.detector}-{tag}.npz"


@lru_cache(maxsize=1)
def _code() -> str:
    """A hash of the source that turns outputs into scores."""
    root = resources.files("tood")
    modules = [root / name for name in ("arrays.py", "calibration.py", "energy.py", "partition.py")]
    modules += [entry for entry in (root / "detectors").iterdir() if entry.name.endswith(".py")]
    digest = hashlib.sha256()
    for module in sorted(modules, key=lambda entry: entry.name):
        digest.update(module.name.encode() + b"\0" + module.read_bytes())
    return digest.hexdigest()
