"""``tood run``: train, extract, score and measure, step by step, going on where an earlier process stopped.

Every stage looks at what is already there: a task whose checkpoint is complete is not trained again, outputs whose
key (weights and extraction settings) is unchanged are not extracted again, scores are kept under a hash of what they
derive from. So a run that is killed at any instant ends, when started again, with the same figures.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tood
from tood import learners, streams
from tood.errors import ToodError
from tood.files import write_text
from tood.learners.progress import Report
from tood.models import Network
from tood.runs.config import RunConfig, read_yaml, write_yaml
from tood.runs.directory import Run, lock, write_manifest
from tood.runs.extract import (
    BATCH,
    check_sources,
    extract,
    fingerprint,
    forward,
    predictions,
    step_rows,
    with_source,
)
from tood.runs.frozen import extraction_left, freeze
from tood.runs.measure import default_scorers, measure, measure_step
from tood.runs.network_scores import score_with_network, scorers_for
from tood.runs.score import Scorer
from tood.runs.steps import Step, write_step
from tood.streams import Stream

__all__ = ["plan", "run"]

Say = Callable[[str], object]
EVALUATION = ("calibration", "fit", "detectors", "device", "threads")  # may change without training again


def run(config: RunConfig, folder: Path, say: Say = print, progress: Report | None = None) -> Run:
    """Bring a run directory to completion and return it.

    Parameters
    ----------
    config:
        What to run.
    folder:
        The run directory.
    say:
        Called with a line after each step.
    progress:
        Called with a :class:`~tood.learners.Progress` while training.
    """
    with _torch_threads(config.threads):
        return _run(config, folder, say, progress)


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(config: RunConfig, folder: Path, say: Say, progress: Report | None) -> Run:
    stream, learner = build(config, say)
    folder.mkdir(parents=True, exist_ok=True)
    asked = scorers_for(config.detectors, stream, config.frozen)
    check_sources(config, stream, keeps_memory=hasattr(learner.settings, "memory"))
    base = _base(config, folder, say)
    if not learner.fabric.is_global_zero:  # under torchrun one process evaluates, the others only train with it
        for step in range(len(stream)):
            learner.learn(step, folder / "checkpoints", base_dir=base)
        return Run(folder)
    with lock(folder):
        for left in folder.rglob(".*.tmp"):  # by a process that was killed while it wrote
            left.unlink()
        _check_config(config, folder)
        found = _write_manifest(config, folder, stream, learner)
        write_yaml(folder / "config.yaml", config.to_mapping())
        for step in range(len(stream)):
            started = time.perf_counter()
            learner.learn(step, folder / "checkpoints", progress=progress, base_dir=base)
            trained = time.perf_counter()
            _extract(config, found, stream, learner, step, asked)
            scorers = asked or default_scorers(found)[0]
            line = _summary(Step(found, step), scorers)
            say(f"step {step + 1}/{len(stream)}  {line}  ({_clock(trained - started)} training)")
        measure(found, scorers)
    return found


def build(config: RunConfig, say: Say | None = None, dry: bool = False) -> tuple[Stream, learners.Learner]:
    """The stream and the learner of a configuration; with ``dry``, features of a frozen run are not extracted."""
    stream = streams.load(config.stream, order=config.order, tasks=config.tasks or None, seed=config.seed)
    stream = dataclasses.replace(stream, reserve=config.reserved_a_class(len(stream.order)))
    settings = learners.preset(config.preset, config.stream, config.learner)
    adapter, suggested = settings.pop("adapter", 0), settings.pop("network", None)
    network: Network | str | None = config.network or suggested
    if config.frozen:
        closed_form = learners.LEARNERS[learners.split_name(config.learner)[0]].closed_form
        stream, network = freeze(config, stream, config.network or suggested, adapter, closed_form, say, dry)
    learner = learners.create(
        config.learner,
        stream=stream,
        network=network,
        seed=config.seed,
        device=config.device,
        precision=config.precision,
        **{**settings, **config.settings},
    )
    return learner.stream, learner  # normalised as the network expects


def _check_config(config: RunConfig, folder: Path) -> None:
    """A run directory belongs to one configuration of training."""
    if not (folder / "config.yaml").exists():
        return
    before, now = RunConfig().to_mapping() | read_yaml(folder / "config.yaml"), config.to_mapping()
    for name in now:
        if name not in EVALUATION and before[name] != now[name]:
            raise ToodError(
                f"{folder}: was made with {name} = {before[name]!r}, not {now[name]!r}; choose another --out"
            )


def _base(config: RunConfig, folder: Path, say: Say) -> Path | None:
    """With BER: where the same learner without it may have left its checkpoints."""
    plain = config.without_ber()
    base = folder.parent / plain.name
    if plain == config or base == folder or not base.is_dir():
        return None
    try:
        _check_config(plain, base)
    except ToodError as error:
        say(f"not gone on from: {error}")
        return None
    return base / "checkpoints"


def _write_manifest(config: RunConfig, folder: Path, stream: Stream, learner: learners.Learner) -> Run:
    per_class = config.samples_a_class(len(stream.order))
    return write_manifest(
        folder,
        tasks=stream.partition,
        near=[s.name for s in stream.ood if s.group == "near"],
        far=[s.name for s in stream.ood if s.group == "far"],
        classes=list(stream.classes),
        stream=config.stream,
        learner=config.learner.removesuffix("+ber"),
        finetune="ber" if config.learner.endswith("+ber") else "none",
        preset=config.preset,
        seed=config.seed,
        options=config.options(),
        calibration={"source": config.calibration, "size": per_class * len(stream.order)},
        reserved_a_class=stream.reserve,
        fit=config.fit,
        **({"detectors": list(config.detectors)} if config.detectors else {}),
        made_by={
            "tood": tood.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
            "device": learner.fabric.device.type,
            "precision": str(learner.fabric._precision.precision),
        },
    )


def _extract(
    config: RunConfig, found: Run, stream: Stream, learner: learners.Learner, step: int, asked: list[Scorer]
) -> None:
    """Save the step's network and its outputs, unless they are there and nothing they depend on has changed."""
    folder = found.folder(step)
    folder.mkdir(parents=True, exist_ok=True)
    network = learner.network
    if learner.scoring_head is not None:  # BER: the same features, its own head
        network = Network(network.backbone, learner.scoring_head, network.spec)
    rows = step_rows(config, stream, step, learner.memory_rows())
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    for array in (rows.fit, rows.augmented, *(v for _, v in sorted(rows.calibration.items()))):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(json.dumps([config.calibration, found.manifest["ood"]]).encode() + fingerprint(stream))
    key, key_file = digest.hexdigest(), folder / "outputs.key"
    if not ((folder / "outputs").is_dir() and key_file.exists() and key_file.read_text() == key):
        key_file.unlink(missing_ok=True)
        network.save(folder / "model.safetensors")
        sets = with_source(extract(network, stream, step, rows), config.calibration)
        write_step(found.path, step, **sets, predictions=predictions(learner, sets["test"]))
        if learner.facts:
            write_text(folder / "learner.json", json.dumps({k: float(v) for k, v in sorted(learner.facts.items())}))
        write_text(key_file, key)
    for scorer in asked:
        score_with_network(Step(found, step), scorer, network, stream, rows)


