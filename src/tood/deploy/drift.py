"""Drift detection for deployed scores: compares traffic with a reference sample, per task."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array, IntArray, as_array, floats
from tood.calibration.statistics import NORMAL_CONSISTENCY, least_spread
from tood.decision import Conformal, score_and_assign
from tood.decision.calibrators import file_of, from_file
from tood.decision.ranks import check_seed, check_share, lower_quantile
from tood.deploy.martingale import ExchangeabilityTest, lower_bets, two_sided_bets
from tood.errors import NotFittedError, ToodError
from tood.storage.files import for_json, plain, read_tensors, write_tensors

__all__ = ["Drift", "DriftMonitor"]

KIND = "tood-monitor"
SURE = 2.0  # standard errors by which a share must differ to name the cause of an alarm
LABEL = 50  # inputs to label before anything is calibrated again
CAUSES = {
    "unknowns": "more unknowns",
    "drift or unknowns": "scores fell, by drift or by unknown inputs",
    "earlier": "scores were low for a time, no longer",
}
SETTINGS = ("alpha", "reject", "window", "seed")


class Drift(NamedTuple):
    """Result of :meth:`DriftMonitor.report`; arrays ``[N]`` have one entry per task."""

    rows: int  # inputs so far
    rejected: int  # inputs rejected so far
    rejected_before: float  # share of the reference that is rejected
    unknowns_e_value: float  # largest so far
    more_unknowns: bool  # more low scores than in the reference; see `cause`
    cause: str  # of more low scores: "unknowns", "drift or unknowns", "earlier" (no longer in the window), or ""
    recent: int  # inputs in the latest window
    recent_rejected: int
    rejected_ids: list[str]  # of the latest rejected inputs, at most 25
    accepted_ids: list[str]  # of the latest accepted inputs, at most 25
    start: int  # likely first input of the change, counted from 0
    samples: IntArray  # accepted inputs so far, per winning task
    e_value: Float64Array  # largest so far
    shift: Float64Array  # of the median energy in the latest window, in deviations of the reference; NaN: none
    drifted: npt.NDArray[np.bool_]

    @property
    def recalibrate(self) -> bool:
        """Whether accepted inputs of any task have drifted: new labelled samples are needed."""
        return bool(self.drifted.any())

    def __str__(self) -> str:
        lines = []
        if self.cause:
            latest = self.recent_rejected / max(1, self.recent)
            lines.append(
                f"{CAUSES[self.cause]}: of the latest {self.recent:,} inputs {latest:.1%} are rejected, of all "
                f"{self.rows:,} {self.rejected / self.rows:.1%}, of the reference {self.rejected_before:.1%} "
                f"(e-value {self.unknowns_e_value:.2g}, since about input {self.start:,})"
            )
        for t in np.flatnonzero(self.drifted):
            lines.append(
                f"task {t}: accepted inputs have changed, by drift or by unknown ones among them: median energy moved "
                f"by {self.shift[t]:+.2f} σ (e-value {self.e_value[t]:.2g}, {self.samples[t]:,} inputs)"
            )
        shown = ", ".join(self.rejected_ids[-5:]) or "none"
        if self.cause == "unknowns":
            lines.append(
                f"look at the rejected inputs (the latest: {shown}); do not calibrate on this traffic, it would accept "
                "the unknown"
            )
        elif self.cause or self.recalibrate:
            lines.append(
                f"label about {LABEL} of the latest inputs, accepted and rejected ones (rejected: {shown}): if they "
                "are known, calibrate again with labelled samples; do not calibrate on this traffic without labels"
            )
        return "\n".join(lines) or f"no alarm after {self.rows:,} inputs"


class DriftMonitor:
    """Anytime-valid drift detector: compares incoming inputs with a reference sample, per task.

    Two questions are kept apart. *More unknowns*: do more inputs than in the reference have low scores? *Known inputs
    have drifted*: do the energies of accepted inputs, in the channel of their winning task, move or spread? Each is a
    conformal test martingale (:mod:`tood.deploy.martingale`). If reference and traffic are exchangeable, the
    probability that any alarm is ever raised, however long the monitor runs and however often it is queried, is at most
    ``alpha``: half of it for the unknowns, half for the N tasks together. It holds for any size of the reference.

    The interface follows river's drift detectors: :meth:`update`, :attr:`drift_detected`. An alarm stays until
    :meth:`reset` or a new :meth:`fit`; each of these starts again with a new ``alpha``.

    Parameters
    ----------
    cal:
        A fitted :class:`~tood.TOOD` or detector, or a :class:`~tood.decision.Conformal` around one, whose thresholds
        are then used. A detector has no tasks: its score takes the place of the energies.
    alpha:
        The probability that stationary traffic ever raises an alarm.
    reject:
        The share of the reference that is rejected; sets the threshold above which inputs count as accepted.
    threshold:
        Accept inputs whose score exceeds it, in place of ``reject``: a number, or one per task.
    window:
        How many of the latest accepted inputs per task the reported shift describes.
    seed:
        Seed of the draws that make p-values uniform.

    Examples
    --------
    >>> from tood import TOOD
    >>> rng = np.random.default_rng(0)
    >>> def draw(shift=0.0):
    ...     return rng.normal(size=(600, 4)) + 6 * np.eye(4)[rng.integers(0, 4, 600)] + shift
    >>> logits = draw()
    >>> cal = TOOD([[0, 1], [2, 3]]).fit(logits, logits.argmax(axis=1))
    >>> monitor = DriftMonitor(cal).fit(draw())
    >>> monitor.update(draw()).drift_detected
    False
    >>> monitor.update(draw(np.array([-2, -2, 0, 0]))).report().drifted.tolist()
    [True, False]
    """

    def __init__(
        self,
        cal: Any,
        alpha: float = 0.01,
        reject: float = 0.05,
        threshold: Any = None,
        window: int = 500,
        seed: int = 0,
    ) -> None:
        check_share("alpha", alpha)
        check_share("reject", reject)
        check_seed(seed)
        if not isinstance(window, (int, np.integer)) or window < 1:
            raise ToodError(f"window: expected one sample or more, found {window}")
        if isinstance(cal, Conformal) and threshold is None:
            threshold = cal.thresholds(reject)
        self.cal: Any = cal.cal if isinstance(cal, Conformal) else cal
        self.alpha = alpha
        self.reject = reject
        self.threshold = threshold
        self.window = window
        self.seed = seed

    def fit(self, logits: Any) -> DriftMonitor:
        """Take a reference sample ``[n, C]`` (for a detector: ``Outputs``); no labels are needed.

        Use held-out in-distribution samples, or ordinary traffic if it usually contains some unknown inputs. Samples
        that the network or the calibrator was fitted to differ from new ones and raise false alarms.
        """
        self.cal = copy.copy(self.cal)  # later changes to the caller's calibrator must not raise alarms
        scores, tasks, energies = self._read(logits)
        # The k-th lowest score of the reference may serve as threshold: given its value, the reference above it and the
        # traffic above it are still exchangeable, because the k-th score itself is not accepted.
        threshold = lower_quantile(np.sort(scores), self.reject) if self.threshold is None else self.threshold
        limit = np.asarray(threshold, dtype=np.float64)
        count = len(self.cal.partition_) if hasattr(self.cal, "assign") else 1
        if limit.shape not in ((), (1,), (count,)):
            raise ToodError(f"threshold: expected a number, or {count}, one per task, found shape {limit.shape}")
        self._limit = np.broadcast_to(limit, (count,)).copy()
        accepted = scores > self._limit[tasks]
        if not accepted.any():
            raise ToodError("logits: expected reference samples that reach the threshold, found none")
        self._rejected_before = float(1 - accepted.mean())
        self._scores = scores
        self._energies = [energies[accepted & (tasks == t)] for t in range(len(self._limit))]
        return self.reset()

    def reset(self) -> DriftMonitor:
        """Forget the traffic and its alarms; the reference stays."""
        self._fitted()
        self._rng = np.random.default_rng(self.seed)
        self._unknowns = ExchangeabilityTest(self._scores, lower_bets(self.reject), self._rng)
        self._drifts = [ExchangeabilityTest(values, two_sided_bets, self._rng) for values in self._energies]
        self._latest = [np.empty(0) for _ in self._energies]
        self._recent = np.empty((0, 2))  # score and acceptance of the latest inputs
        self._ids: list[str] = []
        return self

    def update(self, logits: Any, ids: Sequence[Any] | None = None) -> DriftMonitor:
        """Add inputs ``[n, C]``, or one ``[C]``, in the order in which they came.

        ``ids`` are the names that the report uses for them; by default they are counted from 0.
        """
        self._fitted()
        scores, tasks, energies = self._read(logits)
        seen = self._unknowns.seen
        names = [str(name) for name in (range(seen, seen + len(scores)) if ids is None else ids)]
        if len(names) != len(scores):
            raise ToodError(f"ids: expected {len(scores)}, one per input, found {len(names)}")
        accepted = scores > self._limit[tasks]
        self._unknowns.update(scores)
        self._ids = [*self._ids, *names][-self.window :]
        self._recent = np.concatenate([self._recent, np.stack([scores, accepted], axis=1)])[-self.window :]
        for t in np.unique(tasks[accepted]):
            new = energies[accepted & (tasks == t)]
            self._drifts[t].update(new)
            self._latest[t] = np.concatenate([self._latest[t], new])[-self.window :]
        return self

    @property
    def drift_detected(self) -> bool:
        """Whether any alarm has been raised since the last :meth:`fit` or :meth:`reset`."""
        self._fitted()
        return self._more_unknowns() or bool(self._drifted().any())

    def _more_unknowns(self) -> bool:
        return bool(self._unknowns.largest >= np.log(2 / self.alpha))

    def _cause(self) -> str:
        """Why scores are low: unknown inputs raise the share rejected, and leave the others where they were.

        If a share π of the inputs is unknown and rejected, ``(1 - π) / 2`` of all lie above the median of the
        reference. If fewer do, the known inputs have moved, or unknown ones are accepted too.
        """
        n, m, before = len(self._scores), len(self._recent), self._rejected_before
        if m == 0:
            return "earlier"
        scores, accepted = self._recent.T
        rise = 1 - accepted.mean() - before
        share = max(0.0, rise / (1 - before))
        missing = (1 - share) / 2 - (scores > np.median(self._scores)).mean()
        if missing > SURE * np.sqrt((1 / n + 1 / m) / 4) or self._drifted().any():
            return "drift or unknowns"
        return "unknowns" if rise > SURE * np.sqrt(before * (1 - before) * (1 / n + 1 / m)) else "earlier"

    def _drifted(self) -> npt.NDArray[np.bool_]:
        """``[N]``: half of alpha is shared by the N tests of drift."""
        largest = np.array([test.largest for test in self._drifts])
        return np.asarray(largest >= np.log(2 * len(largest) / self.alpha))

    def report(self) -> Drift:
        """The present state of all tests; may be called at any time without spending ``alpha``."""
        self._fitted()
        samples = np.array([test.seen for test in self._drifts], dtype=np.int64)
        return Drift(
            rows=self._unknowns.seen,
            rejected=self._unknowns.seen - int(samples.sum()),
            rejected_before=self._rejected_before,
            unknowns_e_value=_e_value(self._unknowns.largest),
            more_unknowns=self._more_unknowns(),
            cause=self._cause() if self._more_unknowns() else "",
            recent=len(self._recent),
            recent_rejected=int((self._recent[:, 1] == 0).sum()),
            rejected_ids=self._named(0),
            accepted_ids=self._named(1),
            start=self._unknowns.start - 1,
            samples=samples,
            e_value=np.array([_e_value(test.largest) for test in self._drifts]),
            shift=np.array([_shift(*pair) for pair in zip(self._energies, self._latest, strict=True)]),
            drifted=self._drifted(),
        )

    def _named(self, accepted: int) -> list[str]:
        """The ids of the latest accepted or rejected inputs."""
        rows = np.flatnonzero(self._recent[:, 1] == accepted)[-LABEL // 2 :]
        return [self._ids[row] for row in rows]

    @property
    def reference(self) -> Float64Array:
        """The scores of the reference, ascending."""
        self._fitted()
        return np.sort(self._scores)

    def score(self, logits: Any) -> Float64Array:
        """The scores ``[n]`` that the monitor compares."""
        return self._read(logits)[0]

    def to_dict(self) -> dict[str, Any]:
        """Settings and report, ready for JSON; NaN is None."""
        report = self.report()
        settings = {name: getattr(self, name) for name in SETTINGS}
        found: dict[str, Any] = for_json(settings | {"drift_detected": self.drift_detected} | report._asdict())
        return found | {"message": str(report)}

    def save(self, path: str | os.PathLike[str], notes: str = "") -> None:
        """Write calibrator, reference, state and generator to one file; a loaded monitor continues exactly."""
        self._fitted()
        tensors: dict[str, npt.NDArray[Any]] = {
            "calibrator": file_of(self.cal),
            "limit": self._limit,
            "rejected_before": np.array([self._rejected_before]),
        }
        tests = {"unknowns": self._unknowns, **{f"task.{t}": test for t, test in enumerate(self._drifts)}}
        for name, test in tests.items():
            tensors |= {f"{name}.{key}": array for key, array in test.state().items()}
        tensors |= {f"task.{t}.latest": latest for t, latest in enumerate(self._latest)} | {"recent": self._recent}
        metadata = {
            "settings": json.dumps({name: getattr(self, name) for name in SETTINGS}, default=plain),
            "generator": json.dumps(self._rng.bit_generator.state),
            "threshold": "reference" if self.threshold is None else "given",
            "notes": notes,
            "ids": json.dumps(self._ids),
        }
        write_tensors(path, KIND, tensors, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DriftMonitor:
        """Load a file that :meth:`save` wrote."""
        tensors, metadata = read_tensors(path, KIND)
        try:
            threshold = tensors["limit"] if metadata["threshold"] == "given" else None
            self = cls(from_file(tensors["calibrator"]), threshold=threshold, **json.loads(metadata["settings"]))
            self._limit, self._rejected_before = tensors["limit"], float(tensors["rejected_before"][0])
            self._rng = np.random.default_rng()
            self._rng.bit_generator.state = json.loads(metadata["generator"])
            names = ["unknowns", *(f"task.{t}" for t in range(len(self._limit)))]
            unknowns, *states = (
                {key.removeprefix(f"{name}."): array for key, array in tensors.items() if key.startswith(f"{name}.")}
                for name in names
            )
            self._unknowns = ExchangeabilityTest.restore(unknowns, lower_bets(self.reject), self._rng)
            self._drifts = [ExchangeabilityTest.restore(state, two_sided_bets, self._rng) for state in states]
            self._latest = [np.array(state["latest"]) for state in states]
            self._recent = np.array(tensors.get("recent", np.empty((0, 2))))  # files of version 0.2 have none
            self._ids = [str(name) for name in json.loads(metadata.get("ids", "[]"))]
            self._scores, self._energies = self._unknowns.values, [test.values for test in self._drifts]
            self.report()
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise ToodError(f"{os.fspath(path)}: not a usable monitor: {error}") from error
        return self

    def _read(self, logits: Any) -> tuple[Float64Array, IntArray, Float64Array]:
        """Score, winning task and energy in the channel of that task, ``[n]`` each."""
        if not hasattr(logits, "logits"):
            logits = as_array(logits)
            logits = logits[None] if logits.ndim == 1 else logits
        scores, tasks = score_and_assign(self.cal, logits)
        if tasks is None:  # a detector
            return scores.astype(np.float64), np.zeros(len(scores), dtype=np.int64), scores.astype(np.float64)
        energies = floats(self.cal.task_energies(logits), "logits", ndim=2).astype(np.float64)
        return scores.astype(np.float64), tasks, energies[np.arange(len(tasks)), tasks]

    def _fitted(self) -> None:
        if not hasattr(self, "_scores"):
            raise NotFittedError("this DriftMonitor is not fitted yet: call fit(logits) first")


def _shift(reference: Float64Array, latest: Float64Array) -> float:
    """How far the median has moved, in deviations (1.4826 MAD) of the reference; NaN without samples."""
    if not (len(reference) and len(latest)):
        return np.nan
    median = np.median(reference)
    deviation = NORMAL_CONSISTENCY * np.median(np.abs(reference - median))
    return float((np.median(latest) - median) / max(deviation, float(least_spread(np.asarray(median)))))


def _e_value(logarithm: float) -> float:
    return float(np.exp(min(logarithm, 700.0)))  # a larger one would overflow
