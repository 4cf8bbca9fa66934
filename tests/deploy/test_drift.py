import json

import numpy as np
import pytest
from scipy.stats import binom

from tood import TOOD, ToodError, detectors
from tood.decision import Conformal
from tood.deploy import DriftMonitor, plan
from tood.errors import NotFittedError
from tood.outputs import Outputs

TASKS = [[0, 1], [2, 3], [4, 5]]
STREAMS = 60


class Stream:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, rows, shift=0.0, unknown=0.0):
        self.labels = self.rng.integers(0, 6, rows)
        known = (self.rng.random(rows) >= unknown)[:, None]
        return self.rng.normal(size=(rows, 6)) + 7 * np.eye(6)[self.labels] * known + shift

    def calibrator(self):
        logits = self(600)
        return TOOD(TASKS).fit(logits, self.labels)


@pytest.mark.parametrize("threshold", [None, "conformal", -np.inf])
def test_stationary_traffic_ever_alarms_no_more_often_than_alpha(threshold):
    """Asked after every 50 of 500 inputs; the reference and, if it comes from it, the threshold are drawn anew."""
    stream, alpha, alarms = Stream(0), 0.1, 0
    cal = stream.calibrator()
    for seed in range(STREAMS):
        reference = stream(100)
        given = Conformal(cal).fit(reference) if threshold == "conformal" else cal
        limit = None if threshold == "conformal" else threshold
        monitor = DriftMonitor(given, alpha, reject=0.2, threshold=limit, seed=seed).fit(reference)
        alarms += any(monitor.update(stream(50)).drift_detected for _ in range(10))
    assert alarms <= binom.ppf(0.999, STREAMS, alpha)


def test_a_shift_of_one_sigma_is_found_in_the_right_task_and_is_not_taken_for_unknowns():
    stream = Stream(1)
    cal = stream.calibrator()
    sigma = cal.task_energies(stream(3000))[stream.labels < 2, 0].std()
    found = elsewhere = unknowns = 0
    for seed in range(12):
        monitor = DriftMonitor(cal, seed=seed).fit(stream(1500))
        report = monitor.update(stream(1500, shift=np.array([sigma, sigma, 0, 0, 0, 0]))).report()
        found += report.drifted[0]
        elsewhere += report.drifted[1:].any()
        unknowns += report.more_unknowns
        assert 0.5 < report.shift[0] < 1.6
        assert abs(report.shift[1]) < 0.5
    assert found == 12 and elsewhere <= 1 and unknowns <= 1


def test_more_unknowns_are_told_from_drift():
    stream = Stream(2)
    cal = stream.calibrator()
    unknowns = drifted = 0
    for seed in range(12):
        monitor = DriftMonitor(cal, seed=seed).fit(stream(1000))
        report = monitor.update(stream(800, unknown=0.2)).report()
        unknowns += report.more_unknowns
        drifted += report.recalibrate
        assert report.rejected > 100 and "do not calibrate on this traffic" in str(report)
        assert "more unknowns: " in str(report)
    assert unknowns == 12 and drifted <= 3


def test_an_alarm_stays_until_reset():
    stream = Stream(3)
    monitor = DriftMonitor(stream.calibrator()).fit(stream(600))
    assert monitor.update(stream(300, shift=-3.0)).drift_detected
    assert monitor.update(stream(3000)).drift_detected
    assert not monitor.reset().drift_detected and monitor.report().rows == 0
    assert not monitor.update(stream(600)).drift_detected


