import json
import shutil
import sys

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from tood import ToodError, detectors
from tood.errors import MissingDependencyError
from tood.evaluation import Scorer, accuracy, default_scorers, evaluate, load_metrics, measure, scores, trajectory
from tood.evaluation.metrics_file import Row, detectors_of, save_metrics, to_table
from tood.evaluation.versions import outdated, with_versions
from tood.metrics import auroc, average_incremental_accuracy
from tood.outputs import Outputs, Run, Step, write_manifest, write_step
from tood.storage.npz import read_npz, write_npz

pa = pytest.importorskip("pyarrow")

FEW = ["energy", "msp", "tood_robust_anchor", "mds"]


def npz(run, step, name):
    with np.load(run / f"steps/{step:02d}/outputs/{name}.npz") as file:
        return dict(file)


def few(names=FEW, **more):
    return [Scorer(name, **more) for name in names]


@pytest.fixture(scope="module")
def measured(shared_run):
    return evaluate(Run(shared_run), few()).table


def figure(table, **where):
    rows = [r for r in table.to_pylist() if all(r[key] == value for key, value in where.items())]
    assert len(rows) == 1
    return rows[0]["value"]


@pytest.mark.parametrize(("step", "task"), [(0, 0), (2, 1), (3, 0), (3, None)])
@pytest.mark.parametrize("ood_set", ["near_a", "far_b"])
def test_figures_equal_scikit_learn_on_the_files(shared_run, measured, step, task, ood_set):
    order = Run(shared_run).partition
    seen = np.sort([column for columns in order.tasks[: step + 1] for column in columns])
    test, ood = npz(shared_run, step, "test"), npz(shared_run, step, f"ood/{ood_set}")
    rows = np.isin(test["labels"], order.tasks[task]) if task is not None else slice(None)
    known, unknown = (np.logaddexp.reduce(x["logits"][:, seen].astype(float), axis=1) for x in (test, ood))
    known = known[rows]
    is_id = np.r_[np.ones(len(known)), np.zeros(len(unknown))]
    score = np.r_[known, unknown].astype(np.float32)
    where = {"step": step, "task": task, "ood_set": ood_set, "detector": "energy"}
    assert figure(measured, metric="auroc", **where) == pytest.approx(roc_auc_score(is_id, score), abs=1e-6)
    assert figure(measured, metric="aupr_in", **where) == pytest.approx(average_precision_score(is_id, score), abs=1e-5)
    assert figure(measured, metric="aupr_out", **where) == pytest.approx(
        average_precision_score(1 - is_id, -score), abs=1e-5
    )
    fpr, tpr, _ = roc_curve(is_id, score, drop_intermediate=False)
    assert figure(measured, metric="fpr_at_id_recall", **where) == pytest.approx(fpr[tpr >= 0.95][0], abs=0.01)
    fpr, tpr, _ = roc_curve(1 - is_id, -score, drop_intermediate=False)
    assert figure(measured, metric="fpr_at_ood_recall", **where) == pytest.approx(fpr[tpr >= 0.95][0], abs=0.01)


def test_accuracy_is_that_of_the_largest_logit_seen(shared_run, measured):
    order = Run(shared_run).partition.tasks
    by_task, pooled = accuracy(measured)
    for step in range(4):
        test = npz(shared_run, step, "test")
        seen = np.sort(np.concatenate(order[: step + 1]))
        right = seen[test["logits"][:, seen].argmax(1)] == test["labels"]
        assert pooled[step] == right.mean()
        for task in range(4):
            expected = right[np.isin(test["labels"], order[task])].mean() if task <= step else np.nan
            np.testing.assert_equal(by_task[step, task], expected)
    assert pooled.mean() == pytest.approx(average_incremental_accuracy(by_task))  # tasks are equal in size


def test_columns_of_unseen_tasks_do_not_matter(build, tmp_path):
    """A head of full width has rubbish in the columns to come; other rubbish changes nothing."""
    build(tmp_path / "a", gap=2.0, full_width=True)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for step in range(4):
        file = tmp_path / f"b/steps/{step:02d}/outputs/ood/far_a.npz"
        arrays = dict(np.load(file))
        unseen = np.setdiff1d(np.arange(8), Step(Run(tmp_path / "b"), step).columns)
        arrays["logits"][:, unseen] = 1e9
        np.savez(file, **arrays)
    first, second = (evaluate(Run(tmp_path / name), few()) for name in "ab")
    assert first.table.equals(second.table)
    assert "logit columns of tasks not seen yet were ignored" in first.notes


