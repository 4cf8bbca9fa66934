"""Claim: the score chosen by unlabelled traffic is hardly ever worse than the default, and better if it can be known.

    python benchmarks/choose.py OUT [--repeats N] [--page FILE]

reads the last step of some runs of regimes_data.py. Known samples and traffic are drawn from the test set with
replacement, so that they are exchangeable, and a share of the traffic from the OOD sets. Candidates: TOOD (the
default), mean shift, robust anchor and energy. Per share, rows of traffic and class mix: how often
another score is picked, how often one whose true AUROC is more than 0.2 points lower, and the mean gain in AUROC over
the default (percent). "Another mix": each class of the traffic is up to three times as frequent or as rare.
"""

from __future__ import annotations

import argparse
import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from regimes import RULES, fill, step_sets, table
from tood.choose import choose

SHARES = (0.0, 0.01, 0.03, 0.1, 0.3)
ROWS = (500, 5_000, 50_000)
KNOWN = 2000
WORSE = 0.002
CANDIDATES = {"tood": "background", **{n.replace(" ", "_"): n for n in ("energy", "mean shift", "robust anchor")}}
RUNS = {  # none of these was used to decide when a score is replaced
    "clinc150-15-h256-finetune-e40-s2": "text, no replay",
    "cifar100-10-efficientnet_lite0-h512-wa-s0": "CIFAR-100, WA",
    "cifar10-5-efficientnet_lite0-h512-der-s0": "CIFAR-10, DER",
    "digits-4-h512-wa-s0": "digits, WA",
}


class Population:
    """Scores of every candidate on the test set and on all OOD sets together."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as arrays:
            step = max(int(name.partition("/")[0]) for name in arrays.files if name.endswith("/test_tasks"))
            sets = step_sets(arrays, str(step), "train")
            logits = [arrays[f"last/{name}/logits"] for name in ("test", *(f"ood{i}" for i in range(len(sets.groups))))]
            self.labels = arrays[f"{step}/test_labels"].astype(np.int64)
        predicted = np.concatenate([x.argmax(axis=1) for x in logits])
        cut = [len(self.labels)]
        self.scores = {name: np.split(RULES[rule](sets, sets.energies), cut) for name, rule in CANDIDATES.items()}
        self.predicted = np.split(predicted, cut)
        self.below = {name: _share_below(*pair) for name, pair in self.scores.items()}

    def truth(self, weights: Any) -> dict[str, float]:
        """AUROC of known traffic against unknown inputs, with the class mix of the traffic."""
        return {name: float(weights @ below) for name, below in self.below.items()}

    def trial(self, share: float, rows: int, weights: Any, rng: Any) -> str:
        """The name chosen with one draw."""
        m, u = self.predicted
        unknown = rng.integers(0, len(u), rng.binomial(rows, share))
        held, seen = rng.integers(0, len(m), KNOWN), rng.choice(len(m), rows - len(unknown), p=weights)
        pairs = {name: (known[held], np.append(known[seen], o[unknown])) for name, (known, o) in self.scores.items()}
        return choose(pairs, classes=(m[held], np.append(m[seen], u[unknown]))).name


def _share_below(known: Any, unknown: Any) -> Any:
    """``[n]``: share of unknown inputs below each known one, ties counted half."""
    ordered = np.sort(unknown)
    return (ordered.searchsorted(known, "left") + ordered.searchsorted(known, "right")) / 2 / len(unknown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of regimes_data.py")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--page", type=Path, help="a Markdown file; its table is replaced")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    rng = np.random.default_rng(0)
    populations = {title: Population(options.out / f"{name}.npz") for name, title in RUNS.items()}
    results = []
    for mix in ("the same", "another"):
        for rows in ROWS:
            for share in SHARES:
                picked = {title: [] for title in populations}
                for title, population in populations.items():
                    for _ in range(max(10, options.repeats // (4 if rows == ROWS[-1] else 1))):
                        counts = np.bincount(population.labels)
                        of_class = np.exp(rng.uniform(-1, 1, len(counts)) * np.log(3)) if mix == "another" else counts
                        weights = (of_class / np.maximum(counts, 1))[population.labels]
                        weights /= weights.sum()
                        truth = population.truth(weights)
                        name = population.trial(share, rows, weights, rng)
                        picked[title].append((name != "tood", truth[name] - truth["tood"]))
                found = np.concatenate([np.array(values) for values in picked.values()])
                gains = [
                    f"{100 * np.mean([gain for _, gain in values]):+.1f}".replace("-", "−")
                    for values in picked.values()
                ]
                changed, worse = found[:, 0].mean(), (found[:, 1] < -WORSE).mean()
                results.append([mix, f"{rows:,}", f"{share:.0%}", f"{changed:.0%}", f"{worse:.1%}", *gains])
                print(*results[-1], sep="  ", flush=True)
    head = ["class mix", "traffic", "unknown", "changed", "to a worse one", *populations]
    lines = table(head, results)
    print("\n".join(lines))
    if options.page:
        fill(options.page, {"choose": lines})


if __name__ == "__main__":
    main()
