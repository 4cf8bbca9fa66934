import numpy as np
import pytest
from scipy.stats import binom, ks_2samp

from tood import TOOD, ToodError
from tood.decision import Conformal
from tood.deploy.drift import DriftMonitor, _holm, kolmogorov_smirnov
from tood.errors import NotFittedError

TASKS = [[0, 1], [2, 3], [4, 5]]
REPORTS = 400


class Stream:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, rows, shift=0.0):
        self.labels = self.rng.integers(0, 6, rows)
        return self.rng.normal(size=(rows, 6)) + 7 * np.eye(6)[self.labels] + shift

    def calibrator(self):
        logits = self(600)
        return TOOD(TASKS).fit(logits, self.labels)


@pytest.mark.parametrize("n", [20, 60, 400])
@pytest.mark.parametrize("m", [20, 150])
def test_kolmogorov_smirnov_is_scipys(n, m):
    rng = np.random.default_rng(n + m)
    for shift in (0.0, 0.3, 0.8):
        a, b = rng.normal(size=n), rng.normal(shift, 1, m)
        ours, exact = kolmogorov_smirnov(a, b), ks_2samp(a, b, method="exact")
        assert ours[0] == pytest.approx(exact.statistic, abs=1e-12)
        assert 0.95 * exact.pvalue <= ours[1] <= exact.pvalue + 0.1  # never an alarm too many
    assert kolmogorov_smirnov(a, a) == (0.0, 1.0)


def test_holms_correction_by_hand():
    np.testing.assert_allclose(_holm(np.array([0.03, np.nan, 0.01, 0.02])), [0.04, np.nan, 0.03, 0.04])


@pytest.mark.parametrize("gate", [None, 0.2])
def test_false_alarms_are_as_rare_as_promised(gate):
    """Each report on its own calibration set, alarms at any distance."""
    stream = Stream(0)
    cal, alpha = stream.calibrator(), 0.05
    threshold = None if gate is None else float(Conformal(cal).fit(stream(500)).thresholds(gate))
    alarms = 0
    for _ in range(REPORTS):
        monitor = DriftMonitor(cal, window=100, alpha=alpha, tolerance=0.0, threshold=threshold).fit(stream(300))
        alarms += monitor.update(stream(300)).report().recalibrate
    assert alarms <= binom.ppf(1 - 1e-5, REPORTS, alpha)
    assert alarms > 0


def test_a_shift_of_one_sigma_is_found_in_the_right_task():
    stream = Stream(1)
    cal = stream.calibrator()
    energies = cal.task_energies(stream(3000))[stream.labels < 2, 0]
    sigma = energies.std()
    found = elsewhere = 0
    for _ in range(60):
        monitor = DriftMonitor(cal, window=100, alpha=0.01).fit(stream(300))
        report = monitor.update(stream(300, shift=np.array([-sigma, -sigma, 0, 0, 0, 0]))).report()
        found += report.drifted[0]
        elsewhere += report.drifted[1:].any()
        assert -1.8 < report.shift[0] < -0.4
        assert 0.5 < report.spread[0] < 2
    assert found >= 59 and elsewhere <= binom.ppf(1 - 1e-5, 60, 0.01)


def test_the_window_forgets():
    stream = Stream(2)
    monitor = DriftMonitor(stream.calibrator(), window=100).fit(stream(600))
    assert monitor.update(stream(600, shift=-3.0)).report().recalibrate
    report = monitor.update(stream(900)).report()
    assert not report.recalibrate and report.samples.tolist() == [100, 100, 100]
    assert str(report) == "no task has drifted"


def test_the_report_reads_as_a_sentence():
    stream = Stream(3)
    monitor = DriftMonitor(stream.calibrator()).fit(stream(600))
    text = str(monitor.update(stream(600, shift=np.array([0, 0, 2, 2, 0, 0]))).report())
    assert text.startswith("task 1: median moved by +") and text.endswith("recalibrate it") and "\n" not in text


def test_too_few_samples_say_nothing():
    stream = Stream(4)
    report = DriftMonitor(stream.calibrator()).fit(stream(600)).update(stream(30, shift=-9.0)).report()
    assert np.isnan(report.p_value[report.samples < 20]).all() and not report.drifted[report.samples < 20].any()


def test_bad_input_is_named():
    stream = Stream(5)
    cal = stream.calibrator()
    with pytest.raises(NotFittedError):
        DriftMonitor(cal).report()
    with pytest.raises(ToodError, match="window"):
        DriftMonitor(cal, window=3).fit(stream(100))
    with pytest.raises(ToodError, match="alpha"):
        DriftMonitor(cal, alpha=0).fit(stream(100))
    with pytest.raises(ToodError, match="reach the threshold"):
        DriftMonitor(cal, threshold=1e9).fit(stream(100))
