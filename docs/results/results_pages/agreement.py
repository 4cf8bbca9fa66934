"""Comparison with the paper's tables: signs of gains, orders of learners, ranks of detectors, claims."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import mean
from typing import NamedTuple

from results_pages.gains import Gains, mean_over_learners
from tood.paper.reference import reported, table_rows
from tood.report.appearance import label
from tood.report.summary import ACCURACY, Key, Summary, ranks
from tood.report.tables import LEARNERS, TOOD_VARIANTS

__all__ = [
    "Claim",
    "Order",
    "Rank",
    "Sign",
    "claims",
    "enough",
    "is_most",
    "learner_orders",
    "reference",
    "signs",
    "tood_ranks",
]

Summaries = Mapping[Key, Summary]
VIT = "timm:vit_base_patch16_224+pretrained"  # the network in sweeps/vit.yaml
STREAMS = ("cifar10", "cifar100")  # the paper counts settings on these
FEATURE_DETECTORS = ("mds", "vim", "nnguide")
FEWEST = 3  # learners or settings needed to judge a claim about most of them or their mean


class Sign(NamedTuple):
    """Gain of a TOOD variant over energy in points of Avg AUROC, in the paper and here."""

    stream: str
    learner: str
    detector: str
    paper: float
    ours: float
    spread: float | None  # the paper's larger deviation over seeds of the two; None with one seed
    own_spread: float  # the same here; 0 with one seed
    seeds: int  # here

    @property
    def significant(self) -> bool:
        """True if the paper's gain exceeds its deviation over seeds."""
        return self.spread is None or abs(self.paper) > self.spread + 1e-9  # the paper rounds to one decimal

    @property
    def agrees(self) -> bool:
        """True if both signs are equal or, if the paper's gain is not significant, ours is within both deviations."""
        if self.significant:
            return self.paper * self.ours > 0
        return abs(self.ours) <= (self.spread or 0.0) + self.own_spread


class Order(NamedTuple):
    """Learners, best first, and the number of pairs in the same order, among pairs that differ in the paper."""

    stream: str
    by: str
    paper: list[str]
    ours: list[str]
    same: int
    pairs: int


class Rank(NamedTuple):
    """Rank of a TOOD variant among ``of`` detectors; 1 is best."""

    stream: str
    learner: str
    detector: str
    paper: int
    ours: int
    of: int


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, its numbers, ours, and whether it holds; None if too little was measured."""

    text: str
    paper: str
    ours: str
    holds: bool | None

    def __post_init__(self) -> None:
        # NumPy's True is not True, and claims are counted by equality with Python's.
        object.__setattr__(self, "holds", None if self.holds is None else bool(self.holds))


def reference() -> dict[Key, Summary]:
    """The paper's tables, including the one of ViT-B/16, with the learner names of our runs."""
    values = reported()
    for row in table_rows("table4_vit.csv"):
        learner = f"{row['method']} (network={VIT})"
        if row[ACCURACY]:
            values[Key(row["stream"], learner, "-", ACCURACY)] = Summary(float(row[ACCURACY]), 0.0, 1)
        for detector in ("energy", "tood_robust_anchor"):
            key = Key(row["stream"], learner, detector, "avg_auroc")
            values[key] = Summary(float(row[f"{detector}_avg_auroc"]), 0.0, 1)
    return values


def signs(ours: Summaries, theirs: Summaries) -> list[Sign]:
    """One sign per stream, learner and variant that both have."""
    compared = []
    for stream, learner in _pairs(ours, theirs):
        for detector in TOOD_VARIANTS:
            after, before = (Key(stream, learner, name, "avg_auroc") for name in (detector, "energy"))
            if all(key in figures for key in (after, before) for figures in (theirs, ours)):
                several = min(theirs[after].seeds, theirs[before].seeds) > 1
                sign = Sign(
                    stream,
                    learner,
                    detector,
                    paper=theirs[after].mean - theirs[before].mean,
                    ours=ours[after].mean - ours[before].mean,
                    spread=max(theirs[after].std, theirs[before].std) if several else None,
                    own_spread=max(ours[after].std, ours[before].std),
                    seeds=ours[after].seeds,
                )
                compared.append(sign)
    return compared


