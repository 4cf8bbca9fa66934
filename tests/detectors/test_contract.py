"""What holds for every detector, whatever it computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone

from tood import detectors
from tood.detectors import Detector, Head, Outputs
from tood.errors import NotFittedError, ToodError
from tood.testing import check_detector
from tood.testing.problem import make_network

NAMES = detectors.names()
FITTED = [name for name in NAMES if detectors.classes()[name].fits_on != "none"]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:tood", "ignore::UserWarning")


def fitted(name, problem, **parameters):
    return detectors.create(name, **parameters).fit(problem.fit, **problem.fit_arguments())


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
def test_blocks_do_not_show(name, problem, monkeypatch):
    detector = fitted(name, problem)
    whole = detector.score(problem.test)
    monkeypatch.setattr("tood.detectors.base.BLOCK", 1)
    many = Outputs(*(np.concatenate([np.asarray(p)] * 5) for p in (problem.test.logits, problem.test.features)))
    many = Outputs(many.logits, many.features, inputs=np.concatenate([problem.test.inputs] * 5))
    assert_same(detector.score(many), np.tile(whole, 5))


@pytest.mark.parametrize("name", FITTED)
def test_no_sample_classified_correctly(name, problem):
    wrong = (problem.fit.labels + 1) % problem.fit.logits.shape[1]
    fit = Outputs(problem.fit.logits, problem.fit.features, wrong, problem.fit.inputs)
    detector = detectors.create(name).fit(fit, **problem.fit_arguments())
    assert np.isfinite(detector.score(problem.test)).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_head_of_one_column(name, problem):
    def cut(outputs):
        labels = None if outputs.labels is None else np.zeros_like(outputs.labels)
        return Outputs(outputs.logits[:, :1], outputs.features, labels, outputs.inputs)

    network = make_network(problem.head.weight[:1], problem.head.bias[:1])
    head = Head(problem.head.weight[:1], problem.head.bias[:1])
    detector = detectors.create(name).fit(cut(problem.fit), partition=[[0]], head=head, network=network)
    assert np.isfinite(detector.score(cut(problem.test))).all()


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_tensors_give_float32_tensors(name, problem):
    def scores(kind):
        fit, test = (
            Outputs(*(torch.from_numpy(x).bfloat16().to(kind) for x in (o.logits, o.features)), o.labels, o.inputs)
            for o in (problem.fit, problem.test)
        )
        return detectors.create(name).fit(fit, **problem.fit_arguments()).score(test)

    assert scores(torch.bfloat16).dtype == torch.float32
    assert_same(scores(torch.bfloat16).numpy(), scores(torch.float32).numpy(), tolerance=1e-4)


@pytest.mark.parametrize("name", ["gen", "vim", "weiper", "openmax"])
def test_a_file_holds_statistics_and_numbers_of_numpy(name, problem, tmp_path):
    detector = fitted(name, problem)
    for key, value in detector.get_params().items():
        if type(value) is int:  # as a search over np.arange would set it
            detector.set_params(**{key: np.int64(value)})
    detector.save(tmp_path / "state.safetensors")
    assert repr(Detector.load(tmp_path / "state.safetensors")) == repr(fitted(name, problem))
    assert (tmp_path / "state.safetensors").stat().st_size < problem.fit.features.nbytes


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
def test_scikit_learn_can_clone_it_and_grids_ascend_and_hold_the_default(name):
    detector = detectors.create(name)
    assert clone(detector).get_params() == detector.get_params()
    for parameter, grid in detector.grid.items():
        assert detector.parameters[parameter] in grid
        numbers = [value for value in grid if isinstance(value, (int, float))]
        assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("name", ["vim", "adascale", "tood"])
def test_clear_errors(name, problem):
    cls = detectors.classes()[name]
    detector = fitted(name, problem)
    bad = problem.test.logits.copy()
    bad[3, 1] = np.nan
    features, inputs = problem.test.features, problem.test.inputs
    with pytest.raises(ToodError, match=r"logits: .*nan at \(3, 1\)"):
        detector.score(Outputs(bad, features, inputs=inputs))
    with pytest.raises(ToodError, match="logits: expected 2 axes"):
        detector.score(Outputs(bad[0], features, inputs=inputs))
    with pytest.raises(ToodError, match="logits: expected 6 columns"):
        detector.score(Outputs(problem.test.logits[:, :4], features, inputs=inputs))
    with pytest.raises(ToodError, match="outputs"):
        detector.score(problem.test.logits)
    with pytest.raises(NotFittedError):
        detectors.create(name).score(problem.test)
    for part in cls.needs & {"head", "network"}:
        with pytest.raises(ToodError, match=f"^{part}: "):
            detectors.create(name).fit(problem.fit, **{**problem.fit_arguments(), part: None})
    with pytest.raises(ToodError, match="hyper-parameter"):
        detectors.create(name, nonsense=1)
    with pytest.raises(ToodError, match="at least one sample"):
        detectors.create(name).fit([], **problem.fit_arguments())
    with pytest.raises(ToodError, match="columns"):
        detectors.create(name).fit(problem.fit, **{**problem.fit_arguments(), "partition": [[0, 1]]})
    for part in cls.needs & {"features", "inputs"}:
        given = {"features": features, "inputs": inputs}
        for missing in (None, given[part][:5]):
            with pytest.raises(ToodError, match=f"{part}: "):
                detector.score(Outputs(problem.test.logits, **{**given, part: missing}))
    if "features" in cls.needs:
        with pytest.raises(ToodError, match=r"features: .*inf at \(0, 2\)"):
            detector.score(Outputs(problem.test.logits, np.where(np.arange(16) == 2, np.inf, features)))
        with pytest.raises(ToodError, match="features: expected 16 dimensions"):
            detector.score(Outputs(problem.test.logits, features[:, :5]))
    if "labels" in cls.needs:
        for labels in (None, problem.fit.labels + 1):
            with pytest.raises(ToodError, match="labels: "):
                detectors.create(name).fit(
                    Outputs(problem.fit.logits, problem.fit.features, labels), **problem.fit_arguments()
                )
