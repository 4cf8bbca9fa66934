"""How fast frozen features are extracted, against a bare forward loop. One thread, one run.

    python benchmarks/features.py [--images 1024] [--rounds 3]

EfficientNet-Lite0 at 96 pixels on generated 32-pixel images. Extraction is everything from bytes to a finished file in
the cache; the bare loops only call the network, in channels_last, on tensors that are ready, in batches of 128. Each is
measured in a process of its own, because extraction changes how the C library keeps memory. They take turns, so that
whatever else the machine does meets all of them. Times are CPU seconds.
"""

from __future__ import annotations

import argparse
import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context

import numpy as np
import torch

from tood import models
from tood.models import Network
from tood.streams import ArraySource, Stream
from tood.streams.features import Extractor


def bare(network: Network, images: torch.Tensor) -> None:
    """The network on batch after batch, and nothing else."""
    with torch.inference_mode():
        for batch in images.split(128):
            network.features(batch)


def measure(name: str, images: int) -> float:
    """CPU seconds of one variant."""
    torch.set_num_threads(1)
    pictures = np.random.default_rng(0).integers(0, 256, (images, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(images) % 2
    stream = Stream.from_arrays(pictures, labels, pictures[:2], labels[:2], tasks=1)
    network = models.create("efficientnet_lite0", (32, 32, 3)).eval().to(memory_format=torch.channels_last)
    fused = network.fused()
    tensors = torch.from_numpy(pictures).permute(0, 3, 1, 2).float().to(memory_format=torch.channels_last)
    bare(fused, tensors[:128])
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        if name == "extraction":
            Extractor(network, stream, folder).features(ArraySource(pictures), "benchmark")
        else:
            bare(fused if "folded" in name else network, tensors)
        return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    times = dict.fromkeys(("extraction", "bare loop", "bare loop, normalisation folded"), 0.0)
    for _, name in product(range(arguments.rounds), times):
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            times[name] += process.submit(measure, name, arguments.images).result()
    for name, spent in times.items():
        print(f"{name:<32} {arguments.images * arguments.rounds / spent:6.0f} images per CPU second")
    for name in list(times)[1:]:
        print(f"extraction over {name}: {times[name] / times['extraction']:.2f}")


if __name__ == "__main__":
    main()
