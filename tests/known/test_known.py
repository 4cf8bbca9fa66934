import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from tood import Known, ToodError
from tood.export.onnx import export_known
from tood.metrics import auroc

CONSTANT = 3  # a dimension without any spread


def draw(classes=6, size=30, width=12, seed=0, apart=2.0):
    """Vectors and names of Gaussian classes with one covariance; one dimension is constant."""
    rng = np.random.default_rng(seed)
    scales = np.linspace(0.2, 1.5, width)
    centres = apart * np.random.default_rng(99).normal(size=(classes, width)) * scales
    names = np.repeat(np.arange(classes), size)
    vectors = centres[names] + rng.normal(size=(len(names), width)) * scales
    vectors[:, CONSTANT] = 0.25
    return vectors, names


def same(a, b, x, digits=9):
    order = [list(b.classes_).index(name) for name in a.classes_]
    np.testing.assert_allclose(a.score(x), b.score(x), rtol=0, atol=10**-digits * max(1, np.abs(b.score(x)).max()))
    assert (a.predict(x) == b.predict(x)).all()
    np.testing.assert_allclose(a.thresholds(0.1), b.thresholds(0.1)[order], rtol=10**-digits, atol=10**-digits)
    assert a.counts_ == {name: b.counts_[name] for name in a.counts_}


def covariances(vectors, names, share):
    """W and W + B as the docstring defines them."""
    means = np.stack([vectors[names == name].mean(axis=0) for name in np.unique(names)])
    width, classes = vectors.shape[1], len(means)
    centred = vectors - means[names]
    within = centred.T @ centred / (len(vectors) - classes)
    within = (1 - share) * within + share * np.trace(within) / width * np.eye(width)
    apart = means - means.mean(axis=0)
    extra = (apart**2).sum() / (classes - 1) / width * np.eye(width)
    return means, within, within + (apart.T @ apart + extra) / classes


def test_the_score_is_the_formula_of_the_docstring():
    vectors, names = draw()
    x = draw(seed=1)[0] + 0.3
    known = Known(shrinkage=0.1).fit(vectors, names)
    means, within, background = covariances(vectors, names, 0.1)
    to = lambda mean, matrix: np.einsum("nd,de,ne->n", x - mean, np.linalg.inv(matrix), x - mean)  # noqa: E731
    classes = np.stack([to(mean, within) for mean in means]) / (1 + 1 / 30)
    expected = to(means.mean(axis=0), background) - classes.min(axis=0)
    assert np.ptp(known.score(x) - expected) < 1e-8  # equal but for a constant, since all classes have one size
    assert (known.predict(x) == classes.argmin(axis=0)).all()


def test_classes_and_shrinkage_are_those_of_scikit_learn():
    vectors, names = draw(apart=0.7)
    x = draw(seed=1, apart=0.7)[0]
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.2).fit(vectors, names)
    assert (Known(shrinkage=0.2).fit(vectors, names).predict(x) == lda.predict(x)).all()
    one = vectors[:30] - vectors[:30].mean(axis=0)
    oas = OAS(assume_centered=True).fit(one[:29])
    from tood.calibration.statistics import oas_shrinkage

    assert oas_shrinkage(one[:29].T @ one[:29] / 29, 29) == pytest.approx(oas.shrinkage_)


def test_leave_one_out_scores_are_those_of_the_model_without_the_sample():
    """W loses the sample's part and its class mean moves: by hand, with everything else held."""
    vectors, names = draw(size=8)
    known = Known(shrinkage=0.1).fit(vectors, names)
    model = known._model()
    means, within, background = covariances(vectors, names, 0.1)
    for row in (0, 7, 20):
        name = names[row]
        apart = vectors[row] - means[name]
        part = 0.9 / (len(vectors) - 6) * 8 / 7 * np.outer(apart, apart)
        mean = vectors[(names == name) & (np.arange(len(names)) != row)].mean(axis=0)
        square = lambda v, matrix: v @ np.linalg.solve(matrix, v)  # noqa: E731
        expected = square(vectors[row] - means.mean(axis=0), background - part)
        expected -= square(vectors[row] - mean, within - part) / (1 + 1 / 7) + model.dimensions * np.log(1 + 1 / 7)
        assert model.left_out(name, known._classes[name])[row - 8 * name] == pytest.approx(expected)


@pytest.mark.parametrize("size", [20, 40])
def test_no_class_loses_more_than_alpha_beyond_two_standard_errors(size):
    """Scores of samples that are part of the sums, not left out, would reject several times alpha."""
    alpha, classes, fresh = 0.1, 20, 200
    vectors, names = draw(classes, size, width=60, seed=3)
    x, true = draw(classes, fresh, width=60, seed=4)
    rejected = ~Known().fit(vectors, names).decide(x, alpha)
    shares = np.array([rejected[true == name].mean() for name in range(classes)])
    k = np.floor(alpha * (size + 1))
    of_threshold = k * (size + 1 - k) / (size + 1) ** 2 / (size + 2)  # variance of Beta(k, n + 1 - k)
    error = np.sqrt(of_threshold + alpha * (1 - alpha) / fresh)
    assert shares.mean() <= alpha + 2 * error / np.sqrt(classes)
    assert (shares > alpha + 2 * error).sum() <= 2  # of 20: one in 40 by chance