def test_file_has_the_documented_columns_types_and_order(shared_run, measured):
    names = ["step", "task", "ood_set", "group", "detector", "metric", "value", "calibration", "settings"]
    assert measured.column_names == names
    kinds = {"step": pa.int32(), "task": pa.int32(), "value": pa.float64()}
    assert [measured.schema.field(name).type for name in names] == [kinds.get(name, pa.string()) for name in names]
    rows = [tuple(row.values()) for row in measured.to_pylist()]
    assert rows == sorted(rows, key=lambda row: [(value is not None, value) for value in row])  # nulls first
    assert len(rows) == len(set(rows)) == (10 + 4) * (1 + 3 * len(FEW) * 5)
    assert all(0 <= row[6] <= 1 for row in rows)
    assert {row[7] for row in rows} == {"train"} and {row[8] for row in rows} == {""}
    assert {row[2]: row[3] for row in rows} == {None: None, "near_a": "near", "far_a": "far", "far_b": "far"}


def test_scores_may_be_deleted_and_the_bytes_come_back(gap_run):
    run = Run(gap_run)
    measure(run, few())
    before = run.metrics_path.read_bytes()
    for folder in gap_run.glob("steps/*/scores"):
        shutil.rmtree(folder)
    run.metrics_path.unlink()
    measure(run, few())
    assert run.metrics_path.read_bytes() == before
    measure(run, few())  # and from stored scores
    assert run.metrics_path.read_bytes() == before
    assert load_metrics(gap_run).equals(load_metrics(run.metrics_path))


@pytest.mark.parametrize("name", ["test", "ood/far_a", "calibration"])
def test_a_stale_score_is_never_used(gap_run, name):
    """One changed number in one file changes the figures that depend on it, with no word to the store."""
    run = Run(gap_run)
    before = measure(run, few(["tood_robust_anchor"])).table
    file = gap_run / f"steps/03/outputs/{name}.npz"
    arrays = dict(np.load(file))
    arrays["logits"][:, :] += np.linspace(-9, 9, len(arrays["logits"]))[:, None].astype(np.float32)
    np.savez(file, **arrays)
    after = measure(run, few(["tood_robust_anchor"])).table
    shutil.rmtree(gap_run / "steps/03/scores")
    assert after.equals(measure(run, few(["tood_robust_anchor"])).table)
    assert not after.equals(before)


def test_scores_of_another_head_are_never_used(gap_run):
    """ReAct reads the head; energy does not."""
    before = {name: measure(Run(gap_run), few([name])).table for name in ("react", "energy")}
    file = gap_run / "steps/03/head.npz"
    head = dict(np.load(file))
    head["bias"] += np.linspace(-5, 5, len(head["bias"]))
    np.savez(file, **head)
    assert not measure(Run(gap_run), few(["react"])).table.equals(before["react"])
    assert measure(Run(gap_run), few(["energy"])).table.equals(before["energy"])


def test_settings_say_what_differs_and_give_other_figures(shared_run):
    scorers = [Scorer("tood_mean_shift"), Scorer("tood_mean_shift", {"margin": 0.0}), Scorer("energy")]
    table, _ = evaluate(Run(shared_run), scorers)
    named = set(table["settings"].to_pylist())
    assert {json.loads(text)["margin"] for text in named if text} == {0.0} and "" in named
    plain = trajectory(table, "tood_mean_shift")
    other = trajectory(table, "tood_mean_shift", settings='{"margin": 0.0}')
    assert not np.array_equal(plain.values, other.values, equal_nan=True)
    # With one task TOOD ranks as energy does, whatever its settings.
    np.testing.assert_allclose(plain.values[0, 0], trajectory(table, "energy").values[0, 0], atol=1e-12)
    np.testing.assert_array_equal(plain.values[0, 0], other.values[0, 0])


def test_another_calibration_source_is_named_in_its_rows(build, tmp_path):
    build(tmp_path / "run", gap=2.5, hidden=0.9)
    table, _ = evaluate(
        Run(tmp_path / "run"), [*few(["tood_mean_shift"]), *few(["tood_mean_shift"], calibration="memory")]
    )
    with pytest.raises(ToodError, match="calibration: expected one of memory, train"):
        trajectory(table, "tood_mean_shift")
    hidden, shown = (trajectory(table, "tood_mean_shift", calibration=source) for source in ("train", "memory"))
    assert shown.average() > hidden.average() + 0.01
    with pytest.raises(ToodError, match="no calibration set from 'reserved'"):
        evaluate(Run(tmp_path / "run"), few(["tood_mean_shift"], calibration="reserved"))


