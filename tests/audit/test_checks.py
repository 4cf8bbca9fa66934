"""Each mistake, made on purpose, gets its sentence; a clean run gets none."""

import numpy as np
import pytest

from tood.audit import audit
from tood.audit.checks import check_step
from tood.detectors import Head
from tood.outputs import Run, Step, write_manifest, write_step


def change(path, names, function):
    """Rewrite arrays of some outputs at every step."""
    for file in sorted(path.glob("steps/*/outputs/**/*.npz")):
        if any(name in file.as_posix() for name in names):
            with np.load(file) as stored:
                arrays = dict(stored)
            np.savez(file, **function(arrays, file))


def findings(path):
    return {finding.check: str(finding) for finding in audit(Run(path), ["energy"]).verdict.findings}


def softmax(arrays, file):
    e = np.exp(arrays["logits"] - arrays["logits"].max(axis=1, keepdims=True))
    return arrays | {"logits": e / e.sum(axis=1, keepdims=True)}


def log_softmax(arrays, file):
    logits = arrays["logits"].astype(np.float64)
    return arrays | {"logits": logits - np.logaddexp.reduce(logits, axis=1)[:, None]}


def test_a_clean_run_gets_no_finding(build, tmp_path):
    assert findings(build(tmp_path / "run", gap=0.3)) == {}


@pytest.mark.parametrize(("function", "word"), [(softmax, "probabilities"), (log_softmax, "log-probabilities")])
def test_probabilities(build, tmp_path, function, word):
    path = build(tmp_path / "run")
    change(path, ["outputs"], function)
    found = findings(path)
    assert word in found["probabilities"] and "overlap" not in found  # those of sure predictions are equal


def test_small_logits_of_ood_are_no_finding(build, tmp_path):
    path = build(tmp_path / "run", features=False)
    change(path, ["outputs/ood/far_a"], lambda arrays, file: {"logits": 0.05 * arrays["logits"]})
    assert findings(path) == {}


