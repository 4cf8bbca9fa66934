"""Claim: BER's head, trained against mixtures of two images, takes high contrast for a sign of the known.

    tood reproduce table2 --preset cpu --seeds 1 --out runs
    python benchmarks/contrast.py runs/cifar10-icarl-cpu-s0 runs/cifar10-icarl+ber-cpu-s0

Of each run after its first task: the median energy of 500 test images of that task whose contrast (each image's
distance from its mean colour) was multiplied by 0.5 to 2, and that of each OOD set as it is. If energy rises with
contrast, digits, white on black, come out as known. Needs the images (TOOD_DATA).
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
from pathlib import Path

import numpy as np
import torch

from tood import energy, streams
from tood.models import Network
from tood.outputs import Run
from tood.streams.augment import prepare

FACTORS = (0.5, 1.0, 1.5, 2.0)
MOST = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    torch.set_num_threads(1)
    for path in parser.parse_args().runs:
        run = Run(path)
        stream = streams.load(run.stream, seed=run.manifest["seed"])
        network = Network.load(run.folder(0) / "model.safetensors").eval()

        def median(inputs: torch.Tensor, network: Network = network) -> float:
            with torch.inference_mode():
                return float(np.median(energy(network(inputs))))

        def some(source: streams.Source, rows: np.ndarray, stream: streams.Stream = stream) -> torch.Tensor:
            return prepare(source.take(rows[:: max(1, len(rows) // MOST)][:MOST]), stream.mean, stream.std)

        images = some(stream.test, stream.test_rows(0))
        mean = images.mean(dim=(2, 3), keepdim=True)
        print(path.name)
        by_factor = (f"x {factor:g}: {median(mean + factor * (images - mean)):.1f}" for factor in FACTORS)
        print("  known, contrast", ", ".join(by_factor))
        for ood_set in stream.ood:
            inputs = some(ood_set.source, np.arange(len(ood_set.source)))
            spread = float(inputs.std(dim=(1, 2, 3)).mean() / images.std(dim=(1, 2, 3)).mean())
            print(f"  {ood_set.name:<13} energy {median(inputs):5.1f}, contrast x {spread:.2f}")


if __name__ == "__main__":
    main()
