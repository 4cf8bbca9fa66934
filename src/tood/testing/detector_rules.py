"""The contract of detectors, as rules that :func:`tood.testing.check_detector` checks."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tood.detectors import Detector, Outputs
from tood.errors import ToodError
from tood.metrics import auroc
from tood.testing.contract import Rules, wrong_declarations
from tood.testing.problem import CLASSES, Problem, make_problem

PARTS = {"logits", "features", "labels", "head", "network", "inputs"}
TOLERANCE = 2e-5  # of the largest score: rounding in float32


class DetectorCase:
    """A detector class with hyper-parameters, and problems to try it on."""

    def __init__(self, detector: type[Detector], parameters: dict[str, Any]) -> None:
        if not (isinstance(detector, type) and issubclass(detector, Detector)):
            raise ToodError(f"detector: expected a subclass of tood.detectors.Detector, found {detector!r}")
        self.detector = detector
        self.parameters = parameters

    def problem(self, **options: Any) -> Problem:
        """A problem with the parts that the detector needs."""
        return make_problem(**options, with_network="network" in self.detector.needs)

    @cached_property
    def usual(self) -> Problem:
        """The problem that most rules use."""
        return self.problem()

    @cached_property
    def scores(self) -> npt.NDArray[Any]:
        """Scores of the usual problem's test set."""
        return self.fit().score(self.usual.test)

    def create(self, **parameters: Any) -> Detector:
        """An unfitted detector."""
        return self.detector(**{**self.parameters, **parameters})

    def fit(self, outputs: Any = None, problem: Problem | None = None, **parameters: Any) -> Detector:
        """A detector fitted on a problem, or on other outputs of it. Warnings about small data are expected."""
        problem = problem or self.usual
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return self.create(**parameters).fit(problem.fit if outputs is None else outputs, **problem.fit_arguments())


RULES: Rules[DetectorCase] = Rules()


@RULES.rule
def _declared(case: DetectorCase) -> str | None:
    """The class declares name, title, citation, version, needs and fits_on, and has a one-line summary.

    Set them as class attributes; see tood.detectors.base.Detector for what each one means.
    """
    cls = case.detector
    return wrong_declarations(
        cls,
        citation=bool(cls.citation),
        version=isinstance(cls.version, int) and cls.version >= 1,
        needs=isinstance(getattr(cls, "needs", None), frozenset) and cls.needs <= PARTS,
        fits_on=cls.fits_on in ("none", "fit", "calibration"),
    )


@RULES.rule
def _hyper_parameters(case: DetectorCase) -> str | None:
    """__init__ stores each hyper-parameter under its own name and does nothing else; every one has a default.

    Write def __init__(self, k: int = 10) -> None: self.k = k. Check values in _check, learn in _fit.
    """
    expected = {**case.detector.parameters, **case.parameters}
    detector = case.create()
    stored = {name: getattr(detector, name, "nothing") for name in expected}
    if stored != expected:
        return f"{stored} after __init__({expected})"
    extra = set(vars(detector)) - set(expected)
    unknown = {*case.detector.grid, *case.detector.refit} - set(expected)
    if extra or unknown:
        names = ", ".join(sorted(extra or unknown))
        return f"attributes {names} set by __init__" if extra else f"{names} in grid or refit, and not in __init__"
    for name, values in case.detector.grid.items():
        for value in values:
            case.create(**{name: value})._check()
    return None


@RULES.rule
def _one_number(case: DetectorCase) -> str | None:
    """A score is one finite number per sample, also for no sample at all.

    _score(rows, prepared) must return an array of shape [n]; use np.where to keep divisions and logarithms finite.
    """
    detector = case.fit()
    for outputs in (case.usual.test, case.usual.ood, case.usual.test[:1], case.usual.test[:0]):
        scores = detector.score(outputs)
        if scores.shape != (len(outputs),) or not np.isfinite(scores).all():
            return f"shape {scores.shape} for {len(outputs)} samples, {np.isfinite(scores).sum()} finite"
    return None


@RULES.rule
def _unchanged(case: DetectorCase) -> str | None:
    """Arrays that are given to fit and score stay unchanged.

    Copy before you change an array in place: features = rows.features.copy().
    """
    fit, test = case.usual.fit, case.usual.test
    arrays = {"fit.logits": fit.logits, "fit.features": fit.features}
    arrays |= {"test.logits": test.logits, "test.features": test.features}
    before = {name: array.copy() for name, array in arrays.items()}
    case.fit().score(test)
    changed = [name for name, array in arrays.items() if not np.array_equal(array, before[name])]
    return f"changed: {', '.join(changed)}" if changed else None


@RULES.rule
def _sign(case: DetectorCase) -> str | None:
    """A higher score means more in-distribution.

    If your method gives low numbers to in-distribution samples, return minus that number from _score.
    """
    detector = case.fit()
    value = auroc(detector.score(case.usual.test), detector.score(case.usual.ood))
    return None if value > 0.5 else f"AUROC {value:.2f} on easy OOD samples (features near the origin, small logits)"


@RULES.rule
def _deterministic(case: DetectorCase) -> str | None:
    """The same data give the same scores, bit for bit.

    Draw random numbers from np.random.default_rng(self.seed) inside _fit, with seed as a hyper-parameter.
    """
    detector = case.fit()
    again = detector.score(case.usual.test), detector.score(case.usual.test), case.fit().score(case.usual.test)
    differing = max(np.count_nonzero(scores != case.scores) for scores in again)
    return f"{differing} of {len(case.scores)} scores differ" if differing else None


