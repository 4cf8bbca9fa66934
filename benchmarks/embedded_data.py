"""Make the data inside the package: features for the demo, and logits for ``tood.example()``.

    TOOD_DATA=FOLDER python benchmarks/embedded_data.py CACHE

Features: CIFAR-10 (300 training and 100 test images per class), 500 images of CIFAR-100 (near) and 500 of the
Describable Textures Dataset (far), as the frozen EfficientNet-Lite0 sees them: their coordinates on the first 96
principal axes of 1,000 ImageNet images, which no stream holds, in 8 bits. Logits: DER trained on these in five tasks,
of every step, in half precision.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from tood import learners, models, streams
from tood.outputs.sampling import draw_by_class
from tood.runs.extract import forward
from tood.streams import Stream
from tood.streams.catalog import data_root
from tood.streams.features import Extractor
from tood.streams.packed import PackedSource
from tood.streams.sources import ArraySource

PACKAGE = Path(__file__).parents[1] / "src/tood/streams"
COMPONENTS, TRAIN, TEST, UNKNOWN, CALIBRATION = 96, 300, 100, 500, 20


def main() -> None:
    cache = Path(sys.argv[1])
    whole, rng = streams.load("cifar10", ood=["cifar100", "textures"]), np.random.default_rng(0)
    near, far = (next(s.source for s in whole.ood if s.name == name) for name in ("cifar100", "textures"))
    imagenet = PackedSource(Path(data_root(None)) / "imagenet64-sample.npz", size=32)
    network = models.create("efficientnet_lite0", whole.train.shape)
    extractor = Extractor(network, whole, cache)

    def features(source: Any, rows: Any) -> Any:
        return extractor.features(ArraySource(source.take(rows), source.labels[rows]), "images", print)

    def per_class(source: Any, count: int) -> Any:
        return draw_by_class(np.arange(len(source)), source.labels, count, rng)

    known = {"train": (whole.train, per_class(whole.train, TRAIN)), "test": (whole.test, per_class(whole.test, TEST))}
    unknown = {name: np.sort(rng.permutation(len(s))[:UNKNOWN]) for name, s in (("near", near), ("far", far))}
    basis = np.float64(features(imagenet, np.arange(len(imagenet))))
    centre = basis.mean(axis=0)
    axes = np.linalg.svd(basis - centre, full_matrices=False)[2][:COMPONENTS].T
    unit = 3.5 * ((basis - centre) @ axes).std(axis=0) / 127  # of each component, as 127 steps

    def rounded(values: Any) -> Any:
        return np.clip(np.rint((np.float64(values) - centre) @ axes / unit), -127, 127).astype(np.int8)

    arrays = {"unit": np.float32(unit)}
    for name, (source, rows) in known.items():
        arrays |= {name: rounded(features(source, rows)), f"{name}_labels": np.int8(source.labels[rows])}
    for name, source in (("near", near), ("far", far)):
        arrays[name] = rounded(features(source, unknown[name]))
    np.savez_compressed(PACKAGE / "cifar10_components.npz", **arrays)
    example(streams.load("cifar10_components"))


def example(stream: Stream) -> None:
    """Logits of DER after every task."""
    settings = learners.preset("cpu", "cifar10_components", "der")
    learner = learners.create("der", stream=stream, device="cpu", **settings)
    arrays: dict[str, Any] = {}
    for step in range(len(stream)):
        learner.learn(step)
        seen = np.concatenate([stream.train_rows(task) for task in range(step + 1)])
        chosen = np.sort(draw_by_class(seen, stream.train.labels[seen], CALIBRATION, (0,)))
        test = np.concatenate([stream.test_rows(task) for task in range(step + 1)])
        sets = {"calibration": (stream.train, chosen), "test": (stream.test, test)}
        sets |= {s.group: (s.source, np.arange(len(s.source))) for s in stream.ood}
        for name, (source, rows) in sets.items():
            arrays[f"{name}.{step}"] = np.float16(forward(learner.network, stream, source, rows)["logits"])
            if name in ("calibration", "test"):
                arrays[f"{name}.{step}.labels"] = np.int8(stream.columns(source.labels[rows]))
    np.savez_compressed(PACKAGE.parent / "example.npz", **arrays)


if __name__ == "__main__":
    main()
