"""Claim: `variant="auto"` is never much below the best of energy, mean shift and robust anchor, and above on average.

    python benchmarks/auto.py [--toy SEEDS] RUN_OR_PARENT ...

Reads stored outputs only and writes nothing. Avg AUROC in percent, (near + far) / 2 averaged over tasks and steps, then
over the seeds of a stream and learner. "Best" is taken with hindsight, after that average. A run that is still going
counts with the steps it has. `--toy 5` adds the three regimes of the toy on seeds 0 to 4.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path

import numpy as np

from past_tood import ENERGY, Method, calibration, label, measure, table, write_toy
from tood.paper import toy
from tood.runs import Step, find_runs
from tood.runs.directory import Run

PAPER = [ENERGY, Method.of("tood_mean_shift"), Method.of("tood_robust_anchor")]
AUTO = Method.of("tood_auto")
GOAL = -0.3


def averages(run: Run) -> list[float]:
    """Avg AUROC of the three and of auto."""
    steps = [Step(run, index) for index in run.steps()]
    return [measure(run, method, calibration, steps).average for method in [*PAPER, AUTO]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN_OR_PARENT")
    parser.add_argument("--toy", type=int, default=0, metavar="SEEDS", help="add the toy on this many seeds")
    options = parser.parse_args()
    groups: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for regime in toy.REGIMES if options.toy else ():
            for seed in range(options.toy):
                write_toy(Path(folder) / f"toy-{regime}-s{seed}", regime, seed)
        for run in find_runs([*options.runs, *([folder] if options.toy else [])]):
            if run.steps():
                groups.setdefault(label(run), []).append(averages(run))
    means = {name: np.mean(found, axis=0) for name, found in groups.items()}
    over = {name: float(values[3] - values[:3].max()) for name, values in means.items()}
    rows = [[name, len(groups[name]), *map(float, means[name]), f"{over[name]:+.1f}"] for name in sorted(groups)]
    overall = np.mean(list(means.values()), axis=0)
    head = ["regime", "seeds", "energy", "mean shift", "robust anchor", "auto", "auto − best of the three"]
    table(head, [*rows, ["mean", "", *map(float, overall), f"{overall[3] - overall[:3].max():+.1f}"]])
    missed = sorted(name for name, value in over.items() if value < GOAL)
    print(f"More than {-GOAL} below the best: {', '.join(missed) or 'none'} (of {len(over)} regimes).")
    single = [values[3] - max(values[:3]) for found in groups.values() for values in found]
    below = sum(value < GOAL for value in single)
    print(f"Single runs: {below} of {len(single)} more than {-GOAL} below; worst {min(single):+.1f}.")


if __name__ == "__main__":
    main()
