"""Against scikit-learn, against counting every pair and trying every threshold, and against identities."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_auc_score, roc_curve

from tood import ToodError
from tood.metrics import (
    aupr_in,
    aupr_out,
    auroc,
    evaluate,
    evaluate_tasks,
    fpr_at_id_recall,
    fpr_at_ood_recall,
)
from tood.metrics.resampling import auroc_by_task

METRICS = (auroc, fpr_at_id_recall, fpr_at_ood_recall, aupr_in, aupr_out)

# Few distinct values, so that ties within and between the sets are the rule; and any floats short of overflow.
tied = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=40)
anything = st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=40)
scores = st.one_of(tied, anything).map(np.array)
recalls = st.integers(1, 100).map(lambda k: Fraction(k, 100))


def labelled(ids, oods):
    return np.concatenate([np.ones(len(ids)), np.zeros(len(oods))]), np.concatenate([ids, oods])


def with_sklearn(ids, oods, recall):
    is_id, both = labelled(ids, oods)
    fpr_id, tpr_id, _ = roc_curve(is_id, both, drop_intermediate=False)
    fpr_ood, tpr_ood, _ = roc_curve(1 - is_id, -both, drop_intermediate=False)
    return {
        "auroc": roc_auc_score(is_id, both),
        "fpr_at_id_recall": fpr_id[np.argmax(tpr_id >= recall)],
        "fpr_at_ood_recall": fpr_ood[np.argmax(tpr_ood >= recall)],
        "aupr_in": average_precision_score(is_id, both),
        "aupr_out": average_precision_score(1 - is_id, -both),
    }


@pytest.mark.untraced
@given(scores, scores, recalls)
@settings(max_examples=300, deadline=None)
def test_agrees_with_scikit_learn(ids, oods, recall):
    ours = evaluate(ids, oods, recall=float(recall))
    assert ours == pytest.approx(with_sklearn(ids, oods, float(recall)), abs=1e-12)


@pytest.mark.untraced
@given(scores, scores)
@settings(max_examples=200, deadline=None)
def test_trapezoid_agrees_with_scikit_learn(ids, oods):
    is_id, both = labelled(ids, oods)
    precision, recall, _ = precision_recall_curve(is_id, both)
    assert aupr_in(ids, oods, method="trapezoid") == pytest.approx(auc(recall, precision), abs=1e-12)
    precision, recall, _ = precision_recall_curve(1 - is_id, -both)
    assert aupr_out(ids, oods, method="trapezoid") == pytest.approx(auc(recall, precision), abs=1e-12)


@given(tied, tied)
def test_auroc_is_the_share_of_pairs_with_half_for_ties(ids, oods):
    wins = [Fraction((i > o) * 2 + (i == o), 2) for i, o in itertools.product(ids, oods)]
    assert auroc(ids, oods) == float(sum(wins) / len(wins))


def brute_force_fprs(ids, oods, recall):
    """Try every threshold; recall is a fraction, so that nothing is rounded."""
    thresholds = sorted({*ids, *oods})
    accepting = max(t for t in thresholds if Fraction(sum(i >= t for i in ids), len(ids)) >= recall)
    flagging = min(t for t in thresholds if Fraction(sum(o <= t for o in oods), len(oods)) >= recall)
    return sum(o >= accepting for o in oods) / len(oods), sum(i <= flagging for i in ids) / len(ids)


@given(tied, tied, recalls)
def test_fprs_agree_with_trying_every_threshold(ids, oods, recall):
    expected = brute_force_fprs(ids, oods, recall)
    assert fpr_at_id_recall(ids, oods, recall=float(recall)) == expected[0]
    assert fpr_at_ood_recall(ids, oods, recall=float(recall)) == expected[1]


def test_recall_times_count_is_not_rounded_up():
    """19 of 20 is 95 %, though ceil(0.95 * 20 + rounding) may be 20; likewise for every size and percentage."""
    for total in range(1, 121):
        ids = np.arange(total, dtype=float)
        for percent in range(1, 101):
            needed = -(-percent * total // 100)  # exact, in whole numbers
            # With an OOD sample just below each ID sample, the OOD accepted are one fewer than the ID accepted.
            assert fpr_at_id_recall(ids, ids - 0.5, recall=percent / 100) == (needed - 1) / total
            assert fpr_at_ood_recall(ids + 0.5, ids, recall=percent / 100) == (needed - 1) / total


def test_a_recall_just_above_a_share_needs_one_more():
    for total in range(2, 40):
        ids = np.arange(total, dtype=float)
        for accepted in range(1, total):
            recall = np.nextafter(accepted / total, 1)
            assert fpr_at_id_recall(ids, ids - 0.5, recall=recall) == accepted / total


@given(scores, scores, recalls.map(float))
def test_negating_swaps_the_roles(ids, oods, recall):
    assert auroc(-oods, -ids) == auroc(ids, oods)
    assert fpr_at_ood_recall(ids, oods, recall=recall) == fpr_at_id_recall(-oods, -ids, recall=recall)
    for method in ("average_precision", "trapezoid"):
        swapped = aupr_in(-oods, -ids, method=method)
        assert aupr_out(ids, oods, method=method) == pytest.approx(swapped, abs=1e-14)


def test_precisions_are_compared_exactly():
    # The float32 nearest to 0.1 is above 0.1, that nearest to 0.7 below 0.7.
    assert auroc(np.array([0.1], np.float32), np.array([0.1])) == 1.0
    assert auroc(np.array([0.7], np.float32), np.array([0.7])) == 0.0
    assert auroc(np.array([0.1], np.float16), np.array([0.1], np.float16).astype(np.float64)) == 0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_give_the_metrics_of_their_values(dtype):
    generator = torch.Generator().manual_seed(0)
    ids, oods = (torch.randn(50, generator=generator).to(dtype).requires_grad_() for _ in range(2))
    assert evaluate(ids, oods) == evaluate(ids.detach().double().numpy(), oods.detach().double().numpy())


@given(scores, scores, recalls.map(float))
def test_evaluate_gives_each_function_by_its_name(ids, oods, recall):
    values = evaluate(ids, oods, recall=recall)
    assert list(values) == [metric.__name__ for metric in METRICS]
    for metric in METRICS:
        options = {"recall": recall} if metric.__name__.startswith("fpr") else {}
        assert metric(ids, oods, **options) == values[metric.__name__]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2)), min_size=1, max_size=50), tied, recalls.map(float))
def test_a_row_of_tasks_is_each_task_by_itself(samples, oods, recall):
    tasks = np.array([*range(4), *(task for task, _ in samples)])
    ids = np.array([0, 1, -1, 2, *(score for _, score in samples)], dtype=float)
    by_task, pooled = evaluate_tasks(ids, tasks, oods, num_tasks=4, recall=recall)
    assert pooled == evaluate(ids, oods, recall=recall)
    for task in range(4):
        alone = evaluate(ids[tasks == task], oods, recall=recall)
        assert {name: values[task] for name, values in by_task.items()} == alone


def test_many_tasks_in_any_order():
    rng = np.random.default_rng(0)
    tasks = rng.permutation(np.repeat(np.arange(300), 3))  # more than one byte holds
    ids, oods = rng.normal(size=900).astype(np.float32), torch.randn(70, dtype=torch.float64)
    by_task, _ = evaluate_tasks(ids, tasks, oods)
    expected = [auroc(ids[tasks == task], oods) for task in range(300)]
    assert by_task["auroc"].tolist() == expected
    assert auroc_by_task(ids, tasks, oods.numpy()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", [*METRICS, evaluate])
@pytest.mark.parametrize("bad", [[], [1.0, np.nan], [np.inf], [-np.inf, 0.0], [[1.0]], ["a"]])
def test_bad_scores_are_an_error_that_names_them(metric, bad):
    with pytest.raises(ToodError, match="id_scores"):
        metric(bad, [0.0])
    with pytest.raises(ToodError, match="ood_scores"):
        metric([0.0], bad)


@pytest.mark.parametrize("recall", [0, -0.5, 1.01, np.nan])
def test_bad_recall_and_method(recall):
    for metric in (fpr_at_id_recall, fpr_at_ood_recall, evaluate):
        with pytest.raises(ToodError, match="recall"):
            metric([1.0], [0.0], recall=recall)
    for metric in (aupr_in, aupr_out):
        with pytest.raises(ToodError, match="did you mean 'trapezoid'"):
            metric([1.0], [0.0], method="trapezoidal")


@pytest.mark.parametrize(
    ("tasks", "num_tasks", "found"),
    [
        ([0, 2], None, "none of task 1"),
        ([0, 1], 3, "none of task 2"),
        ([0, 1], 1, "found 0 to 1"),
        ([-1, 0], None, "found -1 to 0"),
        ([0], None, "2 entries"),
        ([0.0, 1.5], None, "whole numbers"),
    ],
)
def test_bad_tasks(tasks, num_tasks, found):
    with pytest.raises(ToodError, match=f"id_tasks: .*{found}"):
        evaluate_tasks([1.0, 2.0], tasks, [0.0], num_tasks=num_tasks)
