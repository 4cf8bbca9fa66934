import numpy as np
import pytest
from scipy.stats import binom

from tood.audit.kept import ALPHA, kept_decision
from tood.outputs import Run, write_manifest, write_step


@pytest.fixture
def write(tmp_path):
    """Writes two tasks; at the last step the logits of the first task's classes are as before, or lower."""

    def write(lower=0.0, calibration=400):
        rng = np.random.default_rng(0)
        write_manifest(tmp_path, tasks=[[0, 1], [2, 3]], near=["near"], far=["far"])
        sizes = {"test": 2000, "calibration": calibration, "near": 500, "far": 500}
        labels = {name: rng.integers(0, 2, size) for name, size in sizes.items()}
        first = {name: rng.normal(size=(size, 2)) for name, size in sizes.items()}
        for name in ("test", "calibration"):
            first[name] += 4 * np.eye(2)[labels[name]]
        for step in (0, 1):
            sets = dict(first)
            truth = dict(labels)
            if step:
                for name, logits in first.items():
                    sets[name] = np.concatenate([logits - lower, rng.normal(size=(len(logits), 2))], axis=1)
                for name in ("test", "calibration"):  # samples of the second task
                    sets[name] = np.concatenate([sets[name], rng.normal(size=(100, 4)) + 4 * np.eye(4)[2]])
                    truth[name] = np.concatenate([truth[name], np.full(100, 2)])
            known = {name: {"logits": sets[name], "labels": truth[name]} for name in ("test", "calibration")}
            write_step(tmp_path, step, **known, ood={name: {"logits": sets[name]} for name in ("near", "far")})
        return Run(tmp_path)

    return write


def test_a_decision_lasts_as_long_as_the_logits_it_knows(write):
    kept = kept_decision(write())
    assert kept.kept == kept.at_first  # the columns of the first task are the same
    low, high = binom.ppf([0.001, 0.999], 2000, 1 - ALPHA) / 2000
    assert low - 0.05 <= kept.at_first[0] <= high + 0.05  # 200 samples set the threshold
    assert 0.3 < kept.at_first[1] < 1


def test_a_kept_decision_rejects_what_has_sunk(write):
    kept = kept_decision(write(lower=100))
    assert kept.kept == (0, 1)
    assert kept.at_first[0] > 0.8 and kept.made_again[0] > kept.kept[0]


def test_too_few_samples_for_a_decision(write):
    assert kept_decision(write(calibration=8)) is None
