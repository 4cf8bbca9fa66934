"""Checks for common mistakes in a run directory: each finding states a problem and its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tood.arrays import IntArray
from tood.audit.evidence import Evidence
from tood.audit.gap import Gap
from tood.checks import looks_like_log_probabilities
from tood.detectors import Outputs
from tood.runs.directory import Run
from tood.runs.steps import Step

__all__ = ["Finding", "check_calibration", "check_energy", "check_step"]

REPLAYED = ("memory", "exemplar", "replay", "buffer", "rehearsal")  # in the name of a source of calibration samples
EQUAL = 1e-4  # logits of one sample differ by less if it is in another batch
LARGER = 2.0  # OOD inputs rarely excite a network more than ID inputs; a factor of two means other preprocessing
SOME = 500  # samples whose logits are computed again
HEAD_ERROR = 0.05  # of the deviation of the logits; half precision stays far below
SMALLER = 0.2  # of the length of ID features; for logits such a ratio is normal


class Finding(NamedTuple):
    """Something that is probably wrong with the files, and what to do."""

    check: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}"


def check_step(step: Step, source: str | None = None) -> Iterator[Finding]:
    """All checks of one step."""
    sets = {"test.npz": step.test, "calibration.npz": step.calibration(source)}
    probabilities = list(_probabilities(step))
    yield from probabilities
    for name, outputs in sets.items():
        yield from _labels(name, outputs, step)
        yield from _missing(name, outputs, step)
    if not probabilities:  # probabilities of confident predictions are equal, in any set
        yield from _overlap(sets["test.npz"], sets["calibration.npz"], step.index)
    yield from _scale(step)
    yield from _head(step)


def check_calibration(run: Run, source: str | None, gap: Gap) -> Iterator[Finding]:
    """Calibration samples that were replayed during training, or that hide the confidence gap."""
    used = source or run.calibration
    remedy = "Calibrate on samples that were never trained on, such as a few held out per class."
    if gap.hidden():
        yield Finding(
            "calibration",
            f"The calibration set ({used}) hides the confidence gap: its mean energies per task range from "
            f"{_ends(gap.calibration)}, those of test data from {_ends(gap.test)}.",
            remedy,
        )
    elif any(word in used.lower() for word in REPLAYED):
        yield Finding(
            "calibration",
            f"The calibration set consists of replayed exemplars ({used}), which a network knows better than new data.",
            remedy,
        )


def check_energy(evidence: Evidence) -> Iterator[Finding]:
    """Energy that ranks OOD above ID at the last step."""
    for scope in evidence.scopes:
        end = evidence.estimate("end", scope)
        if scope != "all" and end.high < 0.5:
            auroc = f"{100 * end.value:.1f} ({100 * end.low:.1f} to {100 * end.high:.1f})"
            yield Finding(
                "below chance",
                f"Energy is below chance on {scope}-OOD at the last step: AUROC {auroc}. OOD samples get more energy "
                "than ID samples.",
                "Check that logits keep their sign, that ID and OOD files are not swapped, and that both were "
                "preprocessed in the same way; if all of this is right, do not use energy.",
            )


def _probabilities(step: Step) -> Iterator[Finding]:
    logits = np.asarray(step.test.logits)
    if logits.min() >= 0 and logits.max() <= 1 and logits.shape[1] > 1:
        yield Finding(
            "probabilities",
            "The logits all lie between 0 and 1: they are probabilities, on which energy and TOOD mean nothing.",
            "Store the output of the last linear layer, before softmax or sigmoid.",
        )
    elif looks_like_log_probabilities(logits):
        yield Finding(
            "probabilities",
            "The logits are log-probabilities (log-softmax): their energy is 0 for every sample.",
            "Store the output of the last linear layer, before log-softmax.",
        )


def _labels(name: str, outputs: Outputs, step: Step) -> Iterator[Finding]:
    """Labels of the newest classes, which the network must know, against the largest logit."""
    columns = step.partition.columns
    labels, predicted = np.asarray(outputs.labels), np.asarray(outputs.logits).argmax(axis=1)
    new = step.partition.column_tasks[labels] == len(step.partition) - 1
    labels, predicted = labels[new], predicted[new]
    if columns < 2 or len(labels) < 10:
        return
    accuracy, chance = float(np.mean(labels == predicted)), 1 / columns
    doubt = 2 * np.sqrt(chance * (1 - chance) / len(labels))  # two standard deviations of the accuracy by chance
    if accuracy <= min(chance + doubt, (1 + chance) / 2 - doubt):  # with few samples, chance alone proves nothing
        yield Finding(
            "labels",
            f"Labels in {name} do not belong to the logits: accuracy on the newest classes at step {step.index} is "
            f"{100 * accuracy:.0f} %; {_mistake(labels, predicted, columns)}.",
            "Labels are logit columns, counted from 0 in the order of the head.",
        )


def _mistake(labels: IntArray, predicted: IntArray, columns: int) -> str:
    """What is probably wrong with labels that do not match the predictions."""
    classes = np.unique(labels)
    modes = np.array([np.bincount(predicted[labels == label]).argmax() for label in classes])
    steady = np.mean([np.mean(predicted[labels == c] == mode) for c, mode in zip(classes, modes, strict=True)])
    offsets = (modes - classes) % columns
    offset = int(np.bincount(offsets).argmax())
    same = np.mean(offsets == offset) > 0.7
    if steady > 0.5 and same and offset:
        return f"they are off by {offset if offset <= columns // 2 else offset - columns}"
    if steady > 0.5 and not same and len(np.unique(modes)) > 0.7 * len(classes):
        return "they are permuted"
    return "they are shuffled, or the network has not learned these classes"


def _missing(name: str, outputs: Outputs, step: Step) -> Iterator[Finding]:
    counts = np.bincount(np.asarray(outputs.labels), minlength=step.partition.columns)
    missing = step.columns[counts == 0]
    if len(missing):
        shown = ", ".join(map(str, missing[:5])) + (" and others" if len(missing) > 5 else "")
        yield Finding(
            "missing class",
            f"{name} has no sample of {len(missing)} of {len(counts)} classes at step {step.index} (columns {shown}).",
            "Add samples of every class seen: a class without any does not count in metrics or statistics.",
        )


def _overlap(test: Outputs, calibration: Outputs, index: int) -> Iterator[Finding]:
    """Samples that are in both sets. Rows that occur several times in the test set prove nothing.

    Single logits of different samples may be equal by chance, so with one column the features are compared.
    """
    compared = "logits" if np.asarray(test.logits).shape[1] > 1 else "features"
    tested, calibrated = (getattr(outputs, compared) for outputs in (test, calibration))
    if tested is None or calibrated is None:
        return
    total, shared = len(calibrated), _shared_rows(np.asarray(tested), np.asarray(calibrated))
    if shared > max(1, 0.01 * total):
        yield Finding(
            "overlap",
            f"{shared} of {total} calibration samples at step {index} are test samples too: their {compared} are "
            "equal.",
            "Keep the sets apart: metrics on samples that a score was fitted on are too good.",
        )


def _scale(step: Step) -> Iterator[Finding]:
    """The median length of features (or centred logits) of OOD samples against ID samples."""
    known = _length(step.test)
    for name, outputs in step.ood.items():
        ratio = _length(outputs) / known if known > 0 else 1.0
        if ratio > LARGER or (ratio < SMALLER and step.has("features")):
            yield Finding(
                "preprocessing",
                f"Activations of OOD set {name} at step {step.index} are {ratio:.2g} times as large as those of ID "
                "test data.",
                "Check that ID and OOD images went through the same resizing and normalisation.",
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
        yield Finding(
            "head",
            f"head.npz at step {step.index} does not give the stored logits: features @ weight.T + bias differs from "
            f"them by up to {error:.3g}.",
            "Leave the head out, or store that of this step; detectors that use it are wrong otherwise.",
        )


def _length(outputs: Outputs) -> float:
    if outputs.features is not None:
        rows = np.asarray(outputs.features, dtype=np.float64)
    else:
        logits = np.asarray(outputs.logits, dtype=np.float64)
        rows = logits - logits.mean(axis=1, keepdims=True)
    return float(np.median(np.sqrt(np.einsum("nd,nd->n", rows, rows))))


def _shared_rows(test: npt.NDArray[np.floating], calibration: npt.NDArray[np.floating]) -> int:
    """The number of calibration rows that equal a row which occurs once in the test set."""
    keys, first, counts = np.unique(_row_keys(test), return_index=True, return_counts=True)
    once = dict(zip(keys[counts == 1].tolist(), first[counts == 1].tolist(), strict=True))
    matches = [(once[key], row) for row, key in enumerate(_row_keys(calibration).tolist()) if key in once]
    ours, theirs = np.array(matches, dtype=np.int64).reshape(-1, 2).T
    return int(np.isclose(test[ours], calibration[theirs], rtol=EQUAL, atol=EQUAL).all(axis=1).sum())


def _row_keys(rows: npt.NDArray[np.floating]) -> npt.NDArray[np.void]:
    """A key per row: four projections, rounded so that another batch size gives the same key."""
    weights = np.random.default_rng(0).normal(size=(rows.shape[1], 4))
    projected = np.rint(1000 * (np.asarray(rows, dtype=np.float64) @ weights)).astype(np.int64)
    return np.ascontiguousarray(projected).view(np.dtype((np.void, projected.itemsize * 4))).ravel()


def _ends(energies: tuple[float, ...]) -> str:
    return f"{energies[0]:.1f} (oldest) to {energies[-1]:.1f} (latest)"
