import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from tood import TOOD, Partition, ToodError, detectors, models
from tood.decision import Conformal
from tood.detectors import Detector, Outputs
from tood.energy import task_energies
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


def feature_problem(sizes, seed, name, noise=0.3, lacking=(), **settings):
    """A fitted detector on a random partition, and outputs: noise about one unit vector a class, of any length."""
    rng = np.random.default_rng(seed)
    columns = sum(sizes)
    partition = Partition(np.split(rng.permutation(columns), np.cumsum(sizes)[:-1]))
    centres = rng.normal(size=(columns, 9)) + 1
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)

    def draw(labels):
        features = centres[labels] + noise * rng.normal(size=(len(labels), 9)) * np.linspace(0.3, 1, 9)
        features *= rng.uniform(0.5, 2, (len(labels), 1)) if settings.get("normalize", True) else 1
        logits = 2 * rng.normal(size=(len(labels), columns)) + 6 * np.eye(columns)[labels]
        return Outputs(logits, features, labels)

    labels = np.repeat(np.setdiff1d(np.arange(columns), lacking), 6)
    detector = detectors.create(name, **settings).fit(draw(labels), partition=partition)
    return detector, partition, draw(rng.integers(columns, size=40))


def single(outputs):
    return Outputs(outputs.logits.astype(np.float32), outputs.features.astype(np.float32))


def run_scorer(path, outputs):
    runner = session(path)
    given = {"logits": outputs.logits, "features": outputs.features}
    names = [out.name for out in runner.get_outputs()]
    return dict(zip(names, runner.run(None, {i.name: given[i.name] for i in runner.get_inputs()}), strict=True))