def test_the_report_reads_as_sentences():
    stream = Stream(3)
    monitor = DriftMonitor(stream.calibrator()).fit(stream(900))
    assert str(monitor.update(stream(300)).report()) == "no alarm after 300 inputs"
    text = str(monitor.update(stream(900, shift=np.array([0, 0, 2, 2, 0, 0]))).report())
    assert (
        "task 1: accepted inputs have changed, by drift or by unknown ones among them: median energy moved by +" in text
    )
    assert "calibrate again with labelled samples; do not calibrate on this traffic without labels" in text


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda x, new: 0.8 * x, "drift or unknowns"),
        (lambda x, new: x - 1, "drift or unknowns"),
        (lambda x, new: np.where(new[:, None] < 0.1, 0.0, x), "unknowns"),
    ],
    ids=["x0.8", "-1", "zeros"],
)
def test_unknowns_are_named_only_if_more_are_rejected_and_the_rest_stayed(change, cause):
    """Known logits that shrink or fall are no unknowns; a tenth of empty inputs is no drift."""
    stream = Stream(7)
    cal, named = stream.calibrator(), 0
    for seed in range(10):
        monitor = DriftMonitor(cal, seed=seed).fit(stream(1500)).update(stream(1000))
        assert monitor.report().cause == ""
        report = monitor.update(change(stream(1000), stream.rng.random(1000))).report()
        named += report.cause == cause
        assert abs(report.start - 1000) < 300 and report.recent == 500
        assert report.recent_rejected / 500 > report.rejected / report.rows > report.rejected_before
    assert named >= 9


def test_an_alarm_that_is_over_is_said_to_be():
    stream = Stream(8)
    monitor = DriftMonitor(stream.calibrator()).fit(stream(1500)).update(stream(500, unknown=0.5))
    assert "more unknowns: of the latest 500 inputs " in str(monitor.report())
    assert monitor.update(stream(2000)).report().cause == "earlier"
    assert "scores were low for a time, no longer" in str(monitor.report())


def test_one_input_at_a_time_is_the_same_traffic():
    stream = Stream(4)
    cal, reference, traffic = stream.calibrator(), stream(300), stream(60)
    together = DriftMonitor(cal).fit(reference).update(traffic)
    alone = DriftMonitor(cal).fit(reference)
    for row in traffic:
        alone.update(row)
    assert alone.report().samples.tolist() == together.report().samples.tolist()
    assert alone.report().rejected == together.report().rejected


def test_a_saved_monitor_continues_exactly(tmp_path):
    stream = Stream(5)
    cal, reference, first, second = stream.calibrator(), stream(300), stream(200), stream(200, shift=-1.0)
    monitor = DriftMonitor(cal, alpha=0.05).fit(reference).update(first)
    monitor.save(tmp_path / "m")
    loaded = DriftMonitor.load(tmp_path / "m")
    assert loaded.to_dict() == monitor.to_dict()
    assert loaded.update(second).to_dict() == monitor.update(second).to_dict()
    figures = json.loads(json.dumps(monitor.to_dict()))
    assert figures["drift_detected"] == monitor.drift_detected and len(figures["samples"]) == 3
    assert len(loaded.reference) == 300 and loaded.report().rows == 400


@pytest.mark.parametrize("threshold", [None, 4.0])
def test_a_loaded_monitor_takes_a_new_reference_as_the_saved_one_does(tmp_path, threshold):
    stream = Stream(8)
    cal, reference, traffic = stream.calibrator(), stream(500), stream(500)
    monitor = DriftMonitor(cal, threshold=threshold).fit(stream(500, shift=2.0))
    monitor.save(tmp_path / "m")
    loaded = DriftMonitor.load(tmp_path / "m")
    for each in (monitor, loaded):
        each.fit(reference).update(traffic)
    assert loaded.to_dict() == monitor.to_dict()
    before = (cal.score(reference) <= 4.0).mean() if threshold else int(0.05 * 501) / 500
    assert loaded.report().rejected_before == pytest.approx(before)


def test_numpy_settings_are_saved(tmp_path):
    stream = Stream(9)
    settings = {"alpha": np.float32(0.25), "reject": np.float32(0.125), "window": np.int64(50), "seed": np.int64(3)}
    monitor = DriftMonitor(stream.calibrator(), **settings).fit(stream(300))
    monitor.save(tmp_path / "m")
    figures = json.loads(json.dumps(monitor.to_dict()))
    assert DriftMonitor.load(tmp_path / "m").to_dict() == figures
    assert {name: figures[name] for name in settings} == settings


