"""Each promise is checked against the distribution it implies: rejections are binomial, counts beta-binomial."""

import warnings
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom, binom, chisquare

from tood import TOOD, Partition, ToodError, energy
from tood.calibration import Variant
from tood.decision import Conformal, p_values, score_and_assign, threshold
from tood.errors import NotFittedError
from tood.metrics import fpr_at_id_recall
from tood.storage.files import read_tensors, write_tensors

SIMULATIONS = 1_000
SURE = 1e-5  # the probability that a correct program fails a statistical test here, were the seed drawn anew


def within_binomial(rejected, trials, alpha):
    return binom.ppf(SURE / 2, trials, alpha) <= rejected <= binom.ppf(1 - SURE / 2, trials, alpha)


class Mixture:
    """In-distribution logits of three tasks; a third of the samples of the first are hard to recognise."""

    partition = Partition([[0, 1], [2, 3], [4, 5]])
    shift = np.array([-6, -6, -2, -2, 0, 0])

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, rows, task=None):
        """Logits and labels of random classes, of one task where told."""
        labels = self.rng.integers(0, 6, rows) if task is None else self.rng.integers(2 * task, 2 * task + 2, rows)
        strength = np.where((labels < 2) & (self.rng.random(rows) < 1 / 3), 2.0, 6.0)
        return self.rng.normal(size=(rows, 6)) + strength[:, None] * np.eye(6)[labels] + self.shift, labels

    def calibrator(self):
        return TOOD(self.partition).fit(*self(300))


# Pure functions


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=40), st.floats(0.01, 1.0))
@settings(deadline=None)
def test_threshold_is_the_highest_that_keeps_the_recall(scores, recall):
    scores = np.array(scores, dtype=float)
    kept = [t for t in scores if (scores >= t).mean() >= recall]
    assert threshold(scores, recall) == max(kept)


def test_threshold_gives_the_metric():
    rng = np.random.default_rng(0)
    ids, oods = rng.normal(1, 1, 777), rng.normal(size=500)
    assert (oods >= threshold(ids, 0.95)).mean() == fpr_at_id_recall(ids, oods, 0.95)


@given(
    st.lists(st.floats(-1e9, 1e9, width=32) | st.integers(-3, 3).map(float), max_size=60),
    st.lists(st.floats(-1e9, 1e9, width=32) | st.integers(-3, 3).map(float), max_size=60),
    st.sampled_from([np.float32, np.float64]),
)
@settings(deadline=None, max_examples=200)
def test_p_values_count(calibration, scores, dtype):
    calibration, scores = np.array(calibration, dtype=float), np.array(scores, dtype=dtype)
    at_most = (calibration[None] <= scores[:, None].astype(float)).sum(axis=1)
    np.testing.assert_array_equal(p_values(calibration, scores), (1 + at_most) / (len(calibration) + 1))


# Coverage over simulated calibrations


@pytest.mark.untraced
def test_marginal_rejections_are_beta_binomial():
    """Given one calibration set, the share rejected is Beta(k, n + 1 - k) with k = floor(alpha (n + 1))."""
    draw = Mixture(0)
    cal, alpha, n, m = draw.calibrator(), 0.05, 99, 40
    k = int(alpha * (n + 1))
    counts = [int((~Conformal(cal).fit(draw(n)[0]).decide(draw(m)[0], alpha).accept).sum()) for _ in range(SIMULATIONS)]
    expected = SIMULATIONS * betabinom(m, k, n + 1 - k).pmf(np.arange(m + 1))
    cut = 9  # pool the tail so that every bin expects enough
    observed = np.bincount(np.minimum(counts, cut), minlength=cut + 1)
    assert chisquare(observed, [*expected[:cut], expected[cut:].sum()]).pvalue > SURE
    first_of_each = sum(
        not Conformal(cal).fit(draw(n)[0]).decide(draw(1)[0], alpha).accept[0] for _ in range(SIMULATIONS)
    )
    assert within_binomial(first_of_each, SIMULATIONS, alpha)


@pytest.mark.untraced
def test_per_winning_task_at_most_alpha_is_rejected():
    draw = Mixture(1)
    cal, alpha = draw.calibrator(), 0.1
    rejected, trials = np.zeros(3, dtype=int), np.zeros(3, dtype=int)
    for _ in range(SIMULATIONS):
        conformal = Conformal(cal, per_task="winning").fit(draw(60)[0])
        for task in range(3):
            decision = conformal.decide(draw(1, task)[0], alpha)
            trials[decision.task[0]] += 1
            rejected[decision.task[0]] += not decision.accept[0]
    assert trials.min() > 500
    assert all(rejected <= binom.ppf(1 - SURE, trials, alpha)), (rejected, trials)


