"""Claim: evaluating a step with every detector costs little more than forwarding its images once.

    python benchmarks/evaluation.py            # a twentieth of the images of CIFAR-10's last step
    python benchmarks/evaluation.py --share 1

Compared in one run, one thread, ResNet-32: the bare forward pass over the fit, test and OOD images of one step; our
whole evaluation of that step (extract, write, score with every detector that does not run the network again, all
metrics); and the same figures one detector at a time, forwarding its sets anew for each as OpenOOD does: that is
measured for every eighth detector and scaled to all. Images are random, of CIFAR's shape and number: the cost does not
depend on what they show. Times are processor time.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from tood import detectors, models
from tood.detectors import Head, Outputs
from tood.evaluation import default_scorers, measure
from tood.evaluation.measure import measure_step
from tood.metrics import evaluate_tasks
from tood.outputs import Run, Step, write_manifest, write_step
from tood.runs.config import RunConfig
from tood.runs.extract import extract, forward, step_rows
from tood.streams import ArraySource, OODSet, Stream

OOD = {"cifar100": 10_000, "tinyimagenet": 5_000, "mnist": 5_000, "svhn": 5_000, "textures": 1_200, "places": 5_000}
EVERY = 8  # one detector at a time takes many forward passes
CONFIG = RunConfig(stream="cifar10", preset="cpu", track="all")


def random_stream(share: float) -> Stream:
    rng = np.random.default_rng(0)

    def images(count: int) -> ArraySource:
        count = max(10, int(count * share)) // 10 * 10
        return ArraySource(rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), np.arange(count) % 10)

    return Stream(
        name="random",
        train=images(50_000),
        test=images(10_000),
        order=tuple(range(10)),
        sizes=(2,) * 5,
        classes=tuple(map(str, range(10))),
        ood=tuple(OODSet(name, "far", images(count)) for name, count in OOD.items()),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        augmentation="none",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.05, help="of the images of CIFAR-10's last step")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    stream = random_stream(arguments.share)
    network = models.create("resnet32", shape=(32, 32, 3), columns=10, seed=0)
    memory = np.concatenate([stream.train_rows(task)[:: max(1, int(20 * arguments.share))][:100] for task in range(4)])
    rows = step_rows(CONFIG, stream, 4, memory)
    last = np.concatenate([stream.test_rows(task) for task in range(5)])
    sets = [(stream.train, rows.union()), (stream.test, last)]
    sets += [(s.source, np.arange(len(s.source))) for s in stream.ood]

    def bare() -> None:
        fused = network.fused()
        for source, chosen in sets:
            forward(fused, stream, source, chosen)

    def ours(folder: Path) -> list[str]:
        write_manifest(folder, tasks=stream.partition, far=list(OOD))
        write_step(folder, 4, **extract(network, stream, 4, rows, "all"))
        run = Run(folder)
        scorers, _ = default_scorers(run)
        measure_step(Step(run, 4), scorers, keep=True)
        return [scorer.detector for scorer in scorers]

    def one_at_a_time(names: list[str]) -> None:
        fused, (weight, bias) = network.fused(), network.effective_head()
        head = Head(weight=weight.numpy(), bias=bias.numpy())
        labels = stream.columns(stream.test.labels[last])
        for name in names:
            detector = detectors.create(name)
            fit = None if detector.fits_on == "none" else rows.calibration["all"]
            outputs = None
            if fit is not None:
                labelled = forward(fused, stream, stream.train, fit)
                outputs = Outputs(**labelled, labels=stream.columns(stream.train.labels[fit]))
            detector.fit(outputs, partition=stream.partition, head=head)
            known = detector.score(Outputs(**forward(fused, stream, stream.test, last)))
            for s in stream.ood:
                unknown = detector.score(Outputs(**forward(fused, stream, s.source, np.arange(len(s.source)))))
                evaluate_tasks(known, labels // 2, unknown)

    bare()  # warm up
    with tempfile.TemporaryDirectory() as parent:
        seconds = {"bare": np.inf, "ours": np.inf}
        for turn in range(2):
            start = time.process_time()
            bare()
            middle = time.process_time()
            names = ours(Path(parent) / str(turn))
            seconds["ours"] = min(seconds["ours"], time.process_time() - middle)
            seconds["bare"] = min(seconds["bare"], middle - start)
        start = time.process_time()
        one_at_a_time(names[::EVERY])
        each = (time.process_time() - start) * len(names) / len(names[::EVERY])
        images = sum(len(chosen) for _, chosen in sets)
        print(f"{images} images, {len(names)} detectors, ResNet-32, one thread")
        print(f"everything at once: {seconds['ours'] / seconds['bare']:.2f} x the bare forward pass")
        print(f"a detector at a time, forwarding again: {each / seconds['bare']:.1f} x")
        again = Run(Path(parent) / "0")
        start = time.process_time()
        measure(again, [s for s in default_scorers(again)[0] if s.detector.startswith("tood")])
        print(f"re-scoring it with TOOD: {(time.process_time() - start) / seconds['bare']:.3f} x, no images")


if __name__ == "__main__":
    main()
