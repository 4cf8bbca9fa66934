"""Scores of a step: fit a detector on the stored outputs, score every set, keep the scores.

A score file names everything it derives from: the bytes of the files read, the detector with its declared version and
all its settings, and the partition. If any of that has changed, the scores are computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tood import detectors
from tood.arrays import finite, floats
from tood.detectors import Detector, Outputs
from tood.detectors.base import REGISTRY
from tood.errors import ToodError, UnknownNameError, located
from tood.outputs.steps import FeatureKind, LogitsKind, Step
from tood.registry import naming_errors, source_digest
from tood.storage.files import contained, file_name
from tood.storage.npz import read_npz, write_npz

__all__ = ["Scorer", "fit_and_score", "keep_scores", "kept_scores", "reads_backbone", "scores", "usable"]

TEST, FIT, OOD = "outputs/test.npz", "outputs/fit.npz", "outputs/ood/{}.npz"
ScoreArray: TypeAlias = npt.NDArray[Any]
Batches: TypeAlias = Callable[[str, Outputs], Iterable[Outputs]]


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
        The track: the set it is fitted on; None for the one in use.
    logits:
        Score the ``"corrected"`` logits or the ``"raw"`` ones, for a learner that corrects its head (BiC). Detectors
        that read the head get the matching one. Steps without a correction have only one kind.
    features:
        Read the ``"trained"`` features or those of the frozen ``"backbone"``, if the run has them; for detectors that
        read features but not the head.
    from_stream:
        Settings that follow from the stream (ODIN's ``std``). They replace the detector's defaults, so
        :meth:`settings` leaves them out.
    """

    detector: str
    params: Mapping[str, Any] = field(default_factory=dict)
    calibration: str | None = None
    logits: LogitsKind = "corrected"
    features: FeatureKind = "trained"
    from_stream: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in (("logits", LogitsKind), ("features", FeatureKind)):
            if getattr(self, name) not in get_args(kind):
                raise UnknownNameError(name, getattr(self, name), get_args(kind))

    @cached_property
    def described(self) -> Detector:
        """A detector of this kind that is never fitted: its name, needs and settings."""
        return detectors.create(self.detector, **{**self.from_stream, **self.params})

    def create(self) -> Detector:
        """The detector, not fitted yet."""
        return detectors.create(self.detector, **self.described.get_params())

    @cached_property
    def settings(self) -> str:
        """JSON of what differs from the defaults, else empty."""
        default = detectors.create(self.detector, **self.from_stream).get_params()
        differing = {name: v for name, v in self.described.get_params().items() if v != default[name]}
        if self.logits != "corrected":
            differing |= {"logits": self.logits}
        if self.features != "trained":
            differing |= {"features": self.features}
        return json.dumps(differing, sort_keys=True, default=str) if differing else ""

    def fit_file(self, step: Step) -> str | None:
        """The file of the set it is fitted on, if any; the fit set, if there is one, belongs to the track in use."""
        fits_on = self.described.fits_on
        if fits_on == "fit" and step.has_fit and self.calibration in (None, step.run.calibration):
            return FIT
        return None if fits_on == "none" else step.calibration_file(self.calibration)


def reads_backbone(name: str) -> bool:
    """True if a detector reads features, and nothing that belongs to the trained ones."""
    kind = REGISTRY.get(name)
    return "features" in kind.needs and not kind.needs & {"head", "network"}


def usable(step: Step, names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """The detectors that can be scored on what a step holds, and why the others cannot."""
    reasons = {"network": "it runs the network again", "inputs": "no inputs"}
    if not step.has("features"):
        reasons["features"] = "no features"
    if step.head is None:
        reasons["head"] = "no head.npz"
    kept, left_out = [], {}
    for name in names:
        lacking = sorted(REGISTRY.get(name).needs & reasons.keys())
        if lacking:
            left_out[name] = " and ".join(reasons[n] for n in (["network"] if "network" in lacking else lacking))
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


def fit_and_score(
    step: Step, scorer: Scorer, network: Any = None, batches: Batches = lambda file, outputs: [outputs]
) -> Scored:
    """Fit the detector, and score the test data and every OOD set.

    A detector that runs the ``network`` again needs ``batches(file, outputs)``: the outputs of a set with their inputs.
    """
    detector = scorer.create()
    if "network" in detector.needs and network is None:
        raise ToodError(
            f"{step.folder}: {scorer.detector} runs the network again and has not been scored; "
            f"`tood run … --detectors {scorer.detector}` does it"
        )
    step = step.using(scorer.logits, scorer.features)

    def score(file: str) -> ScoreArray:
        return np.concatenate([np.asarray(detector.score(part)) for part in batches(file, step.outputs(file))])

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        with located_errors(step, scorer, "fit"):
            file = scorer.fit_file(step)
            fit = batches(file, step.outputs(file)) if file else None
            detector.fit(fit, partition=step.partition, head=step.head, network=network)
        with located_errors(step, scorer, "score"):
            test, ood = score(TEST), {name: score(OOD.format(name)) for name in step.run.ood}
    return Scored(test, ood, tuple(dict.fromkeys(str(warning.message) for warning in warned)))


@contextlib.contextmanager
def located_errors(step: Step, scorer: Scorer, stage: str) -> Iterator[None]:
    """Context in which an error names the detector and the step; ``stage`` is "fit" or "score"."""
    where = f"{stage} at step {step.index} of {step.run.path}"
    with naming_errors(type(scorer.described), where), located(f"{step.folder}: {scorer.detector}"):
        yield


def _key(step: Step, scorer: Scorer) -> str:
    """A hash of everything the scores derive from."""
    detector = scorer.described
    fit_file = scorer.fit_file(step)
    step = step.using(scorer.logits, scorer.features)
    files = [TEST, *(OOD.format(name) for name in step.run.ood), *([fit_file] if fit_file else [])]
    if "head" in detector.needs:
        files.append("head.npz")
    weights = step.folder / "model.safetensors"
    origin = {
        "detector": detector.name,
        "version": getattr(detector, "version", 1),
        "params": {name: repr(value) for name, value in detector.get_params().items()},
        "logits": step.logits,
        "draw": [None, 0] if fit_file not in (None, FIT) else None,  # as older versions wrote it
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
    name, settings = file_name(scorer.described.name), scorer.settings
    source = scorer.calibration if scorer.calibration != step.run.calibration else None
    if settings or source is not None:
        name += f"-{hashlib.sha256(json.dumps([settings, source]).encode()).hexdigest()[:12]}"
    return contained(step.run.path, step.folder / "scores" / f"{name}.npz")