@pytest.mark.untraced
def test_per_true_task_holds_whatever_the_mix_and_marginal_does_not():
    draw = Mixture(2)
    cal, alpha = draw.calibrator(), 0.1
    marginal, by_task = np.zeros(3, dtype=int), np.zeros(3, dtype=int)
    for _ in range(SIMULATIONS):
        sample = draw(120)
        models = Conformal(cal).fit(*sample), Conformal(cal, per_task="true").fit(*sample)
        for task in range(3):  # inputs of one task only
            logits = draw(1, task)[0]
            marginal[task] += not models[0].decide(logits, alpha).accept[0]
            by_task[task] += not models[1].decide(logits, alpha).accept[0]
    most = binom.ppf(1 - SURE, SIMULATIONS, alpha)
    assert by_task.max() <= most
    assert marginal.max() > most


def test_ties_count_against_rejection():
    rng = np.random.default_rng(3)
    alpha, n = 0.1, 37
    known, new = rng.integers(0, 6, (SIMULATIONS, n)).astype(float), rng.integers(0, 6, SIMULATIONS).astype(float)
    rejected = sum(p_values(*pair)[0] <= alpha for pair in zip(known, new[:, None], strict=True))
    assert rejected <= binom.ppf(1 - SURE, SIMULATIONS, alpha)


@pytest.mark.untraced
def test_cross_conformal_keeps_its_weaker_promise():
    draw = Mixture(4)
    alpha, simulations, n, folds = 0.1, 200, 90, 5
    rejected = {None: 0, "true": 0}
    for seed in range(simulations):
        sample, new = draw(n), draw(1)[0]
        for per_task in rejected:
            conformal = Conformal.cross(TOOD(draw.partition), *sample, folds=folds, per_task=per_task, seed=seed)
            rejected[per_task] += not conformal.decide(new, alpha).accept[0]
    assert rejected[None] <= binom.ppf(1 - SURE, simulations, 2 * alpha + 2 * (folds - 1) / (n + folds))
    assert within_binomial(rejected[None], simulations, alpha)  # not promised, but usual
    assert rejected["true"] <= rejected[None]


def test_cross_conformal_ranks_each_fold_under_the_others():
    draw = Mixture(5)
    logits, labels = draw(90)
    new = draw(20)[0]
    fold = np.empty(90, dtype=int)
    fold[np.random.default_rng(1).permutation(90)] = np.arange(90) % 3
    count = 0
    for k in range(3):
        cal = TOOD(draw.partition).fit(logits[fold != k], labels[fold != k])
        count = count + (cal.score(logits[fold == k])[None] <= cal.score(new)[:, None]).sum(axis=1)
    conformal = Conformal.cross(TOOD(draw.partition), logits, labels, folds=3, seed=1)
    np.testing.assert_array_equal(conformal.decide(new).p_value, (1 + count) / 91)


# The object