def test_labels_off_by_one_and_permuted(tmp_path):
    """Tasks of four classes in order, so that a shift stays within the task."""
    rng = np.random.default_rng(0)
    run = write_manifest(tmp_path / "run", [[0, 1, 2, 3], [4, 5, 6, 7]], far=["noise"])

    def write(mapping):
        for step in range(2):
            labels = np.repeat(np.arange(4 * (step + 1)), 15)
            part = lambda: 6 * np.eye(8)[labels] + rng.normal(size=(len(labels), 8))  # noqa: B023, E731
            given = {"labels": np.array([4 * (c // 4) + mapping[c % 4] for c in labels])}
            sets = {name: {"logits": part(), **given} for name in ("test", "calibration")}
            write_step(run.path, step, **sets, ood={"noise": rng.normal(size=(80, 8))})
        return findings(run.path)

    assert "labels" not in write([0, 1, 2, 3])
    assert all("logit columns" in write(wrong)["labels"] for wrong in ([3, 0, 1, 2], [2, 3, 1, 0]))


@pytest.mark.parametrize("count", [20, 1000])
def test_right_labels_of_a_weak_network_with_two_classes_are_no_finding(tmp_path, count):
    rng, labels = np.random.default_rng(0), np.arange(count) % 2
    run = write_manifest(tmp_path / "run", [[0, 1]], far=["noise"])

    def part(right):  # a share of the labels is right
        predicted = np.where(np.arange(count) < right * count, labels, 1 - labels)
        return {"logits": np.eye(2)[predicted] + rng.uniform(-0.4, 0.4, (count, 2)), "labels": labels}

    for right, found in ((0.7, set()), (0.5, {"labels"}), (0.0, {"labels"})):
        write_step(run.path, 0, test=part(0.7), calibration=part(right), ood={"noise": rng.normal(size=(50, 2))})
        assert set(findings(run.path)) & {"labels"} == found


def test_shuffled_labels(build, tmp_path):
    path = build(tmp_path / "run")
    change(path, ["calibration.npz"], lambda arrays, file: arrays | {"labels": np.roll(arrays["labels"], 10)})
    found = findings(path)
    assert "calibration.npz" in found["labels"] and "test.npz" not in found["labels"]


def test_calibration_from_the_test_set(build, tmp_path):
    path = build(tmp_path / "run")

    def copied(arrays, file):
        with np.load(file.parent / "test.npz") as test:
            return {name: test[name][::4] for name in test.files}

    change(path, ["calibration.npz"], copied)
    assert "calibration samples are test samples too" in findings(path)["overlap"]


@pytest.mark.parametrize(("width", "copied"), [(0, 0), (4, 0), (4, 50)])
def test_one_column_overlaps_only_if_features_are_equal(tmp_path, width, copied):
    """Independent logits of one column are equal to three decimals by chance."""
    rng = np.random.default_rng(0)
    run = write_manifest(tmp_path / "run", [[0], [1]], far=["noise"])

    def part(count, labelled=True):
        features = {"features": rng.normal(size=(count, width))} if width else {}
        labels = {"labels": np.zeros(count, int)} if labelled else {}
        return {"logits": rng.normal(size=(count, 1)), **features, **labels}

    test, calibration = part(500), part(200)
    for name in calibration:
        calibration[name][:copied] = test[name][:copied]
    write_step(run.path, 0, test=test, calibration=calibration, ood={"noise": part(50, labelled=False)})
    found = findings(run.path).get("overlap", "")
    assert found.startswith("50 of 200 calibration samples") and "features are equal" in found if copied else not found


def test_replayed_exemplars_and_a_hidden_gap(build, tmp_path):
    replayed = findings(build(tmp_path / "a", calibration={"source": "memory"}))
    assert "replayed exemplars (memory)" in replayed["calibration"]
    hidden = findings(build(tmp_path / "b", gap=2.5, hidden=0.9))
    assert "hides the confidence gap" in hidden["calibration"] and "never trained on" in hidden["calibration"]


def test_logits_of_the_wrong_sign(build, tmp_path):
    path = build(tmp_path / "run", features=False)
    change(path, ["ood/far"], lambda arrays, file: arrays | {"logits": arrays["logits"] + 20})
    verdict = audit(Run(path), ["energy"]).verdict  # far-OOD alone may be so, and near-OOD and accuracy are right
    assert "swapped" not in findings(path) and "far-OOD is below chance" in verdict.card()["lost"]
    change(path, ["outputs"], lambda arrays, file: arrays | {"logits": -arrays["logits"]})
    change(path, ["ood"], lambda arrays, file: arrays | {"logits": arrays["logits"] + 20})
    assert "sign" in findings(path)["swapped"]


def test_a_class_without_samples(build, tmp_path):
    path = build(tmp_path / "run")

    def without(arrays, file):
        keep = arrays["labels"] != 3
        return {name: values[keep] for name, values in arrays.items()}

    change(path, ["calibration.npz"], without)
    assert "no sample of 1 of 8 classes (columns 3)" in findings(path)["missing class"]


def test_ood_on_another_scale(build, tmp_path):
    path = build(tmp_path / "run")
    change(path, ["ood/far_a"], lambda arrays, file: arrays | {"features": 9 * arrays["features"]})
    assert "OOD set far_a" in findings(path)["preprocessing"]


def test_a_head_that_does_not_give_the_logits_is_found(tmp_path):
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(4, 6)), rng.normal(size=4)
    write_manifest(tmp_path / "run", [[0, 1], [2, 3]], near=["a"])

    def outputs(rows):
        features = rng.normal(size=(rows, 6))
        return {"logits": features @ weight.T + bias, "features": features, "labels": np.arange(rows) % 4}

    sets = {"test": outputs(80), "calibration": outputs(40), "ood": {"a": outputs(30)}}
    for head, found in (((weight, bias), False), ((weight[::-1], bias), True), ((weight, None), True)):
        write_step(tmp_path / "run", 1, **sets, head=Head(*head))
        checks = {finding.check for finding in check_step(Step(Run(tmp_path / "run"), 1))}
        assert ("head" in checks) == found


def test_runs_of_our_own_have_the_labels_of_their_logits(tmp_path):
    """A learner may know nothing of its newest classes; that does not make its labels wrong."""
    rng = np.random.default_rng(0)
    part = {"logits": rng.normal(size=(200, 4)), "labels": np.arange(200) % 4}
    for name, more in {"theirs": {}, "ours": {"made_by": {"tood": "1"}}}.items():
        run = write_manifest(tmp_path / name, [[0, 1, 2, 3]], **more)
        write_step(run.path, 0, test=part, calibration=part, ood={})
        found = [finding.check for finding in check_step(Step(run, 0))]
        assert ("labels" in found) == (name == "theirs")