@pytest.mark.parametrize("samples", [128, 10])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 999), parts=st.integers(1, 6))
def test_removing_merging_and_parts_equal_one_pass(samples, seed, parts):
    vectors, names = draw(seed=seed)
    x = draw(seed=seed + 1)[0]
    whole = Known(samples=samples).fit(vectors, names)
    order = np.random.default_rng(seed).permutation(len(names))
    shards = [Known(samples=samples).partial_fit(vectors[rows], names[rows]) for rows in np.array_split(order, parts)]
    merged = Known(samples=samples)
    for shard in shards:
        merged.merge(shard)
    same(merged, whole, x)
    without = names != 2
    same(
        Known(samples=samples).fit(vectors, names).remove(2),
        Known(samples=samples).fit(vectors[without], names[without]),
        x,
    )
    assert all(len(known.rows) <= samples for known in merged._classes.values())


def test_an_unlike_class_leaves_no_trace_and_the_last_one_frees_the_width():
    vectors, names = draw()
    known = Known().fit(vectors, names)
    before = known.score(vectors)
    known.add(77, 1e3 * np.random.default_rng(0).normal(size=(50, 12))).remove(77)
    np.testing.assert_allclose(known.score(vectors), before, rtol=1e-6, atol=1e-6)
    known.add(77, 1e9 * np.random.default_rng(0).normal(size=(50, 12))).remove(77)
    np.testing.assert_allclose(known.score(vectors), before, rtol=1e-9, atol=1e-9)
    assert Known().add("a", np.eye(3)).remove("a").add("b", np.eye(5)).predict(np.eye(5)).tolist() == ["b"] * 5


def test_beyond_the_memory_removal_says_what_remains():
    vectors, names = draw()
    known = Known(samples=5, memory=12 * 12 * 8 * 2.5 / 2**20)  # two scatters fit
    with pytest.warns(UserWarning, match="cannot be removed exactly"):
        known.fit(vectors, names)
    assert known.inexact_ == [2, 3, 4, 5]
    scatter = known._scatter.copy()
    with pytest.warns(UserWarning, match="part of the shared scatter remains"):
        known.remove(4)
    assert (known._scatter == scatter).all() and 4 not in known.classes_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        known.remove(0)


@pytest.mark.parametrize("classes", [1, 2, 5, 40])
def test_unknown_inputs_are_separated_for_any_number_of_classes(classes):
    """Relative to the overall covariance they would score higher than known ones if there are few classes."""
    vectors, names = draw(40, apart=4)
    keep = names < classes
    known = Known().fit(vectors[keep], names[keep])
    x, true = draw(40, seed=1, apart=4)
    new = np.random.default_rng(5).normal(size=(300, 12)) * 6
    new[:, CONSTANT] = 0.25
    assert auroc(known.score(x[true < classes]), known.score(new)) > 0.95


