import numpy as np
import pytest

from tood import ToodError
from tood.detectors import Head, Outputs
from tood.outputs import Run, Step, write_manifest, write_step


@pytest.fixture
def run(tmp_path):
    """Two tasks whose columns are interleaved: task 0 has columns 2 and 0, task 1 has 1 and 3."""
    return write_manifest(tmp_path / "run", [[2, 0], [1, 3]], near=["a"])


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def sets(rng, columns, width, rows=6, **more):
    part = {"logits": rng.normal(size=(rows, width)), "labels": np.resize(columns, rows)}
    return {"test": part, "calibration": part, "ood": {"a": part["logits"] - 1}} | more


def test_a_step_has_the_columns_seen_in_ascending_order(run, rng):
    given = sets(rng, [2, 0], width=4)
    write_step(run.path, 0, **given)
    step = Step(run, 0)
    assert step.columns.tolist() == [0, 2] and step.partition.tasks == ((1, 0),)
    np.testing.assert_array_equal(step.test.logits, given["test"]["logits"][:, [0, 2]])
    assert step.test.labels.tolist() == [1, 0] * 3  # places of columns 2, 0 among [0, 2]
    assert step.unseen_columns() == 2
    assert step.predictions.tolist() == given["test"]["logits"][:, [0, 2]].argmax(1).tolist()


def test_predictions_are_used_where_given(run, rng):
    write_step(run.path, 0, **sets(rng, [2, 0], width=3, predictions=[0, 0, 0, 2, 2, 2]))
    assert Step(run, 0).predictions.tolist() == [0, 0, 0, 1, 1, 1]


def test_head_rows_are_those_of_the_columns_seen(run, rng):
    weight, bias = rng.normal(size=(4, 5)), rng.normal(size=4)
    given = sets(rng, [2, 0], width=4, head={"weight": weight, "bias": bias})
    write_step(run.path, 0, **given)
    np.testing.assert_array_equal(Step(run, 0).head.weight, weight[[0, 2]])
    np.testing.assert_array_equal(Step(run, 0).head.bias, bias[[0, 2]])


def test_a_step_written_again_keeps_nothing_of_the_old_one(run, rng):
    head = {"weight": np.ones((4, 5)), "bias": np.zeros(4)}
    write_step(
        run.path, 0, **sets(rng, [2, 0], width=4, head=head, calibrations={"memory": sets(rng, [2, 0], 4)["test"]})
    )
    write_step(run.path, 0, **sets(rng, [2, 0], width=4))
    assert Step(run, 0).head is None and Step(run, 0).calibration_sources() == ["given"]


def test_torch_tensors_and_outputs_are_taken_too(run):
    import torch

    logits, labels = torch.randn(6, 4, dtype=torch.float16), torch.tensor([2, 0] * 3)
    part = Outputs(logits=logits, labels=labels, features=torch.ones(6, 2))
    write_step(run.path, 0, test=part, calibration=part, ood={"a": Outputs(logits=logits)})
    stored = Step(run, 0).test
    assert stored.logits.dtype == np.float32
    np.testing.assert_array_equal(stored.logits, logits.float().numpy()[:, [0, 2]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": 2}, "step: expected 0 to 1, one per task of the manifest, found 2"),
        ({"ood": {}}, r"ood: expected the sets of the manifest, \['a'\], found \[\]"),
        ({"width": 2}, r"test\.npz: logits: expected at least 3 columns at step 0, found shape \(6, 2\)"),
        ({"columns": [2, 1]}, r"test\.npz: labels: expected columns of the tasks 0 to 0, found 1 at row 1"),
        ({"predictions": [0, 0, 0, 0, 0, 3]}, r"predictions: expected columns of the tasks 0 to 0, found 3 at row 5"),
        ({"predictions": [0]}, "predictions: expected 6 entries"),
        ({"bad": np.nan}, r"test\.npz: logits: expected finite numbers, found nan at \(3, 1\)"),
        ({"bad": np.inf}, r"test\.npz: logits: expected finite numbers, found inf"),
        ({"test": {"logits": np.zeros((2, 4))}}, "test.npz: expected an array 'labels'"),
        ({"test": {"logits": np.zeros((0, 4)), "labels": np.zeros(0, int)}}, "expected at least one sample"),
        (
            {"test": {"logits": np.zeros((2, 4)), "labels": [0, 2], "features": np.zeros((3, 1))}},
            r"features: expected 2 rows, found shape \(3, 1\)",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(run, rng, change, message):
    change = dict(change)
    given = sets(rng, change.pop("columns", [2, 0]), change.pop("width", 4))
    if "bad" in change:
        given["test"]["logits"][3, 1] = change.pop("bad")
    step = change.pop("step", 0)
    with pytest.raises(ToodError, match=message):
        write_step(run.path, step, **{**given, **change})
    assert not (run.path / "steps").exists()


def test_task_without_test_sample_is_named(run, rng):
    with pytest.raises(ToodError, match=r"test\.npz: no sample of task 1"):
        write_step(run.path, 1, **sets(rng, [2, 0], width=4))


def test_missing_and_truncated_files_are_named(run, rng):
    write_step(run.path, 0, **sets(rng, [2, 0], width=4))
    file = run.path / "steps/00/outputs/ood/a.npz"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ToodError, match=r"ood/a\.npz: truncated"):
        _ = Step(Run(run.path), 0).ood
    with pytest.raises(ToodError, match=r"ood/a\.npz: truncated"):
        Step(Run(run.path), 0).has("features")
    file.unlink()
    with pytest.raises(ToodError, match=r"ood/a\.npz: no such file"):
        _ = Step(Run(run.path), 0).ood


def test_other_calibration_sources_are_found_by_name(run, rng):
    given = sets(rng, [2, 0], width=4)
    other = {"logits": rng.normal(size=(4, 4)), "labels": [2, 0, 2, 0]}
    write_step(run.path, 0, **given, calibrations={"memory": other})
    step = Step(run, 0)
    assert step.calibration_sources() == ["given", "memory"]
    np.testing.assert_array_equal(step.calibration("memory").logits, other["logits"][:, [0, 2]])
    with pytest.raises(ToodError, match="no calibration set from 'reserved'; there is given, memory"):
        step.calibration("reserved")


def test_what_cannot_be_read_is_not_written(tmp_path):
    rng = np.random.default_rng(0)
    write_manifest(tmp_path / "run", [[0, 1], [2, 3]], near=["a"])

    def outputs(rows, columns=4):
        labels = np.arange(rows) % 4
        return {"logits": rng.normal(size=(rows, columns)), "features": rng.normal(size=(rows, 5)), "labels": labels}

    sets = {"test": outputs(20), "calibration": outputs(12), "ood": {"a": rng.normal(size=(6, 4))}}
    weight = rng.normal(size=(4, 5))
    for message, changed in {
        "letters, digits": {"calibrations": {"x/../../../evil": outputs(12)}},
        "C at least 4": {"head": {"weight": weight[:1], "bias": np.zeros(1)}},
        "D = 5, the number of features": {"head": Head(rng.normal(size=(4, 7)))},
        "expected finite numbers": {"head": Head(weight * np.nan)},
    }.items():
        with pytest.raises(ToodError, match=message):
            write_step(tmp_path / "run", 1, **{**sets, **changed})
    assert not list(tmp_path.rglob("*.npz"))
    write_step(tmp_path / "run", 1, **sets, head=Head(weight))
    assert (np.asarray(Step(Run(tmp_path / "run"), 1).head.bias) == 0).all()