def _summary(step: Step, scorers: list[Scorer]) -> str:
    """Accuracy, and the AUROC of energy and of TOOD, pooled over near and far, in a line."""
    table, _ = measure_step(step, scorers, keep=True)
    rows = table.to_pylist()
    accuracy = next(r["value"] for r in rows if r["metric"] == "accuracy" and r["task"] is None)
    parts = [f"accuracy {100 * accuracy:.1f}"]
    for name, label in (("energy", "energy AUROC"), ("tood_robust_anchor", "TOOD AUROC")):
        by_group: dict[str, list[float]] = {}
        for r in rows:
            if r["detector"] == name and r["metric"] == "auroc" and r["task"] is not None:
                by_group.setdefault(r["group"], []).append(r["value"])
        if by_group:
            parts.append(f"{label} {100 * float(np.mean([np.mean(v) for v in by_group.values()])):.1f}")
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def plan(config: RunConfig, folder: Path) -> dict[str, Any]:
    """What a run would do, with time and disk estimated from a few batches on this machine. Nothing is written."""
    stream, learner = build(config, dry=True)
    with _torch_threads(config.threads):
        train_speed, forward_speed = _speeds(stream, learner)
    epochs = learner.settings.epochs
    memory = getattr(learner.settings, "memory", 0)
    replayed = [memory if task else 0 for task in range(len(stream))]
    trained = epochs * sum(len(learner.training_rows(task)) + replayed[task] for task in range(len(stream)))
    ood = sum(len(s.source) for s in stream.ood)
    forwarded = 0
    for step in range(len(stream)):
        test = sum(len(stream.test_rows(task)) for task in range(step + 1))
        forwarded += len(stream.train_rows(step)) + memory + test + ood
    columns, dim = len(stream.order), learner.network.head.dim
    stored = 4 * forwarded * (columns + dim)
    weights = 4 * sum(p.numel() for p in learner.network.parameters())
    features = {"features": _extraction(config)} if config.frozen else {}
    return {
        "run": config.name,
        "folder": str(folder),
        "stream": f"{config.stream}: {len(stream)} tasks, {len(stream.order)} classes, {len(stream.ood)} OOD sets",
        "learner": f"{config.learner}, preset {config.preset}: {epochs} epochs a task",
        "network": f"{weights // 4:,} parameters",
        **features,
        "training": f"{trained:,} images, about {_clock(trained / train_speed)} (min:s) on this device",
        "evaluation": f"{forwarded:,} images, about {_clock(forwarded / forward_speed)} (min:s)",
        "disk": f"about {(stored + 4 * weights * len(stream)) / 1e6:.0f} MB",
        "detectors": ", ".join(config.detectors) or "all that do not need the network again",
    }


def _extraction(config: RunConfig) -> str:
    """What a frozen run must extract first."""
    name = config.network or learners.preset(config.preset, config.stream, config.learner).get("network")
    images, seconds = extraction_left(config, streams.load(config.stream), name)
    return f"{images:,} images to extract first, about {_clock(seconds)} (min:s)" if images else "all in the cache"


def _speeds(stream: Stream, learner: learners.Learner) -> tuple[float, float]:
    """Images a second in training and in evaluation, from the second of two batches each."""
    network = learner.network
    network.grow(len(stream.order))
    rows = stream.train_rows(0)[: learner.settings.batch_size]
    for _ in range(2):
        started = time.perf_counter()
        network.train()(learner.draw(rows, len(rows)).inputs).sum().backward()
        train = len(rows) / (time.perf_counter() - started)
    fused = network.eval().fused()
    rows = stream.train_rows(0)[:BATCH]
    for _ in range(2):
        started = time.perf_counter()
        with torch.inference_mode():
            forward(fused, stream, stream.train, rows)
        evaluate = len(rows) / (time.perf_counter() - started)
    return train, evaluate
