"""Claim: decisions per class keep alpha for every class, and one bound for all does not; what it costs.

    python benchmarks/per_class.py DATA/clinc150-minilm.npz

CLINC150 after 6 of 15 tasks (60 intents), as in benchmarks/gate.py. Per split, of the 50 validation and test queries
of an intent 5 fit TOOD, 20 are for decisions, and 25 are judged. The share rejected per intent is the mean over
`--splits`. Its standard error is that of 50 queries, since splits share them.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

import gate
from tood import TOOD
from tood.decision import Conformal

PARTS = ("logits", "labels")
ALPHA, FIT, DECIDE = 0.1, 5, 20
WAYS = {"one bound": {}, "per true task": {"per_task": "true"}, "per class": {"per_class": True}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clinc", type=Path)
    parser.add_argument("--splits", type=int, default=30)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    last = gate.clinc_versions(options.clinc, tasks=15, seed=0, steps=6)[-1]
    logits, labels = (np.concatenate([getattr(last[name], part) for name in ("val", "test")]) for part in PARTS)
    classes, unknown = logits.shape[1], last["oos_test"].logits
    tasks, rng = [range(t, t + 10) for t in range(0, classes, 10)], np.random.default_rng(0)
    shares = {way: np.zeros(classes + 1) for way in WAYS}
    for _ in range(options.splits):
        order = np.array([rng.permutation(np.flatnonzero(labels == c)) for c in range(classes)])
        fit, decide, judged = (part.ravel() for part in np.split(order, [FIT, FIT + DECIDE], axis=1))
        cal = TOOD(tasks).fit(logits[fit], labels[fit])
        for way, settings in WAYS.items():
            conformal = Conformal(cal, **settings).fit(logits[decide], labels[decide])
            rejected = ~conformal.decide(logits[judged], ALPHA).accept
            per_class = rejected.reshape(classes, -1).mean(axis=1)
            shares[way] += np.append(per_class, 1 - conformal.decide(unknown, ALPHA).accept.mean()) / options.splits
    bound = ALPHA + 2 * np.sqrt(ALPHA * (1 - ALPHA) / order.shape[1])
    print(f"| decision | known rejected | worst class | classes above 2α | above {bound:.3f} | unknown rejected |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for way, (*known, lost) in shares.items():
        known = np.array(known)
        above = f"{(known > 2 * ALPHA).sum()} | {(known > bound).sum()}"
        print(f"| {way} | {known.mean():.3f} | {known.max():.3f} | {above} | {lost:.3f} |")


if __name__ == "__main__":
    main()
