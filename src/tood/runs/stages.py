"""``tood run``: train, extract, score and measure, step by step.

Finished work is not repeated: a task with a complete checkpoint is not trained again, outputs with an unchanged key
(weights and extraction settings) are not extracted again, and scores are stored under a hash of their inputs. A run
that is killed at any instant therefore resumes and ends with the same metrics.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tood
from tood import learners
from tood.errors import ToodError
from tood.evaluation.measure import complete_metrics, default_scorers, measure_step, with_earlier
from tood.evaluation.metrics_file import RAW, Row, save_metrics, to_table
from tood.evaluation.metrics_only import keep_metrics
from tood.evaluation.score import Scorer, reads_backbone
from tood.evaluation.versions import Outdated, describe, outdated, with_versions
from tood.learners.progress import Report
from tood.metrics import near_far_mean
from tood.models import Network
from tood.outputs.directory import Run, has_checkpoints, lock, write_manifest
from tood.outputs.steps import Step
from tood.registry import naming_errors
from tood.runs.build import build, torch_threads
from tood.runs.config import EVALUATION, MEASURING, SWEEP, RunConfig, measured_as, stored_settings
from tood.runs.extract import extract_step, has_backbone, score_with_network, scorers_for, step_rows
from tood.storage.durations import duration
from tood.storage.files import remove_leftovers
from tood.storage.yaml_files import write_yaml
from tood.streams import Stream

__all__ = ["run"]

Say = Callable[[str], object]
OnStep = Callable[[int, Sequence[Row]], object]
DEFAULT_TOOD = "tood"  # the detector of TOOD's default variant


def run(
    config: RunConfig,
    folder: str | Path,
    stream: Stream | None = None,
    *,
    say: Say = print,
    progress: Report | None = None,
    on_step: OnStep | None = None,
) -> Run:
    """Train, score and measure one run; work that its directory already holds is not repeated.

    Parameters
    ----------
    config:
        What to run.
    folder:
        The run directory.
    stream:
        A stream of your own, used in place of ``config.stream``.
    say:
        Called with a line after each step, and about metrics that are outdated and have no outputs to renew them from.
    progress:
        Called with a :class:`~tood.learners.Progress` while training.
    on_step:
        Called with the number and the metrics of each step after it is measured.
    """
    if stream is not None:
        if config.tasks or config.order != "label" or config.ood:
            raise ToodError("stream: a stream of your own has its tasks, order and OOD sets; set them there")
        config = dataclasses.replace(config, stream=stream.name)
    folder = Path(folder)
    with torch_threads(config.threads):
        _end_with_sweep()
        _check_config(config, folder)
        stream, learner = build(config, stream, say)
        folder.mkdir(parents=True, exist_ok=True)
        base = _base(config, folder, say)
        if not learner.fabric.is_global_zero:  # under torchrun only the first process evaluates
            for step in range(0 if _finished(config, folder, stream)[0] else len(stream)):
                _learn(learner, step, folder, None, base)
            return Run(folder)
        with lock(folder):
            remove_leftovers(folder)
            _check_config(config, folder)
            done, stale = _finished(config, folder, stream)
            made = Run(folder) if done else _write_manifest(config, folder, stream, learner)
            if not done:
                write_yaml(folder / "config.yaml", config.to_mapping() | _measured_with(folder))
                rows = _run_steps(config, made, learner, base, say, progress, on_step)
                save_metrics(with_earlier(made, with_versions(to_table(rows))), made.metrics_path)
                write_yaml(folder / "config.yaml", config.to_mapping())
            if stale:
                say(f"note: {describe(stale)}; remove {folder} to train the run again")
            elif config.store == "metrics":
                keep_metrics(made)
        return made


def _end_with_sweep() -> None:
    """In the process of a sweep's cell: stop, as after Ctrl-C, once the sweep has ended."""
    parent = int(os.environ.get(SWEEP, 0))

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    if parent:
        threading.Thread(target=watch, daemon=True).start()