def test_without_a_fit_set_all_are_fitted_on_the_calibration_set(build, tmp_path):
    build(tmp_path / "without", fit=False)
    table, _ = evaluate(Run(tmp_path / "without"), few())
    step = Step(Run(tmp_path / "without"), 1)
    mds = detectors.create("mds").fit(step.calibration())
    known, unknown = mds.score(step.test)[step.test_tasks() == 0], mds.score(step.ood["far_a"])
    truth = roc_auc_score(np.r_[np.ones(len(known)), np.zeros(len(unknown))], np.r_[known, unknown])
    where = {"step": 1, "task": 0, "ood_set": "far_a", "detector": "mds", "metric": "auroc"}
    assert figure(table, **where) == pytest.approx(truth, abs=1e-9)


def test_detectors_without_what_they_need_are_left_out_and_it_says_so(build, tmp_path):
    build(tmp_path / "run", features=False, fit=False)
    table, notes = measure(Run(tmp_path / "run"))
    measured = set(table["detector"].to_pylist()) - {None}
    assert {"energy", "msp", "maxlogit", "gen", "klm", "temperature", "tood_mean_shift"} <= measured
    assert not measured & {"knn", "mds", "vim", "ash", "odin", "adascale"}
    left_out = " ".join(note for note in notes if note.startswith("left out (no features"))
    assert all(name in left_out for name in ("knn", "mds", "vim", "react"))
    with pytest.raises(ToodError, match=r"no detector can be scored; left out \(it runs the network again\): odin"):
        default_scorers(Run(tmp_path / "run"), ["odin"])


def test_every_detector_that_needs_no_network_is_measured_by_default(gap_run):
    table, _ = measure(Run(gap_run))
    expected = {name for name, kind in detectors.classes().items() if "network" not in kind.needs}
    assert set(table["detector"].to_pylist()) - {None} == expected


def test_without_pyarrow_the_command_to_type_is_named(gap_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r'metrics\.parquet needs pyarrow: pip install "tood\[report\]"'):
        measure(Run(gap_run), few(["energy"]))


def test_an_unfinished_run_is_measured_as_far_as_it_goes(build, tmp_path):
    build(tmp_path / "run", steps=2)
    table, notes = evaluate(Run(tmp_path / "run"), few())
    assert "2 of 4 steps are complete" in notes
    assert trajectory(table, "energy").values.shape == (2, 2, 3)


def test_metrics_that_are_not_there_or_damaged(gap_run):
    with pytest.raises(ToodError, match=r"metrics\.parquet: no such file; `tood audit"):
        load_metrics(gap_run)
    measure(Run(gap_run), few(["energy"]))
    data = Run(gap_run).metrics_path.read_bytes()
    Run(gap_run).metrics_path.write_bytes(data[:-20])
    with pytest.raises(ToodError, match=r"metrics\.parquet: truncated, or not a parquet file"):
        load_metrics(gap_run)
    Run(gap_run).metrics_path.write_bytes(data)
    with pytest.raises(ToodError, match="unknown detector 'enery'; did you mean 'energy'"):
        trajectory(load_metrics(gap_run), "enery")


