"""The paper's claims as rules. Every rule holds on the paper's own values, as far as it states them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from results_pages.evidence import SHOWN, STREAM, Causes, Evidence, Relation
from tood.outputs.identity import RunIdentity
from tood.paper.reference import stated
from tood.paper.toy_results import FIRST
from tood.report.appearance import label
from tood.report.summary import Key, Summary, ranks
from tood.report.tables import LEARNERS, TOOD_VARIANTS

__all__ = ["Claim", "MeanGain", "PaperToy", "claims", "mean_gain", "toy_claims"]

STREAMS = ("cifar10", "cifar100")  # the paper counts settings on these
TABLE1 = ("msp", "ash", "vim", "dice", "adascale", "mds", "nnguide", "energy", *TOOD_VARIANTS)
FEATURE_DETECTORS = ("mds", "vim", "nnguide")
FEWEST = 3  # learners or settings needed to judge a claim about most of them
FEWEST_POINTS = 8  # learners needed to judge that two values do not correlate
STRONG = 0.7  # a correlation is weak below this
BER_COLUMNS = 8  # of Table 2: two streams, two learners, AUROC and FPR@95
NEARER = 0.95  # a distance has shrunk if it is below this share of the first, as in the audit


class Claim(NamedTuple):
    """A claim, what was measured, and whether it holds; None if that cannot be told."""

    text: str
    numbers: str
    holds: bool | None


class MeanGain(NamedTuple):
    """A mean over learners and its 95 % interval over seeds; the interval is NaN if no learner has two seeds."""

    value: float
    low: float
    high: float

    @property
    def positive(self) -> bool | None:
        """None if the interval contains 0 or there is none."""
        return True if self.low > 0 else False if self.high < 0 else None

    def __str__(self) -> str:
        interval = f"{self.low:+.1f} to {self.high:+.1f}" if np.isfinite(self.low) else "no interval: one seed each"
        return f"{self.value:+.1f} ({interval})"


def mean_gain(gains: Sequence[Summary]) -> MeanGain:
    """The mean over learners; its interval is Student's, from the deviation over seeds pooled over learners."""
    from scipy import stats

    value = mean(gain.mean for gain in gains)
    freedom = sum(gain.seeds - 1 for gain in gains)
    if freedom == 0:
        return MeanGain(value, float("nan"), float("nan"))
    variance = sum((gain.seeds - 1) * gain.std**2 for gain in gains) / freedom
    error = np.sqrt(variance * sum(1 / gain.seeds for gain in gains)) / len(gains)
    reach = float(stats.t.ppf(0.975, freedom) * error)
    return MeanGain(value, value - reach, value + reach)


def claims(evidence: Evidence) -> Iterator[Claim]:
    """Every claim that the evidence can say something about. A setting is a learner on a stream."""
    values, gains = evidence.values, evidence.gains
    for name in TOOD_VARIANTS:
        own = [
            gain.mean > 0
            for (stream, learner, variant), gain in gains.items()
            if (variant == name and stream in STREAMS and learner in LEARNERS)
        ]
        yield from _most(f"{label(name)} raises Avg AUROC over energy in most settings", own)
    for stream in STREAMS:
        for name in TOOD_VARIANTS:
            of_stream = [gains[key] for learner in LEARNERS if (key := (stream, learner, name)) in gains]
            if len(of_stream) >= FEWEST:
                found = mean_gain(of_stream)
                yield Claim(
                    f"{stream}: {label(name)} raises Avg AUROC over energy, mean over learners",
                    str(found),
                    found.positive,
                )
    for name in TOOD_VARIANTS:
        lower = [a.mean < b.mean for a, b in _beside_energy(values, name, "avg_fpr95")]
        yield from _most(f"{label(name)} lowers FPR@95 in most settings", lower)
    yield from _ranks(values)
    yield from _forgetting(values)
    yield from _fine_tuning(evidence.with_ber)
    yield from _correlations(evidence.causes)
    yield from _first_task(evidence.causes)


def _ranks(values: Mapping[Key, Summary]) -> Iterator[Claim]:
    first, sizes = [], set()
    for stream in STREAMS:
        for learner in LEARNERS:
            keys = [Key(stream, learner, name, "avg_auroc") for name in TABLE1]
            placed = ranks({key: values[key] for key in keys if key in values})
            if all(name in placed for name in TOOD_VARIANTS):
                first.append(min(placed[name][0] for name in TOOD_VARIANTS) <= 2)
                sizes.add(len(placed))
    among = f", among {' or '.join(map(str, sorted(sizes)))} of the paper's ten detectors"
    yield from _most("a TOOD variant ranks first or second by Avg AUROC in most settings", first, among)