def _finished(config: RunConfig, folder: Path, stream: Stream) -> tuple[bool, list[Outdated]]:
    """Whether a run with ``store: metrics`` has its metrics, and the outdated ones that cannot be renewed."""
    table = measured_as(config, folder) if config.store == "metrics" else None
    if table is None:
        return False, []
    features = Run(folder).manifest.get("features")
    if features and features != _key(stream):
        return False, []
    stale = outdated(table, config.detectors)
    return (False, []) if stale and has_checkpoints(folder) else (True, stale)


def _run_steps(
    config: RunConfig,
    made: Run,
    learner: learners.Learner,
    base: Path | None,
    say: Say,
    progress: Report | None,
    on_step: OnStep | None,
) -> list[Row]:
    """Train, extract, score and measure every step; returns the metrics."""
    stream = learner.stream
    logits = config.logits if learner.corrects_head else "corrected"
    asked = scorers_for(config.detectors, stream, logits)
    scorers, names = asked, None
    if has_backbone(learner.network, stream):
        scorers = asked + [Scorer(name, features="backbone") for name in config.detectors if reads_backbone(name)]
    rows: list[Row] = []
    noted: dict[str, str] = {}
    for index in range(len(stream)):
        started = time.perf_counter()
        _learn(learner, index, made.path, progress, base)
        trained = time.perf_counter() - started
        _evaluate(config, made, stream, learner, index, asked)
        step = Step(made, index)
        if not asked:  # those that all steps so far have what they need for
            scorers, _ = default_scorers(made, names, logits=logits, steps=[index])
            names = [scorer.detector for scorer in scorers]
        measured, notes = measure_step(step, _in_tracks(scorers, step, config.track), keep=True)
        rows += measured
        noted |= {re.sub(r"[\d.]+", "", note): note for note in notes}  # of those that differ in numbers, the latest
        if on_step is not None:
            on_step(index, measured)
        line = "  ".join(_summary(measured, learner.facts))
        say(f"step {index + 1}/{len(stream)}  {line}  (training: {duration(trained)})")
    for note in noted.values() if asked else ():  # the defaults include many that suit no small stream
        say(f"note: {note}")
    if lacking := set(config.track) - set(step.calibration_sources()):
        say(
            f"note: track {', '.join(lacking)}: {config.learner} keeps no samples of some classes, so only scores that "
            "are not fitted were measured"
        )
    return _at_every_step(rows, len(stream))


def _learn(learner: learners.Learner, task: int, folder: Path, progress: Report | None, base: Path | None) -> None:
    """Learn a task; an error of a learner of the user's own names it."""
    with naming_errors(type(learner), f"learning task {task} in {folder}"):
        learner.learn(task, folder / "checkpoints", progress=progress, base_dir=base)


def _check_config(config: RunConfig, folder: Path) -> None:
    """Raise unless the folder is empty or was made with the same training configuration."""
    now = config.to_mapping()
    stored = {name: value for name, value in stored_settings(folder).items() if name in now}
    if not stored:
        return
    before = RunConfig.from_mapping(stored, where=str(folder / "config.yaml")).to_mapping()
    for name in now:
        if name not in EVALUATION and before[name] != now[name]:
            raise ToodError(
                f"{folder}: was made with {name} = {before[name]!r}, not {now[name]!r}; choose another --out"
            )


def _measured_with(folder: Path) -> dict[str, Any]:
    """The settings that present metrics were measured with. They stay in config.yaml until there are new metrics."""
    before = stored_settings(folder) if complete_metrics(folder) is not None else {}
    return {name: before[name] for name in (*MEASURING, "detectors") if name in before}


def _base(config: RunConfig, folder: Path, say: Say) -> Path | None:
    """BER only: checkpoints of the plain learner, if its run is in the same parent folder."""
    plain = config.without_finetuning()
    base = folder.parent / plain.name
    if plain == config or base == folder or not base.is_dir():
        return None
    try:
        _check_config(plain, base)
    except ToodError as error:
        say(f"not resuming from the base run: {error}")
        return None
    return base / "checkpoints"


