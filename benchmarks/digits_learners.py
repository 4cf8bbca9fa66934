"""Average incremental accuracy of every learner on the digits stream, one seed, one thread.

    python benchmarks/digits_learners.py [--preset cpu] [--seed 0] [LEARNER ...]

After each task the mean accuracy over the tasks seen so far, then the average of those over the steps.
"""

from __future__ import annotations

import argparse
import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import time

import numpy as np
import torch

from tood import learners, streams
from tood.learners import Learner
from tood.streams import Stream
from tood.streams.augment import prepare


def accuracies(learner: Learner, stream: Stream, step: int) -> list[float]:
    """The accuracy on the test samples of each task up to ``step``."""
    network = learner.network.fused()
    found = []
    for task in range(step + 1):
        rows = stream.test_rows(task)
        with torch.no_grad():
            features = network.features(prepare(stream.test.take(rows), stream.mean, stream.std))
            answers = learner.predict(features, network.head(features))
        found.append(float((answers == stream.columns(stream.test.labels[rows])).mean()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="LEARNER", default=learners.names())
    parser.add_argument("--preset", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    stream = streams.load("digits")
    print(
        "| learner | "
        + " | ".join(f"step {t}" for t in range(len(stream)))
        + " | average | task 0 at the end | CPU s |"
    )
    print("| --- " * (len(stream) + 4) + "|")
    for name in options.names:
        learner = learners.create(name, stream, seed=options.seed, **learners.preset(options.preset, "digits", name))
        spent, steps = 0.0, []
        for task in range(len(stream)):
            start = time.process_time()
            learner.learn(task)
            spent += time.process_time() - start
            steps.append(accuracies(learner, stream, task))
        means = [100 * float(np.mean(found)) for found in steps]
        cells = [f"{value:.1f}" for value in (*means, np.mean(means), 100 * steps[-1][0], spent)]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
