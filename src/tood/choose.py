"""Choice of a score by unlabelled traffic.

If a share π of the traffic is unknown, and its known part is distributed as held-out known samples are, then for every
score ``AUROC(known, traffic) - ½ = π (AUROC(known, unknown) - ½)``. π is the same for all scores. So the score that
best separates held-out known samples from traffic is the best at finding the unknown inputs in it, without any label
(Jain, White and Radivojac, AAAI 2017, for positive-unlabelled data).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from tood.arrays import Float64Array, IntArray, finite, floats, indices
from tood.errors import ToodError, UnknownNameError
from tood.metrics.resampling import weight_below

__all__ = ["ADVICE", "Candidate", "Choice", "choose"]

ADVICE = (
    "Which score: one on features of a frozen backbone, if you have them and sums over all training samples (ten per "
    "class are too few); else TOOD, if the learner replays; else energy. As soon as there is traffic, `tood choose`."
)
FEWEST = 20  # rows of either set; with fewer, intervals by the normal distribution mean little
RARE = 5  # predicted classes with fewer held-out samples are counted together
LEVELS = np.arange(1, 10) / 10  # quantiles of known scores at which the unknown share is read
ONLY_WITH_THE_SAME_MIX = """better only if traffic and known samples have the same class mix. Another mix and unknown
inputs cannot be distinguished here; take known samples with the mix of the traffic."""
CHECK_PASSED = "Check: scores above the known median are distributed alike in both sets, as they should be."
CHECK_FAILED = """Check FAILED: scores above the known median are distributed differently in the two sets. Known inputs
have drifted, or many unknown inputs score high. Look at some traffic before you rely on this."""


@dataclass(frozen=True)
class Candidate:
    """One score: AUROC of held-out known samples against traffic, and its difference from the default's.

    ``low`` to ``high`` is the interval of the difference, simultaneous over all candidates (DeLong). ``matched`` are
    difference and interval after known samples are weighted to the traffic's mix of predicted classes.
    """

    name: str
    auroc: float
    difference: float
    low: float
    high: float
    matched: tuple[float, float, float]
    better: bool


@dataclass(frozen=True)
class Choice:
    """Result of :func:`choose`."""

    name: str  # of the chosen score
    default: str
    scorer: Any  # the chosen candidate
    candidates: tuple[Candidate, ...]
    unknown_share: tuple[float, float, float]  # estimate, lower and upper end
    mix_distance: float | None  # total variation distance between the predicted classes of both sets
    plausible: bool  # whether high scores of the traffic are distributed as those of known samples
    rows: tuple[int, int]  # known, traffic
    alpha: float

    @property
    def differences(self) -> dict[str, tuple[float, float, float]]:
        """Difference from the default with its interval, by name."""
        return {c.name: (c.difference, c.low, c.high) for c in self.candidates if c.name != self.default}

    @property
    def text(self) -> str:
        """The answer, what it assumes, and the checks, in sentences."""
        level, row = f"{1 - self.alpha:.0%}", next(c for c in self.candidates if c.name == self.name)
        lines = [f"Keep {self.default}: no candidate separates known samples from traffic better beyond doubt."]
        if self.name != self.default:
            lines = [
                f"Use {self.name}: it separates known samples from traffic better than {self.default}, by "
                f"{row.difference:+.4f} AUROC ({level} interval, all candidates: {row.low:+.4f} to {row.high:+.4f})."
            ]
        if hidden := [c.name for c in self.candidates if c.low > 0 and not c.better]:
            lines.append(f"{', '.join(hidden)}: {ONLY_WITH_THE_SAME_MIX}")
        estimate, low, high = self.unknown_share
        lines.append(
            f"Unknown share of the traffic: about {estimate:.1%}, at least {low:.1%}; at most {high:.1%} if unknown "
            f"inputs do not score like typical known ones ({level} interval)."
        )
        mix = "no logits or classes were given, so another class mix would look like unknown inputs"
        if self.mix_distance is not None:
            mix = f"predicted classes differ in {self.mix_distance:.1%} of the traffic, which is accounted for"
        lines.append(f"Assumed: known inputs of the traffic are like the known samples ({mix}).")
        return "\n".join([*lines, CHECK_PASSED if self.plausible else CHECK_FAILED])

    def to_dict(self) -> dict[str, Any]:
        """Everything but the scorer, for JSON."""
        plain = {name: value for name, value in vars(self).items() if name != "scorer"}
        return plain | {"candidates": [asdict(c) for c in self.candidates], "text": self.text}


class Strata(NamedTuple):
    """Predicted classes of known samples ``[m]`` and of traffic ``[n]``."""

    known: IntArray
    traffic: IntArray

    def counts(self) -> Float64Array:
        """``[2, k]``: samples of each class in both sets."""
        size = max(part.max() for part in self) + 1
        return np.array([np.bincount(part, minlength=size) for part in self], dtype=np.float64)

    def weights(self) -> Float64Array:
        """``[m]``: weight of each known sample, so that classes are as frequent as in the traffic; they sum to 1."""
        known, traffic = self.counts()
        weights = (traffic / np.maximum(known, 1))[self.known]
        total = weights.sum()  # 0 if the sets have no class in common: then nothing can be matched
        return np.asarray(weights / total) if total else np.full(len(self.known), 1 / len(self.known))


class Reading(NamedTuple):
    """AUROC of known samples against traffic and the influence of each sample on it."""

    auroc: float
    known: Float64Array  # [m]
    traffic: Float64Array  # [n]

    def minus(self, other: Reading, z: float) -> tuple[float, float, float]:
        """Difference of two scores of the same samples with its interval of ``z`` standard errors."""
        parts = (self.known - other.known, self.traffic - other.traffic)
        error = float(np.sqrt(sum(np.square(part).mean() / len(part) for part in parts)))
        difference = self.auroc - other.auroc
        return difference, difference - z * error, difference + z * error


def choose(
    candidates: Mapping[str, Any],
    known: Any = None,
    traffic: Any = None,
    default: str = "tood",
    alpha: float = 0.05,
    classes: tuple[Any, Any] | None = None,
) -> Choice:
    """The score that best separates held-out known samples from traffic; the default unless another is surely better.

    A candidate replaces the default only if the interval of its gain is above 0 twice: as it is, and with known samples
    weighted to the traffic's mix of predicted classes; and if both scores show that some traffic is unknown. If all
    traffic is known, a candidate does so with probability at most about ``alpha``.

    Parameters
    ----------
    candidates:
        By name: fitted objects with ``score``, callables, or pairs of score arrays ``(known [m], traffic [n])``; higher
        = known. Detectors get :class:`~tood.outputs.Outputs`, TOOD gets logits, callables get what is given here.
    known:
        Known samples that no candidate was fitted to: logits ``[m, C]`` or Outputs.
    traffic:
        Unlabelled inputs, likewise.
    default:
        Name of the candidate to keep in doubt.
    alpha:
        One minus the level of the simultaneous intervals.
    classes:
        Predicted classes ``[m]`` and ``[n]``; by default the largest logit. Without logits and classes a change of the
        class mix cannot be corrected.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> known, traffic = rng.normal(3, 1, 2000), np.append(rng.normal(3, 1, 1600), rng.normal(0, 1, 400))
    >>> good = (known, traffic)
    >>> poor = (known + rng.normal(0, 3, 2000), traffic + rng.normal(0, 3, 2000))
    >>> choose({"tood": poor, "energy": good}).name, choose({"tood": good, "energy": poor}).name
    ('energy', 'tood')
    """
    if default not in candidates:
        raise UnknownNameError("default", default, candidates)
    if not 0 < alpha < 1:
        raise ToodError(f"alpha: expected a number between 0 and 1, found {alpha!r}")
    scores = {name: _scores(name, candidate, known, traffic) for name, candidate in candidates.items()}
    rows = len(scores[default][0]), len(scores[default][1])
    for name, (first, second) in scores.items():
        if (len(first), len(second)) != rows or min(rows) < FEWEST:
            found = f"{len(first)} and {len(second)}"
            raise ToodError(f"scores of {name}: expected {FEWEST} or more of each set, as of {default}, found {found}")
    strata = _strata(known, traffic, classes, rows)
    ways = (_one_class(*rows), strata or _one_class(*rows))
    z = NormalDist().inv_cdf(1 - alpha / (2 * max(1, len(candidates) - 1)))
    readings = {name: [_read(*pair, way) for way in ways] for name, pair in scores.items()}
    compared = []
    for name, pair in readings.items():
        plain, matched = (own.minus(kept, z) for own, kept in zip(pair, readings[default], strict=True))
        better = plain[1] > 0 and matched[1] > 0
        compared.append(Candidate(name, pair[0].auroc, *plain, matched, better))
    shares = {name: _unknown_share(*pair, ways, alpha) for name, pair in scores.items()}
    # Unknown inputs must be seen by both scores: with another class mix alone, few pairs of scores see any.
    surely = [c for c in compared if c.better and min(shares[c.name][1], shares[default][1]) > 0]
    chosen = max(surely, key=lambda c: c.difference).name if surely else default
    return Choice(
        name=chosen,
        default=default,
        scorer=candidates[chosen],
        candidates=tuple(sorted(compared, key=lambda c: -c.auroc)),
        unknown_share=shares[chosen],
        mix_distance=float(np.abs(np.subtract(*(strata.counts().T / rows).T)).sum() / 2) if strata else None,
        plausible=_plausible(*scores[chosen], alpha),
        rows=rows,
        alpha=alpha,
    )


def _scores(name: str, candidate: Any, known: Any, traffic: Any) -> tuple[Float64Array, Float64Array]:
    """Scores of both sets."""
    if not isinstance(candidate, tuple):
        if known is None or traffic is None:
            raise ToodError(f"candidates: {name}: expected a pair of score arrays, or known and traffic to score")
        candidate = (_score(candidate, known), _score(candidate, traffic))
    place = f"scores of {name}"
    of_known, of_traffic = (finite(floats(part, place, ndim=1), place).astype(np.float64) for part in candidate)
    return of_known, of_traffic


def _score(scorer: Any, data: Any) -> Any:
    if callable(scorer):
        return scorer(data)
    if not hasattr(scorer, "needs"):
        return scorer.score(getattr(data, "logits", data))
    from tood.outputs import Outputs  # loads the reader of run directories, which logits alone do not need

    return scorer.score(data if hasattr(data, "logits") else Outputs(data))


def _strata(known: Any, traffic: Any, classes: tuple[Any, Any] | None, rows: tuple[int, int]) -> Strata | None:
    """Predicted classes of both sets; 0 for all that are rare among known samples. None without logits or classes."""
    if classes is None:
        if known is None or traffic is None:
            return None
        classes = tuple(floats(getattr(x, "logits", x), "logits", ndim=2).argmax(axis=1) for x in (known, traffic))
    first, second = (indices(part, "classes", length) for part, length in zip(classes, rows, strict=True))
    names, places = np.unique(np.append(first, second), return_inverse=True)
    frequent = np.bincount(places[: rows[0]], minlength=len(names)) >= RARE
    places = np.where(frequent, np.cumsum(frequent), 0)[places]
    return Strata(places[: rows[0]], places[rows[0] :])


def _one_class(known: int, traffic: int) -> Strata:
    """All samples in one class, so that weights are equal."""
    return Strata(np.zeros(known, dtype=np.int64), np.zeros(traffic, dtype=np.int64))


def _read(known: Float64Array, traffic: Float64Array, strata: Strata) -> Reading:
    """AUROC by DeLong's placements; known samples are weighted to the traffic's classes.

    The weights are estimated from the traffic, so each of its rows also counts by the mean placement of its class.
    """
    weights = strata.weights()
    below = weight_below(known, traffic, np.ones(len(traffic))) / len(traffic)
    above = 1 - weight_below(traffic, known, weights)
    auroc = float(weights @ below)
    sizes = strata.counts()[0]
    means = np.where(sizes > 0, np.bincount(strata.known, below, len(sizes)) / np.maximum(sizes, 1), auroc)
    of_known = len(known) * weights * (below - means[strata.known])
    return Reading(auroc, of_known, above + means[strata.traffic] - 2 * auroc)


def _unknown_share(
    known: Float64Array, traffic: Float64Array, ways: tuple[Strata, ...], alpha: float
) -> tuple[float, float, float]:
    """Share of the traffic that known samples do not explain, with its interval.

    At any threshold ``P(traffic above) ≥ (1 - π) P(known above)``, with equality if no unknown input is above. The
    threshold with the highest lower end counts. Read with and without weights by class: the lower estimate counts, and
    an interval that contains both.
    """
    z, found = NormalDist().inv_cdf(1 - alpha / (2 * len(LEVELS))), []
    order = np.argsort(known)
    for weights in (strata.weights() for strata in ways):
        at = np.minimum(np.cumsum(weights[order]).searchsorted(LEVELS), len(known) - 1)
        thresholds = known[order][at]
        of_known = np.array([weights[known >= t].sum() for t in thresholds])
        of_traffic = np.array([(traffic >= t).mean() for t in thresholds]).clip(1 / len(traffic))
        ratio, effective = of_traffic / of_known, 1 / np.square(weights).sum()
        error = np.sqrt((1 - of_traffic) / (len(traffic) * of_traffic) + (1 - of_known) / (effective * of_known))
        best = int(np.argmin(ratio * np.exp(z * error)))
        found.append(1 - ratio[best] * np.exp(np.array([0, z, -z]) * error[best]))
    estimates, lows, highs = np.clip(found, 0, 1).T
    return float(estimates.min()), float(lows.min()), float(highs.max())


def _plausible(known: Float64Array, traffic: Float64Array, alpha: float) -> bool:
    """Whether scores above the known median, where few are unknown, are distributed alike in both sets."""
    middle = np.median(known)
    high = traffic[traffic >= middle]
    if len(high) < FEWEST:
        return False
    known = known[known >= middle]
    reading = _read(known, high, _one_class(len(known), len(high)))
    _, low, top = reading.minus(Reading(0.5, np.zeros(1), np.zeros(1)), NormalDist().inv_cdf(1 - alpha / 2))
    return low <= 0 <= top
