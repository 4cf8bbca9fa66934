import contextlib

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import norm

from tood import TOOD, ToodError
from tood.decision import PredictionSets
from tood.errors import NotFittedError
from tood.storage.files import write_tensors

TASKS = [[0, 1, 2], [3, 4, 5]]
ROUNDS, SAMPLES, INPUTS = 300, 60, 20


def draw(rng, rows, strength=2.5):
    labels = rng.integers(0, 6, rows)
    logits = rng.normal(size=(rows, 6)) + strength * np.eye(6)[labels]
    logits[:, :3] -= 1  # the old task's logits have shrunk
    return logits, labels


@pytest.mark.parametrize("method", ["lac", "aps"])
@pytest.mark.parametrize("unknown", [0.0, 0.5])
def test_the_true_class_is_in_the_set_as_often_as_promised(method, unknown):
    """Over fresh calibration samples and inputs; the mean of rounds is normal, a miss at 4 sigma has chance 3e-5."""
    rng = np.random.default_rng(0)
    cal = TOOD(TASKS).fit(*draw(rng, 300))
    alpha, covered, sizes = 0.2, [], []
    for _ in range(ROUNDS):
        sets = PredictionSets(cal, method, unknown).fit(*draw(rng, SAMPLES))
        logits, labels = draw(rng, INPUTS)
        found = sets.predict(logits, alpha)
        covered.append(found[np.arange(INPUTS), labels].mean())
        sizes.append(found.sum(axis=1).mean())
    slack = norm.isf(3e-5) * np.std(covered) / np.sqrt(ROUNDS)
    assert np.mean(covered) >= 1 - alpha - slack
    if method == "lac" and unknown == 0:  # no ties: also not more than 1 / (n + 1) too often
        assert np.mean(covered) <= 1 - alpha + 1 / (SAMPLES + 1) + slack
    assert np.mean(sizes) < 4


def test_sets_are_those_of_the_definitions():
    rng = np.random.default_rng(1)
    cal = TOOD(TASKS).fit(*draw(rng, 300))
    (known, labels), (logits, _) = draw(rng, 99), draw(rng, 50)
    rows = np.arange(99)
    for method in ("lac", "aps"):
        found = PredictionSets(cal, method, unknown=0.0).fit(known, labels).predict(logits, alpha=0.1)

        def score(values, method=method):  # nonconformity, class by class
            p = softmax(values, axis=1)
            return 1 - p if method == "lac" else (p[:, None, :] * (p[:, None, :] > p[:, :, None])).sum(axis=2)

        limit = np.sort(score(known)[rows, labels])[89]  # the 90th of 99: ceil(100 * 0.9)
        np.testing.assert_array_equal(found, score(logits) <= limit + 1e-12)


def test_an_unknown_input_has_the_empty_set():
    rng = np.random.default_rng(2)
    cal = TOOD(TASKS).fit(*draw(rng, 300, strength=8))
    for method in ("lac", "aps"):
        sets = PredictionSets(cal, method).fit(*draw(rng, 300, strength=8))
        unknown, known = rng.normal(size=(200, 6)), draw(rng, 200, strength=8)[0]
        assert (~sets.predict(unknown, 0.1).any(axis=1)).mean() > 0.8
        assert (~sets.predict(known, 0.1).any(axis=1)).mean() < 0.15


def test_a_file_keeps_them_and_tensors_come_back(tmp_path):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    sets = PredictionSets(TOOD(TASKS).fit(*draw(rng, 300)), "aps", 0.3).fit(*draw(rng, 300))
    sets.save(tmp_path / "sets")
    loaded, logits = PredictionSets.load(tmp_path / "sets"), draw(rng, 100)[0]
    np.testing.assert_array_equal(loaded.predict(logits), sets.predict(logits))
    assert torch.equal(loaded.predict(torch.tensor(logits)), torch.tensor(sets.predict(logits)))
    with pytest.raises(NotFittedError):
        PredictionSets(sets.cal).predict(logits)
    with pytest.raises(ToodError, match="unknown method 'lca'; did you mean 'lac'"):
        PredictionSets(sets.cal, "lca")
    for share in (-0.1, 1.0, 1.5):
        with pytest.raises(ToodError, match=f"unknown: expected a share from 0 to below 1, found {share}"):
            PredictionSets(sets.cal, unknown=share)


def test_sets_do_not_depend_on_a_common_shift_of_the_logits():
    rng = np.random.default_rng(5)
    (known, labels), (logits, _) = draw(rng, 99), draw(rng, 50)
    sets = [
        PredictionSets(TOOD(TASKS).fit(known + shift, labels), unknown=0.0).fit(known + shift, labels)
        for shift in (0, 1000)  # exp(1000) overflows
    ]
    np.testing.assert_array_equal(sets[1].predict(logits + 1000), sets[0].predict(logits))


