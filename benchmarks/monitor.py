"""Claim: at most alpha of stationary streams ever raise an alarm, for any reference; changes are found soon.

    python benchmarks/monitor.py                       # about a minute on an idle core
    python benchmarks/monitor.py --streams 1000
    python benchmarks/monitor.py --causes              # which cause is named, for nine kinds of traffic
    python benchmarks/monitor.py --stationary --length 5000    # false alarms of whole monitors

Normal numbers, one conformal test martingale per stream. False alarms: the share of stationary streams whose e-value
ever reaches 1 / alpha within `--length` steps. Delays: a monitor of 5 tasks with alpha 0.01, which alarms from
e-value 1000 for a task and 200 for unknowns on; median number of steps after the change, and the share of streams that
alarm within 2,000 steps. The change comes at once or after 2,000 stationary steps. Unknown inputs lie below all known
ones.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
from collections import Counter

import numpy as np

from tood import TOOD
from tood.deploy import DriftMonitor
from tood.deploy.martingale import ExchangeabilityTest, lower_bets, two_sided_bets

BETS = {"drift of the known": two_sided_bets, "more unknowns": lower_bets(0.05)}
WAIT = 2_000


def ever(bets, reference: int, length: int, rng: np.random.Generator) -> float:
    test = ExchangeabilityTest(rng.normal(size=reference), bets, rng)
    test.update(rng.normal(size=length))
    return test.largest


def delay(bets, reference: int, before: int, change, limit: float, rng: np.random.Generator) -> float:
    test = ExchangeabilityTest(rng.normal(size=reference), bets, rng)
    test.update(rng.normal(size=before))
    for step in range(10, WAIT + 1, 10):
        test.update(change(10))
        if test.largest >= np.log(limit):
            return step
    return np.inf


def changes(rng: np.random.Generator):
    for sigma in (0.25, 0.5, 1.0, 2.0):
        yield "drift of the known", f"median by {sigma} σ", 1000, lambda n, s=sigma: rng.normal(size=n) - s
    for factor in (0.5, 2.0):
        yield "drift of the known", f"spread × {factor}", 1000, lambda n, f=factor: f * rng.normal(size=n)
    for share in (0.05, 0.1, 0.2, 0.5):
        unknown = lambda n, s=share: np.where(rng.random(n) < s, -9, rng.normal(size=n))  # noqa: E731
        yield "more unknowns", f"{share:.0%} unknown", 200, unknown


def draw(rng: np.random.Generator, rows: int, signal: float = 7.0, first: float = 0.2) -> np.ndarray:
    """Logits of 5 tasks of 2 classes; a share `first` is of the first task."""
    labels = np.where(rng.random(rows) < first, rng.integers(0, 2, rows), rng.integers(2, 10, rows))
    return signal * np.eye(10)[labels] + rng.normal(size=(rows, 10))


def mixed(share: float, signal: float):
    def traffic(rng: np.random.Generator, rows: int) -> np.ndarray:
        return np.where(rng.random((rows, 1)) < share, draw(rng, rows, signal), draw(rng, rows))

    return traffic


TRAFFIC = {
    "unchanged": draw,
    "known logits × 0.8": lambda rng, n: 0.8 * draw(rng, n),
    "known logits - 1": lambda rng, n: draw(rng, n) - 1,
    "known logits of one task - 1": lambda rng, n: draw(rng, n) - np.r_[1, 1, np.zeros(8)],
    "one task twice as frequent": lambda rng, n: draw(rng, n, first=0.4),
    "10 % all-zero logits": lambda rng, n: np.where(rng.random((n, 1)) < 0.1, 0.0, draw(rng, n)),
    "5 % unknown": mixed(0.05, 0.0),
    "20 % unknown": mixed(0.2, 0.0),
    "20 % unknown, half as strong as known": mixed(0.2, 3.5),
}


def causes(streams: int) -> None:
    """Reference 1,500; 1,000 unchanged inputs, then the traffic up to 400 inputs after the alarm, at most 4,000."""
    rng = np.random.default_rng(0)
    fit = draw(rng, 1000)
    cal = TOOD([[2 * t, 2 * t + 1] for t in range(5)]).fit(fit, fit.argmax(axis=1))
    print("| traffic | no alarm | more unknowns | drift or unknowns | only accepted inputs changed | start |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, traffic in TRAFFIC.items():
        named, starts = Counter(), []
        for seed in range(streams):
            monitor = DriftMonitor(cal, seed=seed).fit(draw(rng, 1500)).update(draw(rng, 1000))
            while not monitor.drift_detected and monitor.report().rows < 4600:
                monitor.update(traffic(rng, 100))
            report = monitor.update(traffic(rng, 400)).report()
            named[report.cause or ("accepted" if report.recalibrate else "none")] += 1
            starts += [report.start] if report.cause else []
        cells = [str(named[cause]) for cause in ("none", "unknowns", "drift or unknowns", "accepted")]
        print(f"| {name} | {' | '.join(cells)} | {np.median(starts) if starts else np.nan:.0f} |", flush=True)


def stationary(streams: int, length: int) -> None:
    """Whole monitors of 5 tasks, each with its own reference of 1,500, on traffic that does not change."""
    rng = np.random.default_rng(0)
    fit = draw(rng, 1000)
    cal = TOOD([[2 * t, 2 * t + 1] for t in range(5)]).fit(fit, fit.argmax(axis=1))
    for alpha in (0.01, 0.05, 0.2):
        monitors = (DriftMonitor(cal, alpha, seed=seed).fit(draw(rng, 1500)) for seed in range(streams))
        alarms = sum(monitor.update(draw(rng, length)).drift_detected for monitor in monitors)
        print(
            f"alpha {alpha}: {alarms} of {streams} stationary streams of {length:,} inputs raise an alarm", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=300)
    parser.add_argument("--length", type=int, default=2_000)
    parser.add_argument("--causes", action="store_true")
    parser.add_argument("--stationary", action="store_true")
    arguments = parser.parse_args()
    if arguments.stationary:
        stationary(arguments.streams, arguments.length)
        return
    if arguments.causes:
        causes(arguments.streams // 10)
        return
    rng = np.random.default_rng(0)
    print(f"Share of {arguments.streams} stationary streams that ever alarm within {arguments.length} steps\n")
    print("| test | reference | alpha 0.01 | alpha 0.05 | alpha 0.20 |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, bets in BETS.items():
        for reference in (20, 100, 500):
            largest = [ever(bets, reference, arguments.length, rng) for _ in range(arguments.streams)]
            shares = [np.mean(np.array(largest) >= np.log(1 / alpha)) for alpha in (0.01, 0.05, 0.2)]
            print(f"| {name} | {reference} | " + " | ".join(f"{share:.3f}" for share in shares) + " |", flush=True)
    print("\nSteps from the change to the alarm: median (share of streams that alarm within 2,000)\n")
    print("| change | reference 100 | reference 1,000 | reference 1,000, after 2,000 inputs |")
    print("| --- | ---: | ---: | ---: |")
    for name, title, limit, change in changes(rng):
        cells = []
        for reference, before in ((100, 0), (1000, 0), (1000, 2000)):
            found = [delay(BETS[name], reference, before, change, limit, rng) for _ in range(arguments.streams // 10)]
            median = np.median(found)
            cells.append(
                f"{median:.0f} ({np.mean(np.isfinite(found)):.2f})"
                if median < np.inf
                else f"none ({np.mean(np.isfinite(found)):.2f})"
            )
        print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
