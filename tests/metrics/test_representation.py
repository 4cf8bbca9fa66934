"""Against the n × n definition of CKA, SciPy's distances, and invariances."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from scipy.stats import ortho_group

from tood import Partition, ToodError
from tood.metrics import confidence_gap, linear_cka, nearest_distance, representation


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def hsic_cka(a, b):
    """CKA by its definition: HSIC of Gram matrices, centred by H = I - 1/n."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    centre = np.eye(len(a)) - 1 / len(a)
    k, l = centre @ a @ a.T @ centre, centre @ b @ b.T @ centre
    return np.trace(k @ l) / np.sqrt(np.trace(k @ k) * np.trace(l @ l))


@pytest.mark.parametrize(("samples", "first", "second"), [(40, 7, 3), (12, 30, 50), (9, 1100, 5), (2, 1, 1)])
def test_cka_is_the_ratio_of_hsics(rng, samples, first, second):
    a = rng.normal(3, 2, (samples, first))
    b = rng.normal(size=(samples, second)) + a[:, :1]
    assert linear_cka(a, b) == pytest.approx(hsic_cka(a, b), abs=1e-12)
    assert linear_cka(b, a) == pytest.approx(linear_cka(a, b), abs=1e-12)


def test_cka_of_float32_tensors_is_computed_in_float64(rng):
    a, b = (torch.from_numpy(rng.normal(100, 1, (50, 8)).astype(np.float32)) for _ in range(2))
    assert linear_cka(a, b) == pytest.approx(hsic_cka(a, b), rel=1e-10)


def test_cka_ignores_rotation_scale_and_shift(rng):
    a, b = rng.normal(size=(30, 6)), rng.normal(size=(30, 4))
    turned = 1e-200 * a @ ortho_group.rvs(6, random_state=0)
    assert linear_cka(a, turned) == pytest.approx(1, abs=1e-12)
    assert linear_cka(turned, b) == pytest.approx(linear_cka(a, b), abs=1e-12)
    assert linear_cka(a + 50, 1e200 * b) == pytest.approx(linear_cka(a, b), abs=1e-10)


def test_cka_of_orthogonal_representations_is_zero():
    columns = np.array([[1.0, 1, -1, -1], [1, -1, 1, -1]]).T
    assert linear_cka(columns[:, :1], columns[:, 1:]) == 0.0


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.eye(4), np.eye(5), "b: expected the 4 samples of a, found 5"),
        (np.eye(7), np.full((7, 2), 0.1), "b: expected features that differ"),
        (np.zeros((7, 2)), np.eye(7), "a: expected features that differ"),
        (np.tile([0.1, 0.3, 1e3 / 3], (7, 1)), np.eye(7), "a: .*7 equal rows"),  # though their mean is rounded
        (np.tile([0.0, 0.1, 0.7], (7, 1)), np.eye(7), "a: .*7 equal rows"),
        ([[0.0], [np.nan]], [[0.0], [1.0]], r"a: .*nan at \(1, 0\)"),
        (np.empty((0, 3)), np.empty((0, 3)), "a: expected features"),
    ],
)
def test_cka_errors(a, b, message):
    with pytest.raises(ToodError, match=message):
        linear_cka(a, b)


@pytest.mark.parametrize("block", [1, 40, 1 << 22])
def test_distances_are_those_of_scipy(rng, monkeypatch, block):
    monkeypatch.setattr(representation, "BLOCK", block)
    oods, ids = rng.normal(size=(31, 6)).astype(np.float32), rng.normal(1, 2, (53, 6)).astype(np.float32)
    expected = cdist(oods.astype(np.float64), ids.astype(np.float64)).min(axis=1)
    assert nearest_distance(oods, ids) == pytest.approx(expected, rel=1e-13)
    tensor = nearest_distance(torch.from_numpy(oods), torch.from_numpy(ids))
    assert isinstance(tensor, torch.Tensor)
    assert tensor.numpy() == pytest.approx(expected, rel=1e-13)


def test_close_neighbours_far_from_the_origin_keep_full_precision(rng):
    """|x|² + |y|² - 2xy would lose every digit here."""
    ids = 1e4 + rng.normal(size=(60, 5)) * 1e-6
    oods = 1e4 + rng.normal(size=(40, 5)) * 1e-6
    assert nearest_distance(oods, ids) == pytest.approx(cdist(oods, ids).min(axis=1), rel=1e-12)
    assert nearest_distance(ids, ids).tolist() == [0.0] * 60


def test_distance_errors():
    with pytest.raises(ToodError, match="ood_features: expected the 3 columns of id_features, found 2"):
        nearest_distance(np.ones((1, 2)), np.ones((1, 3)))
    with pytest.raises(ToodError, match="id_features"):
        nearest_distance(np.ones((1, 2)), np.ones((0, 2)))


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_confidence_gap_is_the_mean_own_energy(rng, kind):
    tasks = [[4, 0], [2], [1, 3]]
    labels = rng.permutation(np.tile(np.arange(5), 9))
    logits = rng.normal(size=(45, 5)) * 3
    expected = [logsumexp(logits[np.isin(labels, task)][:, task], axis=1).mean() for task in tasks]
    gap = confidence_gap(kind(logits), labels, Partition(tasks))
    assert gap == pytest.approx(expected, abs=1e-12)
    assert confidence_gap(kind(logits), labels, tasks).tolist() == gap.tolist()


def test_confidence_gap_errors():
    with pytest.raises(ToodError, match=r"labels: .* task 1"):
        confidence_gap(np.zeros((2, 2)), [0, 0], [[0], [1]])
    with pytest.raises(ToodError, match=r"labels: .*found 2"):
        confidence_gap(np.zeros((2, 2)), [0, 2], [[0], [1]])
