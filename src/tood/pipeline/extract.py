"""Outputs of a step: every image it needs is forwarded exactly once, through the fused network."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tood.arrays import FloatArray, IntArray
from tood.detectors import Outputs
from tood.errors import ToodError
from tood.pipeline.config import RunConfig
from tood.streams import Source, Stream

if TYPE_CHECKING:
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
    """

    def __init__(self, fit: IntArray, calibration: dict[str, IntArray]) -> None:
        self.fit = fit
        self.calibration = calibration

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
    if config.calibration not in calibration:
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
    return StepRows(fit, calibration)


def draw_by_class(rows: IntArray, stream: Stream, size: int, seed: int) -> IntArray:
    """At most ``size`` rows of each class, at random, ascending. A class's draw does not depend on the others."""
    labels = stream.train.labels[rows]
    drawn = [
        np.random.default_rng([seed, 7, int(c)]).permutation(np.sort(rows[labels == c]))[:size]
        for c in np.unique(labels)
    ]
    return np.sort(np.concatenate(drawn))


def extract(network: Network, stream: Stream, step: int, rows: StepRows) -> dict[str, Any]:
    """The sets of one step, as :func:`tood.pipeline.write_step` wants them."""
    fused = network.fused()
    union = rows.union()
    logits, features = forward(fused, stream, stream.train, union)
    columns = stream.columns(stream.train.labels[union])

    def part(chosen: IntArray) -> Outputs:
        places = np.searchsorted(union, chosen)
        return Outputs(logits=logits[places], features=features[places], labels=columns[places])

    test_rows = np.concatenate([stream.test_rows(task) for task in range(step + 1)])
    test_logits, test_features = forward(fused, stream, stream.test, test_rows)
    ood = {}
    for ood_set in stream.ood:
        ood_logits, ood_features = forward(fused, stream, ood_set.source, np.arange(len(ood_set.source)))
        ood[ood_set.name] = Outputs(logits=ood_logits, features=ood_features)
    weight, bias = network.effective_head()
    return {
        "test": Outputs(
            logits=test_logits, features=test_features, labels=stream.columns(stream.test.labels[test_rows])
        ),
        "fit": part(rows.fit),
        "calibrations": {source: part(chosen) for source, chosen in rows.calibration.items()},
        "ood": ood,
        "head": {"weight": weight.cpu().numpy(), "bias": bias.cpu().numpy()},
    }


def forward(network: Network, stream: Stream, source: Source, rows: IntArray) -> tuple[FloatArray, FloatArray]:
    """Logits ``[n, C]`` and features ``[n, D]`` of some rows of a source."""
    import torch

    from tood.streams.augment import prepare

    device = network.head.weight.device
    logits, features = [], []
    with torch.inference_mode():
        for start in range(0, len(rows), BATCH):
            batch = prepare(source.take(rows[start : start + BATCH]), stream.mean, stream.std, device)
            z = network.features(batch)
            features.append(z.float().cpu().numpy())
            logits.append(network.head(z).float().cpu().numpy())
    return np.concatenate(logits), np.concatenate(features)


def predictions(learner: Any, test: Outputs) -> IntArray | None:
    """What the learner answers where that is not the largest logit (iCaRL's nearest class mean), else None."""
    answered: IntArray = np.asarray(learner.predict(test.features, test.logits))
    return None if (answered == np.asarray(test.logits).argmax(axis=1)).all() else answered


def with_source(sets: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The sets with one calibration source put in use, and the others beside it."""
    others = {name: given for name, given in sets["calibrations"].items() if name != source}
    return {**sets, "calibration": sets["calibrations"][source], "calibrations": others}