def test_the_gate_is_the_one_of_the_conformal_decisions():
    stream = Stream(6)
    cal, known = stream.calibrator(), stream(500)
    conformal = Conformal(cal, per_task="winning").fit(known)
    traffic = stream(2000)
    report = DriftMonitor(conformal, reject=0.1).fit(stream(500)).update(traffic).report()
    assert report.rejected == (~conformal.decide(traffic, alpha=0.1).accept).sum()


def test_bad_input_is_named(tmp_path):
    stream = Stream(7)
    cal = stream.calibrator()
    with pytest.raises(NotFittedError):
        DriftMonitor(cal).report()
    with pytest.raises(ToodError, match="window: expected one sample"):
        DriftMonitor(TOOD([[0], [1]]), window="x")
    with pytest.raises(ToodError, match="alpha"):
        DriftMonitor(cal, alpha=0)
    with pytest.raises(ToodError, match="window"):
        DriftMonitor(cal, window=0)
    with pytest.raises(ToodError, match="reach the threshold"):
        DriftMonitor(cal, threshold=1e9).fit(stream(100))
    cal.save(tmp_path / "cal")
    with pytest.raises(ToodError, match="expected a tood-monitor file, found tood-calibrator"):
        DriftMonitor.load(tmp_path / "cal")


def test_what_becomes_of_the_calibrator_later_is_not_drift():
    stream = Stream(9)
    cal = stream.calibrator()
    monitor, traffic = DriftMonitor(cal).fit(stream(300)), stream(300)
    cal.fit(stream(300) + np.array([5.0, 5, 0, 0, 0, 0]), stream.labels)
    assert not monitor.update(traffic).drift_detected


def test_a_threshold_per_task_has_as_many_entries_as_tasks():
    logits = np.random.default_rng(0).normal(size=(100, 4)) + 6 * np.eye(4)[np.arange(100) % 4]
    cal = TOOD([[0, 1], [2, 3]]).fit(logits, np.arange(100) % 4)
    with pytest.raises(ToodError, match=r"threshold: expected a number, or 2, one per task, found shape \(3,\)"):
        DriftMonitor(cal, threshold=[1.0, 2.0, 3.0]).fit(logits)


def test_the_report_names_rejected_inputs(tmp_path):
    draw = Stream(7)
    monitor = DriftMonitor(draw.calibrator()).fit(draw(400))
    monitor.update(draw(30), [f"k{row}" for row in range(30)]).update(np.zeros((2, 6)), ["odd", 7])
    assert monitor.report().rejected_ids[-2:] == ["odd", "7"] and "odd" not in monitor.report().accepted_ids
    monitor.save(tmp_path / "m")
    assert DriftMonitor.load(tmp_path / "m").report().rejected_ids == monitor.report().rejected_ids
    with pytest.raises(ToodError, match="ids"):
        monitor.update(draw(3), ["only one"])


def test_a_detector_of_features_is_watched(tmp_path):
    rng = np.random.default_rng(0)

    def draw(rows, known=1.0):
        labels = rng.integers(0, 4, rows)
        features = 4 * known * np.eye(4)[labels] + rng.normal(size=(rows, 4))
        return Outputs(features + rng.normal(size=(rows, 4)), features, labels)

    detector = detectors.create("typicality").fit(draw(200), partition=[[0, 1], [2, 3]])
    monitor = DriftMonitor(Conformal(detector).fit(draw(400))).fit(draw(400)).update(draw(400))
    assert not monitor.drift_detected
    monitor.save(tmp_path / "m")
    assert DriftMonitor.load(tmp_path / "m").update(draw(400, known=0.0)).drift_detected


def test_a_plan_shows_that_more_unknowns_and_larger_references_are_found_sooner():
    draw = Stream(8)
    monitor = DriftMonitor(draw.calibrator()).fit(draw(400))
    few, many, large = (
        plan(monitor, draw(300, unknown=1.0), [share], [size], rows=3000)[0]
        for share, size in ((0.02, 100), (0.3, 100), (0.1, 2000))
    )
    assert few.alarms < 0.5 and few.median is None
    assert many.alarms == large.alarms == 1 and many.median < 500
