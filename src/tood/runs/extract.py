"""Outputs of a step: every image it needs is forwarded exactly once, through the fused network."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tood.arrays import IntArray
from tood.errors import ToodError
from tood.runs.config import RunConfig
from tood.runs.directory import Arrays
from tood.streams import Source, Stream

if TYPE_CHECKING:
    import torch

    from tood.models import Network

__all__ = ["StepRows", "check_sources", "extract", "fingerprint", "forward", "step_rows"]

BATCH = 256


class StepRows:
    """Which rows of the training source a step's sets are made of.

    Attributes
    ----------
    fit:
        What detectors fit on.
    calibration:
        The calibration sets by source; ``reserved`` and ``memory`` only where there are such samples of every class.
    augmented:
        Training samples to be augmented as in training: B shared by the classes seen so far, as the authors of the
        TOOD paper calibrate. Empty where the stream has no augmentation.
    """

    def __init__(self, fit: IntArray, calibration: dict[str, IntArray], augmented: IntArray) -> None:
        self.fit = fit
        self.calibration = calibration
        self.augmented = augmented

    def union(self) -> IntArray:
        """Every row once, ascending."""
        return np.unique(np.concatenate([self.fit, *self.calibration.values()]))


def check_sources(config: RunConfig, stream: Stream, keeps_memory: bool) -> None:
    """Raise, before anything is trained, where calibration or fit ask for samples that there will not be."""
    if config.calibration == "reserved" and not stream.reserve:
        raise ToodError("calibration: 'reserved' needs reserved samples, and none are set aside; give reserve")
    for name in ("calibration", "fit"):
        if getattr(config, name) == "memory" and not keeps_memory:
            raise ToodError(f"{name}: {config.learner} keeps no memory; use another source")


def fingerprint(stream: Stream) -> bytes:
    """What tells the images of one stream from others: their number, a few of each set, how they are normalised."""
    digest = hashlib.sha256(np.asarray([stream.mean, stream.std], dtype=np.float64).tobytes())
    for source in (stream.train, stream.test, *(ood_set.source for ood_set in stream.ood)):
        some = np.linspace(0, len(source) - 1, num=min(8, len(source)), dtype=np.int64)
        digest.update(str(len(source)).encode() + np.ascontiguousarray(source.take(some)).tobytes())
    return digest.digest()


def step_rows(config: RunConfig, stream: Stream, step: int, memory: IntArray) -> StepRows:
    """Choose the rows of one step; the draw depends on the seed alone, so a resumed run chooses the same."""
    seen = np.concatenate([stream.train_rows(task) for task in range(step + 1)])
    size = config.samples_a_class(len(stream.order))
    calibration = {"train": draw_by_class(seen, stream, size, config.seed)}
    classes = {c for task in range(step + 1) for c in stream.task_classes(task)}
    if classes <= set(stream.train.labels[memory].tolist()):
        calibration["memory"] = draw_by_class(memory, stream, size, config.seed)
    if stream.reserve:
        reserved = np.concatenate([stream.reserved_rows(task) for task in range(step + 1)])
        calibration["reserved"] = draw_by_class(reserved, stream, size, config.seed)
    augmented = np.empty(0, np.int64)
    if stream.augmentation != "none":
        augmented = draw_by_class(seen, stream, size * len(stream.order) // len(classes), config.seed)
    if config.calibration not in (*calibration, *(["augmented"] * (len(augmented) > 0))):
        raise ToodError(
            f"calibration: {config.learner} has no {config.calibration!r} samples of every class at step {step}; "
            f"there is {', '.join(calibration)}"
        )
    if config.fit == "memory":
        fit = np.unique(memory)
    else:
        fit = np.union1d(seen if config.fit == "all" else stream.train_rows(step), memory)
    if len(fit) == 0:
        raise ToodError(f"fit: {config.learner} keeps no memory to fit detectors on; use 'current' or 'all'")
    return StepRows(fit, calibration, augmented)


def draw_by_class(rows: IntArray, stream: Stream, size: int, seed: int) -> IntArray:
    """At most ``size`` rows of each class, at random, ascending. A class's draw does not depend on the others."""
    labels = stream.train.labels[rows]
    drawn = [
        np.random.default_rng([seed, 7, int(c)]).permutation(np.sort(rows[labels == c]))[:size]
        for c in np.unique(labels)
    ]
    return np.sort(np.concatenate(drawn))


def extract(network: Network, stream: Stream, step: int, rows: StepRows) -> dict[str, Any]:
    """The sets of one step, as :func:`tood.runs.write_step` wants them."""
    fused = network.fused()
    union = rows.union()
    trained = forward(fused, stream, stream.train, union)

    def part(chosen: IntArray) -> Arrays:
        places = np.searchsorted(union, chosen)
        return {name: array[places] for name, array in trained.items()} | {"labels": _columns(stream.train, chosen)}

    def _columns(source: Source, chosen: IntArray) -> IntArray:
        return stream.columns(source.labels[chosen])

    test_rows = np.concatenate([stream.test_rows(task) for task in range(step + 1)])
    calibrations = {source: part(chosen) for source, chosen in rows.calibration.items()}
    if len(rows.augmented):
        calibrations["augmented"] = forward(fused, stream, stream.train, rows.augmented, augmentation_seed=step)
        calibrations["augmented"]["labels"] = _columns(stream.train, rows.augmented)
    weight, bias = network.effective_head()
    head = {"weight": weight, "bias": bias}
    if network.head.corrected:
        head |= {"raw_weight": network.head.weight, "raw_bias": network.head.bias}
    return {
        "test": forward(fused, stream, stream.test, test_rows) | {"labels": _columns(stream.test, test_rows)},
        "fit": part(rows.fit),
        "calibrations": calibrations,
        "ood": {s.name: forward(fused, stream, s.source, np.arange(len(s.source))) for s in stream.ood},
        "head": {name: tensor.detach().cpu().numpy() for name, tensor in head.items()},
    }


def forward(
    network: Network, stream: Stream, source: Source, rows: IntArray, augmentation_seed: int | None = None
) -> Arrays:
    """Logits ``[n, C]`` and features ``[n, D]`` of some rows of a source; raw logits where the head corrects them.

    With a seed, images are augmented as in training.
    """
    import torch
    from torch.nn.functional import linear

    from tood import models
    from tood.streams.augment import augment, prepare

    head = network.head
    generator = torch.Generator().manual_seed(augmentation_seed or 0)

    def batches() -> Iterator[torch.Tensor]:
        for start in range(0, len(rows), BATCH):
            batch = prepare(source.take(rows[start : start + BATCH]), stream.mean, stream.std, head.weight.device)
            if augmentation_seed is not None:
                batch = augment(batch, stream.augmentation, generator, black=stream.black)
            yield batch

    outputs = models.extract(network, batches())
    arrays = {"logits": outputs.logits, "features": outputs.features}
    if head.corrected:
        raw = (tensor.detach().cpu() for tensor in (head.weight, head.bias))
        arrays["raw_logits"] = linear(torch.from_numpy(outputs.features), *raw).numpy()
    return arrays


def predictions(learner: Any, test: Arrays) -> IntArray | None:
    """What the learner answers where that is not the largest logit (iCaRL's nearest class mean), else None."""
    answered: IntArray = np.asarray(learner.predict(test["features"], test["logits"]))
    return None if (answered == test["logits"].argmax(axis=1)).all() else answered


def with_source(sets: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The sets with one calibration source put in use, and the others beside it."""
    others = {name: given for name, given in sets["calibrations"].items() if name != source}
    return {**sets, "calibration": sets["calibrations"][source], "calibrations": others}
