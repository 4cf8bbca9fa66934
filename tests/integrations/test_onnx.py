import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tood import TOOD, Partition, ToodError
from tood.integrations.onnx import export_network, export_scorer
from tood.integrations.scorer import ScorerModule

onnxruntime = pytest.importorskip("onnxruntime")

VARIANTS = ["robust_anchor", "mean_shift", "temperature", "none"]


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
    st.sampled_from(VARIANTS),
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
    channels = cal.channels()
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


def test_a_hundred_tasks_are_a_small_file_with_the_same_bytes(tmp_path):
    cal, _ = problem([1 + k % 19 for k in range(100)], 0.0, 0)
    for name in ("a.onnx", "b.onnx"):
        export_scorer(cal, tmp_path / name)
    assert (tmp_path / "a.onnx").stat().st_size < 100_000
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_torch_module_is_cal_score(variant):
    for sizes in ([4], [2, 3, 2, 1]):
        cal, logits = problem(sizes, 1e3, 1, variant)
        score, task = ScorerModule(cal)(torch.from_numpy(logits))
        np.testing.assert_allclose(score.numpy(), cal.score(logits), rtol=1e-12)
        np.testing.assert_array_equal(task.numpy(), cal.assign(logits))


def test_torch_export_keeps_it(tmp_path):
    cal, logits = problem([2, 3, 1], 0.0, 2)
    tensor = torch.from_numpy(logits).float()
    program = torch.export.export(ScorerModule(cal), (tensor[:3],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for rows in (1, 50):
        score, _ = program.module()(tensor[:rows])
        np.testing.assert_allclose(score.numpy(), cal.score(tensor[:rows]).numpy(), rtol=1e-5)


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
