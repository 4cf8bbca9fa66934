"""Coverage of decisions that are kept along a run."""

import numpy as np
import pytest

from tood import ToodError
from tood.gate import coverage
from tood.outputs import Outputs, Run, write_manifest, write_step

TASKS = [[0, 1], [2, 3], [4, 5]]


@pytest.fixture
def run(tmp_path):
    """A model whose logits shrink from step to step: an old threshold rejects more and more."""
    rng = np.random.default_rng(0)
    write_manifest(tmp_path, TASKS, far=["noise"])
    for t in range(3):

        def outputs(rows, t=t):
            labels = np.arange(rows) % (2 * t + 2)
            signal = 8 - 2.5 * (t - labels // 2)
            return Outputs(
                signal[:, None] * np.eye(2 * t + 2)[labels] + rng.normal(size=(rows, 2 * t + 2)), labels=labels
            )

        noise = Outputs(rng.normal(size=(300, 2 * t + 2)))
        write_step(tmp_path, t, test=outputs(1200), calibration=outputs(1200), ood={"noise": noise})
    return Run(tmp_path)


def test_coverage_falls_with_the_logits_and_comes_back_when_the_decision_is_made_again(run):
    kept, again = coverage(run, "decision", alpha=0.1), coverage(run, "nothing", alpha=0.1)
    assert np.allclose(np.diagonal(kept.coverage.values), np.diagonal(again.coverage.values))
    assert kept.coverage.values[0, 0] == pytest.approx(0.9, abs=0.03)
    assert kept.coverage.forgetting()[0] > 0.3 > again.coverage.forgetting()[0]
    assert kept.coverage.average_forgetting() > kept.accuracy.average_forgetting()
    assert kept.rejection.values.shape == (3, 3, 1) and np.nanmin(kept.rejection.values) > 0.95
    with pytest.raises(ToodError, match="keep"):
        coverage(run, "all")
