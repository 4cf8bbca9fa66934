"""A learner that corrects its head is scored twice: on the logits it answers with, and on those before."""

import json

import numpy as np
import pytest

from tood import ToodError, energy
from tood.evaluation import Scorer, default_scorers, evaluate, load_metrics, scores, trajectory
from tood.evaluation.metrics_file import RAW
from tood.metrics import auroc
from tood.outputs import Run, Step, write_manifest, write_step
from tood.runs.extract import scorers_for

WEIGHT = np.random.default_rng(5).normal(size=(4, 6))
SCALE, OFFSET = np.array([1, 1, 0.5, 0.5]), np.array([0, 0, -3.0, -3.0])


def outputs(rng, n, corrected, columns):
    features = rng.normal(size=(n, 6))
    raw = (features @ WEIGHT.T)[:, :columns]
    sets = {"logits": raw, "features": features, "labels": np.arange(n) % columns}
    return sets | ({"logits": raw * SCALE + OFFSET, "raw_logits": raw} if corrected else {})


@pytest.fixture
def run(tmp_path):
    """Two steps of two classes each; the second one has a corrected head."""
    rng = np.random.default_rng(0)
    write_manifest(tmp_path, [[0, 1], [2, 3]], near=["a"], far=["b"], learner="bic")
    for step, corrected in enumerate((False, True)):
        columns = 2 * step + 2
        head = {"weight": WEIGHT[:columns], "bias": np.zeros(columns)}
        if corrected:
            head = {"weight": WEIGHT * SCALE[:, None], "bias": OFFSET, "raw_weight": WEIGHT, "raw_bias": np.zeros(4)}
        sets = {name: outputs(rng, 40, corrected, columns) for name in ("test", "calibration", "fit", "a", "b")}
        ood = {name: sets.pop(name) for name in ("a", "b")}
        write_step(tmp_path, step, **sets, ood=ood, head=head)
    return Run(tmp_path)


def test_both_kinds_are_measured_by_default_and_told_apart_by_their_settings(run):
    scorers, _ = default_scorers(run, ["energy", "tood_mean_shift"])
    assert [(s.detector, s.logits) for s in scorers] == [
        *(("energy", "corrected"), ("tood_mean_shift", "corrected")),
        *(("energy", "raw"), ("tood_mean_shift", "raw")),
    ]
    table, _ = evaluate(run, scorers)
    assert {row["settings"] for row in table.to_pylist()} == {"", '{"logits": "raw"}'}
    corrected, raw = (trajectory(table, "energy", ood_set="a", settings=s).values for s in ("", RAW))
    step = Step(run, 1)
    stored, _ = step._read("outputs/test.npz")
    ood, _ = step._read("outputs/ood/a.npz")
    for values, name in ((corrected, "logits"), (raw, "raw_logits")):
        own = energy(stored[name][step.test_tasks() == 0])
        assert values[1, 0, 0] == pytest.approx(auroc(own, energy(ood[name])))
    assert corrected[0, 0, 0] == raw[0, 0, 0]  # nothing is corrected at the first step
    assert corrected[1, 0, 0] != raw[1, 0, 0]


def test_accuracy_is_that_of_the_corrected_logits(run):
    table, _ = evaluate(run, [Scorer("energy", logits="raw")])
    step = Step(run, 1)
    expected = (np.asarray(step.test.logits).argmax(1) == step.test.labels).mean()
    stored = [
        r["value"] for r in table.to_pylist() if r["metric"] == "accuracy" and (r["step"], r["task"]) == (1, None)
    ]
    assert stored == [pytest.approx(expected)]


@pytest.mark.parametrize("which", ["corrected", "raw"])
def test_head_features_and_logits_belong_together(run, which):
    step = Step(run, 1, logits=which)
    np.testing.assert_allclose(step.test.features @ step.head.weight.T + step.head.bias, step.test.logits, atol=1e-12)
    alone = scores(Step(run, 1), Scorer("vim", {"dim": 2}, logits=which), keep=False).test
    other = scores(Step(run, 1), Scorer("vim", {"dim": 2}, logits={"raw": "corrected"}.get(which, "raw")), keep=False)
    assert not np.allclose(alone, other.test)


def test_scores_of_both_kinds_are_kept_apart_and_shared_where_they_are_one(run):
    for logits in ("corrected", "raw"):
        for index in (0, 1):
            scores(Step(run, index), Scorer("energy", logits=logits))
    first, second = (sorted(f.name for f in (run.folder(i) / "scores").iterdir()) for i in (0, 1))
    assert len(second) == 2 and "energy.npz" in second and "energy.npz" in first
    again = scores(Step(run, 1), Scorer("energy", logits="raw"))
    np.testing.assert_allclose(again.test, energy(Step(run, 1, "raw").test.logits), rtol=1e-6)


def test_split_settings_and_unknown_kinds(run):
    settings = Scorer("tood_mean_shift", {"margin": 0.0}, logits="raw").settings
    assert json.loads(settings) == {"logits": "raw", "margin": 0.0}
    with pytest.raises(ToodError, match="unknown logits 'rwa'; did you mean 'raw'"):
        Scorer("energy", logits="rwa")
    assert [s.logits for s in scorers_for(["energy"], None, "both")] == ["corrected", "raw"]


def test_raw_logits_must_be_in_every_set(run, tmp_path):
    rng = np.random.default_rng(1)
    write_manifest(tmp_path / "new", [[0, 1], [2, 3]], far=["b"])
    sets = {name: outputs(rng, 40, True, 4) for name in ("test", "calibration")}
    with pytest.raises(ToodError, match=r"ood/b\.npz: expected an array 'raw_logits'"):
        write_step(tmp_path / "new", 1, **sets, ood={"b": outputs(rng, 40, False, 4)})


def test_bic_is_scored_both_ways_in_a_run(tmp_path):
    from tood.runs import RunConfig
    from tood.runs import run as start

    lines = []
    config = RunConfig(learner="bic", preset="smoke", tasks=2, detectors=("energy", "odin"), settings={"epochs": 1})
    start(config, tmp_path / "run", say=lines.append)
    rows = load_metrics(tmp_path / "run").to_pylist()
    settings = {r["settings"] for r in rows if r["detector"] == "energy"}
    assert settings == {"", RAW} and "energy AUROC (raw logits)" in lines[1] and "scale" in lines[1]
    assert {r["settings"] for r in rows if r["detector"] == "odin"} == {"", RAW}  # the stream's std is its default