def learner_orders(ours: Summaries, theirs: Summaries) -> list[Order]:
    """Orders by accuracy and by Avg AUROC of energy and both variants, on streams where both have two learners."""
    measures = {"accuracy": ("-", ACCURACY), "energy AUROC": ("energy", "avg_auroc")}
    measures |= {f"{name} AUROC": (name, "avg_auroc") for name in TOOD_VARIANTS}
    orders = []
    for stream in dict.fromkeys(stream for stream, _ in _pairs(ours, theirs)):
        for by, (detector, metric) in measures.items():
            keys = [Key(stream, learner, detector, metric) for of, learner in _pairs(ours, theirs) if of == stream]
            keys = [key for key in keys if key in ours and key in theirs and key.learner in LEARNERS]
            if len(keys) < 2:
                continue
            paper, here = ([k.learner for k in sorted(keys, key=lambda k: -f[k].mean)] for f in (theirs, ours))
            pairs = same = 0
            for a, b in combinations(keys, 2):
                apart = theirs[a].mean - theirs[b].mean
                if abs(apart) > max(theirs[a].std, theirs[b].std) + 1e-9:
                    pairs += 1
                    same += apart * (ours[a].mean - ours[b].mean) > 0
            orders.append(Order(stream, by, paper, here, same, pairs))
    return orders


def tood_ranks(ours: Summaries, theirs: Summaries) -> list[Rank]:
    """Rank of each variant by Avg AUROC among the detectors that both have."""
    compared = []
    for stream, learner in _pairs(ours, theirs):
        keys = {k for k in ours if k[:2] == (stream, learner) and k.metric == "avg_auroc" and k in theirs}
        paper, here = (ranks({key: figures[key] for key in keys}) for figures in (theirs, ours))
        for detector in TOOD_VARIANTS:
            if detector in paper and len(keys) > 3:
                compared.append(Rank(stream, learner, detector, paper[detector][0], here[detector][0], len(keys)))
    return compared


def claims(ours: Summaries, theirs: Summaries, gains: Gains, paired: Summaries | None = None) -> Iterator[Claim]:
    """The paper's claims about its tables, on the learners that both have. A setting is a learner on a stream.

    A claim about a mean gain holds if its interval over seeds (``gains``) is above 0, and is unclear if it contains 0.
    ``paired``: the summaries that compare runs with and without BER, over the same seeds.
    """
    compared = [sign for sign in signs(ours, theirs) if sign.learner in LEARNERS]
    for detector in TOOD_VARIANTS:
        own = [s for s in compared if s.detector == detector and s.stream in STREAMS]
        text = f"{label(detector)} raises Avg AUROC over energy in most settings"
        yield from _most(text, [(s.paper > 0, s.ours > 0) for s in own])
    for stream in dict.fromkeys(sign.stream for sign in compared):
        for detector in TOOD_VARIANTS:
            own = [s for s in compared if (s.stream, s.detector) == (stream, detector)]
            here = mean_over_learners([gains[stream, s.learner, detector] for s in own])
            text = f"{stream}: {label(detector)} raises Avg AUROC over energy, mean of {len(own)} learners"
            holds = None if here.sign is None else enough(own, here.sign > 0)
            yield Claim(text, f"{mean(s.paper for s in own):+.1f}", str(here), holds)
    for detector in TOOD_VARIANTS:
        text = f"{label(detector)} lowers FPR@95 in most settings"
        pairs = _settings(theirs, ours, detector, "avg_fpr95")
        yield from _most(text, [(theirs[a].mean < theirs[b].mean, ours[a].mean < ours[b].mean) for a, b in pairs])
    best: dict[tuple[str, str], tuple[int, int]] = {}
    for r in tood_ranks(ours, theirs):
        if r.learner in LEARNERS and r.stream in STREAMS:
            paper_best, our_best = best.get((r.stream, r.learner), (r.of, r.of))
            best[r.stream, r.learner] = (min(paper_best, r.paper), min(our_best, r.ours))
    text = "a TOOD variant ranks first or second by Avg AUROC in most settings"
    sizes = sorted({r.of for r in tood_ranks(ours, theirs) if r.learner in LEARNERS and r.stream in STREAMS})
    among = f", among {' to '.join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))} detectors" if sizes else ""
    for claim in _most(text, [(there <= 2, here <= 2) for there, here in best.values()]):
        yield replace(claim, ours=claim.ours + among)
    yield from _forgetting(ours)
    yield from _fine_tuning(paired or ours, theirs)


