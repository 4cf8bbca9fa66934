"""Synthetic runs: old tasks' logits shrink along the steps, features turn and the space fills up."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

D = 24
DETECTORS = ("msp", "energy", "maxlogit", "knn", "mds", "tood_mean_shift", "tood_robust_anchor")


class World(NamedTuple):
    """Where everything lies in feature space before any step has moved it."""

    centres: np.ndarray  # [C, D]
    test: np.ndarray
    labels: np.ndarray
    fit: np.ndarray
    fit_labels: np.ndarray
    ood: dict[str, np.ndarray]


def make_world(classes: int, per_class: int, seed: int) -> World:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, D))
    centres *= 4 / np.linalg.norm(centres, axis=1, keepdims=True)

    def around(labels: np.ndarray) -> np.ndarray:
        return centres[labels] + rng.normal(scale=0.8, size=(len(labels), D))

    labels, fit_labels = np.repeat(np.arange(classes), per_class), np.repeat(np.arange(classes), 8)
    pairs = rng.integers(classes, size=(150, 2))
    near = 0.55 * (centres[pairs[:, 0]] + centres[pairs[:, 1]]) + rng.normal(scale=0.7, size=(150, D))
    ood = {
        "letters": near,
        "noise": rng.normal(scale=0.9, size=(150, D)),
        "blank": rng.normal(scale=0.3, size=(120, D)),
    }
    return World(centres, around(labels), labels, around(fit_labels), fit_labels, ood)


def make_run(
    path: Path,
    tasks: int = 5,
    size: int = 2,
    per_class: int = 30,
    learner: str = "icarl",
    seed: int = 0,
    fade: float = 0.6,
    turn: float = 0.15,
    detectors: tuple[str, ...] = DETECTORS,
    **more: Any,
) -> Path:
    """Write and measure a run. ``fade``: how much of an old task's scale is lost; ``turn``: how fast features move."""
    from tests.made_runs import without_digest

    from tood.audit import ensure_verdict
    from tood.evaluation.measure import measure
    from tood.evaluation.score import Scorer
    from tood.outputs.directory import Run, write_manifest
    from tood.outputs.steps import write_step

    world = make_world(tasks * size, per_class, seed)
    rng = np.random.default_rng(seed + 1000)
    split = np.arange(tasks * size).reshape(tasks, size).tolist()
    known = {"stream": "digits", "learner": learner, "seed": seed, "calibration": {"source": "train", "size": 100}}
    write_manifest(path, tasks=split, near=["letters"], far=["noise", "blank"], **(known | more))
    without_digest(path)
    spin = rng.normal(size=(D, D)) * turn / np.sqrt(D)
    move = np.eye(D)
    for step in range(tasks):
        columns = (step + 1) * size
        age = (step - np.arange(columns) // size) / max(1, tasks - 1)
        scale = 1 - fade * (1 - np.exp(-3 * age))
        weight = 0.9 * scale[:, None] * world.centres[:columns] @ np.linalg.inv(move).T
        head = {"weight": weight.astype(np.float32), "bias": np.full(columns, -3, dtype=np.float32) * scale}

        def outputs(rows: np.ndarray, move: np.ndarray = move, head: dict = head) -> dict[str, np.ndarray]:
            features = (rows @ move).astype(np.float32)
            noise = rng.normal(scale=0.8, size=(len(rows), len(head["bias"])))
            logits = features @ head["weight"].T + head["bias"] + noise
            return {"features": features, "logits": logits.astype(np.float32)}

        seen, fit_seen = world.labels < columns, world.fit_labels < columns
        fit = outputs(world.fit[fit_seen]) | {"labels": world.fit_labels[fit_seen]}
        write_step(
            path,
            step,
            test=outputs(world.test[seen]) | {"labels": world.labels[seen]},
            calibration=fit,
            fit=fit,
            head=head,
            ood={name: outputs(rows) for name, rows in world.ood.items()},
        )
        move = move + spin @ move
    measure(Run(path), [Scorer(name) for name in detectors])
    ensure_verdict(Run(path))
    return path


@pytest.fixture(scope="session")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five tasks."""
    return make_run(tmp_path_factory.mktemp("runs") / "icarl", turn=0.1)


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory, five: Path) -> Path:
    """Three learners that fade and turn differently, one of them with two seeds."""
    parent = tmp_path_factory.mktemp("sweep")
    shutil.copytree(five, parent / "icarl-s0")
    few = ("energy", "msp", "tood_mean_shift", "tood_robust_anchor")
    cells = [("icarl", 1, 0.6, 0.1), ("der", 0, 0.75, 0.25), ("wa", 0, 0.15, 0.15)]
    for learner, seed, fade, turn in cells:
        folder = parent / f"{learner}-s{seed}"
        make_run(folder, learner=learner, seed=seed, fade=fade, turn=turn, per_class=15, detectors=few)
    return parent


@pytest.fixture(scope="session")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of more tasks than are shown one by one."""
    folder = tmp_path_factory.mktemp("runs") / "long"
    return make_run(folder, tasks=22, size=1, per_class=3, detectors=("energy", "tood_robust_anchor"))


@pytest.fixture(scope="session")
def build() -> Callable[..., Path]:
    """:func:`make_run`, for tests that need a run of their own."""
    return make_run
