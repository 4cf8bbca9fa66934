"""On the embedded stream: replay is clearly above fine-tuning, and training on everything is above all."""

import numpy as np
import pytest
import torch

from tood import learners, streams
from tood.streams.augment import prepare


def average_incremental_accuracy(name, **changes):
    stream = streams.load("digits")
    learner = learners.create(name, stream, **{**learners.preset("cpu", "digits", name), **changes})
    steps = []
    for step in range(len(stream)):
        learner.learn(step)
        found = []
        for task in range(step + 1):
            rows = stream.test_rows(task)
            with torch.no_grad():
                features = learner.network.features(prepare(stream.test.take(rows), stream.mean, stream.std))
                answers = learner.predict(features, learner.network.head(features))
            found.append((answers == stream.columns(stream.test.labels[rows])).mean())
        steps.append(np.mean(found))
    return float(np.mean(steps))


@pytest.fixture(scope="module")
def floor():
    return average_incremental_accuracy("finetune", epochs=6)


def test_fine_tuning_keeps_only_the_last_task(floor):
    """Accuracy 1 on one task of t and 0 elsewhere averages (1 + 1/2 + 1/3 + 1/4) / 4 = 0.521."""
    assert floor == pytest.approx(0.521, abs=0.03)


@pytest.mark.parametrize("name", ["er", "icarl", "bic"])
def test_replay_is_clearly_above(floor, name):
    accuracy = average_incremental_accuracy(name, epochs=6)
    assert floor + 0.3 < accuracy < 0.999


@pytest.mark.slow
def test_every_learner():
    found = {name: average_incremental_accuracy(name) for name in learners.names()}
    for name in ("er", "icarl", "der", "derpp", "bic", "wa", "gem"):
        assert found["finetune"] + 0.2 < found[name] < found["joint"], (name, found)
    assert found["joint"] > 0.98