@RULES.rule
def _row_by_row(case: DetectorCase) -> str | None:
    """The score of a sample does not depend on the samples that are scored with it.

    In _score use nothing but the row itself and what _fit learned: no mean, rank or maximum over rows.
    """
    detector, test = case.fit(), case.usual.test
    for size in (1, 7):
        parts = [detector.score(test[start : start + size]) for start in range(0, len(test), size)]
        if difference := _difference(np.concatenate(parts), case.scores):
            return f"{difference} when scored {size} at a time"
    order = np.random.default_rng(1).permutation(len(test))
    return _difference(detector.score(test[order]), case.scores[order])


@RULES.rule
def _order(case: DetectorCase) -> str | None:
    """A fit does not depend on the order of the samples or on how they are cut into chunks.

    Add up sums over the blocks of FitData, or choose samples by their content.
    """
    if case.detector.fits_on == "none":
        return None
    shuffled = case.usual.fit[np.random.default_rng(2).permutation(len(case.usual.fit))]
    chunks = [shuffled[:5], shuffled[5:5], shuffled[5:100], shuffled[100:]]
    for outputs in (chunks, iter(chunks)):
        if difference := _difference(case.fit(outputs).score(case.usual.test), case.scores):
            return difference
    return None


@RULES.rule
def _little_data(case: DetectorCase) -> str | None:
    """Classes and tasks that have no samples yet, and a single fit sample, are handled or refused with a ToodError.

    Leave classes without samples out of means and counts; floor a spread that is zero.
    """
    trials = {
        "one class per task": case.problem(seen=[0, 2, 4]),
        "one task of three": case.problem(seen=[0, 1]),
        "one fit sample": replace(case.problem(rows=1), partition=[list(range(CLASSES))]),
    }
    for what, problem in trials.items():
        with contextlib.suppress(ToodError):
            if not np.isfinite(case.fit(problem=problem).score(problem.test)).all():
                return f"scores that are not finite after fit with {what}"
    return None


@RULES.rule
def _extremes(case: DetectorCase) -> str | None:
    """Features of zeros and huge numbers are scored or refused with a ToodError, never NaN.

    Guard divisions by norms and sums that can be zero.
    """
    detector, test = case.fit(), case.usual.test
    zeros = np.zeros_like(test.features[:2])
    inputs = None if test.inputs is None else test.inputs[:2]
    dead = Outputs(np.tile(np.asarray(case.usual.head.bias), (2, 1)), zeros, None, inputs)
    huge = Outputs(test.logits * np.float32(1e30), test.features * np.float32(1e30), None, test.inputs)
    for what, outputs in (("features of zeros", dead), ("numbers of 1e30", huge)):
        with warnings.catch_warnings(), contextlib.suppress(ToodError):
            warnings.simplefilter("ignore", RuntimeWarning)
            if not np.isfinite(detector.score(outputs)).all():
                return f"scores that are not finite for {what}"
    return None


@RULES.rule
def _precision(case: DetectorCase) -> str | None:
    """Double precision gives the same scores up to rounding, and half precision finite ones.

    Do not compare or round values at a fixed precision; compute statistics in float64.
    """
    for dtype in (np.float16, np.float64):
        problem = case.problem(dtype=dtype)
        scores = case.fit(problem=problem).score(problem.test)
        expected = np.float64 if dtype is np.float64 else np.float32
        if scores.dtype != expected:
            return f"{scores.dtype} scores from {np.dtype(dtype)} outputs, expected {np.dtype(expected)}"
        if not np.isfinite(scores).all():
            return f"scores that are not finite from {np.dtype(dtype)} outputs"
        if dtype is np.float64 and (difference := _difference(scores, case.scores, 1e-3)):
            return f"{difference} in {np.dtype(dtype)}"
    return None


@RULES.rule
def _saved(case: DetectorCase) -> str | None:
    """What fit learned is in attributes that end in _, arrays or numbers, so that save and load give the same scores.

    Assign NumPy arrays or numbers to self.something_ in _fit; compute everything else from them in _prepare.
    """
    detector = case.fit()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "detector.safetensors"
        detector.save(path)
        loaded = case.detector.load(path, network=case.usual.network)
    if type(loaded) is not case.detector:
        return f"load gives a {type(loaded).__name__}: another detector has the name {case.detector.name!r}"
    return _difference(loaded.score(case.usual.test), case.scores, 0)


@RULES.rule
def _changed_afterwards(case: DetectorCase) -> str | None:
    """A hyper-parameter changed after fit acts at once, or is in refit and asks for a new fit.

    Add the hyper-parameters that _fit reads to the class attribute refit.
    """
    for name, values in case.detector.grid.items():
        for value in [value for value in values if value != getattr(case.create(), name)][:2]:
            changed = case.fit().set_params(**{name: value})
            if name in case.detector.refit:
                continue  # the base class refuses to score
            expected = case.fit(**{name: value}).score(case.usual.test)
            if difference := _difference(changed.score(case.usual.test), expected, 0):
                return f"{difference} from a new fit with {name} = {value!r}"
    return None


def _difference(scores: npt.NDArray[Any], expected: npt.NDArray[Any], tolerance: float = TOLERANCE) -> str | None:
    """The difference of two sets of scores in words; None if it is within rounding."""
    scale = float(np.abs(expected).max()) or 1.0
    share = float(np.abs(scores - expected).max()) / scale
    return None if share <= tolerance else f"scores differ by {share:.1g} of the largest"