def _forgetting(values: Mapping[Key, Summary]) -> Iterator[Claim]:
    """Stated in the paper without numbers."""
    counts, every = [], []
    for name in FEATURE_DETECTORS:
        keys = (Key(stream, learner, name, "d_avg") for stream in STREAMS for learner in LEARNERS)
        above = [values[key].mean > 0 for key in keys if key in values]
        counts += [f"{label(name)} {sum(above)} of {len(above)}"] if above else []
        every += above
    names = ", ".join(map(label, FEATURE_DETECTORS))
    for claim in _most(f"{names} forget as well (D_avg above 0) in most settings", every):
        yield claim._replace(numbers=", ".join(counts))
    for name in TOOD_VARIANTS:
        lower = [a.mean < b.mean for a, b in _beside_energy(values, name, "d_avg")]
        higher = [a.mean > b.mean for a, b in _beside_energy(values, name, "old_auroc")]
        better = sum(map(all, zip(lower, higher, strict=False)))
        also = f"; in {better} of them old tasks end above energy's AUROC"
        yield from _most(f"{label(name)} has a lower D_avg than energy in most settings", lower, also)


def _fine_tuning(values: Mapping[Key, Summary]) -> Iterator[Claim]:
    """Table 2: fine-tuning a head (BER) against calibration after training."""
    wins = []
    for stream in STREAMS:
        for learner in ("icarl", "bic"):
            tuned = RunIdentity(stream, learner, "ber").label
            pair = [Key(stream, name, "energy", "avg_auroc") for name in (tuned, learner)]
            if all(key in values for key in pair):
                change = values[pair[0]].mean - values[pair[1]].mean
                lowers = (stream, learner) == ("cifar100", "icarl")  # as the paper found
                text = f"{stream}, {label(learner)}: BER {'lowers' if lowers else 'raises'} energy's Avg AUROC"
                yield Claim(text, f"{change:+.1f}", (change < 0) == lowers if abs(change) >= 0.05 else None)
            for metric, sign in (("avg_auroc", 1), ("avg_fpr95", -1)):
                calibrated = [Key(stream, learner, name, metric) for name in TOOD_VARIANTS]
                fine_tuned = [Key(stream, tuned, name, metric) for name in ("energy", *TOOD_VARIANTS)]
                if all(key in values for key in calibrated + fine_tuned):
                    best, other = (max(sign * values[key].mean for key in keys) for keys in (calibrated, fine_tuned))
                    wins.append(best > other)
    text = "TOOD without training is better than every row with BER in most of the eight columns"
    for claim in _most(text, wins):
        yield claim if len(wins) == BER_COLUMNS else claim._replace(holds=None)


def _correlations(causes: Causes) -> Iterator[Claim]:
    def unrelated(found: Relation) -> bool | None:
        return found.p >= 0.05 if found.learners >= FEWEST_POINTS else None

    def weak(found: Relation) -> bool | None:
        return abs(found.r) < STRONG if found.learners >= FEWEST_POINTS else None

    def rising(found: Relation) -> bool | None:
        return found.r > 0 if found.p < 0.05 else None if found.r > 0 else False

    old = "is at most weakly related to accuracy on old tasks"
    for pair, text, rule in (
        (("drift", "d_avg"), "feature drift has no significant relation with OOD forgetting D_avg", unrelated),
        (("drift", "f_avg"), "feature drift correlates with accuracy forgetting", rising),
        (("old_accuracy", "d_avg"), f"OOD forgetting of energy {old}", weak),
        (("old_accuracy", "mds_d_avg"), f"OOD forgetting of MDS {old}", weak),
        (("closed", "gain"), "TOOD gains most if task 0's energy came closest to OOD's", rising),
    ):
        if pair in causes.relations:
            found = causes.relations[pair]
            yield Claim(f"{STREAM}: {text}", str(found), rule(found))


