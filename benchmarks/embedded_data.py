"""Make the data inside the package: features for the demo, and logits for ``tood.example()``.

    TOOD_DATA=FOLDER python benchmarks/embedded_data.py features CACHE
    tood run --stream cifar10 --learner wa --frozen --reserve 20 --out RUN
    python benchmarks/embedded_data.py example RUN

Features: CIFAR-10 (300 training and 100 test images per class), 500 images of CIFAR-100 (near) and 500 of the
Describable Textures Dataset (far), as the frozen EfficientNet-Lite0 sees them: their coordinates on the first 96
principal axes of 1,000 ImageNet images, which no stream holds, in 8 bits. Logits: WA trained on CIFAR-10 in five
tasks on frozen features, after every task, in half precision.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from tood import models, streams
from tood.outputs.sampling import draw_by_class
from tood.streams.catalog import data_root
from tood.streams.features import Extractor
from tood.streams.packed import PackedSource
from tood.streams.sources import ArraySource

PACKAGE = Path(__file__).parents[1] / "src/tood/streams"
COMPONENTS, TRAIN, TEST, UNKNOWN = 96, 300, 100, 500


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    example(folder) if kind == "example" else features(folder)


def features(cache: Path) -> None:
    """Components of the images, for the demo."""
    whole, rng = streams.load("cifar10", ood=["cifar100", "textures"]), np.random.default_rng(0)
    near, far = (next(s.source for s in whole.ood if s.name == name) for name in ("cifar100", "textures"))
    imagenet = PackedSource(Path(data_root(None)) / "imagenet64-sample.npz", size=32)
    network = models.create("efficientnet_lite0", whole.train.shape)
    extractor = Extractor(network, whole, cache)

    def seen(source: Any, rows: Any) -> Any:
        return extractor.features(ArraySource(source.take(rows), source.labels[rows]), "images", print)

    def per_class(source: Any, count: int) -> Any:
        return draw_by_class(np.arange(len(source)), source.labels, count, rng)

    known = {"train": (whole.train, per_class(whole.train, TRAIN)), "test": (whole.test, per_class(whole.test, TEST))}
    unknown = {name: np.sort(rng.permutation(len(s))[:UNKNOWN]) for name, s in (("near", near), ("far", far))}
    basis = np.float64(seen(imagenet, np.arange(len(imagenet))))
    centre = basis.mean(axis=0)
    axes = np.linalg.svd(basis - centre, full_matrices=False)[2][:COMPONENTS].T
    unit = 3.5 * ((basis - centre) @ axes).std(axis=0) / 127  # of each component, as 127 steps

    def rounded(values: Any) -> Any:
        return np.clip(np.rint((np.float64(values) - centre) @ axes / unit), -127, 127).astype(np.int8)

    arrays = {"unit": np.float32(unit)}
    for name, (source, rows) in known.items():
        arrays |= {name: rounded(seen(source, rows)), f"{name}_labels": np.int8(source.labels[rows])}
    for name, source in (("near", near), ("far", far)):
        arrays[name] = rounded(seen(source, unknown[name]))
    np.savez_compressed(PACKAGE / "cifar10_components.npz", **arrays)


def example(run: Path) -> None:
    """Logits after every task, from the outputs of a run."""
    arrays: dict[str, Any] = {}
    for step in range(5):
        outputs, rng = run / "steps" / f"{step:02d}" / "outputs", np.random.default_rng(0)
        files = {name: np.load(outputs / f"{name}.npz") for name in ("calibration", "test")}
        files |= {"near": np.load(outputs / "ood" / "cifar100.npz"), "far": np.load(outputs / "ood" / "textures.npz")}
        for name, file in files.items():
            rows = np.arange(len(file["logits"]))
            if name == "test":
                rows = draw_by_class(rows, file["labels"], TEST, rng)
            elif name != "calibration":
                rows = rng.permutation(rows)[:UNKNOWN]
            rows = np.sort(rows)
            arrays[f"{name}.{step}"] = np.float16(file["logits"][rows, : 2 * step + 2])
            if "labels" in file.files:
                arrays[f"{name}.{step}.labels"] = np.int8(file["labels"][rows])
    np.savez_compressed(PACKAGE.parent / "example.npz", **arrays)


if __name__ == "__main__":
    main()
