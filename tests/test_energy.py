import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from tood import Partition, ToodError, detectors, energy, task_energies
from tood.detectors import Outputs
from tood.energy import BLOCK, exponentials, largest_with_lead, with_lead

partitions = st.lists(st.integers(0, 4), min_size=1, max_size=30).map(
    lambda owners: Partition.from_class_tasks(np.unique(owners, return_inverse=True)[1])
)


def by_scipy(logits, partition):
    return np.stack([logsumexp(logits[:, list(task)].astype(np.float64), axis=1) for task in partition], axis=1)


@given(partitions, st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_agrees_with_scipy_on_any_partition(partition, seed):
    logits = np.random.default_rng(seed).normal(0, 20, size=(7, partition.columns))
    expected = by_scipy(logits, partition)
    np.testing.assert_allclose(task_energies(logits, partition), expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(energy(logits), logsumexp(logits, axis=1), rtol=1e-13)
    tensor = torch.from_numpy(logits)
    np.testing.assert_allclose(task_energies(tensor, partition).numpy(), expected, rtol=1e-13, atol=1e-13)


def test_many_rows_cross_the_blocks():
    rng = np.random.default_rng(0)
    partition = Partition.from_class_tasks(rng.permutation(np.arange(50) % 7))
    logits = rng.normal(size=(3 * BLOCK // 50 + 11, 50)).astype(np.float32)
    np.testing.assert_allclose(task_energies(logits, partition), by_scipy(logits, partition), rtol=2e-6)


def test_a_channel_far_below_another_keeps_full_precision():
    low = np.array([[0.1, -0.2, 0.3]])
    partition = Partition([[0, 1, 2], [3]])
    shifted = np.concatenate([low - 1000, [[1000.0]]], axis=1)
    expected = logsumexp(low, axis=1) - 1000
    assert task_energies(shifted, partition)[0, 0] == pytest.approx(expected[0], abs=1e-12)
    half = np.array([[-1000.0, -1000.0, 1000.0]], dtype=np.float16)
    assert task_energies(half, Partition([[0, 1], [2]])).tolist() == [[np.float32(-1000 + np.log(2)), 1000.0]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_alone_is_the_row_among_others(dtype):
    logits = np.random.default_rng(3).normal(size=(40, 100)).astype(dtype) * 5
    alone = np.concatenate([energy(logits[i : i + 1]) for i in range(40)])
    np.testing.assert_array_equal(alone, energy(logits))
    for partition in (Partition.from_sizes([10] * 10), Partition([range(100)])):
        alone = np.concatenate([task_energies(logits[i : i + 1], partition) for i in range(40)])
        np.testing.assert_array_equal(alone, task_energies(logits, partition))
    assert energy(logits[:0]).dtype == energy(logits).dtype


def test_the_input_is_left_alone():
    logits = np.asfortranarray(np.random.default_rng(0).normal(size=(5, 4)))
    before = logits.copy()
    task_energies(logits, Partition.from_sizes([2, 2]))
    energy(logits)
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_kind_and_precision_come_back(dtype):
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    out = task_energies(logits, Partition.from_sizes([2, 2]))
    assert isinstance(out, torch.Tensor)
    assert out.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = torch.stack([logits[:, :2].double().logsumexp(1), logits[:, 2:].double().logsumexp(1)], dim=1)
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-6)
    assert isinstance(energy(np.zeros((2, 3), dtype=np.float16)), np.ndarray)
    assert energy(np.zeros((2, 3), dtype=np.float16)).dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_byte_order_does_not_show(dtype):
    logits = np.random.default_rng(6).normal(size=(5, 4)).astype(dtype)
    for order in "<>":
        found = energy(logits.astype(logits.dtype.newbyteorder(order)))
        assert found.dtype == dtype and np.array_equal(found, energy(logits))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_values_that_are_not_finite_are_located(bad, kind):
    logits = np.zeros((5, 3))
    logits[3, 1] = bad
    with pytest.raises(ToodError, match=r"row 3, column 1"):
        task_energies(kind(logits), Partition.from_sizes([2, 1]))


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (np.zeros(3), r"found shape \(3,\)"),
        (np.zeros((2, 0)), r"found shape \(2, 0\)"),
        ([[0.0], [0.0, 1.0]], "found ragged lists"),
        (np.zeros((2, 4)), r"expected 3 columns, those of the 2 tasks, found shape \(2, 4\)"),
        (np.zeros((2, 3), dtype=complex), "found dtype complex128"),
    ],
)
def test_bad_shapes_are_named(logits, message):
    with pytest.raises(ToodError, match=message):
        task_energies(logits, Partition.from_sizes([2, 1]))


def test_the_energy_detector_gives_the_same_bits():
    logits = np.random.default_rng(4).normal(size=(2000, 37)).astype(np.float32) * 6
    detector = detectors.create("energy").fit(Outputs(logits=logits))
    np.testing.assert_array_equal(detector.score(Outputs(logits=logits)), energy(logits))


@pytest.mark.parametrize("margin", [0.0, 0.5, 2.0])
def test_lead_against_a_sort(margin):
    values = np.random.default_rng(5).integers(0, 4, size=(300, 5)).astype(np.float64)  # ties are common
    ordered = np.sort(values, axis=1)
    expected = ordered[:, -1] + margin * (ordered[:, -1] - ordered[:, -2])
    np.testing.assert_array_equal(with_lead(values, margin), expected)
    np.testing.assert_array_equal(with_lead(values[:, :1], margin), values[:, 0])
    score, winner = largest_with_lead(values.T.copy(), margin, winners=True)
    np.testing.assert_array_equal(score, expected)
    np.testing.assert_array_equal(winner, values.argmax(axis=1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponentials_neither_overflow_nor_vanish(dtype):
    x = np.array([[0.0, 1.0], [5e3, 4.999e3], [-5e3, -5.001e3], [700.0, -700.0]], dtype=dtype)
    values, total, shift = exponentials(x)
    assert np.isfinite(values).all() and (total > 0).all()
    np.testing.assert_allclose(np.log(total) + shift, logsumexp(x.astype(np.float64), axis=1), rtol=1e-6)
    np.testing.assert_allclose(values.sum(axis=1), total, rtol=1e-6)
    alone, _, shift = exponentials(x[:1])
    assert shift == 0 and np.array_equal(alone[0], values[0])


def test_a_tensor_gives_the_bits_of_numpy_and_keeps_no_gradient():
    logits = np.random.default_rng(0).normal(size=(200, 7)).astype(np.float32)
    found = energy(torch.from_numpy(logits).requires_grad_())
    assert found.tolist() == energy(logits).tolist() and not found.requires_grad


@pytest.mark.parametrize(
    "made",
    [
        lambda x: np.ma.masked_array(x, mask=x > 0),
        lambda x: torch.from_numpy(x).to_sparse(),
        lambda x: torch.from_numpy(x).to_sparse_csr(),
    ],
)
def test_arrays_without_all_values_are_refused(made):
    with pytest.raises(ToodError, match="logits: expected"):
        task_energies(made(np.eye(4)), [[0, 1], [2, 3]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_of_one_task_may_lie_far_apart(dtype):
    far = 2000 * np.random.default_rng(0).normal(size=(300, 6)).astype(dtype)
    partition = Partition.from_sizes([3, 2, 1])
    np.testing.assert_allclose(task_energies(far, partition), by_scipy(far, partition), rtol=1e-6)


def test_a_few_rows_lead_as_many_do():
    values = np.random.default_rng(0).normal(size=(300, 50))
    ordered = np.sort(values, axis=0)
    for count in (1, 2, 3, 50):
        score, winner = largest_with_lead(values[:, :count].copy(), 0.5, winners=True)
        np.testing.assert_allclose(score, 1.5 * ordered[-1, :count] - 0.5 * ordered[-2, :count], rtol=1e-15)
        assert winner.tolist() == values[:, :count].argmax(axis=0).tolist()