def test_what_becomes_of_the_calibrator_later_changes_nothing():
    rng = np.random.default_rng(4)
    cal = TOOD(TASKS).fit(*draw(rng, 300))
    sets, (logits, labels) = PredictionSets(cal).fit(*draw(rng, 200)), draw(rng, 50)
    before = sets.predict(logits)
    cal.fit(logits - 9 * np.eye(6)[labels], labels)
    np.testing.assert_array_equal(sets.predict(logits), before)


@pytest.mark.parametrize("per", ["task", "class"])
def test_each_task_or_class_keeps_the_promise(per, tmp_path):
    """A class whose logits are weak is missed more often than alpha by one bound for all, but not by its own."""
    rng, alpha, strength = np.random.default_rng(2), 0.2, np.array([1.5, 3, 3, 6, 6, 6])
    cal = TOOD(TASKS).fit(*draw(rng, 300))
    covered = {None: np.zeros(6), per: np.zeros(6)}
    for _ in range(ROUNDS):
        samples, inputs = (draw(rng, rows, strength) for rows in (240, 120))
        for chosen, sums in covered.items():
            found = PredictionSets(cal, per=chosen).fit(*samples).predict(inputs[0], alpha)
            sums += [found[inputs[1] == c, c].mean() / ROUNDS for c in range(6)]
    if per == "class":
        assert covered[None].min() < 1 - alpha - 0.03
        assert covered[per].min() >= 1 - alpha - 0.015
    else:
        assert covered[per][:3].mean() >= 1 - alpha - 0.015 > covered[None][:3].mean() - 0.02
    sets = PredictionSets(cal, per=per).fit(*samples)
    sets.save(tmp_path / "sets")
    assert (PredictionSets.load(tmp_path / "sets").predict(inputs[0], alpha) == sets.predict(inputs[0], alpha)).all()


def test_a_class_with_few_samples_takes_those_of_its_task():
    rng = np.random.default_rng(3)
    cal, (logits, labels) = TOOD(TASKS).fit(*draw(rng, 300)), draw(rng, 300)
    rows = (labels != 1) | (np.cumsum(labels == 1) <= 3)
    sets = PredictionSets(cal, per="class").fit(logits[rows], labels[rows])
    with pytest.warns(UserWarning, match="class 1: fewer than the 9"):
        found = sets.predict(logits, alpha=0.2)
    own = labels[rows] < 3
    with pytest.warns(UserWarning, match="task 1"):
        by_task = PredictionSets(cal, per="task").fit(logits[rows][own], labels[rows][own]).predict(logits, alpha=0.2)
    np.testing.assert_array_equal(found[:, 1], by_task[:, 1])


def test_an_input_at_the_limit_of_the_gate_is_unknown():
    """Below all 19 calibration samples the p-value is 1/20, which is half of alpha = 0.1 and not more."""
    logits = np.linspace(5, 6, 19)[:, None] * np.array([1.0, 0.0])
    sets = PredictionSets(TOOD([[0, 1]]).fit(logits, np.zeros(19, int))).fit(logits, np.zeros(19, int))
    assert not sets.predict(logits[:1] - [1.0, 1.0], alpha=0.1).any()


def test_too_few_samples_and_a_file_without_scores_are_errors(tmp_path):
    logits, labels = draw(np.random.default_rng(0), 56)
    cal = TOOD(TASKS).fit(logits, labels)
    with pytest.raises(ToodError, match="at least one calibration sample"):
        PredictionSets(cal).fit(logits[:0], labels[:0])
    for samples in (56, 57):  # half of alpha = 0.035 is left for the classes: 1 / 0.0175 = 57.1
        with pytest.raises(ToodError, match="57 are needed") if samples < 57 else contextlib.nullcontext():
            rows = np.arange(samples) % 56
            PredictionSets(cal).fit(logits[rows], labels[rows]).predict(logits, alpha=0.035)
    write_tensors(tmp_path / "sets", "tood-sets", {"gate": np.zeros(3)}, {"settings": "{}"})
    with pytest.raises(ToodError, match="not a usable file of prediction sets"):
        PredictionSets.load(tmp_path / "sets")


def test_the_fewest_samples_are_the_next_whole_number():
    logits, labels = draw(np.random.default_rng(0), 60)
    sets = PredictionSets(TOOD(TASKS).fit(logits, labels), unknown=0)
    with pytest.raises(ToodError, match="at least 3"):  # 1 / 0.3 - 1 = 2.3
        sets.fit(logits[:2], labels[:2]).predict(logits, alpha=0.3)
    assert len(sets.fit(logits[:3], labels[:3]).predict(logits, alpha=0.3)) == 60
