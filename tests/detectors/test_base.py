"""Files, hyper-parameters and fit data that cannot be right."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from tood import TOOD, detectors
from tood.detectors import Detector, Head, Outputs
from tood.detectors.base import number
from tood.errors import ToodError
from tood.storage.files import write_tensors

PARTITION = [[0, 3], [1, 2], [4]]


def outputs(rows, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return Outputs(logits=scale * rng.normal(size=(rows, 5)), labels=np.arange(rows) % 5)


def test_files_that_are_not_detectors(tmp_path):
    with pytest.raises(ToodError, match="no such file"):
        Detector.load(tmp_path / "absent")
    (tmp_path / "rubbish").write_bytes(b"rubbish")
    with pytest.raises(ToodError, match="rubbish: cannot be read"):
        Detector.load(tmp_path / "rubbish")
    TOOD(PARTITION).fit(outputs(100, 0).logits, outputs(100, 0).labels).save(tmp_path / "calibrator")
    with pytest.raises(ToodError, match="expected a tood-detector file"):
        Detector.load(tmp_path / "calibrator")
    described = {"name": "dice", "settings": "{}", "numbers": "{}"}
    for tensors, numbers in (({}, '{"shape_": [2, 3]}'), ({"score": np.zeros(3)}, "{}"), ({}, '{"shape_": 7}')):
        write_tensors(tmp_path / "odd", "tood-detector", tensors, {**described, "numbers": numbers})
        with pytest.raises(ToodError, match="odd: not a usable detector"):
            Detector.load(tmp_path / "odd")


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("gen", {"gamma": 0}, "gamma: expected a number from 1e-06 to 1000, found 0"),
        ("gen", {"m": 2.5}, "m: expected a whole number"),
        ("knn", {"k": True}, "k: expected a whole number"),
        ("vra", {"low": 95}, "low: expected at most high = 90, found 95"),
        ("ash", {"variant": "x"}, "variant: expected one of 'b', 's', 'p', found 'x'"),
        ("fdbd", {"normalizer": ["norm"]}, "normalizer: expected one of"),
        ("prototype", {"normalize": 1}, "normalize: expected True or False, found 1"),
        ("gmm", {"shrinkage": 1.5}, "shrinkage: expected 'oas' or a number from 0 to 1, found 1.5"),
        ("odin", {"std": ()}, "std: expected a positive number, or one per channel"),
        ("adascale", {"percentiles": (90, 80)}, "percentiles: expected a low and a high one"),
    ],
)
def test_parameters_that_make_no_sense(name, parameters, message):
    with pytest.raises(ToodError, match=re.escape(message)):
        detectors.create(name, **parameters)
    with pytest.raises(ToodError, match=re.escape(message)):
        detectors.create(name).set_params(**parameters)
    with pytest.raises(ToodError, match=f"unknown hyper-parameter of {name} 'nonsense'"):
        detectors.create(name).set_params(nonsense=1)


def test_a_score_that_is_not_finite_is_an_error_that_names_the_row():
    class Root(Detector):
        """The square root of the first logit."""

        name, title, citation = "root", "Root", "Nobody, 2026"
        needs, fits_on = frozenset({"logits"}), "none"

        def _score(self, rows, prepared):
            with np.errstate(invalid="ignore"):
                return np.sqrt(rows.logits[:, 0])

    with pytest.raises(ToodError, match="root: the score of row 2 is nan, expected a finite float64"):
        Root().score(Outputs(np.array([[1.0], [4.0], [-1.0], [9.0]])))


def test_what_fit_is_given_is_checked():
    fit = Outputs(np.zeros((4, 3)), np.ones((4, 2)), np.zeros(4, dtype=int))
    with pytest.raises(ToodError, match="outputs: expected Outputs"):
        detectors.create("mds").fit()
    with pytest.raises(ToodError, match="outputs: expected Outputs or an iterable of them, found int"):
        detectors.create("mds").fit(3)
    with pytest.raises(ToodError, match=r"chunks disagree: \(3, 2\) columns and dimensions, then \(3, 1\)"):
        detectors.create("mds").fit([fit, Outputs(fit.logits, fit.features[:, :1], fit.labels)])
    with pytest.raises(ToodError, match=r"head.weight: expected shape \(3, 2\).*found \(3, 5\)"):
        detectors.create("dice").fit(fit, head=Head(np.zeros((3, 5))))
    with pytest.raises(ToodError, match=r"head: expected Head\(weight, bias\).* found tuple"):
        detectors.create("dice").fit(fit, head=(1, 2))
    with pytest.raises(ToodError, match="head: expected a bias for each of 3 weight rows, found 2"):
        detectors.create("dice").fit(fit, head=Head(np.zeros((3, 2)), np.zeros(2)))
    with pytest.raises(ToodError, match="logits: expected at least one column"):
        detectors.create("msp").score(Outputs(np.zeros((4, 0))))


def test_a_detector_of_ones_own_is_one_class(tmp_path, install):
    @detectors.register
    class Gap(Detector):
        """The difference of the two largest logits."""

        name = "gap"
        title = "Gap"
        needs = frozenset({"logits"})
        fits_on = "none"
        citation = "Nobody, 2026"

        def _score(self, rows, prepared):
            return np.diff(np.sort(rows.logits, axis=1)[:, -2:])[:, 0]

    assert "gap" in detectors.names()
    assert detectors.title("gap") == "Gap"
    assert detectors.title("not_registered") == "not_registered"
    detector = detectors.create("gap")
    assert detector.score(Outputs(np.array([[1.0, 4.0, 2.0]]))).tolist() == [2.0]
    detector.save(tmp_path / "gap.safetensors")
    assert type(Detector.load(tmp_path / "gap.safetensors")) is Gap


def test_a_saved_detector_cannot_name_code_to_import(tmp_path):
    write_tensors(tmp_path / "d", "tood-detector", {}, {"name": "os:system", "settings": "{}", "numbers": "{}"})
    with pytest.raises(ToodError, match="the name 'os:system' would import code"):
        Detector.load(tmp_path / "d")


def test_declared_hyper_parameters_make_a_constructor():
    class Declared(Detector):
        """The first logit."""

        name, citation, needs, fits_on = "declared", "Nobody, 2026", frozenset({"logits"}), "none"
        k: int = number(3, 1, 9, whole=True, grid=(3, 4), refit=True)
        plain: float = 0.5

        def _score(self, rows, prepared):
            return rows.logits[:, 0]

    assert repr(Declared(k=4)) == "Declared(k=4, plain=0.5)"
    assert Declared.parameters == {"k": 3, "plain": 0.5}
    assert (Declared.refit, Declared.grid) == ({"k"}, {"k": (3, 4)})
    assert len({Declared(), Declared()}) == 2  # two detectors, though their settings agree
    for wrong in (0, 10, 2.0, None):
        with pytest.raises(ToodError, match="k: expected a whole number from 1 to 9"):
            Declared().set_params(k=wrong)


def test_a_file_of_another_version_warns(tmp_path, monkeypatch):
    file, fit = tmp_path / "energy.safetensors", outputs(20, 0)
    detectors.create("energy", temperature=2.0).save(file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = Detector.load(file)
    monkeypatch.setattr(detectors.classes()["energy"], "version", 2)
    with pytest.warns(UserWarning, match="of version 1, now 2"):
        again = Detector.load(file)
    np.testing.assert_array_equal(again.score(fit), same.score(fit))


def test_a_file_with_a_setting_that_is_gone_loads(tmp_path):
    described = {"name": "energy", "settings": '{"temperature": 2.0, "gone": 1}', "numbers": "{}"}
    write_tensors(tmp_path / "d", "tood-detector", {}, described)
    with pytest.warns(UserWarning, match="sets gone, which is ignored"):
        assert repr(Detector.load(tmp_path / "d")) == "Energy(temperature=2.0)"
