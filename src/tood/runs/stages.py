"""``tood run``: train, extract, score and measure, step by step.

Finished work is not repeated: a task with a complete checkpoint is not trained again, outputs with an unchanged key
(weights and extraction settings) are not extracted again, and scores are stored under a hash of their inputs. A run
that is killed at any instant therefore resumes and ends with the same metrics.
"""

from __future__ import annotations

import dataclasses
import platform
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tood
from tood import learners, streams
from tood.errors import ToodError
from tood.files import remove_leftovers
from tood.learners.progress import Progress, Report
from tood.metrics import near_far_mean
from tood.models import Network
from tood.own_code import naming_errors
from tood.runs.check import canonical, check_detectors, learner_choice
from tood.runs.config import EVALUATION, MEASURING, RunConfig
from tood.runs.directory import Run, has_checkpoints, lock, write_manifest
from tood.runs.extract import check_sources, extract_step, step_rows
from tood.runs.figures_only import keep_figures
from tood.runs.frozen import freeze
from tood.runs.measure import default_scorers, is_measured, is_measured_as, measure_step, outdated_figures
from tood.runs.metrics_file import RAW, Row, save_metrics, to_table
from tood.runs.network_scores import score_with_network, scorers_for
from tood.runs.score import Scorer
from tood.runs.steps import Step
from tood.runs.versions import Outdated, describe, how_to_renew, with_versions
from tood.runs.yaml_files import read_yaml, write_yaml
from tood.streams import Stream
from tood.times import duration

__all__ = ["build", "run"]

Say = Callable[[str], object]
OnStep = Callable[[int, Sequence[Row]], object]
DEFAULT_TOOD = "tood_shrinkage"  # the detector of TOOD's default variant