def _forgetting(ours: Summaries) -> Iterator[Claim]:
    """Claims: detectors that read features forget too; TOOD forgets less than energy."""
    positive: dict[str, list[bool]] = {}
    for name in FEATURE_DETECTORS:
        keys = (Key(stream, learner, name, "d_avg") for stream in STREAMS for learner in LEARNERS)
        positive[name] = [ours[key].mean > 0 for key in keys if key in ours]
    every = [above for of in positive.values() for above in of]
    if every:
        text = f"{', '.join(map(label, FEATURE_DETECTORS))} forget as well (D_avg above 0) in most settings"
        counts = ", ".join(f"{label(name)} {sum(of)} of {len(of)}" for name, of in positive.items() if of)
        yield Claim(text, "stated", counts, enough(every, is_most(every)))
    for detector in TOOD_VARIANTS:
        pairs = _settings(ours, ours, detector, "d_avg")
        lower = {after[:2]: ours[after].mean < ours[before].mean for after, before in pairs}
        last = _settings(ours, ours, detector, "old_auroc")
        better = sum(lower[after[:2]] and ours[after].mean > ours[before].mean for after, before in last)
        if lower:
            text = f"{label(detector)} has a lower D_avg than energy in most settings"
            counts = f"{sum(lower.values())} of {len(lower)}; in {better} of them old tasks end above energy's AUROC"
            yield Claim(text, "most", counts, enough(lower, is_most(lower.values())))


def _fine_tuning(ours: Summaries, theirs: Summaries) -> Iterator[Claim]:
    """Claims of Table 2: fine-tuning a head (BER) against calibration after training."""
    wins = []
    for stream, learner in _pairs(ours, theirs):
        base = learner.removesuffix("+ber")
        if base == learner:
            continue
        tuned, plain = (Key(stream, name, "energy", "avg_auroc") for name in (learner, base))
        if all(key in figures for key in (tuned, plain) for figures in (ours, theirs)):
            changes = [figures[tuned].mean - figures[plain].mean for figures in (theirs, ours)]
            text = f"{stream}, {label(base)}: the change of energy's Avg AUROC by BER has the same sign"
            yield Claim(text, f"{changes[0]:+.1f}", f"{changes[1]:+.1f}", changes[0] * changes[1] > 0)
        for metric, sign in (("avg_auroc", 1), ("avg_fpr95", -1)):
            calibrated = [Key(stream, base, name, metric) for name in TOOD_VARIANTS]
            fine_tuned = [Key(stream, learner, name, metric) for name in ("energy", *TOOD_VARIANTS)]
            if all(key in figures for key in calibrated + fine_tuned for figures in (ours, theirs)):
                without, tuned_best = (
                    [max(sign * figures[key].mean for key in keys) for figures in (theirs, ours)]
                    for keys in (calibrated, fine_tuned)
                )
                wins.append((without[0] > tuned_best[0], without[1] > tuned_best[1]))
    text = "TOOD without training is better than every row with BER (Avg AUROC, FPR@95) in most columns"
    yield from _most(text, wins)


def _settings(theirs: Summaries, ours: Summaries, detector: str, metric: str) -> list[tuple[Key, Key]]:
    """Keys of a detector and of energy in every setting that both have."""
    pairs = [
        (Key(stream, learner, detector, metric), Key(stream, learner, "energy", metric))
        for stream in STREAMS
        for learner in LEARNERS
    ]
    return [pair for pair in pairs if all(key in figures for key in pair for figures in (theirs, ours))]


def _most(text: str, settings: Sequence[tuple[bool, bool]]) -> Iterator[Claim]:
    """A claim about most settings, counted in the paper and here; none if there are no settings."""
    if settings:
        there, here = ([setting[side] for setting in settings] for side in (0, 1))
        counts = [f"{sum(of)} of {len(of)}" for of in (there, here)]
        yield Claim(text, counts[0], counts[1], enough(here, is_most(here)))


def is_most(of: Collection[bool]) -> bool:
    """True if more than half are true."""
    return sum(of) > len(of) / 2


def _pairs(ours: Summaries, theirs: Summaries) -> list[tuple[str, str]]:
    """The (stream, learner) pairs that both have, in the paper's order."""
    known = {key[:2] for key in ours}
    return [pair for pair in dict.fromkeys((key.stream, key.learner) for key in theirs) if pair in known]


def enough(of: Sized, holds: bool) -> bool | None:
    """``holds``, or None if there are too few learners or settings to judge."""
    return holds if len(of) >= FEWEST else None
