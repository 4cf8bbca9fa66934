import warnings

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm
from sklearn.metrics import roc_auc_score

from tood import TOOD, Partition, detectors, task_energies
from tood.calibration.statistics import auroc_interval, diagnose
from tood.detectors import Outputs


def problem(dead=(), per_class=40, seed=0):
    """Logits of three tasks of two classes; the columns of ``dead`` tasks ignore the label."""
    rng = np.random.default_rng(seed)
    partition = Partition.from_sizes([2, 2, 2])
    labels = rng.permutation(np.repeat(np.arange(6), per_class))
    logits = rng.normal(size=(len(labels), 6)) + 4 * np.eye(6)[labels]
    for t in dead:
        logits[:, list(partition.tasks[t])] = rng.normal(size=(len(labels), 2)) - 6
    return partition, logits, labels


def test_figures_against_scikit_learn():
    partition, logits, labels = problem(dead=[0])
    energies, tasks = task_energies(logits, partition), partition.column_tasks[labels]
    for t, found in enumerate(TOOD(partition, "none").fit(logits, labels).diagnostics_):
        assert found.task == t
        assert found.samples == 80
        assert found.auroc == pytest.approx(roc_auc_score(tasks == t, energies[:, t]), abs=1e-12)
        assert found.low < found.auroc < found.high
        expected_gap = energies[tasks == 2, 2].mean() - energies[tasks == t, t].mean()
        assert found.gap == pytest.approx(expected_gap, abs=1e-9)
        assert found.alive == (t != 0)
    assert TOOD(partition, "none").fit(logits, labels).diagnostics_[0].trust < 0.1


def test_interval_covers_the_true_auroc_as_often_as_promised():
    rng, distance, draws = np.random.default_rng(1), 1.0, 2000
    own, rest = rng.normal(size=(draws, 20)) + distance, rng.normal(size=(draws, 60))
    auroc = (own[:, :, None] > rest[:, None]).mean(axis=(1, 2))
    low, high = auroc_interval(auroc, np.full(draws, 20.0), np.full(draws, 60.0))
    truth = norm.cdf(distance / np.sqrt(2))
    assert 0.93 < ((low < truth) & (truth < high)).mean() < 0.98
    low, high = auroc_interval(np.array([1.0]), np.array([5.0]), np.array([5.0]))
    assert 0 < low[0] < high[0] <= 1
    low, high = auroc_interval(np.array([0.99973]), np.array([1e6]), np.array([1e6]))
    assert 0.999 < low[0] <= 0.99973 <= high[0] <= 1


def test_statistics_without_ranks_give_the_binormal_auroc():
    rng = np.random.default_rng(2)
    own, rest = rng.normal(3, 2, 40_000), rng.normal(1, 1, 40_000)
    statistics = {"count": np.array([9.0, 9.0]), "mean": np.array([3.0, 0.0]), "std": np.array([2.0, 1.0])}
    statistics |= {"rest_mean": np.array([1.0, 0.0]), "rest_std": np.array([1.0, 1.0])}
    found = diagnose(statistics)
    truth = roc_auc_score(np.repeat([1, 0], 40_000), np.concatenate([own, rest]))
    assert found[0].auroc == pytest.approx(truth, abs=0.005)
    assert found[1].auroc == 0.5
    assert found[1].trust == 0


def test_one_task_has_no_rest():
    found = TOOD([[0, 1]]).fit(np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2).diagnostics_
    assert len(found) == 1
    assert np.isnan(found[0].auroc)
    assert found[0].alive


@pytest.mark.parametrize("variant", ["mean_shift", "robust_anchor"])
def test_a_dead_channel_is_named_with_the_remedy(variant):
    partition, logits, labels = problem(dead=[1])
    with pytest.warns(UserWarning, match="in task 1; .*use the default"):
        TOOD(partition, variant).fit(logits, labels)
    partition, logits, labels = problem()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TOOD(partition, variant).fit(logits, labels)


def test_diagnostics_survive_saving_and_detectors_do_not_warn_of_them(tmp_path):
    partition, logits, labels = problem(dead=[0])
    cal = TOOD(partition, "none").fit(logits, labels)
    cal.save(tmp_path / "cal.safetensors")
    assert TOOD.load(tmp_path / "cal.safetensors").diagnostics_ == cal.diagnostics_
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a detector is one of many that are compared: it does not advise
        detectors.create("tood_robust_anchor").fit(Outputs(logits, labels=labels), partition=partition)


@pytest.mark.parametrize("size", [4, 8, 30])
def test_alive_agrees_with_the_rank_sum_test(size):
    rng = np.random.default_rng(size)
    for _ in range(30):
        logits = rng.normal(size=(2 * size, 2)) + 0.8 * np.repeat(np.eye(2), size, axis=0)
        found = TOOD([[0], [1]], "none").fit(logits, np.repeat([0, 1], size)).diagnostics_[0]
        test = mannwhitneyu(
            logits[:size, 0], logits[size:, 0], use_continuity=False, alternative="greater", method="asymptotic"
        )
        assert found.alive == (test.pvalue < 0.025)