def _write_manifest(config: RunConfig, folder: Path, stream: Stream, learner: learners.Learner) -> Run:
    per_class = config.calibration_per_class(len(stream.order))
    return write_manifest(
        folder,
        tasks=stream.partition,
        near=[s.name for s in stream.ood if s.group == "near"],
        far=[s.name for s in stream.ood if s.group == "far"],
        classes=list(stream.classes),
        **dataclasses.replace(config.identity, learner=learner.name).to_manifest(),
        learner_title=learner.title,
        calibration={"source": config.track[0], "size": per_class * len(stream.order)},
        tracks=list(config.track),
        reserved_a_class=stream.reserve,
        **({"detectors": list(config.detectors)} if config.detectors else {}),
        **({"features": _key(stream)} if _key(stream) else {}),
        made_by={
            "tood": tood.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
            "device": learner.fabric.device.type,
            "precision": str(learner.fabric._precision.precision),
        },
    )


def _key(stream: Stream) -> str:
    """Digests of all images of a stream of features, and of the network that made them; empty for other streams."""
    sources = (stream.train, stream.test, *(s.source for s in stream.ood))
    return " ".join(filter(None, (getattr(source, "key", "") for source in sources)))


def _evaluate(
    config: RunConfig, made: Run, stream: Stream, learner: learners.Learner, step: int, asked: Sequence[Scorer]
) -> None:
    """Extract the outputs of a step, and score it with the detectors that need the network."""
    network = learner.network
    if learner.scoring_head is not None:  # BER: the same features, its own head
        network = Network(network.backbone, learner.scoring_head, network.spec)
    with naming_errors(type(learner), f"memory_rows at step {step} in {made.path}"):
        memory = learner.memory_rows()
    rows = step_rows(config, stream, step, memory)
    extract_step(made, step, network, stream, rows, config.track[0], learner)
    for scorer in _in_tracks(asked, Step(made, step), config.track):
        score_with_network(Step(made, step), scorer, network, stream, rows)


def _in_tracks(scorers: Sequence[Scorer], step: Step, tracks: Sequence[str]) -> list[Scorer]:
    """Every scorer in every track; in one without samples of every class (memory), only those that are not fitted."""
    sources = step.calibration_sources()
    return [
        dataclasses.replace(scorer, calibration=track)
        for track in tracks
        for scorer in scorers
        if track in sources or scorer.described.fits_on == "none"
    ]


def _at_every_step(rows: Sequence[Row], steps: int) -> list[Row]:
    """Without the metrics of scores that some step lacks."""
    last = {(row.detector, row.calibration, row.settings) for row in rows if row.step == steps - 1}
    return [row for row in rows if (row.detector, row.calibration, row.settings) in last]


def _summary(rows: Sequence[Row], facts: Mapping[str, Any]) -> list[str]:
    """Accuracy, AUROC of energy and TOOD, (near + far) / 2, and the learner's own numbers."""
    accuracy = next(row.value for row in rows if row.metric == "accuracy" and row.task is None)
    shown = [f"accuracy {100 * accuracy:.1f}"]
    aurocs = [row for row in rows if row.metric == "auroc" and row.task is not None]
    for detector, label in (("energy", "energy AUROC"), (DEFAULT_TOOD, "TOOD AUROC")):
        for settings, suffix in (("", ""), (RAW, " (raw logits)")):
            own = [row for row in aurocs if row.detector == detector and row.settings == settings]
            if own:
                mean = near_far_mean([row.value for row in own], [str(row.group) for row in own])
                shown.append(f"{label}{suffix} {100 * float(mean):.1f}")
    return [*shown, *(f"{name} {float(value):.3g}" for name, value in sorted(facts.items()))]
