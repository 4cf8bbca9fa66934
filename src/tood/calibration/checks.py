"""Checks for mistakes that raise no error by themselves: probabilities, wrong labels, logits on another scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tood.arrays import Float64Array, IntArray, floats
from tood.errors import ToodError, warn
from tood.partition import Partition

SAMPLE = 256  # rows that the checks of `score` look at: enough to notice, too few to cost time
FEWEST_ROWS = 8  # fewer rows of logits could lie in [0, 1] and sum to 1 by chance
FEWEST_LABELS = 20  # fewer labels cannot show that accuracy is at chance
BATCH, ROWS = 200, 1000  # rows of a batch whose column means are compared, and about how many of them are read
SHIFT = 0.55  # root mean square shift of column means that is a warning
UNKNOWN = 1.1  # divided by √(C - 1): a batch of unknown inputs without any signal moves C columns by nearly as much
OUTSIDE = 0.01  # a larger share of rows outside the calibrated range is a warning
REMEDY = "pass the network's outputs before softmax"


class Seen(NamedTuple):
    """What calibration logits looked like: production logits that differ much get a warning."""

    range: Float64Array  # [2], the lowest and the highest
    mean: Float64Array  # [C], or empty if unknown
    std: Float64Array  # [C]

    @classmethod
    def of(cls, logits: Any) -> Seen:
        """Of calibration logits ``[B, C]``."""
        values = floats(logits, "logits", ndim=2).astype(np.float64)
        return cls(logit_range(values), values.mean(axis=0), values.std(axis=0))

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """As arrays of a file."""
        return {f"seen.{name}": np.asarray(value, dtype=np.float64) for name, value in self._asdict().items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Seen:
        """The inverse of :meth:`arrays`."""
        return cls(*(arrays[f"seen.{name}"] for name in cls._fields))

    def moved(self, logits: Any) -> str:
        """A sentence if a batch of :data:`BATCH` rows or more looks permuted or of another network; else empty.

        The statistic is the root mean square over columns of how far a column's mean has moved, in deviations.
        """
        if len(logits) < BATCH or not len(self.mean):
            return ""
        if len(logits) > ROWS:  # drawn: every k-th row may be of one class
            logits = logits[np.random.default_rng(0).integers(0, len(logits), ROWS)]
        mean = floats(logits, "logits", ndim=2).mean(axis=0, dtype=np.float64)
        spread = np.maximum(self.std, 1e-6 * np.abs(self.mean).max() + 1e-12)
        shift = float(np.sqrt(np.mean(((mean - self.mean) / spread) ** 2)))
        if shift <= max(SHIFT, UNKNOWN / np.sqrt(max(1, len(mean) - 1))):
            return ""
        return (
            f"logits: column means are {shift:.1f} deviations from those of the calibration set (root mean square over "
            f"{len(mean)} columns): columns may be permuted, or from another network, or from few classes or unknown "
            "inputs only; check model and column order, or calibrate again"
        )


def probabilities(logits: Any) -> str:
    """What ``[n, C]`` looks like: "probabilities", "log-probabilities", or neither (empty).

    Probabilities lie in [0, 1] and sum to 1 in every row; rows that are all one-hot do not count. ``log Σ exp`` of
    log-probabilities is 0.

    >>> probabilities([[0.2, 0.8], [0.5, 0.5]]), probabilities(np.log([[0.2, 0.8], [0.5, 0.5]]))
    ('probabilities', 'log-probabilities')
    """
    values = floats(logits, "logits", ndim=2)
    if values.size == 0 or values.shape[1] < 2:
        return ""
    rounding = 1e-2 if getattr(getattr(logits, "dtype", None), "itemsize", 4) < 4 else 1e-4
    if values.min() >= 0 and values.max() <= 1 and (values % 1).any():
        return "probabilities" if np.abs(values.sum(axis=1) - 1).max() < rounding else ""
    if values.max() <= 0 and np.abs(np.exp(values).sum(axis=1) - 1).max() < rounding:
        return "log-probabilities"
    return ""


def near_chance(logits: Any, labels: IntArray, partition: Partition) -> bool:
    """Whether labels fit the logits no better than chance, over all columns and within each label's own task.

    Accuracy within the task is checked too: a learner that favours its latest task may be wrong on every older sample
    although the labels are correct. With fewer than 20 labels the result is False.

    >>> near_chance(np.eye(4)[[0, 1, 2, 3] * 5], np.array([1, 2, 3, 0] * 5), Partition([[0, 1], [2, 3]]))
    True
    """
    values = floats(logits, "logits", ndim=2)
    if not _at_chance(values.argmax(axis=1) == labels, np.full(len(labels), 1 / partition.columns)):
        return False
    tasks = partition.column_tasks[labels]
    sizes = np.array([len(task) for task in partition])[tasks]
    own = np.where(partition.column_tasks == tasks[:, None], values, -np.inf)
    return _at_chance((own.argmax(axis=1) == labels)[sizes > 1], 1 / sizes[sizes > 1]) or bool((sizes == 1).all())


def _at_chance(correct: np.ndarray[Any, Any], chance: Float64Array) -> bool:
    """Whether the number correct is within two standard deviations of chance, or below."""
    if len(correct) < FEWEST_LABELS or chance.min() == 1:
        return False
    return bool(correct.sum() <= chance.sum() + 2 * np.sqrt((chance * (1 - chance)).sum()))


def logit_range(logits: Any) -> Float64Array:
    """``[2]``: the lowest and the highest logit."""
    values = floats(logits, "logits", ndim=2)
    return np.array([values.min(), values.max()], dtype=np.float64)


def check_calibration(logits: Any, labels: IntArray, partition: Partition) -> None:
    """Warn of probabilities, log-probabilities or cosines in place of logits, and of labels no better than chance."""
    if kind := probabilities(logits):
        message = f"logits: these are {kind}, as every row shows; {REMEDY}"
    elif len(labels) >= FEWEST_ROWS and np.abs(logit_range(logits)).max() <= 1:
        message = (
            "logits: all lie in [-1, 1]; cosines need the factor of the network's softmax (100 for CLIP); outputs of a "
            "sigmoid, as for several labels per sample, are not supported"
        )
    elif near_chance(logits, labels, partition):
        message = (
            "labels: the largest logit agrees with them no more often than chance; labels must be logit columns "
            f"(0 to {partition.columns - 1}) in the order of the logits' rows"
        )
    else:
        return
    warn(message)


def check_scale(logits: Any, known: Seen, rows: int | None = SAMPLE) -> None:
    """Compare logits to score with those seen in calibration.

    Probabilities given to a calibrator of logits are an error, since their scores mean nothing; a warning if there are
    fewer than 8 rows, which could be logits by chance. More than 1 % of the rows far outside the range, or columns that
    have moved (:meth:`Seen.moved`), are a warning.

    Parameters
    ----------
    logits:
        ``[n, C]``.
    known:
        What calibration logits looked like.
    rows:
        Number of rows to compare with the range, from the first; None takes all. Columns are compared over about 1,000.
    """
    seen, values = known.range, floats(logits[:rows], "logits", ndim=2)
    low, high = (values.min(), values.max()) if values.size else seen
    if low >= 0 and high <= 1 and (seen[0] < 0 or seen[1] > 1) and probabilities(logits[:rows]):
        message = (
            "logits: expected logits as in calibration "
            f"({seen[0]:.4g} to {seen[1]:.4g}), found probabilities (rows in [0, 1] that sum to 1); {REMEDY}"
        )
        if len(values) >= FEWEST_ROWS:
            raise ToodError(message)
        warn(message)
    slack = (seen[1] - seen[0]) / 2
    lowest, highest = seen[0] - slack, seen[1] + slack
    inside = lowest <= low and high <= highest  # mostly so, and faster than row by row
    if not inside and np.mean((values.min(axis=1) < lowest) | (values.max(axis=1) > highest)) > OUTSIDE:
        warn(
            f"logits: more than {OUTSIDE:.0%} of the rows lie far outside the range seen in calibration "
            f"({seen[0]:.4g} to {seen[1]:.4g}); check that network, preprocessing and column order are the "
            "calibrated ones, or calibrate again"
        )
    elif message := known.moved(logits):
        warn(message)