def squared_distances(detector, features):
    """To each class mean, by SciPy."""
    z = features / np.linalg.norm(features, axis=1, keepdims=True) if detector.normalize else features
    whitening = detector._prepare(np.dtype(np.float64)).whitening
    return cdist(z, detector.means_, "mahalanobis", VI=whitening @ whitening.T) ** 2


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
    cal, _, outputs = feature_problem([2, 3, 1], 6, "tood_joint")
    cases = [cal, TOOD([[0, 4], [2, 1, 5], [3]]).fit(outputs.logits, np.resize(np.arange(6), 40))]
    for scorer in cases:
        logits = outputs.logits.copy()
        logits[np.arange(6), np.arange(6)] = bad
        export_scorer(scorer, tmp_path / "scorer.onnx", dtype="float64")
        score = run_scorer(tmp_path / "scorer.onnx", Outputs(logits, outputs.features))["score"]
        assert np.isnan(score[:6]).all() and np.isfinite(score[6:]).all()
        score, _ = ScorerModule(scorer)(torch.from_numpy(logits), torch.from_numpy(outputs.features))
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
        score, task = ScorerModule(cal)(torch.from_numpy(logits))
        np.testing.assert_allclose(score.numpy(), cal.score(logits), rtol=1e-12)
        np.testing.assert_array_equal(task.numpy(), cal.assign(logits))


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


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.sampled_from(ALL_VARIANTS),
    st.sampled_from([0.0, 0.5]),
    st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_onnxruntime_scores_as_tood_joint_does(tmp_path, sizes, variant, margin, seed):
    chosen = {"variant": variant, "margin": margin}
    detector, partition, outputs = feature_problem(sizes, seed, "tood_joint", **chosen)
    expected = detector.score(outputs)
    export_scorer(detector, tmp_path / "joint.onnx", dtype="float64")
    found = run_scorer(tmp_path / "joint.onnx", outputs)
    np.testing.assert_allclose(found["score"], expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    export_scorer(detector, tmp_path / "joint.onnx")
    in_single = run_scorer(tmp_path / "joint.onnx", single(outputs))
    # A sum near zero is known as well as its terms are.
    np.testing.assert_allclose(in_single["score"], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    channels = detector._ready(np.dtype(np.float64)).channels
    normalised = channels.normalised(task_energies(outputs.logits, partition))
    np.testing.assert_array_equal(found["task"], normalised.argmax(axis=1))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("shrinkage", ["oas", 0.0, 0.3])
def test_onnxruntime_scores_as_typicality_does(tmp_path, normalize, shrinkage):
    lacking = (0, 4)  # columns without a sample: means are not columns
    detector, _, outputs = feature_problem(
        [2, 3, 1], 0, "typicality", lacking=lacking, normalize=normalize, shrinkage=shrinkage
    )
    detector.save(tmp_path / "typicality.safetensors")
    detector = Detector.load(tmp_path / "typicality.safetensors")
    squared = squared_distances(detector, outputs.features)
    for dtype, given_outputs, tolerance in (("float64", outputs, 1e-9), ("float32", single(outputs), 1e-5)):
        export_scorer(detector, tmp_path / "typicality.onnx", dtype=dtype)
        found = run_scorer(tmp_path / "typicality.onnx", given_outputs)
        assert set(found) == {"score", "class"}
        np.testing.assert_allclose(found["score"], -np.sqrt(squared.min(axis=1)), rtol=tolerance)
        np.testing.assert_array_equal(found["class"], np.array([1, 2, 3, 5])[squared.argmin(axis=1)])


@pytest.mark.parametrize("noise", [1e-2, 1e-3])
def test_float32_keeps_distances_much_smaller_than_those_between_classes(tmp_path, noise):
    """‖y‖² - 2 y·m + ‖m‖² has lost them: class means are a thousand standard deviations apart."""
    detector, _, outputs = feature_problem([4, 3, 5], 1, "typicality", noise=noise)
    rounded = single(outputs)
    export_scorer(detector, tmp_path / "typicality.onnx")
    # What float32 features say is what both are given.
    expected = detector.score(Outputs(rounded.logits, rounded.features.astype(np.float64)))
    np.testing.assert_allclose(run_scorer(tmp_path / "typicality.onnx", rounded)["score"], expected, rtol=1e-4)
    score, _ = ScorerModule(detector)(torch.from_numpy(rounded.logits), torch.from_numpy(rounded.features))
    np.testing.assert_allclose(score.numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("rows", [0, 1, 300])
def test_the_batch_is_free_and_a_zero_feature_has_no_direction(tmp_path, rows):
    detector, _, outputs = feature_problem([2, 1, 3], 2, "tood_joint", margin=0.5)
    outputs = Outputs(np.resize(outputs.logits, (rows, 6)), np.resize(outputs.features, (rows, 9)))
    outputs.features[:1] = 0
    export_scorer(detector, tmp_path / "joint.onnx", dtype="float64")
    found = run_scorer(tmp_path / "joint.onnx", outputs)
    assert found["task"].dtype == np.int64 and found["task"].shape == (rows,)
    np.testing.assert_allclose(found["score"], detector.score(outputs), rtol=1e-9)


def test_tood_joint_without_features_takes_logits_alone(tmp_path):
    _, partition, outputs = feature_problem([2, 3, 2], 3, "typicality")
    labels = np.resize(np.arange(7), 40)
    with pytest.warns(UserWarning, match="no features"):
        detector = detectors.create("tood_joint", margin=0.5).fit(Outputs(outputs.logits, None, labels), partition)
    export_scorer(detector, tmp_path / "joint.onnx", dtype="float64")
    score, task = session(tmp_path / "joint.onnx").run(None, {"logits": outputs.logits})
    np.testing.assert_allclose(score, detector.score(outputs), rtol=1e-9)
    cal = TOOD(partition).fit(outputs.logits, labels)
    np.testing.assert_array_equal(task, cal.assign(outputs.logits))
    score, _ = ScorerModule(detector)(torch.from_numpy(outputs.logits))
    np.testing.assert_allclose(score.numpy(), detector.score(outputs), rtol=1e-9)


@pytest.mark.parametrize("name", ["typicality", "tood_joint"])
def test_the_torch_module_of_a_detector_and_its_export(name):
    detector, _, outputs = feature_problem([2, 3, 2, 1], 4, name)
    given_tensors = torch.from_numpy(outputs.logits), torch.from_numpy(outputs.features)
    module = ScorerModule(detector)
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(module, tuple(x[:3] for x in given_tensors), dynamic_shapes=(batch, batch))
    for scorer in (module, program.module()):
        score, _ = scorer(*given_tensors)
        np.testing.assert_allclose(score.numpy(), detector.score(outputs), rtol=1e-9)
    with pytest.raises(ToodError, match="features: this scorer reads them"):
        module(given_tensors[0])


@pytest.mark.parametrize("name", ["typicality", "tood_joint"])
def test_a_network_with_a_feature_detector(tmp_path, name):
    torch.manual_seed(0)
    network = models.create("mlp", shape=(12,), columns=6).eval()
    inputs, labels = torch.randn(90, 12), np.resize(np.arange(6), 90)
    with torch.no_grad():
        features = network.features(inputs)
        outputs = Outputs(network.head(features), features, labels)
    detector = detectors.create(name).fit(outputs, partition=[[3, 0], [1, 2, 5], [4]])
    export_network(network, detector, tmp_path / "network.onnx", inputs[:2])
    runner = session(tmp_path / "network.onnx")
    assert [out.name for out in runner.get_outputs()] == [
        "logits",
        "score",
        "class" if name == "typicality" else "task",
    ]
    for rows in (1, 90):
        logits, score, _ = runner.run(None, {"input": inputs[:rows].numpy()})
        np.testing.assert_allclose(logits, outputs.logits[:rows].numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(score, detector.score(outputs[:rows]).numpy(), rtol=1e-4, atol=1e-4)
    with pytest.raises(ToodError, match=r"expected a network with features\(x\) and head.*found Sequential"):
        export_network(torch.nn.Sequential(torch.nn.Linear(12, 6)), detector, tmp_path / "x.onnx", inputs[:2])


def test_only_what_can_be_exported_is(tmp_path):
    detector, _, _ = feature_problem([2, 2], 5, "typicality")
    for other in (detectors.create("mds"), detectors.create("tood_mean_shift"), "typicality"):
        with pytest.raises(ToodError, match="expected a fitted TOOD, or the detector typicality or tood_joint, found"):
            export_scorer(other, tmp_path / "x.onnx")
    with pytest.raises(ToodError, match="not fitted"):
        export_scorer(detectors.create("tood_joint"), tmp_path / "x.onnx")
    with pytest.raises(ToodError, match="normalize: changed since fit"):
        export_scorer(detector.set_params(normalize=False), tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


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
    export_network(network, cal, tmp_path / "t.onnx", images[:2], threshold=1.5)
    _, score, _, accept = session(tmp_path / "t.onnx").run(None, {"input": images.numpy()})
    np.testing.assert_array_equal(accept, score >= np.float32(1.5))


def test_decisions_that_no_threshold_makes_are_refused(tmp_path):
    cal, logits = problem([2, 2], 2.0, seed=5)
    with pytest.raises(ToodError, match="alpha: needs a fitted Conformal, found TOOD"):
        export_scorer(cal, tmp_path / "s.onnx", alpha=0.1)
    with pytest.raises(ToodError, match="expected one of them"):
        export_scorer(Conformal(cal).fit(logits), tmp_path / "s.onnx", alpha=0.1, threshold=1)
    with pytest.raises(ToodError, match="only conservative ties"):
        export_scorer(Conformal(cal, ties="randomized").fit(logits), tmp_path / "s.onnx", alpha=0.1)
