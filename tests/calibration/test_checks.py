import warnings

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import log_softmax, softmax
from scipy.stats import binom

from tood import TOOD, Partition, ToodError, energy
from tood.arrays import as_array
from tood.calibration.checks import near_chance, probabilities
from tood.deploy.live import LiveTOOD

TASKS = [[0, 1], [2, 3], [4, 5]]


def draw(rows=600, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 6, rows)
    return rng.normal(size=(rows, 6)) + 5 * np.eye(6)[labels], labels


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_softmax_is_recognised_in_every_precision_and_logits_never_are(dtype):
    logits, _ = draw()
    assert probabilities(softmax(logits, axis=1).astype(dtype)) == "probabilities"
    assert probabilities(log_softmax(logits, axis=1).astype(np.float32)) == "log-probabilities"
    for other in (logits, logits / 20 + 0.5, np.eye(6), np.zeros((3, 6)), np.ones((3, 1)), logits[:0]):
        assert not probabilities(other)


def test_labels_at_chance_are_found_as_often_as_the_binomial_says():
    partition, rng, found = Partition(TASKS), np.random.default_rng(0), 0
    for _ in range(300):
        logits = rng.normal(size=(120, 6))
        found += near_chance(logits, rng.integers(0, 6, 120), partition)
    limit = 120 / 6 + 2 * np.sqrt(120 / 6 * 5 / 6)
    assert found / 300 > binom.cdf(limit, 120, 1 / 6) * binom.cdf(60 + 2 * np.sqrt(30), 120, 1 / 2) - 0.05
    logits, labels = draw()
    assert not near_chance(logits, labels, partition)
    for wrong in ((labels + 1) % 6, rng.permutation(labels), 5 - labels):
        assert near_chance(logits, wrong, partition)


def test_a_learner_that_answers_only_with_its_latest_task_has_correct_labels():
    logits, labels = draw()
    logits[:, 4:] += 50
    assert (logits.argmax(axis=1) == labels).mean() < 0.4
    assert not near_chance(logits[labels < 4], labels[labels < 4], Partition(TASKS))


def test_fit_warns_of_probabilities_and_of_labels_at_chance():
    logits, labels = draw()
    with pytest.warns(UserWarning, match="these are probabilities.*before softmax"):
        TOOD(TASKS).fit(softmax(logits, axis=1), labels)
    with pytest.warns(UserWarning, match="these are log-probabilities"):
        TOOD(TASKS).fit(log_softmax(logits, axis=1), labels)
    with pytest.warns(UserWarning, match="no more often than chance; labels must be logit columns"):
        TOOD(TASKS).fit(logits, np.roll(labels, 7))
    with pytest.warns(UserWarning, match="no more often than chance"):
        LiveTOOD(TASKS).partial_fit(logits, np.roll(labels, 7))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TOOD(TASKS).fit(logits, labels)
        LiveTOOD(TASKS).partial_fit(logits, labels)


def test_scores_on_another_scale_are_told(tmp_path):
    logits, labels = draw()
    TOOD(TASKS).fit(logits, labels).save(tmp_path / "cal")
    live = LiveTOOD(TASKS).partial_fit(logits[:300], labels[:300]).partial_fit(logits[300:], labels[300:])
    live.save(tmp_path / "live")
    for cal in (TOOD.load(tmp_path / "cal"), LiveTOOD.load(tmp_path / "live").calibrator()):
        np.testing.assert_array_equal(cal.seen_.range, [logits.min(), logits.max()])
        with pytest.raises(ToodError, match=r"expected logits as in calibration .*found probabilities"):
            cal.score(softmax(logits, axis=1))
        with pytest.warns(UserWarning, match="far outside the range seen in calibration"):
            cal.score(10 * logits)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cal.score(draw(seed=1)[0])
            cal.score(np.random.default_rng(0).normal(size=(500, 6)))  # unknown inputs are not a mistake


def test_data_frames_and_lists_are_arrays():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    logits, labels = draw()
    expected = TOOD(TASKS).fit(logits, labels).score(logits)
    columns = {f"logit_{c}": logits[:, c] for c in range(6)}
    for frame, series in (
        (pandas.DataFrame(columns), pandas.Series(labels.astype(float))),
        (polars.DataFrame(columns), polars.Series(labels)),
        (pa.table(columns), pa.array(labels)),
        (logits.tolist(), labels.tolist()),
    ):
        cal = TOOD(TASKS).fit(frame, series)
        np.testing.assert_allclose(cal.score(frame), expected, rtol=1e-12)  # columns in memory sum in another order
        np.testing.assert_array_equal(cal.assign(frame), cal.assign(logits))
        np.testing.assert_allclose(cal.task_energies(frame), cal.task_energies(logits), rtol=1e-12)
        np.testing.assert_allclose(energy(frame), energy(logits), rtol=1e-12)
    with pytest.raises(ToodError, match="logits: expected rows of one length, found ragged lists"):
        TOOD(TASKS).fit([[1.0, 2.0], [1.0]], [0, 1])
    with pytest.raises(ToodError, match="labels: expected one axis of whole numbers"):
        TOOD(TASKS).fit(logits, labels + 0.5)


def test_few_rows_that_could_be_logits_by_chance_get_a_warning():
    logits, labels = draw()
    cal = TOOD(TASKS).fit(logits, labels)
    row = np.array([[0.4, 0.1, 0.0, 0.0, 0.3, 0.2]])
    with pytest.warns(UserWarning, match="found probabilities"):
        alone = cal.score(row)
    np.testing.assert_allclose(cal.score(np.concatenate([logits[:40], row]))[-1:], alone)
    with pytest.raises(ToodError, match="found probabilities"):
        cal.score(np.repeat(row, 8, axis=0))
    with pytest.raises(ToodError, match="found probabilities"):
        cal.score(softmax(logits, axis=1).astype(np.float16))


def test_columns_of_a_data_frame_are_read_by_name():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    arrow = pytest.importorskip("pyarrow")
    logits = np.random.default_rng(0).normal(size=(50, 4))
    columns = {f"logit_{c}": logits[:, c] for c in (2, 3, 0, 1)}
    for frame in (pandas.DataFrame(columns), polars.DataFrame(columns), arrow.table(columns)):
        np.testing.assert_array_equal(as_array(frame), logits)
    np.testing.assert_array_equal(as_array(pandas.DataFrame(logits)[[2, 3]]), logits[:, [2, 3]])  # not named as logits