def test_small_classes_are_pooled_and_too_few_samples_are_refused():
    vectors, names = draw(size=8)
    known = Known().fit(vectors, names)
    with pytest.warns(UserWarning, match="6 of 6 classes.*together"):
        limits = known.thresholds(0.05)
    assert np.isfinite(limits).all() and len(set(limits)) == 1
    with pytest.raises(ToodError, match="needs 99 samples in classes of two or more, found 48"):
        known.thresholds(0.01)
    known.add(9, draw(1, 40)[0]).add(10, draw(1, 1)[0])
    with pytest.warns(UserWarning, match="7 of 8"):
        limits = known.thresholds(0.05)
    assert len(set(limits)) == 2 and np.isfinite(limits).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k: k.add("a", [[1.0, np.nan]]), "vectors: expected finite numbers"),
        (lambda k: k.add("a", np.empty((0, 2))), "expected one sample or more of 'a'"),
        (lambda k: k.add("a", np.empty((3, 0))), "expected 2 dimensions, found 0"),
        (lambda k: k.add(3, np.eye(2)), "of one kind for all classes, found 3"),
        (lambda k: k.add(None, np.eye(2)), "expected text or whole numbers"),
        (lambda k: k.remove("knowm"), "did you mean 'known'"),
        (lambda k: k.merge(k), "expected another Known"),
        (lambda k: k.merge(Known().add("a", np.eye(3))), "other: expected 2 dimensions"),
        (lambda k: k.partial_fit(np.eye(2), ["a"]), "y: expected 2 names"),
        (lambda k: k.score(np.eye(3)), "x: expected 2 dimensions"),
        (lambda k: k.decide(np.eye(2), 1.5), "alpha: expected a share"),
        (lambda k: k.set_params(shrinkag=1), "did you mean 'shrinkage'"),
        (lambda k: Known(shrinkage=0).add("a", np.eye(2)), "shrinkage: expected"),
        (lambda k: Known(samples=1).add("a", np.eye(2)), "samples: expected 2 or more"),
        (lambda k: Known().score(np.eye(2)), "no classes yet"),
        (lambda k: Known().add("a", [[1.0, 2.0]]).score(np.eye(2)), "two different samples"),
        (lambda k: Known().add("a", np.full((7, 2), 0.1)).score(np.eye(2)), "two different samples"),
        (lambda k: k.save("x", {"a": 1}), "metadata: expected texts"),
        (lambda k: k.add("a", [[-1e200, 0.0]]), "vectors: expected numbers up to"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(call, message):
    known = Known().add("known", [[1.0, 2.0], [3.0, 1.0], [2.0, 2.5]])
    before = known.score(np.eye(2))
    with pytest.raises(ToodError, match=message):
        call(known)
    assert (known.score(np.eye(2)) == before).all() and known.classes_.tolist() == ["known"]


def test_settings_copy_and_tensors():
    torch = pytest.importorskip("torch")
    vectors, names = draw()
    known = Known(samples=20, shrinkage=0.3)
    assert clone(known).get_params() == {"shrinkage": 0.3, "samples": 20, "memory": 1024}
    known.fit(torch.from_numpy(vectors), torch.from_numpy(names))
    assert isinstance(known.score(torch.from_numpy(vectors)), torch.Tensor)
    assert known.predict(vectors.astype(np.float16)).dtype.kind == "i"
    changed = known.set_params(shrinkage=0.9).score(vectors)
    assert (changed == Known(0.9, samples=20).fit(vectors, names).score(vectors)).all()
    assert len(known.score(np.empty((0, 12)))) == 0


@pytest.mark.parametrize("samples", [128, 10])
def test_files_keep_everything_and_have_equal_bytes(samples, tmp_path):
    vectors, names = draw()
    known = Known(samples=samples).fit(vectors.astype(np.float32), names)
    known.save(tmp_path / "a", {"encoder": "MiniLM"})
    loaded = Known.load(tmp_path / "a")
    assert loaded.metadata_ == {"encoder": "MiniLM"} and loaded.created_ == known.created_
    same(loaded, known, vectors)
    loaded.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    same(loaded.remove(1), known.remove(1), vectors)


def test_a_damaged_or_foreign_file_is_refused(tmp_path, monkeypatch):
    from tood import TOOD
    from tood.known import known, model

    path = tmp_path / "a.known"
    Known().fit(*draw()).save(path)
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    with pytest.raises(ToodError, match="damaged"):
        Known.load(tmp_path / "damaged")
    TOOD([[0, 1]]).fit(np.eye(2) * 3, [0, 1]).save(tmp_path / "other")
    with pytest.raises(ToodError, match="expected a tood-known file"):
        Known.load(tmp_path / "other")
    with monkeypatch.context() as patch:
        patch.setattr(model, "LEAST_SHRINKAGE", 0.9)
        with pytest.raises(ToodError, match="saved rows score"):
            Known.load(path)
    monkeypatch.setattr(known, "RULE", "relative-mahalanobis 2")
    with pytest.raises(ToodError, match="expected the rule 'relative-mahalanobis 2'"):
        Known.load(path)


@pytest.mark.parametrize(("dtype", "digits"), [("float32", 3), ("float64", 8)])
def test_onnx_gives_the_same_scores_classes_and_decisions(dtype, digits, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    vectors, names = draw()
    known = Known().fit(vectors, names).add(50, vectors[:21] + 3)
    export_known(known, tmp_path / "known.onnx", alpha=0.05, dtype=dtype)
    session = onnxruntime.InferenceSession(str(tmp_path / "known.onnx"), providers=["CPUExecutionProvider"])
    x = draw(seed=1)[0]
    score, place, accept = session.run(None, {"vectors": x.astype(dtype)})
    np.testing.assert_allclose(score, known.score(x), atol=10.0**-digits * 20)
    assert (known.classes_[place] == known.predict(x)).all()
    assert (accept == known.decide(x)).mean() > 0.99
    assert session.get_modelmeta().custom_metadata_map["classes"].split() == [str(name) for name in known.classes_]
    assert not session.run(["accept"], {"vectors": np.full((1, 12), np.nan, dtype)})[0][0]


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("TOOD_DATA"), reason="needs CLINC150 in the folder named by TOOD_DATA")
def test_clinc150_after_fifteen_tasks():
    data = np.load(Path(os.environ["TOOD_DATA"]) / "clinc150-minilm.npz")
    known, labels = Known(), data["train_labels"]
    for task in np.split(np.arange(150), 15):
        rows = np.isin(labels, task)
        known.partial_fit(data["train_minilm"][rows], data["classes"][labels[rows]])
    test, unknown = data["test_minilm"], data["oos_test_minilm"]
    assert auroc(known.score(test), known.score(unknown)) > 0.97
    assert (known.predict(test) == data["classes"][data["test_labels"]]).mean() >= 0.93
    assert 1 - known.decide(test, 0.05).mean() < 0.06 and known.decide(unknown, 0.05).mean() < 0.25
