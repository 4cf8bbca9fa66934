"""What the paper's claims are judged by: of our runs, of frozen pretrained features, and of the paper itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from results_pages.benchmark import Benchmark, summary_of
from results_pages.collect import Collected
from tood.paper.reference import reported, stated
from tood.report.gather import MeasuredRun
from tood.report.summary import Key, Summaries, Summary, collect, learner_label, on_its_own, run_figures
from tood.report.tables import LEARNERS, TOOD_VARIANTS

__all__ = ["Causes", "Evidence", "Relation", "as_scored", "of_frozen", "of_paper", "of_runs", "relation"]

STREAM = "cifar10"  # the stream of the paper's plots about causes
SHOWN = "icarl"  # the learner in these plots
FROZEN = "train"  # the track of the runs that are compared with the paper: TOOD on a draw of training data


class Relation(NamedTuple):
    """Pearson's r over learners, one point per learner, and its range when any one learner is left out."""

    r: float
    learners: int
    lowest: float = float("nan")
    highest: float = float("nan")

    @property
    def p(self) -> float:
        """The two-sided p-value."""
        from scipy import stats

        freedom = self.learners - 2
        return float(2 * stats.t.sf(abs(self.r) * np.sqrt(freedom / max(1e-12, 1 - self.r**2)), freedom))

    def __str__(self) -> str:
        without = f" ({self.lowest:.2f} to {self.highest:.2f} leaving one out)" if np.isfinite(self.lowest) else ""
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        return f"r = {self.r:.2f}{without}, {p}, {self.learners} learners"


class Causes(NamedTuple):
    """What was measured about causes on CIFAR-10; None or empty if it was not."""

    relations: Mapping[tuple[str, str], Relation]
    lost: tuple[float, float] | None = None  # task 0 of iCaRL: points of AUROC and of accuracy
    restored: float | None = None  # share of that AUROC that TOOD restores, summed over steps
    energy: Sequence[float] = ()  # mean energy of task 0 with iCaRL along the stream
    ood_energy: Sequence[float] = ()  # mean energy of OOD
    nearest: Sequence[float] = ()  # median distance of SVHN to the nearest ID sample with iCaRL
    falls: Sequence[bool] = ()  # per learner: the energy of task 0 falls
    halves: Sequence[bool] = ()  # per learner: its lead over OOD at least halves


class Evidence(NamedTuple):
    """The values of tables, the gains of TOOD over energy, and what was measured about causes."""

    values: Mapping[Key, Summary]
    gains: Mapping[tuple[str, str, str], Summary]  # by stream, learner and variant; deviation over seeds
    causes: Causes
    with_ber: Mapping[Key, Summary] = {}  # runs with BER and those without it, over the same seeds


def as_scored(values: Summaries, raw: bool) -> Summaries:
    """Values of one protocol under the paper's keys: with ``raw`` those of BiC's raw logits replace the corrected."""
    plain = {key: value for key, value in values.items() if not key.raw}
    return plain | {key.published(): value for key, value in values.items() if key.raw and raw}


def of_paper() -> Evidence:
    """The paper's own values, as far as it states them."""
    values, known = reported(), stated()
    gains = {}
    for key, value in values.items():
        plain = values.get(key._replace(detector="energy"))
        if key.metric == "avg_auroc" and key.detector in TOOD_VARIANTS and plain:
            spread = max(value.std, plain.std)  # of the gain itself no deviation is published
            gains[key[:3]] = Summary(value.mean - plain.mean, spread, value.seeds)
    learners = int(known["drift: learners", ""])
    names = {("drift", "d_avg"): "D_avg", ("drift", "f_avg"): "F_avg"}
    between = [known[f"task 0: {end} mean energy of OOD", SHOWN] for end in ("lowest", "highest")]
    causes = Causes(
        relations={pair: Relation(known[f"drift and {name}: r", ""], learners) for pair, name in names.items()},
        energy=[known[f"task 0: mean energy, {when} step", SHOWN] for when in ("first", "last")],
        ood_energy=between,
        nearest=[known[f"OOD to its nearest ID sample, {when} step", SHOWN] for when in ("first", "last")],
        falls=[True] * 4,  # Fig. whisker: four learners, "in every case"
        halves=[True] * 4,
    )
    return Evidence(values, gains, causes, values)


def of_runs(own: Sequence[Collected], raw: bool) -> Evidence:
    """Collected runs of one preset."""
    seeds: dict[tuple[str, str, str], list[float]] = {}
    for one in own:
        plain = {
            Key("", "", *name): Summary(value, 0.0, 1)
            for name, value in run_figures(one.table, one.run.calibration).items()
        }
        scored = {key.detector: value.mean for key, value in as_scored(plain, raw).items() if key.metric == "avg_auroc"}
        for variant in TOOD_VARIANTS:
            if variant in scored and "energy" in scored:
                gain = scored[variant] - scored["energy"]
                seeds.setdefault((one.run.stream, learner_label(one.run), variant), []).append(gain)
    values = as_scored(collect((one.run, one.table) for one in own), raw)
    # Without BER, whose features are those of its learner, and without runs with another network.
    plain_runs = [one for one in own if one.run.stream == STREAM and on_its_own(learner_label(one.run))]
    causes = _causes([_point(one) for one in plain_runs], plain_runs)
    return Evidence(values, {key: summary_of(of) for key, of in seeds.items()}, causes, as_scored(_with_ber(own), raw))


