"""Scores of a step: fit a detector on the stored outputs, score every set, keep the scores.

A score file names everything it derives from: the bytes of the files read, the detector with its declared version and
all its settings, and the partition. If any of that has changed, the scores are computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tood import detectors
from tood.arrays import finite, floats
from tood.detectors import Detector, Outputs
from tood.errors import ToodError, UnknownNameError
from tood.files import file_name
from tood.npz_files import read_npz, write_npz
from tood.own_code import naming_errors, source_digest
from tood.runs.steps import Step
from tood.sampling import balanced_subset

__all__ = ["Scorer", "fit_and_score", "keep_scores", "kept_scores", "scores", "usable"]

ScoreArray: TypeAlias = npt.NDArray[Any]
FitOn: TypeAlias = Literal["calibration", "fit", "both"]
Logits: TypeAlias = Literal["corrected", "raw"]


class Scored(NamedTuple):
    """Scores per sample, higher = ID, and the detector's warnings."""

    test: ScoreArray
    ood: dict[str, ScoreArray]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scorer:
    """A detector, its settings, and what it is fitted on.

    Parameters
    ----------
    detector:
        A name or ``package.module:Class``.
    params:
        Settings that differ from the detector's defaults.
    calibration:
        The source of the calibration set; None for the one in use.
    size:
        B, the number of calibration samples over all classes of the stream, drawn class-balanced; a step gets the
        share of the classes it has seen. None for all.
    seed:
        Seed of that draw.
    fit_on:
        Fit on the ``"calibration"`` set, the ``"fit"`` set or ``"both"``; None for what the detector declares. If the
        fit set is asked for it must exist: the calibration set does not substitute for it.
    logits:
        Score the ``"corrected"`` logits or the ``"raw"`` ones, for a learner that corrects its head (BiC). Detectors
        that read the head get the matching one. Steps without a correction have only one kind.
    from_stream:
        Settings that follow from the stream (ODIN's ``std``). They replace the detector's defaults, so
        :meth:`settings` leaves them out.
    """

    detector: str
    params: Mapping[str, Any] = field(default_factory=dict)
    calibration: str | None = None
    size: int | None = None
    seed: int = 0
    fit_on: FitOn | None = None
    logits: Logits = "corrected"
    from_stream: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.fit_on is not None and self.fit_on not in get_args(FitOn):
            raise UnknownNameError("fit_on", self.fit_on, get_args(FitOn))
        if self.logits not in get_args(Logits):
            raise UnknownNameError("logits", self.logits, get_args(Logits))

    def create(self) -> Detector:
        """The detector, not fitted yet."""
        detector = detectors.create(self.detector, **{**self.from_stream, **self.params})
        if self.fit_on is not None and (detector.fits_on == "none" or "network" in detector.needs):
            why = "runs the network again" if "network" in detector.needs else "is not fitted"
            raise ToodError(f"fit_on: expected None for {self.detector}, which {why}, found {self.fit_on!r}")
        return detector

    def settings(self) -> str:
        """JSON of what differs from the defaults, else empty."""
        return self._settings

    @cached_property
    def _settings(self) -> str:
        detector, default = self.create(), detectors.create(self.detector, **self.from_stream).get_params()
        differing = {name: v for name, v in detector.get_params().items() if v != default[name]}
        if self.size is not None:
            differing |= {"calibration_size": self.size, "calibration_seed": self.seed}
        if self.fit_on not in (None, detector.fits_on):
            differing |= {"fit_on": self.fit_on}
        if self.logits != "corrected":
            differing |= {"logits": self.logits}
        return json.dumps(differing, sort_keys=True, default=str) if differing else ""


