"""Ablations on stored outputs: each row is what the public calibrator and scikit-learn give."""

import csv
import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.metrics import roc_auc_score

from tood import TOOD, ToodError
from tood.commands.ablate import command
from tood.evaluation import Scorer, evaluate, trajectory
from tood.metrics import Trajectory
from tood.outputs import Run, Step
from tood.outputs.sampling import herding
from tood.paper.ablations import ABLATIONS, _members, ablate, balanced_order
from tood.partition import Partition


@pytest.fixture(scope="module")
def ablated(shared_run):
    return ablate(Run(shared_run), draws=3)


def one(rows, **wanted):
    (row,) = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return row


def average(run, scorer):
    table = evaluate(run, [scorer]).table
    return 100 * trajectory(table, scorer.detector, settings=scorer.settings).balanced().average()


def average_by_hand(run, score):
    """Avg AUROC, (near + far) / 2, by scikit-learn; ``score(step)`` gives a function of outputs."""
    groups = list(run.ood.values())
    cube = np.full((4, 4, len(groups)), np.nan)
    for t in range(4):
        step = Step(run, t)
        of, tasks = score(step), step.test_tasks()
        test = of(step.test)
        for d, outputs in enumerate(step.ood.values()):
            ood = of(outputs)
            for i in range(t + 1):
                own = test[tasks == i]
                cube[t, i, d] = roc_auc_score(np.r_[np.ones(len(own)), np.zeros(len(ood))], np.r_[own, ood])
    return 100 * Trajectory(cube, groups).balanced().average()


def test_every_ablation_has_rows(ablated):
    assert {name: len(rows) for name, rows in ablated.items()} == {
        "buffer": 4 * len({row["B"] for row in ablated["buffer"]}),  # three draws and herding
        "margin": 22,
        "mechanism": 6,
        "partition": 14,
        "anchor": 8,
    }
    assert set(ablated) == set(ABLATIONS)


@pytest.mark.parametrize("detector", ["tood_robust_anchor", "tood_mean_shift"])
def test_no_anchor_changes_anything(ablated, detector):
    rows = [row for row in ablated["anchor"] if row["detector"] == detector]
    for figure in ("avg_auroc", "d_avg", "near_auroc", "far_auroc"):
        assert np.ptp([row[figure] for row in rows]) <= 1e-9


@pytest.mark.parametrize("margin", [0.0, 0.3])
@pytest.mark.parametrize("detector", ["tood_robust_anchor", "tood_mean_shift"])
def test_margins_are_those_of_the_detector(ablated, shared_run, detector, margin):
    row = one(ablated["margin"], detector=detector, margin=margin)
    assert row["avg_auroc"] == pytest.approx(average(Run(shared_run), Scorer(detector, {"margin": margin})), abs=1e-9)


@pytest.mark.parametrize("mechanism", ["temperature", "tood_robust_anchor", "prototype", "tood_prototype"])
def test_mechanisms_are_the_detectors(ablated, shared_run, mechanism):
    run = Run(shared_run)
    row = one(ablated["mechanism"], mechanism=mechanism)
    assert row["avg_auroc"] == pytest.approx(average(run, Scorer(mechanism)), abs=1e-9)
    assert row["gain"] == pytest.approx(row["avg_auroc"] - average(run, Scorer(row["baseline"])), abs=1e-9)
    assert row["baseline"] == ("prototype" if mechanism == "tood_prototype" else "energy")


def test_singletons_are_the_split_partition(ablated, shared_run):
    def split(step):
        calibration = step.calibration()
        calibrator = TOOD(step.partition.split(2), "robust_anchor").fit(calibration.logits, calibration.labels)
        return lambda outputs: calibrator.score(outputs.logits)

    by_hand = average_by_hand(Run(shared_run), split)
    for name in ("2", "3", "singletons"):  # two classes a task: all three are the same groups
        row = one(ablated["partition"], detector="tood_robust_anchor", split=name, statistics="group")
        assert row["avg_auroc"] == pytest.approx(by_hand, abs=1e-9)


