"""``store: metrics``: keep the metrics and the last network of a complete run, and delete the rest."""

from __future__ import annotations

import json
import shutil

import numpy as np

from tood.arrays import FloatArray, IntArray
from tood.errors import ToodError
from tood.metrics import confidence_gap, linear_cka
from tood.outputs.directory import Run
from tood.outputs.steps import Step
from tood.storage.files import contained, reading, write_text

__all__ = ["feature_drift", "keep_metrics", "step_facts"]

MOST_DRIFT = 1000  # samples per task in CKA


def step_facts(run: Run, step: int) -> dict[str, float]:
    """Content of ``learner.json`` at a step: the learner's own numbers; at the last step also drift and gap if kept."""
    file = contained(run.path, run.folder(step) / "learner.json")
    if not file.exists():
        return {}
    with reading(file, "cannot be read as JSON"):
        return dict(json.loads(file.read_text(encoding="utf-8")))


def keep_metrics(run: Run) -> None:
    """Delete outputs, scores and checkpoints of a measured run; drift and gap are computed first and stored.

    ``metrics.parquet``, the manifest, the configuration, ``learner.json`` of every step and the last network stay. An
    interrupted call can be repeated.
    """
    last = len(run.partition) - 1
    with run.lock():
        if run.steps() == list(range(last + 1)):
            facts = step_facts(run, last) | {"drift": feature_drift(run, last + 1), "gap": energy_gap(Step(run, last))}
            facts = {name: value for name, value in sorted(facts.items()) if np.isfinite(value)}
            write_text(run.folder(last) / "learner.json", json.dumps(facts))
        for folder in (run.folder(step) for step in range(last + 1)):
            (folder / "outputs.key").unlink(missing_ok=True)
            for derived in ("outputs", "scores"):
                shutil.rmtree(folder / derived, ignore_errors=True)
            if folder != run.folder(last):
                for name in ("model.safetensors", "head.npz"):
                    (folder / name).unlink(missing_ok=True)
        for name in ("checkpoints", "backbone"):
            shutil.rmtree(run.path / name, ignore_errors=True)


def energy_gap(step: Step) -> float:
    """Mean own-channel energy of the newest task minus the mean over older tasks, on test data; NaN with one task."""
    energies = np.asarray(confidence_gap(step.test.logits, step.test.labels, step.partition))
    return float(energies[-1] - energies[:-1].mean()) if len(energies) > 1 else float("nan")


def feature_drift(run: Run, steps: int) -> float:
    """1 - CKA between a task's features at its own and at the last step, mean over tasks; NaN without features."""
    last, drifts = Step(run, steps - 1), []
    if last.test.features is None:
        return float("nan")
    for task in range(steps - 1):
        (labels, then), (now_labels, now) = _task_features(Step(run, task), task), _task_features(last, task)
        if not np.array_equal(labels, now_labels):
            raise ToodError(
                f"{run.path}: test samples of task {task} are not the same, in the same order, at step {task} "
                f"and at step {steps - 1}: feature drift cannot be measured"
            )
        if then is None:
            return float("nan")
        drifts.append(1 - linear_cka(then, now))
    return float(np.mean(drifts)) if drifts else 0.0


def _task_features(step: Step, task: int) -> tuple[IntArray, FloatArray | None]:
    """Labels (as stored columns) and features of at most ``MOST_DRIFT`` test samples of a task."""
    rows, test = np.flatnonzero(step.test_tasks() == task)[:MOST_DRIFT], step.test
    return step.columns[test.labels[rows]], None if test.features is None else test.features[rows]