def usable(step: Step, names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """The detectors that can be scored on what a step holds, and why the others cannot."""
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
    """Scores of the test data and of every OOD set: read if nothing has changed, else computed.

    Parameters
    ----------
    step:
        The step to score.
    scorer:
        What scores it.
    keep:
        Write new scores to the step's ``scores`` folder.
    """
    scored = kept_scores(step, scorer)
    if scored is None:
        scored = fit_and_score(step, scorer)
        if keep:
            keep_scores(step, scorer, scored)
    return scored


def kept_scores(step: Step, scorer: Scorer) -> Scored | None:
    """The scores on disk; None if there are none or something they derive from has changed."""
    file = _file(step, scorer)
    if not file.exists():
        return None
    sizes = {f"ood/{name}": len(outputs.logits) for name, outputs in step.ood.items()} | {"test": len(step.test.logits)}
    try:
        stored, _ = read_npz(file, ["key", "notes", *sizes])
        if str(stored["key"]) != _key(step, scorer):
            return None
        kept = {entry: finite(floats(stored[entry], entry, ndim=1), entry) for entry in sizes}
        notes = tuple(map(str, stored["notes"]))
    except (ToodError, KeyError, TypeError):  # damaged: scores are derived, so they are made again
        return None
    if any(len(kept[entry]) != size for entry, size in sizes.items()):
        return None
    return Scored(kept.pop("test"), {entry.removeprefix("ood/"): values for entry, values in kept.items()}, notes)


def keep_scores(step: Step, scorer: Scorer, scored: Scored) -> None:
    """Write scores to the step's ``scores`` folder."""
    arrays = {"key": np.array(_key(step, scorer)), "notes": np.array(scored.notes, dtype=str), "test": scored.test}
    with step.run.lock():
        write_npz(_file(step, scorer), arrays | {f"ood/{name}": values for name, values in scored.ood.items()})


def fit_and_score(step: Step, scorer: Scorer) -> Scored:
    """Fit the detector, and score the test data and every OOD set."""
    detector = scorer.create()
    if "network" in detector.needs:
        raise ToodError(
            f"{step.folder}: {scorer.detector} runs the network again and has not been scored; "
            f"`tood run … --detectors {scorer.detector}` does it"
        )
    step = step.using(scorer.logits)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        with located_errors(step, scorer, "fit"):
            detector.fit(fit_outputs(step, detector, scorer), partition=step.partition, head=step.head)
        with located_errors(step, scorer, "score"):
            test = np.asarray(detector.score(step.test))
            ood = {name: np.asarray(detector.score(outputs)) for name, outputs in step.ood.items()}
    return Scored(test, ood, tuple(dict.fromkeys(str(warning.message) for warning in warned)))


@contextlib.contextmanager
def located_errors(step: Step, scorer: Scorer, stage: str) -> Iterator[None]:
    """Context in which an error names the detector and the step; ``stage`` is "fit" or "score"."""
    with naming_errors(type(scorer.create()), f"{stage} at step {step.index} of {step.run.path}"):
        try:
            yield
        except ToodError as error:
            on = f" (fit_on {scorer.fit_on})" if scorer.fit_on else ""
            raise ToodError(f"{step.folder}: {scorer.detector}{on}: {error}") from error


def fit_outputs(step: Step, detector: Detector, scorer: Scorer) -> list[Outputs] | None:
    """What a detector is fitted on: nothing, the calibration set, the fit set or both."""
    if detector.fits_on == "none":
        return None
    use_calibration, use_fit = _fit_sets(step, detector, scorer)
    sets = []
    if use_calibration:
        outputs = step.calibration(scorer.calibration)
        if scorer.size is not None:
            size = scorer.size * len(step.columns) // step.run.partition.columns
            outputs = outputs[balanced_subset(np.asarray(outputs.labels), size, scorer.seed)]
        sets.append(outputs)
    if use_fit:
        if step.fit is None:
            raise ToodError("outputs/fit.npz: no such file; expected the fit set")
        sets.append(step.fit)
    return sets


def _fit_sets(step: Step, detector: Detector, scorer: Scorer) -> tuple[bool, bool]:
    """Returns (use_calibration, use_fit); calibration substitutes for a fit set that is missing and not asked for."""
    if scorer.fit_on is not None:
        return scorer.fit_on != "fit", scorer.fit_on != "calibration"
    use_calibration = reads_calibration(step, detector)
    return use_calibration, detector.fits_on == "fit" and not use_calibration


def reads_calibration(step: Step, detector: Detector) -> bool:
    """True if a detector is fitted on the calibration set, by declaration or because there is no fit set."""
    return detector.fits_on == "calibration" or (
        detector.fits_on == "fit" and not (step.folder / "outputs/fit.npz").exists()
    )


def _key(step: Step, scorer: Scorer) -> str:
    """A hash of everything the scores derive from."""
    detector = scorer.create()
    use_calibration, use_fit = _fit_sets(step, detector, scorer)
    files = ["outputs/test.npz", *(f"outputs/ood/{name}.npz" for name in step.run.ood)]
    if use_calibration:
        files.append(step.calibration_file(scorer.calibration))
    if use_fit:
        files.append("outputs/fit.npz")
    if "head" in detector.needs:
        files.append("head.npz")
    weights = step.folder / "model.safetensors"
    origin = {
        "detector": detector.name,
        "version": getattr(detector, "version", 1),
        "params": {name: repr(value) for name, value in detector.get_params().items()},
        "logits": step.using(scorer.logits).logits,
        "draw": [scorer.size, scorer.seed] if use_calibration else None,
        "partition": step.partition.tasks,
        "columns": step.columns.tolist(),
        "files": {name: step.digest(name) for name in files},
        "network": hashlib.sha256(weights.read_bytes()).hexdigest() if "network" in detector.needs else None,
    }
    if code := source_digest(type(detector)):
        origin["code"] = code
    return hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()


def _file(step: Step, scorer: Scorer) -> Path:
    """A file named after the detector, with a hash of settings that differ from the defaults."""
    name, settings = file_name(scorer.create().name), scorer.settings()
    source = scorer.calibration if scorer.calibration != step.run.calibration else None
    if settings or source is not None:
        name += f"-{hashlib.sha256(json.dumps([settings, source]).encode()).hexdigest()[:12]}"
    return step.folder / "scores" / f"{name}.npz"
