"""The explicit search is what it says."""

from __future__ import annotations

import numpy as np
import pytest

from tood import detectors
from tood.detectors import Outputs
from tood.errors import ToodError
from tood.metrics import auroc


def outputs(rows, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return Outputs(logits=scale * rng.normal(size=(rows, 5)), labels=np.arange(rows) % 5)


@pytest.mark.filterwarnings("ignore:knn. the bank has 20 samples")
def test_search_finds_the_best_of_the_grid():
    rng = np.random.default_rng(0)
    fit = Outputs(np.zeros((300, 2)), rng.normal(size=(300, 4)))
    inside, outside = (Outputs(np.zeros((80, 2)), rng.normal(size=(80, 4)) + shift) for shift in (0, [2, 0, 0, 0]))
    start = detectors.create("knn", size=100)
    found = detectors.search(start, inside, outside, fit=fit, grid={"k": [1, 5, 60], "size": [100, 20]})
    expected = {}
    for size in (100, 20):
        for k in (1, 5, 60):
            detector = detectors.create("knn", k=k, size=size).fit(fit)
            expected[k, size] = auroc(detector.score(inside), detector.score(outside))
    assert {(trial["k"], trial["size"]): value for trial, value in found.trials} == expected
    assert found.auroc == max(expected.values())
    assert expected[found.detector.k, found.detector.size] == found.auroc
    assert auroc(found.detector.score(inside), found.detector.score(outside)) == found.auroc
    assert start.get_params() == {"k": 50, "size": 100, "seed": 0, "probe": 1.0}


def test_search_uses_the_declared_grid_and_refuses_unknown_names():
    inside, outside = outputs(40, 0, scale=3.0), outputs(40, 1)
    found = detectors.search(detectors.create("gen"), inside, outside)
    assert len(found.trials) == 7 * 6
    with pytest.raises(ToodError, match="unknown hyper-parameter of gen 'gama'; did you mean 'gamma'"):
        detectors.search(detectors.create("gen"), inside, outside, grid={"gama": [1]})
    with pytest.raises(ToodError, match="grid"):
        detectors.search(detectors.create("gen"), inside, outside, grid={"gamma": []})


@pytest.mark.parametrize("gammas", [[0.1, 1.0, 0.5], [1.0, 0.5, 0.1]])
def test_of_equal_results_the_first_wins(gammas):
    sure, unsure = Outputs(np.eye(5) * 20), Outputs(np.zeros((5, 5)))
    found = detectors.search(detectors.create("gen"), sure, unsure, grid={"gamma": gammas})
    assert [value for _, value in found.trials] == [1.0, 1.0, 1.0]
    assert found.detector.gamma == gammas[0]


@pytest.mark.parametrize("name", detectors.names())
def test_a_search_tries_the_defaults(name):
    for parameter in detectors.create(name).parameters.values():
        assert not parameter.grid or parameter.default in parameter.grid


@pytest.mark.parametrize("name", detectors.names())
def test_a_grid_holds_valid_values_once_and_in_order(name):
    for setting, parameter in detectors.create(name).parameters.items():
        for value in parameter.grid:
            detectors.create(name).set_params(**{setting: value})
        numbers = [value for value in parameter.grid if isinstance(value, (int, float))]
        assert numbers == sorted(set(numbers))
