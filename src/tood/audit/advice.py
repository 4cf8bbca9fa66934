"""Which score to use: chosen on one half of the OOD samples and reported on the other, with an interval."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tood import TOOD, detectors
from tood.arrays import Float64Array, IntArray
from tood.audit.bootstrap import RESAMPLES, Estimate, estimate
from tood.audit.evidence import Evidence
from tood.audit.gap import of_old_tasks
from tood.runs.steps import Step
from tood.statistics import own_energies

__all__ = ["Advice", "advise", "advise_without_ood", "default_score"]

GAIN = 0.005  # AUROC: a score that is better by less is not worth choosing
GAP = 0.5  # of the spread within tasks: a smaller confidence gap reorders few samples


@dataclass(frozen=True)
class Advice:
    """The score to use, and the reasons.

    Attributes
    ----------
    use:
        A detector's name; ``energy`` if no score is certainly better.
    basis:
        ``ood``: chosen on half of the OOD samples, all values from the other half; ``calibration``: from the
        calibration set alone, because there are no OOD sets.
    tried:
        Number of scores compared.
    energy, score, gain:
        Avg AUROC of energy and of ``best``, and their difference, on the reported half.
    best:
        The best score on the half to choose by. It is also ``use``, unless its gain is not certain.
    gains:
        The gain of ``best`` on near and on far OOD.
    default, default_gain:
        TOOD's default score and its gain, if the run can compute it.
    losers:
        Scores that are certainly worse than energy, by half a point or more; the worst first.
    gap:
        The confidence gap on the calibration set in units of the spread within tasks, if that is the basis.
    """

    use: str
    basis: str
    tried: int = 0
    energy: Estimate | None = None
    score: Estimate | None = None
    gain: Estimate | None = None
    best: str = "energy"
    gains: Mapping[str, Estimate] = field(default_factory=dict)
    default: str | None = None
    default_gain: Estimate | None = None
    losers: tuple[tuple[str, Estimate], ...] = ()
    gap: Estimate | None = None


def default_score() -> str | None:
    """The registered detector that scores as ``TOOD()`` does by default; None if there is none."""
    variant = inspect.signature(TOOD.__init__).parameters["variant"].default
    return f"tood_{variant}" if f"tood_{variant}" in detectors.names() else None


def advise(evidence: Evidence) -> Advice:
    """Choose among all scores that were measured.

    The default is taken if it is better than energy by half a point and no other score is better than it by more than
    that. A score is recommended only if its gain on the other half is certainly positive.
    """
    choice, default = evidence.choice, default_score()
    best = max(choice, key=lambda name: choice[name])
    if default in choice and choice[default] >= max(choice[best] - GAIN, choice["energy"] + GAIN):
        best = default
    if choice[best] < choice["energy"] + GAIN:
        best = "energy"
    gains = {name: _gain(evidence, name, "all") for name in choice}
    losers = [(name, gain) for name, gain in gains.items() if gain.high < 0 and gain.value <= -GAIN]
    groups = [scope for scope in evidence.scopes if scope != "all"]
    return Advice(
        use=best if gains[best].low > 0 else "energy",
        basis="ood",
        tried=len(choice),
        energy=evidence.estimate("score:energy"),
        score=evidence.estimate(f"score:{best}"),
        gain=gains[best],
        best=best,
        gains={group: _gain(evidence, best, group) for group in groups} if len(groups) > 1 else {},
        default=default if default in choice else None,
        default_gain=gains.get(default) if default else None,
        losers=tuple(sorted(losers, key=lambda entry: entry[1].value)),
    )


def advise_without_ood(step: Step, source: str | None) -> Advice:
    """Advice from the calibration set: TOOD if old tasks are certainly half a spread below the latest, else energy."""
    outputs = step.calibration(source)
    tasks = step.partition.column_tasks[np.asarray(outputs.labels)]
    own = own_energies(outputs.logits, tasks, step.partition)
    gap = estimate(*_gap(own, tasks))
    default = default_score()
    use = default if default and len(step.partition) > 1 and gap.low >= GAP else "energy"
    return Advice(use=use, basis="calibration", best=use, default=default, gap=gap)


def _gain(evidence: Evidence, name: str, scope: str) -> Estimate:
    score, energy = (f"score:{name}", scope), ("score:energy", scope)
    return estimate(evidence.values[score] - evidence.values[energy], evidence.draws[score] - evidence.draws[energy])


def _gap(own: Float64Array, tasks: IntArray) -> tuple[float, Float64Array]:
    """How far old tasks lie below the latest, in units of the spread within tasks, and resamples of it."""
    by_task = [own[tasks == task] for task in range(int(tasks.max()) + 1)]
    if len(by_task) == 1:
        return 0.0, np.zeros(RESAMPLES)
    spread = max(float(np.sqrt(np.mean([values.var() for values in by_task]))), 1e-12)
    rng = np.random.default_rng(0)
    draws = [values[rng.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1) for values in by_task]
    means = [float(values.mean()) for values in by_task]
    return of_old_tasks(means) / spread, (draws[-1] - np.mean(draws[:-1], axis=0)) / spread
