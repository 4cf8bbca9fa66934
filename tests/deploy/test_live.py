import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tood import TOOD, Partition, ToodError
from tood.deploy.live import LiveTOOD
from tood.metrics import auroc

PARTITION = Partition([[3, 0], [1, 5, 2], [4]])


def sample(seed=0, rows=400, columns=6, dtype=np.float64):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, columns, rows)
    return (rng.normal(size=(rows, columns)) * 2 + 5 * np.eye(columns)[labels]).astype(dtype), labels


def same(cal, other, names=("count", "mean", "std")):
    for name in names:
        np.testing.assert_allclose(cal.statistics_[name], other.statistics_[name], rtol=1e-12, err_msg=name)


@given(st.integers(0, 10_000), st.sampled_from([np.float32, np.float64]))
@settings(deadline=None, max_examples=25)
def test_any_order_any_batches_any_merges_give_one_fit(seed, dtype):
    rng = np.random.default_rng(seed)
    logits, labels = sample(seed, dtype=dtype)
    once = TOOD(PARTITION, "mean_shift").fit(logits, labels)
    calibrators = []
    for _ in range(2):
        parts = [LiveTOOD(PARTITION) for _ in range(3)]
        for rows in np.array_split(rng.permutation(len(labels)), rng.integers(1, 30)):
            parts[rng.integers(3)].partial_fit(logits[rows], labels[rows])
        calibrators.append(parts[0].merge(parts[1].merge(parts[2])).calibrator("mean_shift"))
    same(*calibrators)
    same(calibrators[0], once)
    for name in ("rest_mean", "rest_std"):  # summed in another order
        np.testing.assert_allclose(calibrators[0].statistics_[name], once.statistics_[name], rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(
        calibrators[0].score(logits), once.score(logits), rtol=1e-5 if dtype is np.float32 else 1e-12
    )


@pytest.mark.parametrize("variant", ["mean_shift", "temperature", "none", "background"])
@pytest.mark.parametrize("reference", ["latest", "oldest", "mean"])
def test_anchors_anywhere_without_the_data(variant, reference):
    logits, labels = sample()
    live = LiveTOOD(PARTITION).partial_fit(logits, labels)
    settings = {"variant": variant, "margin": 0.3, "reference": reference}
    expected = TOOD(PARTITION, **settings).fit(logits, labels).score(logits)
    np.testing.assert_allclose(live.calibrator(**settings).score(logits), expected, rtol=1e-12)


def test_a_task_is_added_without_the_old_samples():
    old, old_labels = sample(1)
    new, new_labels = sample(2, columns=8)
    new, new_labels = new[new_labels >= 6], new_labels[new_labels >= 6]
    live = LiveTOOD(PARTITION).partial_fit(old, old_labels).add_task([7, 6], keep=True)
    with pytest.raises(ToodError, match="no calibration sample yet for task 3"):
        live.calibrator()
    live.partial_fit(new, new_labels)
    wide = np.concatenate([np.concatenate([old, np.zeros((len(old), 2))], axis=1), new])
    once = TOOD(PARTITION.grow([7, 6])).fit(wide, np.concatenate([old_labels, new_labels]))
    same(live.calibrator("mean_shift"), once)


@pytest.mark.parametrize("task", [0, 1, 2])
def test_a_task_is_dropped_without_the_samples_of_the_others(task):
    logits, labels = sample(3)
    live = LiveTOOD(PARTITION).partial_fit(logits, labels)
    kept = live.drop_task(task)
    rows = np.isin(labels, kept)
    once = TOOD(live.partition).fit(logits[rows][:, kept], np.searchsorted(kept, labels[rows]))
    same(live.calibrator(), once)
    for name in ("rest_mean", "rest_std"):
        np.testing.assert_allclose(live.calibrator().statistics_[name], once.statistics_[name], rtol=1e-12)
    assert sorted(kept.tolist()) == sorted(set(range(6)) - set(PARTITION.tasks[task]))


def test_a_task_is_forgotten_and_seen_anew():
    logits, labels = sample(4)
    moved = logits - 7.0
    task = PARTITION.column_tasks[labels]
    live = LiveTOOD(PARTITION).partial_fit(logits, labels).forget(1).partial_fit(moved[task == 1], labels[task == 1])
    mixed = np.where((task == 1)[:, None], moved, logits)
    same(live.calibrator("mean_shift"), TOOD(PARTITION).fit(mixed, labels))


def test_a_channel_no_other_task_was_seen_in_is_not_moved():
    logits, labels = sample(7)
    task = PARTITION.column_tasks[labels]
    live = LiveTOOD(PARTITION)
    for t in (0, 1, 2):
        live.partial_fit(logits[task == t], labels[task == t])
    assert live.calibrator().channels_.scale[0] != 1
    live.forget(0).partial_fit(logits[task == 0], labels[task == 0])
    with pytest.warns(UserWarning, match="in the channel of task 0, so 'background' does not re-centre it"):
        only = live.calibrator()
    assert only.channels_.location[0] == 0 != only.channels_.location[1]


@pytest.mark.parametrize("added", [False, True])
def test_a_few_samples_of_other_tasks_restore_the_channel_of_a_new_or_forgotten_one(added):
    """The flow of docs/how-to/monitor.md, with three tasks whose logits differ in level."""
    rng, tasks = np.random.default_rng(0), [[0, 1], [2, 3], [4, 5]]

    def draw(each, classes=range(6), size=7.0):
        labels = np.repeat(classes, each)
        return rng.normal(size=(len(labels), 6)) + size * np.eye(6)[labels] + [0, 0, 3, 3, 6, 6], labels

    (known, _), (unknown, _) = draw(100), draw(100, size=0.0)

    def separation(cal):
        return auroc(cal.score(known), cal.score(unknown))

    logits, labels = draw(100)
    if added:
        old = labels < 4
        live = LiveTOOD(tasks[:2]).partial_fit(logits[old][:, :4], labels[old]).add_task(tasks[2], keep=True)
    else:
        live = LiveTOOD(tasks).partial_fit(logits, labels).forget(2)
    live.partial_fit(*draw(100, classes=tasks[2]))
    with pytest.warns(UserWarning, match="in the channel of task 2, so 'background' does not re-centre it"):
        worse = separation(live.calibrator())
    live.partial_fit(*draw(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrator = live.calibrator()
        warnings.simplefilter("ignore")  # a batch of unknown inputs only looks like another network's
        restored, expected = separation(calibrator), separation(TOOD(tasks).fit(logits, labels))
    assert restored == pytest.approx(expected, abs=0.005) and restored > worse + 0.01


def test_one_task_has_no_others_to_warn_of():
    logits, labels = sample(columns=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LiveTOOD([[0, 1, 2]]).partial_fit(logits, labels).calibrator()


def test_a_file_goes_on_where_it_was(tmp_path):
    live = LiveTOOD(PARTITION).partial_fit(*sample(5))
    live.save(tmp_path / "live.safetensors")
    loaded = LiveTOOD.load(tmp_path / "live.safetensors")
    for each in (live, loaded):
        each.partial_fit(*sample(6))
    same(live.calibrator(), loaded.calibrator(), names=live.calibrator().statistics_)
    TOOD(PARTITION).fit(*sample(5)).save(tmp_path / "other.safetensors")
    with pytest.raises(ToodError, match="expected a tood-live file, found tood-calibrator"):
        LiveTOOD.load(tmp_path / "other.safetensors")


def test_bad_input_is_named_and_changes_nothing():
    logits, labels = sample()
    live = LiveTOOD(PARTITION).partial_fit(logits, labels)
    before = live.counts
    spoiled = logits.copy()
    spoiled[3, 2] = np.nan
    for call, match in (
        (lambda: live.partial_fit(spoiled, labels), "finite"),
        (lambda: live.partial_fit(logits, labels + 9), "labels: expected logit columns 0 to 5"),
        (lambda: live.partial_fit(logits[:, :5], labels), "expected 6 columns"),
        (lambda: live.merge(LiveTOOD([[0, 1], [2, 3, 4, 5]])), "other: expected"),
        (lambda: live.calibrator("robust_anchor"), "needs .median."),
        (lambda: live.drop_task(3), "task: expected 0 to 2, found 3"),
        (lambda: LiveTOOD([[0, 1]]).drop_task(0), "expected two tasks or more"),
        (lambda: live.calibrator(variant="robust"), "did you mean 'robust_anchor'"),
    ):
        with pytest.raises(ToodError, match=match):
            call()
    np.testing.assert_array_equal(live.counts, before)


@pytest.mark.parametrize("change", ["forget", "add_task"])
def test_batches_do_not_matter_after_a_task_was_forgotten_or_added(change):
    logits, labels = sample(1)
    drifted, again = sample(2)
    drifted = drifted + np.arange(6)  # the network has changed since

    def live():
        if change == "forget":
            return LiveTOOD(PARTITION).partial_fit(logits, labels).forget(1)
        old = labels < 4
        return LiveTOOD([[0, 1], [2, 3]]).partial_fit(logits[old, :4], labels[old]).add_task([4, 5], keep=True)

    once, split = live().partial_fit(drifted, again), live()
    for rows in np.array_split(np.arange(len(again)), 7):
        split.partial_fit(drifted[rows], again[rows])
    for name in ("rest_mean", "rest_std"):
        np.testing.assert_allclose(
            split.calibrator().statistics_[name], once.calibrator().statistics_[name], rtol=1e-9, err_msg=name
        )


def test_a_new_task_forgets_the_network_before():
    logits, labels = sample(5)
    live = LiveTOOD(PARTITION).partial_fit(logits, labels).add_task([6, 7])
    assert live.counts.tolist() == [0, 0, 0, 0]
    live.partial_fit(np.pad(logits, ((0, 0), (0, 2))), labels)
    assert live.counts.tolist() == [*LiveTOOD(PARTITION).partial_fit(logits, labels).counts, 0]