def _first_task(causes: Causes) -> Iterator[Claim]:
    who = f"{STREAM}, {label(SHOWN)}"
    if causes.lost is not None:
        auroc, accuracy = causes.lost
        numbers = f"AUROC {-auroc:+.1f}, accuracy {-accuracy:+.1f}"
        yield Claim(f"{who}: task 0 loses more AUROC of energy than accuracy", numbers, bool(auroc > accuracy))
        share = "nothing was lost over all steps together" if causes.restored is None else f"{causes.restored:.0%}"
        holds = None if causes.restored is None else causes.restored > 0.5
        yield Claim(f"{who}: robust anchor (paper) restores most of that AUROC, summed over steps", share, holds)
    if len(causes.energy):
        energy, ood = causes.energy, causes.ood_energy
        first, last = (energy[place] - max(ood) for place in (0, -1))
        numbers = f"{energy[0]:.1f} to {energy[-1]:.1f}, OOD within {min(ood):.1f} to {max(ood):.1f}"
        holds = energy[-1] < energy[0] and last < first / 2
        yield Claim(f"{who}: the mean energy of task 0 falls to that of OOD", numbers, bool(holds))
    nearly = "with at least four learners and at most one exception"
    yield from _nearly_all(f"{STREAM}: task 0's mean energy falls, {nearly}", causes.falls)
    yield from _nearly_all(
        f"{STREAM}: the lead of task 0's mean energy over OOD's at least halves, {nearly}", causes.halves
    )
    if len(causes.nearest):
        first, *_, last = causes.nearest
        numbers = f"{first:.2f} to {last:.2f} ({last / first - 1:+.0%})"
        text = f"{who}: SVHN comes closer to ID samples in feature space (median Euclidean distance)"
        yield Claim(text, numbers, bool(last < NEARER * first))


def _beside_energy(values: Mapping[Key, Summary], detector: str, metric: str) -> list[tuple[Summary, Summary]]:
    """Values of a detector and of energy in every setting that has both."""
    keys = [
        [Key(stream, learner, name, metric) for name in (detector, "energy")]
        for stream in STREAMS
        for learner in LEARNERS
    ]
    return [(values[after], values[before]) for after, before in keys if after in values and before in values]


def _most(text: str, settings: Collection[bool], more: str = "") -> Iterator[Claim]:
    """A claim about most settings; none if there are no settings."""
    if settings:
        holds = sum(settings) > len(settings) / 2 if len(settings) >= FEWEST else None
        yield Claim(text, f"{sum(settings)} of {len(settings)}{more}", holds)


def _nearly_all(text: str, learners: Collection[bool]) -> Iterator[Claim]:
    if learners:
        holds = sum(learners) >= max(4, len(learners) - 1) if len(learners) >= 4 else None
        yield Claim(text, f"{sum(learners)} of {len(learners)}", holds)


class PaperToy(NamedTuple):
    """What the paper states of its toy experiment, in percent and energy units."""

    gap: float
    gain: float
    crowded: float
    restored: float = 0.0


def toy_claims(kept: Mapping[str, Any] | PaperToy) -> Iterator[Claim]:
    """Claims about the toy, of the collected ``toy.json`` or of the paper."""
    known = stated()
    gap, gain = known["toy: gap", ""], known["toy: gain", ""]
    found = kept if isinstance(kept, PaperToy) else _toy(kept)
    text = f"the newest task's own-channel energy exceeds the first task's, by half to twice the paper's {gap:.0f}"
    yield Claim(text, f"{found.gap:.1f}", 0.5 < found.gap / gap < 2)
    text = f"separated classes: TOOD raises AUROC in the first {FIRST} steps, up to (best step and form)"
    yield Claim(text, f"{found.gain:+.1f}", found.gain > min(1.0, gain))
    yield Claim("overlapping classes: energy is at chance", f"{found.crowded:.1f}", abs(found.crowded - 50) < 5)
    yield Claim("overlapping classes: TOOD restores nothing", f"at most {found.restored:+.1f}", found.restored < 1)
    if not isinstance(kept, PaperToy):  # stated without numbers
        change = {
            regime: [100 * (value - along[0]) for value in along] for regime, along in kept["margin_averages"].items()
        }
        ours = {regime: f"{along[-1]:+.1f} at weight 1, at best {max(along):+.1f}" for regime, along in change.items()}
        yield Claim("separated classes: the margin helps", ours["separated"], max(change["separated"]) > 0.5)
        crowded = "crowded_authors" if "crowded_authors" in change else "crowded"
        hurts = max(change[crowded]) < 0.5 and change[crowded][-1] < 0
        yield Claim("overlapping classes: the margin saturates, then hurts", ours[crowded], hurts)


def _toy(kept: Mapping[str, Any]) -> PaperToy:
    rows = {(row["regime"], row["method"]): row for row in kept["summary"] if row["steps"] == FIRST}

    def best(regime: str, name: str) -> float:
        gains = np.array([row[name] for (of, method), row in rows.items() if of == regime and method != "energy"])
        plain = np.array(rows[regime, "energy"][name])
        return (
            float(100 * (gains - plain)[..., :FIRST].max()) if name == "by_step" else float(100 * (gains - plain).max())
        )

    crowded = 100 * rows["crowded", "energy"]["avg_auroc"]
    return PaperToy(kept["gap"], best("separated", "by_step"), crowded, best("crowded", "avg_auroc"))
