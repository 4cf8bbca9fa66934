"""Statistics of the calibration samples per channel: all that TOOD keeps of them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray, IntArray, label_columns
from tood.calibration.diagnostics import rank_auroc
from tood.energy import energy_blocks
from tood.errors import ToodError
from tood.partition import Partition

__all__ = ["all_energies", "energy_statistics", "own_energies", "task_of_labels", "task_statistics"]

Statistics: TypeAlias = dict[str, npt.NDArray[Any]]

NORMAL_CONSISTENCY = 1.482602218505602  # 1 / Φ⁻¹(3/4): MAD × this estimates σ of a Gaussian
OWN, ROBUST = ("count", "mean", "std"), ("median", "mad")  # of each task's samples in their own channel
REST = ("rest_mean", "rest_std", "rest_auroc")  # of all other samples in that channel, and AUROC of own against them


def task_of_labels(labels: Any, partition: Partition, rows: int) -> IntArray:
    """The task of each label; raises if a label is not a column or a task has no sample."""
    if rows == 0:
        raise ToodError("logits: expected at least one calibration sample per task, found none")
    tasks = partition.column_tasks[label_columns(labels, partition.columns, rows)]
    empty = np.flatnonzero(np.bincount(tasks, minlength=len(partition)) == 0)
    if len(empty):
        raise ToodError(f"labels: no calibration sample for task {', '.join(map(str, empty))}")
    return tasks


def all_energies(logits: Any, partition: Partition) -> Float64Array:
    """``[B, N]``: each sample's energy in every channel, on the CPU and in float64 wherever the logits are."""
    energies = np.empty((len(logits), len(partition)), order="F")  # channels are read one at a time
    for rows, values in energy_blocks(logits, partition):
        energies[rows] = values.T
    return energies


def own_energies(logits: Any, tasks: IntArray, partition: Partition) -> Float64Array:
    """``[B]``: each sample's energy in the channel of its own task."""
    return all_energies(logits, partition)[np.arange(len(tasks)), tasks]


def energy_statistics(energies: Float64Array, tasks: IntArray) -> Statistics:
    """``[N]`` each: statistics of own and other samples in every channel, from all energies ``[B, N]``.

    With one task there are no other samples, so its own are used.
    """
    own = energies[np.arange(len(tasks)), tasks]
    result = task_statistics(own, tasks, energies.shape[1])
    if energies.shape[1] == 1:
        rest = {"rest_mean": result["mean"].copy(), "rest_std": result["std"].copy()}
        return result | rest | {"rest_auroc": np.array([0.5])}
    result |= {name: np.empty(energies.shape[1]) for name in REST}
    for t, values in enumerate(energies.T):
        other = tasks != t
        ordered = np.sort(values[other])  # sorted: see task_statistics
        result["rest_mean"][t], result["rest_std"][t] = ordered.mean(), ordered.std()
        result["rest_auroc"][t] = rank_auroc(values[~other], ordered)
    return result


def task_statistics(own: Float64Array, tasks: IntArray, count: int) -> Statistics:
    """Count, mean, median, MAD and deviation, ``[count]`` each, of every task's values."""
    # Sorted, so that the sums do not depend on the order of the samples to the last bit.
    groups = [np.sort(own[tasks == t]) for t in range(count)]
    medians = [np.median(group) for group in groups]
    mads = [np.median(np.abs(group - median)) for group, median in zip(groups, medians, strict=True)]
    return {
        "count": np.array([len(group) for group in groups], dtype=np.float64),
        "mean": np.array([group.mean() for group in groups]),
        "median": np.array(medians),
        "mad": NORMAL_CONSISTENCY * np.array(mads),
        "std": np.array([group.std() for group in groups]),
    }


def oas_shrinkage(covariance: Float64Array, samples: float) -> float:
    """The weight of the identity in the oracle approximating shrinkage, 0 to 1.

    Chen et al. 2010, Eq. 23, without its terms in 2 / D, as scikit-learn has it; they matter below ten dimensions.

    Parameters
    ----------
    covariance:
        ``[D, D]``, the mean of ``x xᵀ`` over centred samples; its scale does not matter.
    samples:
        Number of samples; for a covariance about K class means, minus K.
    """
    square = float(np.mean(covariance**2))  # tr(S²) / D²
    mean = float(np.trace(covariance)) / len(covariance)
    below = (samples + 1) * (square - mean**2 / len(covariance))
    return min(1.0, (square + mean**2) / below) if below > 0 else 1.0


def least_spread(centre: FloatArray) -> FloatArray:
    """The floor of a MAD or deviation about a median or mean, so that nothing is divided by zero."""
    return 1e-6 * np.maximum(1.0, np.abs(centre))