def test_figures_that_do_not_match_their_digest_are_refused(gap_run):
    """The digest is that of the file with other values, as if someone had edited one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = measure(Run(gap_run), few(["energy"])).table
    file = Run(gap_run).metrics_path
    stored = pq.read_table(file)
    assert len(stored.schema.metadata[b"tood.digest"]) == 64
    values = np.where(np.arange(len(table)) == 5, 0.25, table["value"].to_numpy())
    pq.write_table(stored.set_column(6, "value", pa.array(values)), file)
    with pytest.raises(ToodError, match=r"metrics\.parquet: damaged: its content does not match its digest"):
        load_metrics(gap_run)
    pq.write_table(stored.replace_schema_metadata(None), file)  # as version 0.1 wrote it
    assert load_metrics(gap_run).equals(table)


def test_task_without_calibration_sample_is_named_with_step_and_detector(tmp_path):
    run = write_manifest(tmp_path / "run", [[0], [1]], far=["noise"])
    logits = np.random.default_rng(0).normal(size=(10, 2))
    test, calibration = ({"logits": logits, "labels": labels} for labels in (np.arange(10) % 2, np.zeros(10, int)))
    write_step(run.path, 1, test=test, calibration=calibration, ood={"noise": logits})
    with pytest.raises(ToodError, match=r"steps/01: tood_mean_shift: .*no calibration sample for task 1"):
        evaluate(run, few(["tood_mean_shift"]))


@pytest.mark.parametrize("wrong", ["nan", "short", "missing", "text", "another set"])
def test_kept_scores_that_cannot_be_right_are_made_again(gap_run, wrong):
    step = Step(Run(gap_run), 1)
    expected = scores(step, Scorer("energy"))
    file = step.folder / "scores" / "energy.npz"
    stored, _ = read_npz(file)
    changes = {
        "nan": {"test": np.full_like(stored["test"], np.nan)},
        "short": {"ood/far_a": stored["ood/far_a"][1:]},
        "text": {"ood/near_a": stored["ood/near_a"].astype(str)},
        "another set": {"key": np.array("0" * 64), "test": stored["test"] + 1},
    }
    changed = stored | changes.get(wrong, {})
    write_npz(file, changed if wrong != "missing" else {n: a for n, a in stored.items() if n != "ood/far_b"})
    again = scores(Step(Run(gap_run), 1), Scorer("energy"))
    np.testing.assert_array_equal(again.test, expected.test)
    assert again.ood.keys() == expected.ood.keys()
    for name, values in expected.ood.items():
        np.testing.assert_array_equal(again.ood[name], values)
    assert np.array_equal(read_npz(file)[0]["test"], expected.test)


def test_rows_that_need_the_network_stay_if_a_run_is_measured_again(gap_run):
    """ODIN and AdaScale are scored only by `tood run --detectors …`; metrics of other outputs are not kept."""
    run = Run(gap_run)
    rows = [Row(*row.values()) for row in measure(run, [Scorer("energy")]).table.to_pylist()]
    odin = [row._replace(detector="odin") for row in rows if row.detector]
    save_metrics(with_versions(to_table([*rows, *odin])), run.metrics_path)
    measure(run, [Scorer("energy"), Scorer("msp")])
    kept = load_metrics(gap_run)
    assert detectors_of(kept) == ["energy", "msp", "odin"] and outdated(kept) == []
    assert trajectory(kept, "odin").average() == trajectory(kept, "energy").average()
    worse = [row._replace(value=0.0) if row.metric == "accuracy" else row for row in [*rows, *odin]]
    save_metrics(with_versions(to_table(worse)), run.metrics_path)  # as if another network had made them
    measure(run, [Scorer("energy")])
    assert detectors_of(load_metrics(gap_run)) == ["energy"]


def test_with_the_task_given_only_its_columns_count(build, tmp_path):
    run = Run(build(tmp_path / "run", gap=2.5))
    table, _ = evaluate(run, few(["energy", "mds"]), task_given=True)
    step, task = Step(run, 2), 1
    columns = list(step.partition.tasks[task])
    own = step.test_tasks() == task
    logits, labels = step.test.logits[own][:, columns], step.test.labels[own] - columns[0]
    energies = [np.log(np.exp(part).sum(axis=1)) for part in (logits, step.ood["far_a"].logits[:, columns])]
    where = {"step": 2, "task": task, "ood_set": "far_a", "metric": "auroc"}
    assert figure(table, detector="energy", **where) == pytest.approx(auroc(*energies))
    fit = step.fit[step.partition.column_tasks[step.fit.labels] == task]
    mds = detectors.create("mds").fit(
        Outputs(logits=fit.logits[:, columns], features=fit.features, labels=fit.labels - columns[0])
    )
    parts = (step.test[own], step.ood["far_a"])
    scored = [mds.score(Outputs(logits=part.logits[:, columns], features=part.features)) for part in parts]
    assert figure(table, detector="mds", **where) == pytest.approx(auroc(*scored))
    by_task, pooled = accuracy(table)
    assert by_task[2, task] == pytest.approx((logits.argmax(axis=1) == labels).mean())
    assert pooled[2] == pytest.approx(by_task[2, :3].mean())  # tasks are of one size
