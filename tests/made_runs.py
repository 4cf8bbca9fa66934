"""Small runs whose truth is known by construction.

Every class has its own axis in feature space, and the head reads it: a sample of class c has features STRENGTH · e_c
plus noise, so its own logit is about STRENGTH. OOD samples lie around the origin.
"""

import json

import numpy as np
import pytest

from tood.outputs import write_manifest, write_step

TASKS = 4
CLASSES = 2 * TASKS
STRENGTH = 8.0


def without_digest(path):
    """A manifest as others write it, which a test may edit."""
    file = path / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"digest": None}))


def make_run(
    path,
    gap=0.0,
    crowding=0.0,
    features=True,
    fit=True,
    full_width=False,
    per_class=30,
    ood_count=150,
    steps=TASKS,
    seed=0,
    hidden=0.0,
    fading=0.0,
    **manifest,
):
    """Write a run of four tasks with two classes each.

    gap: how much every logit of a task sinks with each step after its own. crowding: how far along a latest class's
    axis OOD samples have come at the last step. hidden: the share of the gap that calibration samples do not show.
    fading: how much weaker the features of a class become with each step after its own.
    """
    order = [[3, 0], [1, 2], [7, 4], [5, 6]]  # columns in no particular order
    write_manifest(
        path,
        order,
        near=["near_a"],
        far=["far_a", "far_b"],
        **{"calibration": {"source": "train", "size": 80}, **manifest},
    )
    without_digest(path)
    rng = np.random.default_rng(seed)
    column_tasks = np.argsort(np.concatenate(order)) // 2
    for step in range(steps):
        seen = [column for task in order[: step + 1] for column in task]
        bias = np.zeros(CLASSES)
        for task in range(step + 1):
            bias[order[task]] = -gap * (step - task)
        width = CLASSES if full_width else max(seen) + 1

        def outputs(labels, shift=None, sunk=1.0, bias=bias, width=width, seen=seen, step=step):
            z = rng.normal(size=(len(labels), CLASSES))
            age = step - column_tasks[labels]
            z[np.arange(len(labels)), labels] += STRENGTH * (1 - fading) ** age if shift is None else shift
            logits = z + bias * sunk
            unseen = np.setdiff1d(np.arange(CLASSES), seen)
            logits[:, unseen] = rng.normal(50, 20, size=(len(labels), len(unseen)))  # must never matter
            found = {"logits": logits[:, :width].astype(np.float32)}
            return found | ({"features": z.astype(np.float32)} if features else {})

        def known(count, sunk=1.0, seen=seen, outputs=outputs):
            labels = np.repeat(seen, count)
            return outputs(labels, sunk=sunk) | {"labels": labels}

        nearness = crowding * STRENGTH * step / (TASKS - 1)
        ood = {
            name: outputs(rng.choice(order[step], size=ood_count), shift=nearness + offset)
            for name, offset in (("near_a", 1.5), ("far_a", 0.0), ("far_b", 0.5))
        }
        write_step(
            path,
            step,
            test=known(per_class),
            calibration=known(10, sunk=1 - hidden),
            calibrations={"memory": known(5)},
            fit=known(20) if fit else None,
            ood=ood,
            head={"weight": np.eye(CLASSES)[:width], "bias": bias[:width]} if features else None,
        )
    return path


@pytest.fixture
def build():
    return make_run


@pytest.fixture
def gap_run(tmp_path):
    return make_run(tmp_path / "gap", gap=2.5)


@pytest.fixture(scope="session")
def shared_run(tmp_path_factory):
    """A run nobody changes."""
    return make_run(tmp_path_factory.mktemp("shared") / "run", gap=2.0, crowding=0.6, full_width=True)
