"""Claim: scoring costs about one log-sum-exp over the logits, however many tasks there are.

    python benchmarks/scoring.py

Scores [100_000, 1000] float32 logits with 100 tasks, one thread, and prints the time as a multiple of a plain
log-sum-exp of the same array in the same run; then the extra memory as a share of the input. The variants take turns,
and the least processor time of several rounds counts, so that other load on the machine hurts all alike.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import torch

from tood import TOOD, Partition


def least_seconds(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    least = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.process_time()
            function()
            least[name] = min(least[name], time.process_time() - start)
    return least


def shuffled_unequal(columns: int, tasks: int, rng: np.random.Generator) -> Partition:
    cuts = np.sort(rng.choice(np.arange(1, columns), tasks - 1, replace=False))
    return Partition(np.split(rng.permutation(columns), cuts))


def numpy_logsumexp(x: np.ndarray) -> np.ndarray:
    top = x.max(axis=1, keepdims=True)
    return np.log(np.exp(x - top).sum(axis=1)) + top[:, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((arguments.rows, arguments.columns), dtype=np.float32)
    labels = np.tile(np.arange(arguments.columns), 5)
    logits[np.arange(len(labels)), labels] += 8  # calibration rows, classified as labelled
    tensor = torch.from_numpy(logits)
    partitions = {
        "equal": Partition.from_sizes([arguments.columns // arguments.tasks] * arguments.tasks),
        "unequal shuffled": shuffled_unequal(arguments.columns, arguments.tasks, rng),
    }
    print(f"[{arguments.rows}, {arguments.columns}] float32, {arguments.tasks} tasks, one thread")
    for name, partition in partitions.items():
        cal = TOOD(partition, margin=0.5).fit(logits[: len(labels)], labels)
        seconds = least_seconds(
            {
                "numpy": lambda cal=cal: cal.score(logits),
                "numpy logsumexp": lambda: numpy_logsumexp(logits),
                "torch": lambda cal=cal: cal.score(tensor),
                "torch.logsumexp": lambda: torch.logsumexp(tensor, 1),
            },
            arguments.rounds,
        )
        tracemalloc.start()
        cal.score(logits)
        extra = tracemalloc.get_traced_memory()[1] / logits.nbytes
        tracemalloc.stop()
        print(
            f"{name:>17}: NumPy {seconds['numpy'] / seconds['numpy logsumexp']:.2f} x a NumPy log-sum-exp, "
            f"torch {seconds['torch'] / seconds['torch.logsumexp']:.2f} x torch.logsumexp, "
            f"extra memory {extra:.3f} x the input"
        )


if __name__ == "__main__":
    main()
