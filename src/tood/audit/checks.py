"""Checks for common mistakes in a run directory: each finding states a problem and its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tood.audit.evidence import Evidence
from tood.audit.gap import Gap
from tood.calibration.checks import probabilities
from tood.detectors import Outputs
from tood.metrics import nearest_distance
from tood.outputs.directory import Run
from tood.outputs.steps import Step

__all__ = ["Finding", "check_calibration", "check_step", "check_swapped"]

REPLAYED = ("memory", "exemplar", "replay", "buffer", "rehearsal")  # in the name of a source of calibration samples
EQUAL = 1e-5  # of their length: logits of one sample differ by less if it is in another batch
LARGER = 2.0  # OOD inputs rarely excite a network more than ID inputs; a factor of two means other preprocessing
FEW = 20  # samples of the newest classes: fewer say nothing about their labels
SOME = 500  # samples whose logits are computed again
HEAD_ERROR = 0.05  # of the deviation of the logits; half precision stays far below
SMALLER = 0.2  # of the length of ID features; for logits such a ratio is normal


REMEDIES = {
    "calibration": "Calibrate on samples that were never trained on, such as a few held out per class.",
    "swapped": "Check that logits keep their sign, and that ID and OOD files are not swapped.",
    "probabilities": "Store the output of the last linear layer, before softmax, sigmoid or log-softmax.",
    "labels": "Labels are logit columns, counted from 0 in the order of the head.",
    "missing class": "Add samples of every class seen: a class without any does not count in metrics or statistics.",
    "overlap": "Keep the sets apart: metrics on samples that a score was fitted on are too good.",
    "preprocessing": "Check that ID and OOD images went through the same resizing and normalisation.",
    "head": "Leave the head out, or store that of this step; detectors that use it are wrong otherwise.",
}


class Finding(NamedTuple):
    """Something that is probably wrong with the files, and what to do."""

    check: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}"


def _finding(check: str, problem: str) -> Finding:
    return Finding(check, problem, REMEDIES[check])


def check_step(step: Step, source: str | None = None) -> Iterator[Finding]:
    """All checks of one step, usually the last, which knows all classes."""
    sets = {"test.npz": step.test, "calibration.npz": step.calibration(source)}
    probabilities = list(_probabilities(step))
    yield from probabilities
    for name, outputs in sets.items():
        yield from _labels(name, outputs, step)
        yield from _missing(name, outputs, step)
    if not probabilities:  # probabilities of confident predictions are equal, in any set
        yield from _overlap(sets["test.npz"], sets["calibration.npz"])
    yield from _scale(step)
    yield from _head(step)


def check_calibration(run: Run, source: str | None, gap: Gap) -> Iterator[Finding]:
    """Calibration samples that were replayed during training, or that hide the confidence gap."""
    used = source or run.calibration
    if gap.hidden():
        own, test = (f"{energies[0]:.1f} to {energies[-1]:.1f}" for energies in (gap.calibration, gap.test))
        ranges = f"mean energies of the oldest and the newest task {own}, of test data {test}"
        yield _finding("calibration", f"The calibration set ({used}) hides the confidence gap: {ranges}.")
    elif any(word in used.lower() for word in REPLAYED):
        known = "which a network knows better than new data"
        yield _finding("calibration", f"The calibration set holds replayed exemplars ({used}), {known}.")


def check_swapped(evidence: Evidence, accuracy: float) -> Iterator[Finding]:
    """Energy ranks OOD above ID in every group of OOD sets, and the newest task is classified wrongly too."""
    ends = [evidence.estimate("end", scope) for scope in evidence.scopes if scope != "all"]
    if accuracy < 0.5 and all(end.high < 0.5 for end in ends):
        known = f"accuracy on the newest task is {100 * accuracy:.0f} %"
        yield _finding("swapped", f"At the last step energy is below chance on every group of OOD sets, and {known}.")


def _probabilities(step: Step) -> Iterator[Finding]:
    logits = np.asarray(step.test.logits)
    if logits.min() >= 0 and logits.max() <= 1 and logits.shape[1] > 1:
        why = "they are probabilities, on which energy and TOOD mean nothing"
        yield _finding("probabilities", f"The logits all lie between 0 and 1: {why}.")
    elif probabilities(logits):
        why = "their energy is 0 for every sample"
        yield _finding("probabilities", f"The logits are log-probabilities (log-softmax): {why}.")


def _labels(name: str, outputs: Outputs, step: Step) -> Iterator[Finding]:
    """Labels of the newest classes, which the network must know, against the largest logit."""
    columns = step.partition.columns
    labels, predicted = np.asarray(outputs.labels), np.asarray(outputs.logits).argmax(axis=1)
    new = step.partition.column_tasks[labels] == len(step.partition) - 1
    if columns < 2 or new.sum() < FEW or "made_by" in step.run.manifest:  # `tood run` writes logit columns
        return
    accuracy, chance = float(np.mean(labels[new] == predicted[new])), 1 / columns
    doubt = 2 * np.sqrt(chance * (1 - chance) / new.sum())  # two standard deviations of the accuracy by chance
    if accuracy <= min(chance + doubt, (1 + chance) / 2 - doubt):  # with few samples, chance alone proves nothing
        measured = f"accuracy on the newest classes is {100 * accuracy:.0f} %"
        yield _finding("labels", f"Labels in {name} do not belong to the logits: {measured}.")


def _missing(name: str, outputs: Outputs, step: Step) -> Iterator[Finding]:
    counts = np.bincount(np.asarray(outputs.labels), minlength=step.partition.columns)
    missing = step.columns[counts == 0]
    if len(missing):
        columns = f"columns {', '.join(map(str, missing[:5]))}{' and others' * (len(missing) > 5)}"
        yield _finding("missing class", f"{name} has no sample of {len(missing)} of {len(counts)} classes ({columns}).")


def _overlap(test: Outputs, calibration: Outputs) -> Iterator[Finding]:
    """Samples that are in both sets. Rows that occur several times in the test set prove nothing.

    Single logits of different samples may be equal by chance, so with one column the features are compared.
    """
    compared = "logits" if np.asarray(test.logits).shape[1] > 1 else "features"
    tested, calibrated = (getattr(outputs, compared) for outputs in (test, calibration))
    if tested is None or calibrated is None:
        return
    total, shared = len(calibrated), _shared_rows(np.asarray(tested), np.asarray(calibrated))
    if shared > max(1, 0.01 * total):
        what = f"{shared} of {total} calibration samples are test samples too"
        yield _finding("overlap", f"{what}: their {compared} are equal.")


def _scale(step: Step) -> Iterator[Finding]:
    """The median length of features (or centred logits) of OOD samples against ID samples."""
    known = _length(step.test)
    for name, outputs in step.ood.items():
        ratio = _length(outputs) / known if known > 0 else 1.0
        if ratio > LARGER or (ratio < SMALLER and step.has("features")):
            yield _finding(
                "preprocessing", f"Activations of OOD set {name} are {ratio:.2g} times those of ID test data."
            )


def _head(step: Step) -> Iterator[Finding]:
    """A stored head that does not give the stored logits."""
    if step.head is None or step.test.features is None:
        return
    features, logits = (np.asarray(array[:SOME], dtype=np.float64) for array in (step.test.features, step.test.logits))
    weight, bias = (np.asarray(array, dtype=np.float64) for array in (step.head.weight, step.head.bias))
    if features.shape[1] != weight.shape[1]:
        return  # detectors that need both say so
    error = np.abs(features @ weight.T + bias - logits).max()
    if error > HEAD_ERROR * (logits.std() or 1.0):
        differs = f"features @ weight.T + bias differs from them by up to {error:.3g}"
        yield _finding("head", f"head.npz does not give the stored logits: {differs}.")


def _length(outputs: Outputs) -> float:
    rows = np.asarray(outputs.logits if outputs.features is None else outputs.features, dtype=np.float64)
    centre = rows.mean(axis=1, keepdims=True) if outputs.features is None else 0.0
    return float(np.median(np.linalg.norm(rows - centre, axis=1)))


def _shared_rows(test: npt.NDArray[np.floating], calibration: npt.NDArray[np.floating]) -> int:
    """The number of calibration rows that equal a row which occurs once in the test set."""
    rows, counts = np.unique(test, axis=0, return_counts=True)
    if not (counts == 1).any():
        return 0
    nearest = nearest_distance(calibration, rows[counts == 1])
    return int(np.sum(nearest <= EQUAL * np.linalg.norm(calibration, axis=1)))
