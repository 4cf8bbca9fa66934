"""Statistics of the calibration samples per channel: all that TOOD keeps of them; and diagnostics of the channels.

Channel t is the energy of task t's columns. In it, the calibration samples of task t ("own") should lie above those of
all other tasks ("rest"). The rest is also the best model of unknown inputs that a calibration set contains.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray, IntArray, label_columns
from tood.energy import energy_blocks
from tood.errors import ToodError
from tood.partition import Partition

__all__ = ["ChannelDiagnostics", "Statistics", "all_energies", "diagnose", "energy_statistics", "trust"]

Statistics: TypeAlias = dict[str, npt.NDArray[Any]]

NORMAL_CONSISTENCY = 1.482602218505602  # 1 / Φ⁻¹(3/4): MAD × this estimates σ of a Gaussian
Z95 = 1.959963984540054  # the normal quantile of a two-sided 95 % interval
HALF = 0.25  # squared separation at which a channel is half trusted; chosen in docs/results/regimes.md
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


class ChannelDiagnostics(NamedTuple):
    """Diagnostics of the channel of one task, from the calibration set."""

    task: int
    samples: int  # calibration samples of the task
    auroc: float  # own samples against the rest, by this channel's energy; NaN with one task
    low: float  # 95 % interval of that AUROC
    high: float
    gap: float  # mean own energy of the latest task minus that of this task
    alive: bool  # the AUROC is above 0.5 by the rank-sum test, one-sided at 2.5 %; True with one task
    trust: float  # 0 to 1: how far the default moves the channel


def diagnose(statistics: Mapping[str, npt.NDArray[Any]]) -> list[ChannelDiagnostics]:
    """Diagnostics of each channel from ``TOOD.statistics_``.

    Merged statistics have no ``rest_auroc``. It is then computed as that between two normal distributions,
    ``Φ((m - m') / √(v + v'))``. Without statistics of the rest the AUROC is NaN.
    """
    count, mean = statistics["count"], statistics["mean"]
    unknown = np.full(len(mean), np.nan)
    if len(mean) == 1 or "rest_mean" not in statistics:
        auroc = low = high = shares = unknown
        live = np.full(len(mean), len(mean) == 1)
    else:
        normal = [NormalDist().cdf(d / np.sqrt(2)) for d in separation(statistics)]
        auroc, rest = statistics.get("rest_auroc", np.array(normal)), count.sum() - count
        live = auroc > 0.5 + Z95 * np.sqrt((count + rest + 1) / (12 * count * rest))  # Mann and Whitney
        low, high = auroc_interval(auroc, count, rest)
        shares = trust(statistics)
    columns = (count.astype(np.int64), auroc, low, high, mean[-1] - mean, live, shares)
    return [ChannelDiagnostics(t, *(column[t].item() for column in columns)) for t in range(len(mean))]


def separation(statistics: Mapping[str, npt.NDArray[Any]]) -> Float64Array:
    """``[N]``: d′ of each channel, own mean minus the others' in units of the root mean square of both deviations."""
    variance = (statistics["std"] ** 2 + statistics["rest_std"] ** 2) / 2  # never 0: std has a floor
    return (statistics["mean"] - statistics["rest_mean"]) / np.sqrt(variance)


def trust(statistics: Mapping[str, npt.NDArray[Any]]) -> Float64Array:
    """``[N]``: how far each channel is trusted, ``d² / (d² + ¼)``; 0 if own samples do not lie above the others.

    d is the separation of own samples from the others. Half a deviation is half trusted.
    """
    squared = np.maximum(separation(statistics), 0) ** 2
    return squared / (squared + HALF)


def rank_auroc(own: Float64Array, rest: Float64Array) -> float:
    """AUROC of own energies against those of the rest, which are sorted; by ranks, ties counted half."""
    own = np.sort(own)  # ordered numbers are found several times faster
    below = np.searchsorted(rest, own, "left") + np.searchsorted(rest, own, "right")
    return float(below.sum() / (2 * len(own) * len(rest)))


def auroc_interval(auroc: Float64Array, own: Float64Array, rest: Float64Array) -> tuple[Float64Array, Float64Array]:
    """The 95 % interval of an AUROC of ``own`` against ``rest`` samples.

    The values θ with ``|auroc - θ| ≤ z se(θ)``, where se is Hanley and McNeil's standard error at θ (Newcombe,
    Statistics in Medicine 2006, method 5), to half a thousandth. It stays within 0 and 1, also at an AUROC of 0 or 1.
    """
    theta = np.linspace(0, 1, 2001)[:, None]
    half = (own + rest) / 2 - 1
    spread = 1 + half * (1 - theta) / (2 - theta) + half * theta / (1 + theta)
    error = np.sqrt(theta * (1 - theta) * spread / (own * rest))
    inside = np.abs(auroc - theta) <= np.maximum(Z95 * error, 0.0005)  # one step at least: never empty
    return theta[inside.argmax(axis=0), 0], theta[::-1][inside[::-1].argmax(axis=0), 0]