def run(
    config: RunConfig,
    folder: str | Path,
    stream: Stream | None = None,
    *,
    say: Say = print,
    progress: Report | None = None,
    on_step: OnStep | None = None,
    renew: bool = False,
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
        Called with a line after each step.
    progress:
        Called with a :class:`~tood.learners.Progress` while training.
    on_step:
        Called with the number and the metrics of each step after it is measured.
    renew:
        Train a finished run with ``store: figures`` again if a detector has a newer version than its metrics. The old
        metrics stay until the new ones are written. Otherwise ``say`` is called with a line about them.
    """
    if stream is not None:
        if config.tasks or config.order != "label" or config.ood:
            raise ToodError("stream: a stream of your own has its tasks, order and OOD sets; set them there")
        config = dataclasses.replace(config, stream=stream.name)
    config = canonical(config)
    with torch_threads(config.threads):
        return _run(config, Path(folder), stream, say, progress, on_step, renew)


def _finished(config: RunConfig, folder: Path, stream: Stream, renew: bool) -> tuple[bool, list[Outdated]]:
    """Whether a run with ``store: figures`` has its metrics, and the outdated ones that will not be renewed."""
    done = config.store == "figures" and is_measured_as(config, folder)
    if done and (key := Run(folder).manifest.get("features")):  # older manifests have none, or those of train and test
        done = key in (_key(stream), " ".join(_key(stream).split()[:2]))
    stale = outdated_figures(folder, config.detectors) if done else []
    return (False, []) if stale and (renew or has_checkpoints(folder)) else (done, stale)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Context in which torch uses this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(
    config: RunConfig,
    folder: Path,
    own_stream: Stream | None,
    say: Say,
    progress: Report | None,
    on_step: OnStep | None,
    renew: bool,
) -> Run:
    _check_config(config, folder)
    stream, learner = build(config, own_stream, say)
    logits = config.logits if learner.corrects_head else "corrected"
    asked = scorers_for(config.detectors, stream, logits)
    folder.mkdir(parents=True, exist_ok=True)
    base = _base(config, folder, say)
    if not learner.fabric.is_global_zero:  # under torchrun only the first process evaluates
        done, _ = _finished(config, folder, stream, renew)
        for step in range(0 if done else len(stream)):
            _learn(learner, step, folder, None, base)
        return Run(folder)
    with lock(folder):
        remove_leftovers(folder)
        _check_config(config, folder)
        done, stale = _finished(config, folder, stream, renew)
        if done:
            made = Run(folder)
        else:
            made = _write_manifest(config, folder, stream, learner)
            write_yaml(folder / "config.yaml", config.to_mapping() | _measured_with(folder))
        rows: list[Row] = []
        noted: dict[str, str] = {}
        for step in range(0 if done else len(stream)):
            started = time.perf_counter()
            _learn(learner, step, folder, progress, base)
            trained = time.perf_counter() - started
            _evaluate(config, made, stream, learner, step, asked)
            scorers = asked or default_scorers(made, logits=logits, steps=range(step + 1))[0]
            measured, notes = measure_step(Step(made, step), scorers, keep=True)
            rows += measured
            noted |= {
                re.sub(r"[\d.]+", "", note): note for note in notes
            }  # of those that differ in numbers, the latest
            if on_step is not None:
                on_step(step, measured)
            line = "  ".join(_summary(measured, learner.facts))
            say(f"step {step + 1}/{len(stream)}  {line}  (training: {duration(trained)})")
        for note in noted.values() if asked else ():  # the defaults include many that suit no small stream
            say(f"note: {note}")
        if rows:
            save_metrics(with_versions(to_table(rows)), made.metrics_path)
            write_yaml(folder / "config.yaml", config.to_mapping())
        if stale:
            say(f"{folder}: {describe(stale)}; {how_to_renew(folder)} trains the run again")
        elif config.store == "figures":
            keep_figures(made)
    return made


def _learn(learner: learners.Learner, task: int, folder: Path, progress: Report | None, base: Path | None) -> None:
    """Learn a task. An error of a learner of the user's own names it; one of ``progress`` stays as it is."""
    passed: list[Exception] = []

    def report(event: Progress) -> None:
        try:
            if progress is not None:
                progress(event)
        except Exception as error:
            passed.append(error)
            raise

    try:
        with naming_errors(type(learner), f"learning task {task} in {folder}"):
            learner.learn(task, folder / "checkpoints", progress=report if progress else None, base_dir=base)
    except ToodError:
        if passed:
            raise passed[0] from None
        raise


def build(
    config: RunConfig, stream: Stream | None = None, say: Say | None = None, dry: bool = False
) -> tuple[Stream, learners.Learner]:
    """Stream and learner of a configuration; with ``dry``, features of a frozen run are not extracted."""
    choice = learner_choice(config)
    check_detectors(config.detectors, config.frozen)
    stream = load_stream(config, say) if stream is None else stream
    if not stream.ood:
        raise ToodError(f"{stream.name}: expected at least one near- or far-OOD set to test against, found none")
    stream = dataclasses.replace(stream, seed=config.seed, reserve=config.reserved_per_class(len(stream.order)))
    check_sources(config, stream, choice.keeps_memory)
    network: Network | str | None = choice.network
    if config.frozen:
        stream, network = freeze(config, stream, choice, say, dry)
    learner = learners.create(
        choice.name,
        stream=stream,
        network=network,
        finetune=config.identity.finetune,
        seed=config.seed,
        device=config.device,
        precision=config.precision,
        **choice.settings,
    )
    return learner.stream, learner  # normalised as the network expects


def load_stream(config: RunConfig, say: Say | None = None) -> Stream:
    """The stream of a configuration; ``say`` is called with a line about each OOD set that is missing."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always", UserWarning)
        stream = streams.load(config.stream, order=config.order, tasks=config.tasks or None, ood=config.ood)
    for note in noted:
        (say or print)(f"note: {note.message}")
    return stream


def _check_config(config: RunConfig, folder: Path) -> None:
    """Raise unless the folder is empty or was made with the same training configuration."""
    if not (folder / "config.yaml").exists():
        return
    now = config.to_mapping()
    stored = {name: value for name, value in read_yaml(folder / "config.yaml").items() if name in now}
    before = canonical(RunConfig.from_mapping(stored, where=str(folder / "config.yaml"))).to_mapping()
    for name in now:
        if name not in EVALUATION and before[name] != now[name]:
            raise ToodError(
                f"{folder}: was made with {name} = {before[name]!r}, not {now[name]!r}; choose another --out"
            )


def _measured_with(folder: Path) -> dict[str, Any]:
    """The settings that present metrics were measured with. They stay in config.yaml until there are new metrics."""
    file = folder / "config.yaml"
    if not (file.exists() and is_measured(folder)):
        return {}
    before = RunConfig().to_mapping() | read_yaml(file)
    return {name: before[name] for name in (*MEASURING, "detectors")}


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
        calibration={"source": config.calibration, "size": per_class * len(stream.order)},
        reserved_a_class=stream.reserve,
        fit=config.fit,
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
    extract_step(made, step, network, stream, rows, config.calibration, learner)
    for scorer in asked:
        score_with_network(Step(made, step), scorer, network, stream, rows)


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
