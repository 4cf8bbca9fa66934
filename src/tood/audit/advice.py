"""Which score to use: chosen on one half of the OOD samples and reported on the other, with an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tood import detectors
from tood.audit.evidence import Evidence
from tood.audit.gap import energies_by_task, spread_within
from tood.choose import Choice, choose
from tood.metrics.resampling import Samples, WithInterval, interval
from tood.outputs.steps import Step

__all__ = ["DEFAULT", "Advice", "Candidate", "advise", "advise_without_ood", "choose_by_traffic"]

DEFAULT = "tood"  # the detector that scores as ``TOOD()`` does by default
GAIN = 0.005  # AUROC: a score that is better by less is not worth choosing
OF_LOGITS = ("tood", "energy", "maxlogit", "tood_mean_shift", "tood_robust_anchor")  # compared by traffic
OF_FEATURES = ("typicality", "tood_joint", "mds", "rmds", "knn")
GAP = 0.5  # of the spread within tasks: a smaller confidence gap reorders few samples


@dataclass(frozen=True)
class Candidate:
    """A score and its gain over energy: Avg AUROC on the reported half, by group of OOD sets, and for ``all``.

    ``certain``: better by half a point on the half to choose by, and certainly better on the other.
    """

    name: str
    scores: Mapping[str, WithInterval]
    gains: Mapping[str, WithInterval]
    certain: bool


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
    best:
        The score to show beside energy: ``use``, or the best one if no gain is certain.
    tried:
        Number of scores compared.
    energy:
        Avg AUROC of energy on the reported half, by group and for ``all``.
    default:
        TOOD, if the run can compute it.
    logits, features:
        The best score of logits alone (TOOD unless another is better by half a point), and the best that reads more.
    gap:
        The confidence gap on the calibration set in units of the spread within tasks, if that is the basis.
    """

    use: str
    basis: str
    best: str
    tried: int = 0
    energy: Mapping[str, WithInterval] = field(default_factory=dict)
    default: Candidate | None = None
    logits: Candidate | None = None
    features: Candidate | None = None
    gap: WithInterval | None = None


def advise(evidence: Evidence) -> Advice:
    """Choose among all scores that were measured."""
    choice, known = evidence.choice, detectors.classes()
    candidates = {name: _candidate(evidence, name) for name in choice}
    reads = {name: known[name].needs for name in choice if name in known}
    of_logits = [name for name, parts in reads.items() if parts <= {"logits", "labels"}]
    logits = _best([name for name in of_logits if name != "energy"], candidates, choice)
    features = _best([name for name in choice if name not in of_logits], candidates, choice)
    best = max(filter(None, (logits, features)), key=lambda one: (one.certain, choice[one.name]), default=None)
    if logits and logits.certain and best and choice[best.name] < choice[logits.name] + GAIN:
        best = logits
    return Advice(
        use=best.name if best and best.certain else "energy",
        basis="ood",
        best=best.name if best else "energy",
        tried=len(choice),
        energy=candidates["energy"].scores,
        default=candidates.get(DEFAULT),
        logits=logits,
        features=features,
    )


def advise_without_ood(step: Step, source: str | None) -> Advice:
    """Advice from the calibration set: TOOD if old tasks are certainly half a spread below the latest, else energy."""
    *old, latest = energies_by_task(step.calibration(source), step)
    samples = Samples()
    for task, energies in enumerate(old):
        samples.add_mean("gap", -1 / len(old), energies, samples.indices(task, len(energies)))
    samples.add_mean("gap", float(bool(old)), latest, samples.indices("latest", len(latest)))
    gap = interval(samples.drawn()["gap"] / max(spread_within([*old, latest]), 1e-12))
    use = DEFAULT if gap.low >= GAP else "energy"
    return Advice(use=use, basis="calibration", best=use, gap=gap)


def choose_by_traffic(step: Step, calibration: str | None = None) -> Choice | None:
    """The choice by ``outputs/traffic.npz`` of a step, with its test data as held-out known samples; None without."""
    traffic, fit = step.traffic, step.calibration(calibration)
    if traffic is None:
        return None
    features = all(part.features is not None for part in (traffic, fit, step.test))
    names = OF_LOGITS + (OF_FEATURES if features else ())
    return choose({n: detectors.create(n).fit(fit, partition=step.partition) for n in names}, step.test, traffic)


def _candidate(evidence: Evidence, name: str) -> Candidate:
    groups = [scope for scope in evidence.scopes if scope != "all"]
    drawn = {scope: evidence.drawn[f"score:{name}", scope] for scope in (*groups, "all")}
    gains = {scope: interval(values - evidence.drawn["score:energy", scope]) for scope, values in drawn.items()}
    better = evidence.choice[name] >= evidence.choice["energy"] + GAIN
    scores = {scope: interval(values) for scope, values in drawn.items()}
    return Candidate(name, scores, gains, better and gains["all"].low > 0)


def _best(names: Sequence[str], candidates: Mapping[str, Candidate], choice: Mapping[str, float]) -> Candidate | None:
    """The best of some scores; TOOD if none is better than it, or than energy, by half a point."""
    best = max(names, key=lambda name: choice[name], default=None)
    gaining = choice["energy"] + GAIN
    if best is None:
        return None
    if DEFAULT in names and (choice[best] < gaining or choice[DEFAULT] >= max(choice[best] - GAIN, gaining)):
        best = DEFAULT
    return candidates[best]
