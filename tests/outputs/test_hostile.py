"""Run directories from strangers: links, pipes, damage and small files that claim to be large."""

import json
import os
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tood import ToodError
from tood.commands.report import command as report
from tood.evaluation import Scorer, load_metrics, measure, scores
from tood.evaluation.metrics_only import step_facts
from tood.outputs import Run, Step, write_manifest, write_step
from tood.storage.npz import npz_names, read_npz

OUT = "leads out of"


@pytest.fixture
def outside(tmp_path):
    """A folder with one file, which nothing may change."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("precious")
    yield folder
    assert [path.read_text() for path in folder.iterdir()] == ["precious"]


def test_the_lock_is_not_taken_through_a_link(gap_run, outside):
    (gap_run / ".lock").unlink(missing_ok=True)
    (gap_run / ".lock").symlink_to(outside / "precious")
    with pytest.raises(ToodError, match="lock: expected a regular file"), Run(gap_run).lock():
        pass


FILES = ["manifest.json", "metrics.parquet", "config.yaml", "verdict.json"]


@pytest.mark.parametrize("name", ["report", "checkpoints", "steps", *FILES])
def test_links_out_of_a_run_are_not_followed(gap_run, outside, name):
    if (gap_run / name).exists():
        (gap_run / name).rename(gap_run / "moved")
    (gap_run / name).symlink_to(outside)
    with pytest.raises(ToodError, match=OUT):
        Run(gap_run)


def test_links_out_of_a_step_are_not_followed(gap_run, outside):
    (gap_run / "steps/01/scores").symlink_to(outside)
    (gap_run / "steps/01/learner.json").symlink_to(outside / "precious")
    (gap_run / "steps/02/outputs/test.npz").unlink()
    (gap_run / "steps/02/outputs/test.npz").symlink_to(outside / "precious")
    (gap_run / "steps/03/.outputs.writing").symlink_to(outside)
    run = Run(gap_run)
    logits = np.zeros((8, 8))
    sets = {"logits": logits, "labels": np.arange(8)}
    for read in (
        lambda: write_step(gap_run, 3, test=sets, calibration=sets, ood=dict.fromkeys(run.ood, logits)),
        lambda: scores(Step(run, 1), Scorer("energy")),
        lambda: step_facts(run, 1),
        lambda: Step(run, 2).test,
    ):
        with pytest.raises(ToodError, match=OUT):
            read()


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_is_refused_and_not_waited_for(gap_run, name):
    (gap_run / name).unlink(missing_ok=True)
    os.mkfifo(gap_run / name)
    with pytest.raises(ToodError, match=f"{name}: expected a regular file, found a pipe or device"):
        Run(gap_run)


def test_a_report_is_not_written_through_a_link(gap_run, outside):
    measure(Run(gap_run), [Scorer("energy")])
    (gap_run / "report").mkdir(exist_ok=True)
    (gap_run / "report/plots").symlink_to(outside)
    with pytest.raises(ToodError, match=OUT):
        raise CliRunner().invoke(report, [str(gap_run), "--tables"]).exception


def test_a_manifest_has_a_digest(tmp_path):
    write_manifest(tmp_path, [[0], [1]], seed=3)
    file = tmp_path / "manifest.json"
    manifest = json.loads(file.read_text())
    assert "digest" not in Run(tmp_path).manifest
    file.write_text(json.dumps(manifest | {"seed": 99}))
    with pytest.raises(ToodError, match=r"manifest\.json: damaged: its content does not match its digest"):
        Run(tmp_path)
    del manifest["digest"]
    file.write_text(json.dumps(manifest | {"seed": 99}))
    assert Run(tmp_path).manifest["seed"] == 99
    file.write_text("[" * 100_000)
    with pytest.raises(ToodError, match="cannot be read as JSON"):
        Run(tmp_path)


def test_two_arrays_of_one_name_are_refused(tmp_path):
    np.savez(tmp_path / "f.npz", logits=np.zeros((2, 2)))
    with zipfile.ZipFile(tmp_path / "f.npz", "a") as archive:
        archive.writestr("logits", archive.read("logits.npy"))
    for read in (read_npz, npz_names):
        with pytest.raises(ToodError, match="two members have the same name"):
            read(tmp_path / "f.npz")


def test_small_metrics_do_not_become_large(gap_run):
    table = measure(Run(gap_run), [Scorer("energy")]).table
    file = Run(gap_run).metrics_path
    rows = table.slice(0, 1).take(pa.array(np.zeros(2_000_000, np.int64)))
    pq.write_table(rows, file)
    assert file.stat().st_size < 60_000
    with pytest.raises(ToodError, match="bytes claim to hold 2000000 rows"):
        load_metrics(gap_run)
    last = table.slice(0, 1).set_column(0, table.schema.field("step"), pa.array([9999], pa.int32()))
    pq.write_table(pa.concat_tables([table, last]).replace_schema_metadata(None), file)
    with pytest.raises(ToodError, match="step: expected most steps"):
        load_metrics(gap_run)
    late = table.slice(0, 1).set_column(1, table.schema.field("task"), pa.array([9999], pa.int32()))
    pq.write_table(pa.concat_tables([table, late]).replace_schema_metadata(None), file)
    with pytest.raises(ToodError, match="task: expected tasks that their step has seen"):
        load_metrics(gap_run)
