import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tood import TOOD, Partition, ToodError, detectors
from tood.decision import Conformal
from tood.export.module import ScoredNetwork, ScorerModule
from tood.export.onnx import export_network, export_scorer

onnxruntime = pytest.importorskip("onnxruntime")

VARIANTS = ["robust_anchor", "mean_shift", "temperature", "none"]
ALL_VARIANTS = [*VARIANTS, "background"]


def problem(sizes, apart, seed, variant="robust_anchor", margin=0.5):
    """A calibrator on a random partition whose channels lie up to ``apart`` from each other, and logits."""
    rng = np.random.default_rng(seed)
    columns = sum(sizes)
    partition = Partition(np.split(rng.permutation(columns), np.cumsum(sizes)[:-1]))
    shift = apart * rng.integers(-1, 2, len(sizes))[partition.column_tasks]
    labels = np.repeat(np.arange(columns), 12)
    draw = lambda: 2 * rng.normal(size=(len(labels), columns)) + 6 * np.eye(columns)[labels] + shift  # noqa: E731
    return TOOD(partition, variant=variant, margin=margin).fit(draw(), labels), draw()


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=12),
    st.sampled_from([0.0, 1e3]),
    st.sampled_from(ALL_VARIANTS),
    st.sampled_from([0.0, 0.5]),
    st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_onnxruntime_scores_as_python_does(tmp_path, sizes, apart, variant, margin, seed):
    cal, logits = problem(sizes, apart, seed, variant, margin)
    export_scorer(cal, tmp_path / "scorer.onnx", dtype="float64")
    score, task = session(tmp_path / "scorer.onnx").run(None, {"logits": logits})
    np.testing.assert_allclose(score, cal.score(logits), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(task, cal.assign(logits))
    export_scorer(cal, tmp_path / "scorer.onnx")
    single = logits.astype(np.float32)
    score, task = session(tmp_path / "scorer.onnx").run(None, {"logits": single})
    # A float32 energy near 1,000 is known to 6e-5 only, in Python as in ONNX; and a channel may be rescaled.
    channels = cal.channels_
    unit = np.max(channels.gain / channels.scale) * max(1.0, np.abs(single).max())
    np.testing.assert_allclose(score, cal.score(single), rtol=1e-5, atol=1e-5 if apart == 0 else 5e-7 * unit)


@pytest.mark.parametrize("rows", [0, 1, 2, 1000])
def test_the_batch_is_free(tmp_path, rows):
    cal, logits = problem([2, 3, 1], 0.0, 0)
    export_scorer(cal, tmp_path / "scorer.onnx")
    logits = np.resize(logits, (rows, 6)).astype(np.float32)
    score, task = session(tmp_path / "scorer.onnx").run(None, {"logits": logits})
    assert score.shape == task.shape == (rows,) and score.dtype == np.float32 and task.dtype == np.int64
    np.testing.assert_allclose(score, cal.score(logits), rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_number_in_any_column_reaches_no_threshold(tmp_path, bad):
    cal, logits = problem([2, 3, 1], 0.0, 6, "background")
    logits[np.arange(6), np.arange(6)] = bad
    export_scorer(cal, tmp_path / "scorer.onnx", dtype="float64")
    score, _ = session(tmp_path / "scorer.onnx").run(None, {"logits": logits})
    assert np.isnan(score[:6]).all() and np.isfinite(score[6:]).all()
    score, _ = ScorerModule(cal)(torch.from_numpy(logits))
    assert score[:6].isnan().all() and score[6:].isfinite().all()


def test_a_hundred_tasks_are_a_small_file_with_the_same_bytes(tmp_path):
    cal, _ = problem([1 + k % 19 for k in range(100)], 0.0, 0)
    for name in ("a.onnx", "b.onnx"):
        export_scorer(cal, tmp_path / name)
    assert (tmp_path / "a.onnx").stat().st_size < 100_000
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.parametrize("variant", ALL_VARIANTS)
def test_the_torch_module_is_cal_score(variant):
    for sizes in ([4], [2, 3, 2, 1]):
        cal, logits = problem(sizes, 1e3, 1, variant)
        module = ScorerModule(cal)
        score, task = module(torch.from_numpy(logits))
        np.testing.assert_allclose(score.numpy(), cal.score(logits), rtol=1e-12)
        np.testing.assert_array_equal(task.numpy(), cal.assign(logits))
        row = torch.from_numpy(logits[:1]).requires_grad_()
        (gradient,) = torch.autograd.grad(module(row)[0], row)
        moved = cal.score(logits[:1] + 1e-6 * np.eye(logits.shape[1]))
        np.testing.assert_allclose(gradient[0], (moved - cal.score(logits[:1])) / 1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_module_in_half_precision_decides_the_same(dtype):
    cal, logits = problem([2, 3, 1], 1e3, 1)
    conformal = Conformal(cal, "winning").fit(logits)
    network = ScoredNetwork(torch.nn.Linear(6, 6), conformal, alpha=0.2).to(dtype)
    assert network.network.weight.dtype == dtype
    for found, expected in zip(
        network.scorer(torch.from_numpy(logits)),
        ScorerModule(conformal, alpha=0.2)(torch.from_numpy(logits)),
        strict=True,
    ):
        assert torch.equal(found, expected)
    assert {buffer.device.type for buffer in network.scorer.to("meta", dtype).buffers()} == {"meta"}


def test_a_network_with_its_scorer(tmp_path):
    cal, _ = problem([2, 3, 1], 0.0, 3)
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 6)
    )
    with torch.no_grad():
        network[-1].bias[:3] -= 1000.0  # channels far apart
    network[1].eval()  # a frozen layer in a network that is training
    export_network(network, cal, tmp_path / "network.onnx", torch.randn(2, 3, 8, 8))
    assert network.training and not network[1].training
    runner = session(tmp_path / "network.onnx")
    network.eval()
    for rows in (1, 9):
        inputs = torch.randn(rows, 3, 8, 8)
        logits, score, task = runner.run(None, {"input": inputs.numpy()})
        expected = network(inputs).detach()
        np.testing.assert_allclose(logits, expected.numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(score, cal.score(expected).numpy(), rtol=1e-4)
        np.testing.assert_array_equal(task, cal.assign(expected).numpy())
    assert [path.name for path in tmp_path.iterdir()] == ["network.onnx"]


def test_bad_input_is_named(tmp_path):
    cal, _ = problem([2, 2], 0.0, 4)
    with pytest.raises(ToodError, match="not fitted"):
        export_scorer(TOOD([[0, 1]]), tmp_path / "x.onnx")
    for other in (detectors.create("mds"), detectors.create("tood_joint"), "typicality"):
        with pytest.raises(ToodError, match="cal: expected a fitted TOOD"):
            export_scorer(other, tmp_path / "x.onnx")
    with pytest.raises(ToodError, match="dtype"):
        export_scorer(cal, tmp_path / "x.onnx", dtype="float16")
    with pytest.raises(ToodError, match="example_input: expected two inputs"):
        export_network(torch.nn.Identity(), cal, tmp_path / "x.onnx", torch.randn(1, 4))
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_one_line_to_type(monkeypatch, tmp_path):
    cal, _ = problem([2, 2], 0.0, 5)
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ToodError, match=r'pip install "tood\[onnx\]"'):
        export_scorer(cal, tmp_path / "x.onnx")


@pytest.mark.parametrize("per_task", [None, "winning", "true"])
def test_the_decision_is_in_the_graph(tmp_path, per_task):
    cal, logits = problem([2, 3, 1], 4.0, seed=3)
    labels = np.repeat(np.arange(6), 12)
    conformal = Conformal(cal, per_task).fit(logits, labels)
    inputs = np.random.default_rng(0).normal(size=(400, 6)) * 4
    expected = conformal.decide(inputs, alpha=0.2)
    assert 0.1 < expected.accept.mean() < 0.9
    export_scorer(conformal, tmp_path / "s.onnx", dtype="float64", alpha=0.2)
    running = session(tmp_path / "s.onnx")
    assert [output.name for output in running.get_outputs()] == ["score", "task", "accept"]
    _, task, accept = running.run(None, {"logits": inputs})
    np.testing.assert_array_equal(accept, expected.accept)
    np.testing.assert_array_equal(task, expected.task)
    in_torch = ScorerModule(conformal, alpha=0.2)(torch.from_numpy(inputs))
    np.testing.assert_array_equal(in_torch[2].numpy(), expected.accept)
    bad = np.array([[np.nan, 0, 0, 0, 0, 0], [0, 0, np.inf, 0, 0, 0], [9, -np.inf, 0, 0, 0, 0]])
    assert not running.run(None, {"logits": bad})[2].any()


def test_one_file_from_input_to_decision(tmp_path):
    cal, logits = problem([2, 2], 2.0, seed=5)
    conformal = Conformal(cal, "winning").fit(logits)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4))
    images = 6 * torch.randn(64, 3, 2, 2, generator=torch.manual_seed(0))
    export_network(network, conformal, tmp_path / "n.onnx", images[:2], alpha=0.2)
    running = session(tmp_path / "n.onnx")
    assert [output.name for output in running.get_outputs()] == ["logits", "score", "task", "accept"]
    given, _, _, accept = running.run(None, {"input": images.numpy()})
    np.testing.assert_array_equal(accept, conformal.decide(given, alpha=0.2).accept)
    assert 0 < accept.mean() < 1


def test_decisions_that_no_threshold_makes_are_refused(tmp_path):
    cal, logits = problem([2, 2], 2.0, seed=5)
    with pytest.raises(ToodError, match="alpha: needs a fitted Conformal, found TOOD"):
        export_scorer(cal, tmp_path / "s.onnx", alpha=0.1)
    with pytest.raises(ToodError, match="only a single calibration set"):
        export_scorer(Conformal.cross(cal, logits, logits.argmax(axis=1)), tmp_path / "s.onnx", alpha=0.1)
