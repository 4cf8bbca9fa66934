"""Gains of TOOD over energy per seed, with intervals; for BiC on corrected and on raw logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tood.paper.collect import Collected
from tood.report.appearance import label
from tood.report.summary import RAW_LOGITS, learner_label, run_figures
from tood.report.tables import LEARNERS, TOOD_VARIANTS

__all__ = ["Mean", "both_protocols", "mean_over_learners", "seed_gains"]

RAW = f" ({RAW_LOGITS})"  # BiC before its bias correction, as scored by the authors of the paper
Gains = Mapping[tuple[str, str, str], Sequence[float]]


class Mean(NamedTuple):
    """A mean over learners and its 95 % interval over seeds; the interval is NaN if no learner has two seeds."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int | None:
        """1 or -1; None if the interval contains 0 or there is none."""
        return 1 if self.low > 0 else -1 if self.high < 0 else None

    def __str__(self) -> str:
        interval = f"{self.low:+.1f} to {self.high:+.1f}" if np.isfinite(self.low) else "no interval: one seed each"
        return f"{self.value:+.1f} ({interval})"


def seed_gains(collected: Iterable[Collected]) -> dict[tuple[str, str, str], list[float]]:
    """Avg AUROC of each variant minus Avg AUROC of energy, per seed, by stream, learner and variant.

    Gains on raw logits are listed under ``"bic (raw logits)"``.
    """
    gains: dict[tuple[str, str, str], list[float]] = {}
    for one in collected:
        figures = run_figures(one.table, one.run.calibration)
        for suffix in ("", RAW):
            for variant in TOOD_VARIANTS:
                after, before = (figures.get((name + suffix, "avg_auroc")) for name in (variant, "energy"))
                if after is not None and before is not None:
                    key = (one.run.stream, learner_label(one.run) + suffix, variant)
                    gains.setdefault(key, []).append(after - before)
    return gains


def mean_over_learners(gains: Sequence[Sequence[float]]) -> Mean:
    """The mean over learners of the mean over seeds.

    Its interval is Student's, from the deviation over seeds pooled over the learners that have several.
    """
    from scipy import stats

    value = float(np.mean([np.mean(of) for of in gains]))
    freedom = sum(len(of) - 1 for of in gains)
    if freedom == 0:
        return Mean(value, float("nan"), float("nan"))
    variance = sum(((np.asarray(of) - np.mean(of)) ** 2).sum() for of in gains) / freedom
    error = np.sqrt(variance * sum(1 / len(of) for of in gains)) / len(gains)
    reach = float(stats.t.ppf(0.975, freedom) * error)
    return Mean(value, value - reach, value + reach)


def both_protocols(gains: Gains, paper: Mapping[tuple[str, str, str], float]) -> Iterator[tuple[str, ...]]:
    """Rows: stream, variant, BiC's logits, the gain with each learner, the mean with its interval, the paper's mean."""
    for stream in dict.fromkeys(stream for stream, _, _ in gains):
        for variant in TOOD_VARIANTS:
            for logits, suffix in (("corrected", ""), ("raw", RAW)):
                keys = {learner: (stream, learner + suffix * (learner == "bic"), variant) for learner in LEARNERS}
                known = {learner: gains[key] for learner, key in keys.items() if key in gains}
                if "bic" not in known or len(known) < 2:
                    continue
                cells = (f"{np.mean(known[of]):+.1f} ({len(known[of])})" if of in known else "" for of in LEARNERS)
                theirs = [paper[stream, learner, variant] for learner in known if (stream, learner, variant) in paper]
                paper_mean = f"{np.mean(theirs):+.1f}" if theirs else ""
                our_mean = str(mean_over_learners(list(known.values())))
                yield (stream, label(variant), logits, *cells, our_mean, paper_mean)
