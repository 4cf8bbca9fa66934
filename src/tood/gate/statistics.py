"""Paired statistics of two versions on the same samples: changes with standard errors, and what they decide.

Arrays only. A version may ship if every loss is shown to be within its limit: each test has level alpha, so a loss
beyond the limit ships with probability at most alpha. It is blocked if some loss is shown to exceed its limit:
Bonferroni over all tests, so a version within the limits is blocked with probability at most alpha.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, FloatArray, IntArray

__all__ = ["Change", "Judged", "Outcomes", "by_group", "judge", "measure", "more_samples", "paired", "paired_auroc"]

Bools: TypeAlias = npt.NDArray[np.bool_]
Decided: TypeAlias = tuple[Bools, FloatArray]  # accept and score
Verdict: TypeAlias = Literal["ship", "recalibrate", "block", "undecided"]
OVERALL = 0.8  # share of alpha for changes over all samples; the rest is for changes within tasks
POWER = 0.8  # of the number of samples that is suggested


class Outcomes(NamedTuple):
    """What one version does with the samples that both versions see, in the same order."""

    correct: Bools  # [n] known samples: the predicted class is the true one
    known: Decided  # [n] each
    unknown: Mapping[str, Decided]  # by the name of the set
    traffic: Decided | None = None  # unlabelled samples


class Change(NamedTuple):
    """A metric of the old and the new version, as shares; ``gain`` is positive if the new one is better."""

    name: str
    old: float
    new: float
    gain: float
    error: float  # standard error of the gain
    samples: int
    of: str = "known"  # the set of samples; "task 2" or the name of a class for a part of the known ones
    flips: tuple[int, int] = (0, 0)  # samples that are worse now, and that are better

    @property
    def points(self) -> float:
        """The gain as the samples show it, in points: without the two that :func:`paired` adds."""
        return 100 * self.gain * (1 if self.name == "AUROC" else 1 + 2 / self.samples)

    def interval(self, alpha: float) -> tuple[float, float]:
        """Two-sided confidence interval of the gain."""
        return self.gain - _z(1 - alpha / 2) * self.error, self.gain + _z(1 - alpha / 2) * self.error

    def loses(self, limit: float, alpha: float) -> bool:
        """Whether a loss of more than ``limit`` points is shown at level ``alpha``; AUROC does not decide."""
        return self.name != "AUROC" and self.gain + _z(1 - alpha) * self.error < -limit / 100

    def keeps(self, limit: float, alpha: float) -> bool:
        """Whether a loss of more than ``limit`` points is ruled out at level ``alpha``; AUROC does not decide."""
        return self.name == "AUROC" or self.gain - _z(1 - alpha) * self.error >= -limit / 100


class Judged(NamedTuple):
    """Changes over all samples, those (also within tasks) that block the new version, and those not decided."""

    changes: list[Change]
    blocking: list[Change]
    undecided: list[Change]

    @property
    def verdict(self) -> Verdict:
        """``"ship"``, ``"block"`` or ``"undecided"``."""
        return "block" if self.blocking else "undecided" if self.undecided else "ship"


def paired(name: str, old: Any, new: Any, sign: int = 1, of: str = "known") -> Change:
    """Change of a mean over paired samples ``[n]`` each in [0, 1]; ``sign`` is -1 if less is better.

    One sample that gained and one that lost are added (Bonett and Price, "Adjusted Wald confidence interval for a
    difference of binomial proportions based on paired data", 2012): samples without a change prove no certainty.
    """
    before, after = (np.asarray(values, dtype=np.float64) for values in (old, new))
    gains, n = sign * (after - before), len(after) + 2
    gain = float(gains.sum() / n)
    error = math.sqrt(((float(gains @ gains) + 2) / n - gain**2) / n)
    flips = int((gains < 0).sum()), int((gains > 0).sum())
    return Change(name, float(before.mean()), float(after.mean()), gain, error, len(after), of, flips)


def paired_auroc(old: tuple[FloatArray, FloatArray], new: tuple[FloatArray, FloatArray], of: str = "known") -> Change:
    """Change of the AUROC of known against unknown scores, with the standard error of DeLong et al. (1988)."""
    before, after = _placements(*old), _placements(*new)
    parts = [second - first for first, second in zip(before, after, strict=True)]
    error = math.sqrt(sum(float(part.var(ddof=1)) / len(part) for part in parts))
    return Change(
        "AUROC", float(before[0].mean()), float(after[0].mean()), float(parts[0].mean()), error, len(parts[0]), of
    )


def _placements(known: FloatArray, unknown: FloatArray) -> tuple[Float64Array, Float64Array]:
    """Per known score, the share of unknown ones below; per unknown, of known ones above; ties count half."""

    def below(values: FloatArray, others: FloatArray) -> Float64Array:
        ordered = np.sort(others)
        return np.asarray((ordered.searchsorted(values) + ordered.searchsorted(values, "right")) / (2 * len(others)))

    return below(known, unknown), 1 - below(unknown, known)


def measure(old: Outcomes, new: Outcomes, promise: float | None = None) -> list[Change]:
    """Changes over all samples: accuracy, known rejected, unknown rejected and AUROC per set.

    Parameters
    ----------
    old, new:
        Of the same samples.
    promise:
        The share of known inputs that the new decision may reject. If the old version rejects less, the new one is
        held to this share in place of the old one's: an old threshold that was cautious by chance is no loss.

    Without unknown samples, traffic takes their place: the share rejected in traffic minus the share of known samples
    rejected. For a share π of unknowns in traffic that is π times (unknown rejected - known rejected).
    """
    known = paired("known rejected", ~old.known[0], ~new.known[0], -1)
    if promise is not None and known.old < promise:
        held = paired("known rejected", np.full(known.samples, promise), ~new.known[0], -1)
        known = known._replace(gain=held.gain, error=held.error)
    changes = [paired("accuracy", old.correct, new.correct), known]
    for name, (accept, scores) in old.unknown.items():
        changes.append(paired("unknown rejected", ~accept, ~new.unknown[name][0], of=name))
        auroc = paired_auroc((old.known[1], scores), (new.known[1], new.unknown[name][1]), name)
        changes.append(auroc._replace(samples=len(scores)))
    if not old.unknown and old.traffic and new.traffic:
        whole = paired("", ~old.traffic[0], ~new.traffic[0])
        usual = paired("", ~old.known[0], ~new.known[0])
        shares = whole.old - usual.old, whole.new - usual.new, whole.gain - usual.gain
        error = math.hypot(whole.error, usual.error)
        changes.append(Change("traffic rejected beyond known", *shares, error, whole.samples, "traffic"))
    return changes


def judge(
    old: Outcomes,
    new: Outcomes,
    tasks: IntArray,
    max_loss: float = 1.0,
    alpha: float = 0.05,
    task_loss: float = 5.0,
    promise: float | None = None,
) -> Judged:
    """Compare two versions; losses are in points, and ``tasks`` ``[n]`` is the task of each known sample."""
    changes, within = measure(old, new, promise), by_group(old, new, tasks)
    tests, task_tests = (sum(change.name != "AUROC" for change in some) for some in (changes, within))
    blocking = [change for change in changes if change.loses(max_loss, OVERALL * alpha / tests)]
    blocking += [change for change in within if change.loses(task_loss, (1 - OVERALL) * alpha / task_tests)]
    return Judged(changes, blocking, [change for change in changes if not change.keeps(max_loss, alpha)])


def by_group(old: Outcomes, new: Outcomes, groups: IntArray, names: list[str] | None = None) -> list[Change]:
    """Accuracy and known rejected within each group of known samples."""
    changes = []
    for group in np.unique(groups):
        rows, name = groups == group, names[group] if names else f"task {group}"
        changes.append(paired("accuracy", old.correct[rows], new.correct[rows], of=name))
        changes.append(paired("known rejected", ~old.known[0][rows], ~new.known[0][rows], -1, name))
    return changes


def more_samples(change: Change, max_loss: float, alpha: float) -> int:
    """About how many more samples decide, if the change is as observed; two digits.

    A change nearer to the limit than half of it is taken to lie that far off.
    """
    distance = max(abs(max_loss / 100 + change.gain), max_loss / 200)
    needed = change.samples * ((_z(1 - alpha) + _z(POWER)) * change.error / distance) ** 2
    return int(float(f"{max(needed - change.samples, 10):.1e}"))


def _z(probability: float) -> float:
    return NormalDist().inv_cdf(probability)