def of_frozen(frozen: Benchmark, shown: Sequence[Collected], raw: bool) -> Evidence:
    """All runs on frozen features of images, and those of them (``shown``) that were measured along the stream."""
    values = as_scored(frozen.summaries(FROZEN), raw)
    gains = {}
    for setting in frozen.runs:
        for variant in TOOD_VARIANTS if setting.track == FROZEN else ():
            if changes := frozen.gains(setting, variant, raw and setting.learner == "bic"):
                gains[setting.stream, setting.learner, variant] = summary_of(changes)
    shown = [one for one in shown if one.run.stream == STREAM]
    of_outputs = [
        {name: value for name, value in _point(one).items() if name in ("learner", "closed", "gain")} for one in shown
    ]
    points = [{**point, "gain": None} for point in frozen.points(STREAM, FROZEN)]
    return Evidence(values, gains, _causes([*points, *of_outputs], shown))


def relation(points: Iterable[Mapping[str, Any]], one: str, other: str) -> Relation | None:
    """Correlation over learners of two values of the points, such as ``"drift"`` and ``"d_avg"``.

    A learner is one point, the mean over its seeds. None with fewer than four learners, or if a value is constant.
    """
    by_learner: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        if point.get(one) is not None and point.get(other) is not None:
            by_learner.setdefault(point["learner"], []).append((point[one], point[other]))
    means = np.array([np.mean(pairs, axis=0) for pairs in by_learner.values()])
    if len(means) < 4:
        return None
    parts = [means, *(np.delete(means, place, axis=0) for place in range(len(means)))]
    if any(np.ptp(part, axis=0).min() == 0 for part in parts):
        return None
    r, *without = (float(np.corrcoef(part.T)[0, 1]) for part in parts)
    return Relation(r, len(means), min(without), max(without))


def _causes(points: Sequence[Mapping[str, Any]], runs: Sequence[Collected]) -> Causes:
    pairs = (
        ("drift", "d_avg"),
        ("drift", "f_avg"),
        ("old_accuracy", "d_avg"),
        ("old_accuracy", "mds_d_avg"),
        ("closed", "gain"),
    )
    found = Causes({pair: known for pair in pairs if (known := relation(points, *pair))})
    learners = {name: [one for one in runs if one.run.learner == name] for name in LEARNERS}
    falls, halves = [], []
    for own in learners.values():
        if own and all(one.along for one in own):
            energy, ood = (_mean(one.along[name] for one in own) for name in ("task0_energy", "ood_energy"))
            falls.append(bool(energy[-1] < energy[0]))
            halves.append(bool((energy - ood)[1:].mean() < (energy - ood)[0] / 2))
    found = found._replace(falls=falls, halves=halves)
    if own := learners[SHOWN]:
        measured = [MeasuredRun(one.run) for one in own]
        accuracy = 100 * _mean(one.accuracy[:, 0] for one in measured)
        plain, calibrated = (
            100 * _mean(one.trajectory(name).balanced().mean()[:, 0] for one in measured)
            for name in ("energy", "tood_robust_anchor")
        )
        gone, back = float((plain[0] - plain).sum()), float((calibrated - plain).sum())
        found = found._replace(
            lost=(plain[0] - plain[-1], accuracy[0] - accuracy[-1]), restored=back / gone if gone > 0 else None
        )
        names = {"energy": "task0_energy", "ood_energy": "ood_energy", "nearest": "nearest"}
        along = {
            to: _mean(one.along[name] for one in own).tolist()
            for to, name in names.items()
            if all(name in one.along for one in own)
        }
        found = found._replace(**along)
    return found


def _point(one: Collected) -> dict[str, Any]:
    """The point of a run in plots over learners, the loss of task 0's lead over OOD, and the forgetting of MDS."""
    point = dict(one.point)
    if len(one.along.get("task0_energy", ())) > 1:
        gap = np.subtract(one.along["task0_energy"], one.along["ood_energy"])
        point["closed"] = float(1 - gap[1:].mean() / gap[0])
    if one.table is not None:
        point["mds_d_avg"] = run_figures(one.table, one.run.calibration).get(("mds", "d_avg"))
    return point


def _with_ber(own: Sequence[Collected]) -> Summaries:
    """Summaries of the runs with BER, and of those without it that have the same stream, learner and seed."""

    def of(one: Collected) -> tuple[str, str, Any]:
        return one.run.stream, one.run.learner, one.run.manifest.get("seed")

    tuned = {of(one) for one in own if one.run.identity.finetune == "ber"}
    pairs = [(one.run, one.table) for one in own if of(one) in tuned]
    return collect(pairs) if pairs else {}


def _mean(seeds: Iterable[Any]) -> Any:
    return np.mean([np.asarray(values, dtype=np.float64) for values in seeds], axis=0)
