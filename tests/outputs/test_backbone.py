"""Features of a frozen backbone by row, and draws of samples by class."""

import numpy as np
import pytest

from tood import ToodError
from tood.outputs import Step, write_backbone, write_manifest, write_step
from tood.outputs.backbone import read_backbone
from tood.outputs.sampling import class_share, draw_by_class


def test_sets_read_their_rows_and_ood_sets_all(tmp_path):
    run = write_manifest(tmp_path / "run", [[0, 1]], near=["a"])
    features = {name: np.arange(12.0).reshape(6, 2) + shift for shift, name in enumerate(("train", "test", "ood/a"))}
    write_backbone(run.path, features)
    part = {"logits": np.eye(2), "labels": [0, 1]}
    rows = {"rows": np.array([4, 1])}
    ood = {"a": np.zeros((6, 2))}
    write_step(run.path, 0, test=part | rows, calibration=part | rows, ood=ood)
    step = Step(run, 0).using(features="backbone")
    assert step.has("features") and not Step(run, 0).has("features")
    np.testing.assert_array_equal(step.test.features, features["test"][[4, 1]])
    np.testing.assert_array_equal(step.calibration().features, features["train"][[4, 1]])
    np.testing.assert_array_equal(step.ood["a"].features, features["ood/a"])
    write_step(run.path, 0, test=part, calibration=part | rows, ood=ood)
    assert not Step(run, 0).using(features="backbone").has("features")


@pytest.mark.parametrize(("shape", "rows"), [((3, 2), [0, 3]), ((3, 2), [-1]), ((3,), [0])])
def test_rows_that_a_file_does_not_have_are_refused(tmp_path, shape, rows):
    np.save(tmp_path / "f.npy", np.zeros(shape))
    with pytest.raises(ToodError, match=r"f\.npy: expected \[N, D\] with N above every entry of rows"):
        read_backbone(tmp_path / "f.npy", np.array(rows))


def test_draws_are_by_class():
    drawn = draw_by_class(np.arange(9), np.arange(9) % 3, 2, random=(0,))
    assert (drawn % 3).tolist() == [0, 0, 1, 1, 2, 2] and len(set(drawn)) == 6
    with pytest.raises(ToodError, match="rows: expected samples"):
        draw_by_class(np.arange(0), np.arange(0), 2, random=(0,))
    assert class_share(7, 3) == 2
    with pytest.raises(ToodError, match="a memory of 2 cannot hold"):
        class_share(2, 3)
