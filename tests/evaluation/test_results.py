import numpy as np
import pytest

import tood
from tood.evaluation import Scorer, measure, trajectory
from tood.outputs import Run


def test_one_table_of_many_runs(build, tmp_path):
    tables = {}
    for seed in (0, 1):
        run = Run(build(tmp_path / f"run{seed}", learner="er", seed=seed, stream="toy"))
        scorers = [Scorer("energy"), Scorer("mds", calibration="memory")]
        tables[seed] = measure(run, scorers).table
    found = tood.results(str(tmp_path))
    assert found.equals(tood.results([tmp_path / "run0", tmp_path / "run1"]))
    rows = found.to_pandas().query("metric == 'auroc' and task == task")
    assert set(rows.track) == {"train", "memory"} and set(rows.learner) == {"er"} and set(rows.stream) == {"toy"}
    for (seed, detector, track), part in rows.groupby(["seed", "detector", "track"]):
        expected = trajectory(tables[seed], detector, calibration=track).average()
        per_step = part.groupby(["step", "task"]).value.mean().groupby("step").mean()
        assert np.mean(per_step) == pytest.approx(expected)
