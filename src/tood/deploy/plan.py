"""Plan a monitor: how many inputs until more unknown ones raise an alarm, for several sizes of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tood.deploy.drift import DriftMonitor
from tood.deploy.martingale import ExchangeabilityTest, lower_bets
from tood.errors import ToodError

__all__ = ["Delay", "plan"]

STEP = 100  # inputs between two looks


class Delay(NamedTuple):
    """Simulated delay of an alarm."""

    reference: int  # samples
    share: float  # of the traffic that is unknown
    median: float | None  # inputs until the alarm; None if half of the streams have none
    alarms: float  # share of the streams that raise one


def plan(
    monitor: DriftMonitor,
    unknown: Any,
    shares: Sequence[float] = (0.01, 0.02, 0.05, 0.1, 0.2),
    sizes: Sequence[int] = (),
    rows: int = 20_000,
    streams: int = 10,
) -> list[Delay]:
    """Simulate how soon a share of unknown inputs raises an alarm, from the scores of one's own samples.

    Parameters
    ----------
    monitor:
        A fitted monitor: its reference stands for known traffic, its ``alpha`` and ``reject`` are used.
    unknown:
        ``[n, C]`` logits of inputs that should be rejected, or what ``monitor.update`` takes.
    shares:
        Shares of unknown inputs in the traffic.
    sizes:
        Sizes of the reference; by default its own, a quarter, and 4 times as many. References and traffic are drawn
        with replacement, so a larger reference is only as varied as the samples given.
    rows:
        Inputs after which a stream is given up.
    streams:
        Simulated streams per size and share.

    Examples
    --------
    >>> from tood import TOOD
    >>> rng = np.random.default_rng(0)
    >>> def draw(rows, signal): return rng.normal(size=(rows, 4)) + signal * np.eye(4)[rng.integers(0, 4, rows)]
    >>> known = draw(1000, 7)
    >>> monitor = DriftMonitor(TOOD([[0, 1], [2, 3]]).fit(known, known.argmax(axis=1))).fit(draw(1000, 7))
    >>> [delay] = plan(monitor, draw(500, 0), shares=[0.2], sizes=[1000], rows=2000)
    >>> delay.alarms, delay.median < 500
    (1.0, True)
    """
    known, strange = monitor.reference, monitor.score(unknown)
    if not len(strange):
        raise ToodError("unknown: expected samples, found none")
    rng, limit = np.random.default_rng(monitor.seed), np.log(2 / monitor.alpha)

    def delay(reference: int, share: float) -> float:
        """Inputs until the alarm of one stream."""
        test = ExchangeabilityTest(rng.choice(known, reference), lower_bets(monitor.reject), rng)
        while test.largest < limit and test.seen < rows:
            is_strange = rng.random(STEP) < share
            test.update(np.where(is_strange, rng.choice(strange, STEP), rng.choice(known, STEP)))
        return test.seen if test.largest >= limit else np.inf

    found = []
    for reference in sizes or (max(len(known) // 4, 1), len(known), 4 * len(known)):
        for share in shares:
            delays = [delay(reference, share) for _ in range(streams)]
            median = float(np.median(delays))
            found.append(
                Delay(reference, share, median if median < np.inf else None, float(np.isfinite(delays).mean()))
            )
    return found
