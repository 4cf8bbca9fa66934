import numpy as np
import pytest

from tood.audit import audit
from tood.outputs import Run, write_manifest, write_step


@pytest.fixture
def run(tmp_path):
    """Two tasks; the logits of the first have sunk by 4, so that energy misses unknown inputs among its samples."""
    rng = np.random.default_rng(0)
    write_manifest(tmp_path, tasks=[[0, 1], [2, 3]])

    def known(size, columns):
        labels = rng.integers(0, columns, size)
        logits = rng.normal(size=(size, columns)) + 5 * np.eye(columns)[labels]
        if columns == 4:
            logits[:, :2] -= 4
        return {"logits": logits, "labels": labels}

    unknown = rng.normal(size=(900, 4)) - [4, 4, 0, 0]
    traffic = np.concatenate([known(2000, 4)["logits"], unknown])
    for step, columns in enumerate((2, 4)):
        sets = {"test": known(3000, columns), "calibration": known(200, columns), "ood": {}}
        write_step(tmp_path, step, **sets, traffic=traffic if step else None)
    return Run(tmp_path)


def test_the_audit_chooses_by_traffic_and_estimates_its_unknown_share(run):
    verdict = audit(run).verdict
    assert verdict.traffic["name"] != "energy"  # mean 0 of the second task's logits hides the first task's samples
    estimate, low, high = verdict.traffic["unknown_share"]
    assert low <= 900 / 2900 <= high and estimate > 0.2
    assert "traffic" in verdict.card()["by traffic"]
    (run.path / "steps/01/outputs/traffic.npz").unlink()
    assert audit(run).verdict.traffic is None