@pytest.mark.parametrize("variant", get_args(Variant))
@pytest.mark.parametrize("margin", [0, 0.5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_pass_gives_the_bits_of_score_and_assign(variant, margin, dtype):
    draw = Mixture(6)
    cal = TOOD(draw.partition, variant=variant, margin=margin).fit(*draw(300))
    logits = draw(5000)[0].astype(dtype)
    scores, tasks = score_and_assign(cal, logits)
    assert scores.dtype == dtype
    np.testing.assert_array_equal(scores, cal.score(logits))
    np.testing.assert_array_equal(tasks, cal.assign(logits))


@pytest.mark.parametrize("per_task", [None, "winning", "true"])
def test_thresholds_are_the_decisions(per_task):
    draw = Mixture(7)
    cal = draw.calibrator()
    conformal = Conformal(cal, per_task=per_task).fit(*draw(500))
    logits = draw(3000)[0]
    for alpha in (0.03, 0.05, 0.29):
        limits = conformal.thresholds(alpha)
        reached = cal.score(logits) >= (limits[cal.assign(logits)] if per_task == "winning" else limits)
        np.testing.assert_array_equal(conformal.decide(logits, alpha).accept, reached)


def test_plain_energy_and_duck_typed_scores():
    draw = Mixture(8)
    logits, new = draw(200)[0], draw(50)[0]
    expected = p_values(energy(logits), energy(new))

    class Energy:
        def score(self, logits):
            return energy(logits)

    plain = TOOD([range(6)], variant="none", margin=0).fit(*draw(200))
    for cal in (Energy(), plain):
        np.testing.assert_array_equal(Conformal(cal).fit(logits).decide(new).p_value, expected)
    assert Conformal(Energy()).fit(logits).decide(new).task is None
    for per_task in ("winning", "true"):
        with pytest.raises(ToodError, match="expected"):
            Conformal(Energy(), per_task=per_task).fit(logits, np.zeros(200, dtype=int))
    with pytest.raises(ToodError, match="only TOOD and detectors can be saved, found Energy"):
        Conformal(Energy()).fit(logits).save("never")


def test_what_becomes_of_the_calibrator_later_changes_nothing():
    draw = Mixture(8)
    cal = TOOD([[0, 1], [2, 3], [4, 5]]).fit(*draw(200))
    conformal, new = Conformal(cal).fit(draw(200)[0]), draw(50)[0]
    before = conformal.decide(new).p_value
    cal.set_params(margin=0.0)
    np.testing.assert_array_equal(conformal.decide(new).p_value, before)
    cal.fit(draw(200)[0] - 9, draw(200)[1])
    np.testing.assert_array_equal(conformal.decide(new).p_value, before)


def test_what_becomes_of_a_cross_conformal_calibrator_later_changes_nothing():
    draw = Mixture(8)
    cal = TOOD([[0, 1], [2, 3], [4, 5]])
    conformal, new = Conformal.cross(cal, *draw(200)), draw(50)[0]
    before = conformal.decide(new)
    cal.fit(5 * draw(200)[0], draw(200)[1])
    for found, expected in zip(conformal.decide(new), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_detector_decides_too(tmp_path):
    from tood import detectors
    from tood.deploy.score_file import score_file

    draw = Mixture(8)
    known, new = (detectors.Outputs(logits=draw(rows)[0]) for rows in (200, 50))
    msp = detectors.create("msp")
    decision = Conformal(msp).fit(known).decide(new, alpha=0.1)
    np.testing.assert_array_equal(decision.p_value, p_values(msp.score(known), msp.score(new)))
    np.testing.assert_array_equal(decision.accept, decision.p_value > 0.1)

    (logits, labels), features = draw(200), np.random.default_rng(0).normal(size=(450, 5))
    fit = detectors.Outputs(logits, features[:200], labels)
    joint = detectors.create("tood_joint").fit(fit, partition=[[0, 1], [2, 3], [4, 5]])
    known, new = (detectors.Outputs(o.logits, f) for o, f in ((known, features[200:400]), (new, features[400:])))
    conformal = Conformal(joint).fit(known)
    conformal.save(tmp_path / "decider.safetensors")
    expected = p_values(joint.score(known), joint.score(new))
    for found in (conformal, Conformal.load(tmp_path / "decider.safetensors")):
        np.testing.assert_array_equal(found.decide(new).p_value, expected)
    np.savez(tmp_path / "new.npz", logits=new.logits, features=new.features)
    scored = score_file(tmp_path / "decider.safetensors", tmp_path / "new.npz", tmp_path / "s.parquet", alpha=0.05)
    assert scored.rejected == (expected <= 0.05).sum()


def test_tensors_come_back_as_tensors():
    draw = Mixture(9)
    cal = draw.calibrator()
    logits = draw(100)[0]
    arrays = Conformal(cal).fit(logits).decide(logits)
    tensors = Conformal(cal).fit(torch.from_numpy(logits)).decide(torch.from_numpy(logits))
    for array, tensor in zip(arrays, tensors, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("per_task", [None, "winning", "true"])
def test_a_file_decides_alike(tmp_path, per_task):
    draw = Mixture(10)
    sample, logits = draw(400), draw(500)[0]
    fitted = Conformal(draw.calibrator(), per_task=per_task, seed=3).fit(*sample)
    models = [fitted]
    if per_task != "winning":
        models.append(Conformal.cross(TOOD(draw.partition), *sample, folds=3, per_task=per_task))
    for model in models:
        model.save(tmp_path / "a.safetensors")
        loaded = Conformal.load(tmp_path / "a.safetensors")
        loaded.save(tmp_path / "b.safetensors")
        assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
        for ours, theirs in zip(model.decide(logits), loaded.decide(logits), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_task_that_won_no_calibration_sample_is_decided_by_all_samples():
    draw = Mixture(12)
    cal, sample = draw.calibrator(), draw(100, task=0)[0]
    sample = sample[cal.assign(sample) != 2]
    conformal = Conformal(cal, per_task="winning").fit(sample)
    logits = np.concatenate([draw(20, task=2)[0], np.full((1, 6), -100.0)])
    decision = conformal.decide(logits, alpha=0.5)
    limits = conformal.thresholds(0.5)
    assert limits[2] == Conformal(cal).fit(sample).thresholds(0.5)
    assert np.array_equal(decision.accept, decision.score >= limits[decision.task]) and not decision.accept[-1]


def test_warnings_say_what_is_wrong():
    draw = Mixture(13)
    cal = draw.calibrator()
    few = Conformal(cal).fit(draw(18)[0])
    for decide in (few.decide, lambda logits: few.thresholds()):
        with pytest.raises(ToodError, match="18 calibration samples cannot reject anything"):
            decide(draw(1)[0])
    logits, labels = map(np.concatenate, zip(draw(60, task=0), draw(60, task=1), draw(3, task=2), strict=True))
    with pytest.warns(UserWarning, match="task 2: fewer than the 19 calibration samples"):
        Conformal(cal, per_task="true").fit(logits, labels).decide(draw(1)[0], 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Conformal(cal).fit(draw(19)[0]).decide(draw(1)[0])


def test_a_fold_may_hold_one_sample():
    """Leave-one-out: every sample is ranked under a calibrator fitted to all others."""
    draw = Mixture(16)
    logits, labels = draw(30)
    assert len(set(labels // 2)) == 3 and np.bincount(labels // 2).min() > 1
    conformal = Conformal.cross(TOOD(draw.partition), logits, labels, folds=30)
    new = draw(20)[0]
    rest = [np.delete(np.arange(30), i) for i in range(30)]
    cals = [TOOD(draw.partition).fit(logits[r], labels[r]) for r in rest]
    at_most = sum(cal.score(logits[i : i + 1]) <= cal.score(new) for i, cal in enumerate(cals))
    np.testing.assert_array_equal(conformal.decide(new, alpha=0.1).p_value, (1 + at_most) / 31)


def test_bad_input_is_named(tmp_path):
    draw = Mixture(14)
    cal = draw.calibrator()
    logits, labels = draw(100)
    conformal = Conformal(cal).fit(logits)
    with pytest.raises(NotFittedError):
        Conformal(cal).decide(logits)
    with pytest.raises(ToodError, match="alpha"):
        conformal.decide(logits, alpha=1.5)
    with pytest.raises(ToodError, match="recall"):
        threshold([1.0], recall=0)
    with pytest.raises(ToodError, match="finite"):
        p_values([np.nan], [1.0])
    with pytest.raises(ToodError, match="per_task"):
        Conformal(cal, per_task="task")
    with pytest.raises(ToodError, match="at least one"):
        Conformal(cal).fit(logits[:0])
    with pytest.raises(ToodError, match="winning"):
        Conformal.cross(cal, logits, labels, per_task="winning")
    with pytest.raises(ToodError, match="folds"):
        Conformal.cross(cal, logits, labels, folds=1)
    with pytest.raises(ToodError, match="fold 0 of 2: labels: no calibration sample for task"):
        Conformal.cross(TOOD(draw.partition, "mean_shift"), logits[:3], np.array([0, 2, 4]), folds=2)
    with pytest.raises(ToodError, match="single calibration set"):
        Conformal.cross(cal, logits, labels, folds=2).thresholds()
    with pytest.raises(NotFittedError):
        Conformal(cal).risk_threshold()
    cal.save(tmp_path / "cal.safetensors")
    with pytest.raises(ToodError, match="expected a tood-conformal file, found tood-calibrator"):
        Conformal.load(tmp_path / "cal.safetensors")
    conformal.save(tmp_path / "conformal.safetensors")
    tensors, metadata = read_tensors(tmp_path / "conformal.safetensors", "tood-conformal")
    write_tensors(
        tmp_path / "without.safetensors", "tood-conformal", {**tensors, "scores.0": np.array([np.nan])}, metadata
    )
    with pytest.raises(ToodError, match=r"without\.safetensors: not a usable conformal file: scores"):
        Conformal.load(tmp_path / "without.safetensors")


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]])  # hard samples in the first or last task
def test_per_true_task_takes_the_largest_p_value_of_all_tasks(order):
    draw = Mixture(5)
    (logits, labels), (calibration, their_labels), (queries, _) = draw(150), draw(300), draw(40)
    logits, labels, queries = logits[:, order], np.array(order)[labels], queries[:, order]
    cal = TOOD(draw.partition).fit(calibration[:, order], np.array(order)[their_labels])
    scores, tasks = cal.score(logits), draw.partition.column_tasks[labels]
    each = [p_values(scores[tasks == task], cal.score(queries)) for task in range(3)]
    found = Conformal(cal, per_task="true").fit(logits, labels).decide(queries).p_value
    assert found.tolist() == np.max(each, axis=0).tolist()


# Per class


class Unequal(Mixture):
    """Classes of unequal difficulty: one of each task is hard to recognise."""

    def __call__(self, rows, label=None):
        labels = self.rng.integers(0, 6, rows) if label is None else np.full(rows, label)
        strength = np.where(labels % 2 == 0, 3.0, 8.0)
        return self.rng.normal(size=(rows, 6)) + strength[:, None] * np.eye(6)[labels], labels


@pytest.mark.untraced
def test_per_class_holds_for_every_class_and_marginal_does_not():
    draw = Unequal(3)
    cal, alpha = draw.calibrator(), 0.1
    marginal, per_class = np.zeros(6, dtype=int), np.zeros(6, dtype=int)
    for _ in range(SIMULATIONS):
        labels = np.repeat(np.arange(6), 15)
        logits = np.concatenate([draw(15, label)[0] for label in range(6)])
        models = Conformal(cal).fit(logits), Conformal(cal, per_class=True).fit(logits, labels)
        for label in range(6):
            one = draw(1, label)[0]
            marginal[label] += not models[0].decide(one, alpha).accept[0]
            per_class[label] += not models[1].decide(one, alpha).accept[0]
    most = binom.ppf(1 - SURE, SIMULATIONS, alpha)
    assert per_class.max() <= most < marginal.max()


def test_per_class_is_the_rank_of_each_classs_own_logit():
    draw = Unequal(4)
    (logits, labels), inputs = draw(200), draw(50)[0]
    conformal = Conformal(draw.calibrator(), per_class=True).fit(logits, labels)
    expected = np.max([p_values(logits[labels == c, c], inputs[:, c]) for c in range(6)], axis=0)
    decision = conformal.decide(inputs, 0.1)
    np.testing.assert_array_equal(decision.p_value, expected)
    np.testing.assert_array_equal(decision.accept, expected > 0.1)
    assert not conformal.decide(np.zeros((1, 6)), 0.2).accept[0]


def test_a_class_with_few_samples_takes_its_tasks_and_then_all(tmp_path):
    draw = Unequal(5)
    counts = {0: 30, 1: 3, 2: 2, 3: 3, 4: 30}  # class 5 has none
    logits = np.concatenate([draw(n, label)[0] for label, n in counts.items()])
    labels = np.repeat(list(counts), list(counts.values()))
    conformal = Conformal(draw.calibrator(), per_class=True).fit(logits, labels)
    inputs = draw(40)[0]
    own = logits[np.arange(len(labels)), labels]
    pools = {0: labels == 0, 1: labels < 2, 2: labels >= 0, 3: labels >= 0, 4: labels == 4, 5: labels >= 4}
    expected = np.max([p_values(own[pool], inputs[:, c]) for c, pool in pools.items()], axis=0)
    with pytest.warns(UserWarning, match="class 1, 2, 3, 5: fewer than the 9 calibration samples"):
        np.testing.assert_array_equal(conformal.decide(inputs, 0.1).p_value, expected)
    conformal.save(tmp_path / "decision")
    loaded = Conformal.load(tmp_path / "decision")
    with pytest.warns(UserWarning, match="fewer"):
        np.testing.assert_array_equal(loaded.decide(inputs, 0.1).p_value, expected)
    with pytest.raises(ToodError, match="not per class"):
        conformal.thresholds(0.1)


def test_per_class_needs_labels_and_goes_without_per_task_and_cross_ranks_all():
    draw = Unequal(6)
    sample = draw(300)
    with pytest.raises(ToodError, match="expected labels"):
        Conformal(draw.calibrator(), per_class=True).fit(sample[0])
    with pytest.raises(ToodError, match="per_task=None"):
        Conformal(draw.calibrator(), per_task="true", per_class=True)
    inputs = draw(30)[0]
    crossed = Conformal.cross(TOOD(draw.partition), *sample, per_class=True).decide(inputs, 0.1)
    split = Conformal(draw.calibrator(), per_class=True).fit(*sample).decide(inputs, 0.1)
    np.testing.assert_array_equal(crossed.p_value, split.p_value)  # logits are not fitted


@pytest.mark.parametrize("seed", [float("nan"), -1, "x", [1]])
def test_a_seed_must_be_a_whole_number(tmp_path, seed):
    logits, labels = np.tile(np.eye(2), (20, 1)), np.tile([0, 1], 20)
    conformal = Conformal(TOOD([[0, 1]]).fit(logits, labels)).fit(logits)
    conformal.seed = seed
    conformal.save(tmp_path / "f.safetensors")
    with pytest.raises(ToodError, match="seed: expected a whole number"):
        Conformal.load(tmp_path / "f.safetensors")
