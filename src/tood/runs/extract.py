"""Outputs of a step: each image passes through the fused network once.

Detectors that need the network (ODIN, AdaScale) are scored here too, while images are available. Their scores are
stored under a hash that includes the weights; later stages read them like the others.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tood.arrays import FloatArray, IntArray, to_numpy
from tood.detectors import Outputs
from tood.errors import ToodError
from tood.evaluation.measure import WHICH
from tood.evaluation.score import FIT, OOD, TEST, Scorer, fit_and_score, keep_scores, kept_scores
from tood.outputs.backbone import write_backbone
from tood.outputs.directory import Arrays, Run
from tood.outputs.sampling import draw_by_class
from tood.outputs.steps import Step, write_step
from tood.registry import naming_errors, source_digest
from tood.runs.config import RunConfig
from tood.storage.files import write_text
from tood.streams import Source, Stream
from tood.streams.augment import prepare
from tood.streams.features import FeatureSource, content

if TYPE_CHECKING:
    from tood.learners import Learner
    from tood.models import Network

__all__ = ["StepRows", "extract", "extract_step", "forward", "score_with_network", "scorers_for", "step_rows"]

BATCH = 256
CALIBRATION_DRAW = 7  # part of the seed, so that calibration draws differ from draws of reserved samples


@dataclass(frozen=True)
class StepRows:
    """Rows of the training source in each set of a step.

    Attributes
    ----------
    calibration:
        What detectors are fitted on, by track; ``memory`` only if every class has samples there. ``paper`` shares B by
        the classes seen so far, as the authors of the TOOD paper do. ``train`` is a draw of training data.
    fit:
        All training data seen, which detectors that are not TOOD are fitted on in the track ``paper``; else empty.
    """

    calibration: dict[str, IntArray]
    fit: IntArray

    def union(self) -> IntArray:
        """Every row once, ascending."""
        return np.unique(np.concatenate([self.fit, *self.calibration.values()]))


@lru_cache(maxsize=1)  # every step of a run asks for it
def fingerprint(stream: Stream) -> bytes:
    """Digest of a stream: all images and labels of each set, and the normalisation."""
    digest = hashlib.sha256(np.asarray([stream.mean, stream.std], dtype=np.float64).tobytes())
    for source in (stream.train, stream.test, *(ood_set.source for ood_set in stream.ood)):
        digest.update((getattr(source, "key", "") or content(source)).encode())  # frozen features have a key
        digest.update(np.asarray(source.labels, dtype=np.int64).tobytes())
    return digest.digest()


def step_rows(config: RunConfig, stream: Stream, step: int, memory: IntArray) -> StepRows:
    """Rows of one step; draws depend on the seed alone, so a resumed run draws the same."""
    seen = np.concatenate([stream.train_rows(task) for task in range(step + 1)])
    size = config.calibration_per_class(len(stream.order))
    classes = {c for task in range(step + 1) for c in stream.task_classes(task)}

    def draw(rows: IntArray, per_class: int) -> IntArray:
        return np.sort(draw_by_class(rows, stream.train.labels[rows], per_class, (config.seed, CALIBRATION_DRAW)))

    calibration = {"train": draw(np.sort(seen), size)}
    if classes <= set(stream.train.labels[memory].tolist()):
        calibration["memory"] = np.unique(memory)
    if stream.reserve:
        reserved = np.concatenate([stream.reserved_rows(task) for task in range(step + 1)])
        calibration["calibration"] = draw(np.sort(reserved), size)
    if "all" in config.track:
        calibration["all"] = np.sort(seen)
    if "paper" in config.track:
        calibration["paper"] = draw(np.sort(seen), size * len(stream.order) // len(classes))
    if config.track[0] not in calibration:
        raise ToodError(f"track: expected samples of every class in the memory of {config.learner} at step {step}")
    return StepRows(calibration, np.sort(seen) if "paper" in config.track else np.empty(0, np.int64))


def extract_step(
    run: Run, index: int, network: Network, stream: Stream, rows: StepRows, calibration: str, learner: Learner
) -> None:
    """Save the network and the outputs of a step, unless stored ones are still valid."""
    folder = run.folder(index)
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode() + to_numpy(tensor).tobytes())
    for array in (rows.fit, *(v for _, v in sorted(rows.calibration.items()))):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(json.dumps([calibration, run.manifest["ood"]]).encode() + fingerprint(stream))
    code = source_digest(type(learner))  # predictions are those of the user's own learner
    key, key_file = f"{digest.hexdigest()} {code}".rstrip(), folder / "outputs.key"
    if (folder / "outputs").is_dir() and key_file.exists() and key_file.read_text() == key:
        return
    key_file.unlink(missing_ok=True)
    network.save(folder / "model.safetensors")
    sets = extract(network, stream, index, rows, calibration)
    if index == 0 and has_backbone(network, stream):
        write_backbone(run.path, backbone_features(stream))
    write_step(run.path, index, **sets, predictions=predictions(learner, sets["test"]))
    if learner.facts:
        write_text(folder / "learner.json", json.dumps({k: float(v) for k, v in sorted(learner.facts.items())}))
    else:
        (folder / "learner.json").unlink(missing_ok=True)
    write_text(key_file, key)


def extract(network: Network, stream: Stream, step: int, rows: StepRows, calibration: str) -> dict[str, Any]:
    """The sets of one step, as arguments of :func:`tood.runs.write_step`; ``calibration``: the source in use."""
    fused = network.fused()
    union = rows.union()
    trained = forward(fused, stream, stream.train, union)

    def columns(source: Source, chosen: IntArray) -> IntArray:
        return stream.columns(source.labels[chosen])

    def about(source: Source, chosen: IntArray) -> Arrays:
        return {"labels": columns(source, chosen)} | ({"rows": chosen} if has_backbone(network, stream) else {})

    def part(chosen: IntArray) -> Arrays:
        places = np.searchsorted(union, chosen)
        return {name: array[places] for name, array in trained.items()} | about(stream.train, chosen)

    test_rows = np.concatenate([stream.test_rows(task) for task in range(step + 1)])
    calibrations = {source: part(chosen) for source, chosen in rows.calibration.items()}
    if "paper" in calibrations and stream.augmentation != "none":
        augmented = forward(
            fused, stream, stream.train, rows.calibration["paper"], augmentation_seed=1000 * stream.seed + step
        )
        calibrations["paper"] |= augmented
    weight, bias = network.effective_head()
    head = {"weight": weight, "bias": bias}
    if network.head.corrected:
        head |= {"raw_weight": network.head.weight, "raw_bias": network.head.bias}
    return {
        "calibration": calibrations.pop(calibration),
        "calibrations": calibrations,
        "test": forward(fused, stream, stream.test, test_rows) | about(stream.test, test_rows),
        "fit": part(rows.fit) if len(rows.fit) else None,
        "ood": {s.name: forward(fused, stream, s.source, np.arange(len(s.source))) for s in stream.ood},
        "head": {name: to_numpy(tensor) for name, tensor in head.items()},
    }


def has_backbone(network: Network, stream: Stream) -> bool:
    """True if layers are trained on vectors, which count as the features of a frozen backbone."""
    return len(stream.train.shape) == 1 and bool(network.backbone.state_dict())


def backbone_features(stream: Stream) -> dict[str, FloatArray]:
    """The vectors of every source, not standardised."""
    sources = {"train": stream.train, "test": stream.test} | {f"ood/{s.name}": s.source for s in stream.ood}
    return {
        name: source.features if isinstance(source, FeatureSource) else source.take(np.arange(len(source)))
        for name, source in sources.items()
    }


def forward(
    network: Network, stream: Stream, source: Source, rows: IntArray, augmentation_seed: int | None = None
) -> Arrays:
    """Logits ``[n, C]`` and features ``[n, D]`` of rows of a source; also raw logits if the head corrects them.

    Images are augmented as in training if ``augmentation_seed`` is given.
    """
    import torch
    from torch.nn.functional import linear

    from tood.outputs.extraction import extract
    from tood.streams.augment import augment

    head = network.head
    generator = torch.Generator().manual_seed(augmentation_seed or 0)

    def batches() -> Iterator[torch.Tensor]:
        for start in range(0, len(rows), BATCH):
            batch = prepare(source.take(rows[start : start + BATCH]), stream.mean, stream.std, head.weight.device)
            if augmentation_seed is not None:
                batch = augment(batch, stream.augmentation, generator, black=stream.black)
            yield batch

    outputs = extract(network, batches())
    arrays = {"logits": outputs.logits, "features": outputs.features}
    if head.corrected:
        raw = (tensor.detach().cpu() for tensor in (head.weight, head.bias))
        arrays["raw_logits"] = linear(torch.from_numpy(outputs.features), *raw).numpy()
    return arrays


def predictions(learner: Any, test: Arrays) -> IntArray | None:
    """The learner's predictions if they differ from the largest logit (iCaRL's nearest class mean), else None.

    BER's head only scores: predictions are those of the plain head.
    """
    logits = test["logits"]
    if learner.scoring_head is not None:
        weight, bias = map(to_numpy, learner.network.effective_head())
        logits = test["features"] @ weight.T + bias
    with naming_errors(type(learner), "predict"):
        predicted: IntArray = np.asarray(learner.predict(test["features"], logits))
    return None if (predicted == test["logits"].argmax(axis=1)).all() else predicted


def scorers_for(names: Sequence[str], stream: Stream, logits: str) -> list[Scorer]:
    """Scorers by name; ODIN gets the standard deviation of the input normalisation."""
    return [
        Scorer(name, logits=which, from_stream={"std": stream.std} if name == "odin" else {})
        for which in WHICH[logits]
        for name in names
    ]


def score_with_network(step: Step, scorer: Scorer, network: Network, stream: Stream, rows: StepRows) -> None:
    """Score a step with a detector that needs the network, unless its scores are stored."""
    if "network" not in scorer.described.needs or kept_scores(step, scorer) is not None:
        return
    if step.using(scorer.logits).logits == "raw":
        network = copy.deepcopy(network)
        network.head.correct(slice(0), 1.0, 0.0)
    sources = {OOD.format(s.name): (s.source, np.arange(len(s.source))) for s in stream.ood}
    sources[TEST] = stream.test, np.concatenate([stream.test_rows(task) for task in range(step.index + 1)])
    if file := scorer.fit_file(step):
        chosen = rows.fit if file == FIT else rows.calibration[scorer.calibration or step.run.calibration]
        sources[file] = stream.train, chosen
    keep_scores(step, scorer, fit_and_score(step, scorer, network, lambda f, o: _Chunks(stream, *sources[f], o)))


@dataclass(frozen=True)
class _Chunks:
    """Stored outputs with their inputs, batch by batch; rows and outputs are in the same order."""

    stream: Stream
    source: Source
    rows: IntArray
    outputs: Outputs

    def __iter__(self) -> Iterator[Outputs]:
        for start in range(0, len(self.rows), BATCH):
            part = self.outputs[start : start + BATCH]
            images = self.source.take(self.rows[start : start + BATCH])
            inputs = prepare(images, self.stream.mean, self.stream.std).contiguous()
            yield Outputs(logits=part.logits, features=part.features, labels=part.labels, inputs=inputs)
