"""What holds for every detector, whatever it computes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from sklearn.base import clone

from tood import detectors
from tood.detectors import Detector, Head, Outputs
from tood.detectors.bank import Bank
from tood.errors import NotFittedError, ToodError
from tood.metrics import auroc
from tood.testing import check_detector
from tood.testing.problem import make_network

NAMES = detectors.names()
FITTED = [name for name in NAMES if detectors.classes()[name].fits_on != "none"]
READS_FEATURES = [name for name in NAMES if "features" in detectors.classes()[name].needs]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:tood", "ignore::UserWarning")


def fitted(name, problem, **parameters):
    return detectors.create(name, **parameters).fit(problem.fit, **problem.fit_arguments())


def joined(parts):
    return np.concatenate([np.asarray(part) for part in parts])


def assert_same(found, expected, tolerance=2e-5):
    scale = np.abs(expected).max() + 1e-12
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)


def test_every_name_of_the_design():
    expected = """msp maxlogit energy gen klm dice ash scale react vra vim mds rmds knn nnguide fdbd she nci gradnorm
    odin adascale temperature prototype tood_prototype tood_mean_shift tood_robust_anchor"""
    assert set(expected.split()) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_public_contract(name):
    check_detector(detectors.classes()[name])


@pytest.mark.parametrize("name", NAMES)
def test_declarations(name):
    detector = detectors.classes()[name]
    assert detector.fits_on == ("calibration" if name in CALIBRATED else "none" if name not in FITTED else "fit")
    assert re.search(r"(19|20)\d\d", detector.citation)


CALIBRATED = (
    "temperature",
    "tood_mean_shift",
    "tood_robust_anchor",
    "tood_auto",
    "tood_shrinkage",
    "typicality",
    "tood_joint",
)


@pytest.mark.parametrize("name", NAMES)
def test_easy_ood_scores_lower(name, problem):
    detector = fitted(name, problem)
    assert auroc(detector.score(problem.test), detector.score(problem.ood)) > 0.9


@pytest.mark.parametrize("name", NAMES)
def test_blocks_do_not_show(name, problem, monkeypatch):
    detector = fitted(name, problem)
    whole = detector.score(problem.test)
    monkeypatch.setattr(type(detector), "block", 1)
    many = Outputs(*(np.concatenate([np.asarray(p)] * 5) for p in (problem.test.logits, problem.test.features)))
    many = Outputs(many.logits, many.features, inputs=np.concatenate([problem.test.inputs] * 5))
    assert_same(detector.score(many), np.tile(whole, 5))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FITTED)
def test_fit_does_not_depend_on_order_or_chunks(name, dtype, build, monkeypatch):
    problem = build(dtype=dtype)
    whole = fitted(name, problem).score(problem.test)
    order = np.random.default_rng(2).permutation(len(problem.fit))
    shuffled = problem.fit[order]
    chunks = [shuffled[:5], shuffled[5:5], shuffled[5:100], shuffled[100:101], shuffled[101:]]
    tolerance = 1e-9 if dtype is np.float64 and "network" not in detectors.classes()[name].needs else 2e-5
    for source in (chunks, iter(chunks)):
        detector = detectors.create(name).fit(source, **problem.fit_arguments())
        assert_same(detector.score(problem.test), whole, tolerance)
    monkeypatch.setattr("tood.detectors.outputs.FIT_BLOCK", 1)
    detector = detectors.create(name).fit([problem.fit], **problem.fit_arguments())
    assert_same(detector.score(problem.test), whole, tolerance)
    detector = detectors.create(name).fit([problem.fit] * 2, **problem.fit_arguments())
    # These depend on the number of samples: the k-th neighbour, tails, subsamples, shrinkage, trust in a channel.
    by_count = ("knn", "nnguide", "tpl", "openmax", "weiper", "gmm", "typicality", "tood_joint", "tood_shrinkage")
    if name not in by_count:
        assert_same(detector.score(problem.test), whole, tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_classes_and_tasks_not_seen_yet(name, build):
    problem = build(seen=[0, 2, 4])  # one class of each task
    assert np.isfinite(fitted(name, problem).score(problem.test)).all()
    if name not in CALIBRATED:  # for which a task without a sample is an error
        problem = build(seen=[0, 1])
        detector = fitted(name, problem)
        assert np.isfinite(joined([detector.score(problem.test), detector.score(problem.ood)])).all()


@pytest.mark.parametrize("name", FITTED)
def test_no_sample_classified_correctly(name, problem):
    wrong = (problem.fit.labels + 1) % problem.fit.logits.shape[1]
    fit = Outputs(problem.fit.logits, problem.fit.features, wrong, problem.fit.inputs)
    detector = detectors.create(name).fit(fit, **problem.fit_arguments())
    assert np.isfinite(detector.score(problem.test)).all()


@pytest.mark.parametrize("name", READS_FEATURES)
def test_an_all_zero_feature_has_a_finite_score(name, problem):
    zeros = np.zeros_like(problem.test.features[:2])
    dead = Outputs(zeros @ problem.head.weight.T + problem.head.bias, zeros)
    fit = problem.fit
    parts = [np.concatenate(pair) for pair in ((fit.logits, dead.logits), (fit.features, zeros), (fit.labels, [0, 1]))]
    for source in (fit, Outputs(*parts)):
        detector = detectors.create(name).fit(source, **problem.fit_arguments())
        found = detector.score(dead)
        assert np.isfinite(found).all()
        assert found.max() <= detector.score(problem.test).max()  # never the most in-distribution of all


@pytest.mark.parametrize("name", NAMES)
def test_one_sample(name, problem):
    one = problem.fit[:1]
    whole = [list(range(problem.fit.logits.shape[1]))]
    detector = detectors.create(name).fit(one, partition=whole, head=problem.head, network=problem.network)
    assert detector.score(one).shape == (1,)
    assert np.isfinite(detector.score(problem.test)).all()
    assert detector.score(problem.test[:0]).shape == (0,)


@pytest.mark.parametrize("name", NAMES)
def test_a_head_of_one_column(name, problem):
    def cut(outputs):
        labels = None if outputs.labels is None else np.zeros_like(outputs.labels)
        return Outputs(outputs.logits[:, :1], outputs.features, labels, outputs.inputs)

    network = make_network(problem.head.weight[:1], problem.head.bias[:1])
    head = Head(problem.head.weight[:1], problem.head.bias[:1])
    detector = detectors.create(name).fit(cut(problem.fit), partition=[[0]], head=head, network=network)
    assert np.isfinite(detector.score(cut(problem.test))).all()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_kind_and_precision_come_back(name, kind, problem):
    def cast(outputs):
        parts = outputs.logits, outputs.features
        if isinstance(kind, torch.dtype):
            parts = [torch.from_numpy(part).to(kind) for part in parts]
        else:
            parts = [part.astype(kind) for part in parts]
        return Outputs(*parts, outputs.labels, outputs.inputs)

    def single(outputs):
        as_float = (torch.as_tensor(part).to(torch.float32).numpy() for part in (outputs.logits, outputs.features))
        return Outputs(*as_float, outputs.labels, outputs.inputs)

    fit, test = cast(problem.fit), cast(problem.test)
    found = detectors.create(name).fit(fit, **problem.fit_arguments()).score(test)
    assert isinstance(found, torch.Tensor) == isinstance(kind, torch.dtype)
    assert str(found.dtype).endswith("float64" if kind in (np.float64, torch.float64) else "float32")
    expected = detectors.create(name).fit(single(fit), **problem.fit_arguments()).score(single(test))
    assert_same(np.asarray(found), expected, tolerance=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_state_round_trip(name, problem, tmp_path):
    detector = fitted(name, problem)
    for key, value in detector.get_params().items():
        if type(value) is int:  # as a search over np.arange would set it
            detector.set_params(**{key: np.int64(value)})
    detector.save(tmp_path / "state.safetensors")
    loaded = Detector.load(tmp_path / "state.safetensors", network=problem.network)
    assert type(loaded) is type(detector)
    assert repr(loaded).replace("[", "(").replace("]", ")") == re.sub(r"np.int64\((\d+)\)", r"\1", repr(detector))
    assert np.array_equal(loaded.score(problem.test), detector.score(problem.test))
    if not isinstance(detector, Bank):  # statistics, not the training set
        assert (tmp_path / "state.safetensors").stat().st_size < problem.fit.features.nbytes


@pytest.mark.parametrize("name", NAMES)
def test_parameters_changed_after_fit_act_or_are_refused(name, problem):
    for key, declared in detectors.classes()[name].parameters.items():
        others = [value for value in declared.grid if value != declared.default] or OTHER.get(
            f"{name}.{key}", OTHER.get(key, ())
        )
        for value in others[:2]:
            changed = fitted(name, problem).set_params(**{key: value})
            expected = fitted(name, problem, **{key: value}).score(problem.test)
            if key in changed.refit:
                with pytest.raises(ToodError, match=f"{key}: changed since fit"):
                    changed.score(problem.test)
                changed.fit(problem.fit, **problem.fit_arguments())
            assert np.array_equal(changed.score(problem.test), expected)


OTHER = {
    "k1": (40,),
    "k2": (30,),
    "share": (0.5,),
    "weight": (0.0,),
    "std": (0.2,),
    "size": (60,),
    "ash.variant": ("s", "p"),
    "adascale.variant": ("l",),
    "below": ("zero",),
    "reference": ("oldest",),
    "alpha": (0.9,),
    "temperature": (3.0,),
    "shrinkage": (0.5,),
    "threshold": (0.5,),
    "orders": (3,),
    "distance": (1.0,),
    "repeats": (7,),
    "samples": (100,),
    "bins": (50,),
    "smoothing": (5,),
    "smoothing_perturbed": (5,),
    "seed": (1,),
}


@pytest.mark.parametrize("name", [name for name in NAMES if "head" in detectors.classes()[name].needs])
def test_a_head_that_learns_on_does_not_change_a_fitted_detector(name, problem):
    head = torch.nn.Linear(16, 6)
    detector = detectors.create(name).fit(problem.fit, head=head, network=problem.network)
    before = detector.score(problem.test)
    with torch.no_grad():
        head.weight += 1
        head.bias -= 1
    detector.set_params(**detector.get_params())
    detector._prepared_for = None  # nothing kept from the first scoring may hide a shared array
    assert np.array_equal(detector.score(problem.test), before)


@pytest.mark.parametrize("name", NAMES)
def test_scikit_learn_can_clone_it(name):
    detector = detectors.create(name)
    assert clone(detector).get_params() == detector.get_params()


@pytest.mark.parametrize("name", NAMES)
def test_clear_errors(name, problem):
    cls = detectors.classes()[name]
    detector = fitted(name, problem)
    bad = problem.test.logits.copy()
    bad[3, 1] = np.nan
    with pytest.raises(ToodError, match=r"logits: expected finite numbers, found nan at \(3, 1\)"):
        detector.score(Outputs(bad, problem.test.features, inputs=problem.test.inputs))
    with pytest.raises(ToodError, match="logits: expected 2 axes"):
        detector.score(Outputs(bad[0], problem.test.features, inputs=problem.test.inputs))
    with pytest.raises(ToodError, match="outputs: expected Outputs"):
        detector.score(problem.test.logits)
    with pytest.raises(ToodError, match="unknown hyper-parameter"):
        detectors.create(name, nonsense=1)
    if name in FITTED:
        with pytest.raises(NotFittedError):
            detectors.create(name).score(problem.test)
        with pytest.raises(ToodError, match="at least one sample"):
            detectors.create(name).fit([], **problem.fit_arguments())
        with pytest.raises(ToodError, match="columns"):
            detectors.create(name).fit(problem.fit, **{**problem.fit_arguments(), "partition": [[0, 1]]})
        with pytest.raises(ToodError, match="expected 6 columns as in fit"):
            detector.score(Outputs(problem.test.logits[:, :4], problem.test.features, inputs=problem.test.inputs))
    for part in cls.needs & {"features", "inputs"}:
        given = {"features": problem.test.features, "inputs": problem.test.inputs}
        with pytest.raises(ToodError, match=f"{part}: this detector reads them"):
            detector.score(Outputs(problem.test.logits, **{**given, part: None}))
        with pytest.raises(ToodError, match=f"{part}: expected 120 rows"):
            detector.score(Outputs(problem.test.logits, **{**given, part: given[part][:5]}))
    for part in cls.needs & {"head", "network"}:
        with pytest.raises(ToodError, match=f"{part}: {name}"):
            detectors.create(name).fit(problem.fit, **{**problem.fit_arguments(), part: None})
    if "labels" in cls.needs:
        unlabelled = Outputs(problem.fit.logits, problem.fit.features)
        with pytest.raises(ToodError, match="labels"):
            detectors.create(name).fit(unlabelled, **problem.fit_arguments())
        outside = Outputs(problem.fit.logits, problem.fit.features, problem.fit.labels + 1)
        with pytest.raises(ToodError, match="labels: expected logit columns 0 to 5, found 6"):
            detectors.create(name).fit(outside, **problem.fit_arguments())


@pytest.mark.parametrize("name", READS_FEATURES)
def test_features_that_do_not_fit(name, problem):
    detector = fitted(name, problem)
    bad = problem.test.features.copy()
    bad[0, 2] = np.inf
    with pytest.raises(ToodError, match=r"features: expected finite numbers, found inf at \(0, 2\)"):
        detector.score(Outputs(problem.test.logits, bad))
    if detector.fits_on != "none" or "head" in detector.needs:
        with pytest.raises(ToodError, match="features: expected 16 dimensions"):
            detector.score(Outputs(problem.test.logits, problem.test.features[:, :5]))
