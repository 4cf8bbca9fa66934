"""Where our figures agree with the paper's: signs, orders and ranks, from the summaries of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from itertools import combinations
from typing import NamedTuple

from tood.report.summary import ACCURACY, Key, Summary, paper, paper_rows, ranks
from tood.report.tables import LEARNERS, TOOD_VARIANTS

__all__ = ["Claim", "Order", "Rank", "Sign", "claims", "learner_orders", "reference", "signs", "tood_ranks"]

Summaries = Mapping[Key, Summary]
VIT = "timm:vit_base_patch16_224+pretrained"  # as sweeps/vit.yaml has it
FEWEST = 3  # learners, below which a claim about most of them, or their mean, shows nothing


class Sign(NamedTuple):
    """TOOD minus energy, Avg AUROC in points, by the paper and by us."""

    stream: str
    learner: str
    detector: str
    paper: float
    ours: float
    spread: float  # the larger of the deviations over seeds that the paper gives the two
    own_spread: float  # the same of ours
    seeds: int  # ours

    @property
    def agrees(self) -> bool:
        """Same sign."""
        return self.paper * self.ours > 0

    @property
    def told(self) -> bool:
        """The paper's difference is more than its seeds differ among themselves: there is a sign to reproduce."""
        return abs(self.paper) > self.spread + 1e-9  # figures of one decimal


class Order(NamedTuple):
    """Learners, best first; of the pairs that the paper's seeds tell apart, how many stand the same way round."""

    stream: str
    by: str
    paper: list[str]
    ours: list[str]
    same: int
    pairs: int


class Rank(NamedTuple):
    """The place of a TOOD variant among ``of`` detectors, 1 for the best."""

    stream: str
    learner: str
    detector: str
    paper: int
    ours: int
    of: int


class Claim(NamedTuple):
    """A claim in words, the paper's figures and ours, and whether it holds; None where too little was measured."""

    text: str
    paper: str
    ours: str
    holds: bool | None


def reference() -> dict[Key, Summary]:
    """The paper's tables, the one of ViT-B/16 among them, under the names that our runs have."""
    found = paper()
    for row in paper_rows("table4_vit.csv"):
        learner = f"{row['method']} (network={VIT})"
        if row[ACCURACY]:
            found[Key(row["stream"], learner, "-", ACCURACY)] = Summary(float(row[ACCURACY]), 0.0, 1)
        for detector in ("energy", "tood_robust_anchor"):
            key = Key(row["stream"], learner, detector, "avg_auroc")
            found[key] = Summary(float(row[f"{detector}_avg_auroc"]), 0.0, 1)
    return found


def signs(ours: Summaries, theirs: Summaries) -> list[Sign]:
    """Of every (stream, learner, variant) that both have."""
    found = []
    for stream, learner in _pairs(ours, theirs):
        for detector in TOOD_VARIANTS:
            after, before = (Key(stream, learner, name, "avg_auroc") for name in (detector, "energy"))
            if all(key in figures for key in (after, before) for figures in (theirs, ours)):
                gain, own = (figures[after].mean - figures[before].mean for figures in (theirs, ours))
                spread, own_spread = (max(figures[after].std, figures[before].std) for figures in (theirs, ours))
                found.append(Sign(stream, learner, detector, gain, own, spread, own_spread, ours[after].seeds))
    return found


def learner_orders(ours: Summaries, theirs: Summaries) -> list[Order]:
    """By accuracy and by Avg AUROC of energy and of both variants, where both have two learners or more."""
    measures = {"accuracy": ("-", ACCURACY), "energy AUROC": ("energy", "avg_auroc")}
    measures |= {f"{name} AUROC": (name, "avg_auroc") for name in TOOD_VARIANTS}
    found = []
    for stream in dict.fromkeys(stream for stream, _ in _pairs(ours, theirs)):
        for by, (detector, metric) in measures.items():
            keys = [Key(stream, learner, detector, metric) for of, learner in _pairs(ours, theirs) if of == stream]
            keys = [key for key in keys if key in ours and key in theirs and key.learner in LEARNERS]
            if len(keys) < 2:
                continue
            orders = [[k.learner for k in sorted(keys, key=lambda k: -f[k].mean)] for f in (theirs, ours)]
            apart = {(a, b): theirs[a].mean - theirs[b].mean for a, b in combinations(keys, 2)}
            pairs = [(a, b) for (a, b), by in apart.items() if abs(by) > max(theirs[a].std, theirs[b].std)]
            same = sum(apart[a, b] * (ours[a].mean - ours[b].mean) > 0 for a, b in pairs)
            found.append(Order(stream, by, orders[0], orders[1], same, len(pairs)))
    return found