def test_the_authors_rule_takes_every_sample_of_the_real_task():
    real = Partition([[0, 1, 4], [2, 3]])
    groups = real.split(2)  # (0, 4), (1,), (2,), (3,)
    labels = np.array([0, 1, 2, 3, 4, 1])
    rows, channels = _members(labels, real, groups, "task")
    for group, columns in enumerate(groups):
        task = next(set(task) for task in real if columns[0] in task)
        assert set(rows[channels == group]) == {row for row, column in enumerate(labels) if column in task}
    rows, channels = _members(labels, real, groups, "group")
    assert [groups.tasks[group] for group in channels] == [(0, 4), (1,), (2,), (3,), (0, 4), (1,)]
    assert rows.tolist() == list(range(6))


@pytest.mark.parametrize("herd", [False, True])
def test_every_beginning_of_a_draw_is_balanced(herd):
    rng = np.random.default_rng(0)
    partition = Partition([[5, 0], [1, 2], [3, 4]])
    labels = rng.permutation(np.repeat(np.arange(6), 7))
    features = rng.normal(size=(42, 5)) if herd else None
    order = balanced_order(labels, partition, seed=3, features=features)
    assert sorted(order) == list(range(42))
    for size in range(1, 43):
        classes = np.bincount(labels[order[:size]], minlength=6)
        tasks = np.bincount(partition.column_tasks[labels[order[:size]]], minlength=3)
        assert np.ptp(classes) <= 1 and np.ptp(tasks) <= 1
    if herd:
        own = np.flatnonzero(labels == 4)
        assert [row for row in order if labels[row] == 4] == own[herding(features[own], 7)].tolist()


def test_with_every_stored_sample_no_draw_matters(ablated, shared_run):
    rows = ablated["buffer"]
    full = max(row["B"] for row in rows)
    found = [row["avg_auroc"] for row in rows if row["B"] == full]
    assert full == 80 and len(found) == 4
    assert found == pytest.approx([average(Run(shared_run), Scorer("tood_robust_anchor"))] * 4, abs=1e-9)
    small = [row["avg_auroc"] for row in rows if row["B"] == 5]
    assert np.ptp(small) > 0


def test_herding_chooses_from_all_training_data_if_they_are_stored(shared_run, tmp_path):
    shutil.copytree(shared_run, tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"calibration": "paper"}))
    rows = ablate(Run(tmp_path / "run"), ["buffer"], draws=1)["buffer"]
    herded = [row["avg_auroc"] for row in rows if row["selection"] == "herding" and row["B"] == 80]

    def chosen(step):
        labels, features = np.asarray(step.fit.labels), np.asarray(step.fit.features)
        own = (np.flatnonzero(labels == column) for column in range(len(step.columns)))
        rows = np.concatenate([rows[herding(features[rows], 10)] for rows in own])
        cal = TOOD(step.partition, variant="robust_anchor").fit(np.asarray(step.fit.logits)[rows], labels[rows])
        return lambda outputs: cal.score(np.asarray(outputs.logits))

    assert herded == [pytest.approx(average_by_hand(Run(shared_run), chosen), abs=1e-6)]


def test_a_run_without_all_its_steps_is_refused(shared_run, tmp_path):
    shutil.copytree(shared_run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "steps" / "03")
    with pytest.raises(ToodError, match="all 4 steps"):
        ablate(Run(tmp_path / "run"))


def test_a_wrong_name_is_named(shared_run):
    with pytest.raises(ToodError, match="did you mean 'margin'"):
        ablate(Run(shared_run), ["margn"])
    done = CliRunner().invoke(command, [str(shared_run), "--only", "margn"])
    assert "did you mean 'margin'" in str(done.exception)


def test_the_command_writes_every_row_and_the_papers_findings(shared_run, tmp_path):
    arguments = [str(shared_run), "--only", "margin,mechanism", "--out", str(tmp_path), "--no-plots", "--json"]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    with (tmp_path / "margin.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["avg_auroc"]) for row in rows] == [row["avg_auroc"] for row in shown["rows"]["margin"]]
    temperature = [r for r in shown["summary"] if r["row"] == "Temperature" and r["column"] in ("mean", "paper")]
    own = one(shown["rows"]["mechanism"], mechanism="temperature")["gain"]
    assert [record["mean"] for record in temperature] == [pytest.approx(own), -3.6]
    assert "-3.60" in (tmp_path / "summary.md").read_text()