def tood_ranks(ours: Summaries, theirs: Summaries) -> list[Rank]:
    """The rank of each variant by Avg AUROC among the detectors that both have."""
    found = []
    for stream, learner in _pairs(ours, theirs):
        keys = {k for k in ours if k[:2] == (stream, learner) and k.metric == "avg_auroc" and k in theirs}
        places = [ranks({key: figures[key] for key in keys}) for figures in (theirs, ours)]
        for detector in TOOD_VARIANTS:
            if detector in places[0] and len(keys) > 3:
                found.append(Rank(stream, learner, detector, places[0][detector][0], places[1][detector][0], len(keys)))
    return found


def claims(ours: Summaries, theirs: Summaries) -> Iterator[Claim]:
    """What the paper says of its tables, checked on the learners that both have."""
    compared, places = signs(ours, theirs), tood_ranks(ours, theirs)
    for stream in dict.fromkeys(sign.stream for sign in compared):
        for detector in TOOD_VARIANTS:
            own = [s for s in compared if (s.stream, s.detector) == (stream, detector) and s.learner in LEARNERS]
            if own:
                means = [sum(values) / len(own) for values in zip(*((s.paper, s.ours) for s in own), strict=True)]
                text = f"{stream}: {detector} raises Avg AUROC over energy, mean of {len(own)} of the paper's learners"
                yield Claim(text, f"{means[0]:+.1f}", f"{means[1]:+.1f}", _enough(own, means[1] > 0))
        ranked = [r for r in places if r.stream == stream and r.learner in LEARNERS]
        top, here = {r.learner for r in ranked if r.paper <= 2}, {r.learner for r in ranked if r.ours <= 2}
        learners = {r.learner for r in ranked}
        count = len(learners)
        if len(top) > count / 2:  # what the paper's own table says of these learners
            text = f"{stream}: a TOOD variant ranks first or second for most learners"
            holds = _enough(learners, len(here) > count / 2)
            yield Claim(text, f"{len(top)} of {count}", f"{len(here)} of {count}", holds)
    yield from _forgetting(ours)
    yield from _fine_tuning(ours, theirs)


def _forgetting(ours: Summaries) -> Iterator[Claim]:
    """TOOD lowers D_avg, of the paper's learners."""
    for stream in dict.fromkeys(key.stream for key in ours):
        for detector in TOOD_VARIANTS:
            pairs = [[Key(stream, learner, name, "d_avg") for name in (detector, "energy")] for learner in LEARNERS]
            pairs = [pair for pair in pairs if all(key in ours for key in pair)]
            lower = sum(ours[after].mean < ours[before].mean for after, before in pairs)
            if pairs:
                text = f"{stream}: {detector} forgets less than energy (lower D_avg) for most learners"
                yield Claim(text, "most", f"{lower} of {len(pairs)}", _enough(pairs, lower > len(pairs) / 2))


def _fine_tuning(ours: Summaries, theirs: Summaries) -> Iterator[Claim]:
    """Table 2: fine-tuning a head (BER) against calibrating after training."""
    for stream, learner in _pairs(ours, theirs):
        if not learner.endswith("+ber"):
            continue
        base = learner.removesuffix("+ber")
        tuned, plain = Key(stream, learner, "energy", "avg_auroc"), Key(stream, base, "tood_robust_anchor", "avg_auroc")
        if all(key in figures for key in (tuned, plain) for figures in (ours, theirs)):
            differences = [figures[plain].mean - figures[tuned].mean for figures in (theirs, ours)]
            text = f"{stream}, {base}: TOOD without training minus energy with BER, same sign"
            holds = differences[0] * differences[1] > 0
            yield Claim(text, f"{differences[0]:+.1f}", f"{differences[1]:+.1f}", holds)


def _pairs(ours: Summaries, theirs: Summaries) -> list[tuple[str, str]]:
    """The (stream, learner) pairs that both have, in the paper's order."""
    known = {key[:2] for key in ours}
    return [pair for pair in dict.fromkeys((key.stream, key.learner) for key in theirs) if pair in known]


def _enough(learners: Sized, holds: bool) -> bool | None:
    """Whether a claim about learners holds; None where they are too few."""
    return holds if len(learners) >= FEWEST else None
