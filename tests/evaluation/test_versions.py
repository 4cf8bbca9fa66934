"""Figures of an older version of a detector are never taken for those of the current one."""

import dataclasses
import json
import shutil

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tood import ToodError, detectors
from tood.audit import audit
from tood.cli import cli
from tood.detectors import Detector
from tood.evaluation import Scorer, load_metrics, measure, trajectory
from tood.evaluation.metrics_file import VERSIONS, save_metrics
from tood.evaluation.versions import Outdated, outdated
from tood.learners import Learner
from tood.outputs import Run
from tood.runs.config import RunConfig
from tood.runs.stages import run
from tood.runs.sweep import Cell, read_sweep, run_cells

ALL = RunConfig(learner="er", preset="smoke", detectors=("energy", "maxlogit", "tood_joint"))
FIGURES = dataclasses.replace(ALL, store="metrics")
MAXLOGIT = detectors.classes()["maxlogit"]
CURRENT = detectors.classes()["tood_joint"].version


def made_by(folder, versions):
    """Rewrite the figures of a run as if these versions had made them; None: as if by a tood that kept none."""
    metadata = None if versions is None else {VERSIONS: json.dumps(versions)}
    save_metrics(load_metrics(folder).replace_schema_metadata(metadata), folder / "metrics.parquet")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that kept everything and one that kept its figures, each in a folder of its own."""
    kept, short = tmp_path_factory.mktemp("all"), tmp_path_factory.mktemp("figures")
    run(ALL, kept / ALL.name, say=str)
    shutil.copytree(kept / ALL.name, short / ALL.name)
    run(FIGURES, short / ALL.name, say=str)
    return kept, short


@pytest.fixture
def copies(finished, tmp_path):
    kept, short = (shutil.copytree(path, tmp_path / path.name) for path in finished)
    assert not Run(short / ALL.name).steps()
    return Cell(ALL, kept), Cell(FIGURES, short)


@pytest.fixture
def new_rule(monkeypatch):
    """MaxLogit gets another formula, and says so by its version."""
    before = MAXLOGIT._score
    monkeypatch.setattr(MAXLOGIT, "_score", lambda self, *rows: -before(self, *rows))
    monkeypatch.setattr(MAXLOGIT, "version", 2)


def in_this_process(self, cell):
    run(cell.config, cell.path, say=self.say)
    return ""


def average(cell, name="maxlogit"):
    return trajectory(load_metrics(cell.path), name).average()


def test_a_sweep_measures_a_new_version_again(copies, new_rule, monkeypatch):
    cell, _ = copies
    old = average(cell)
    assert cell.status() == "outdated metrics: maxlogit (version 1, now 2)"
    monkeypatch.setattr("tood.runs.sweep._Processes._run", in_this_process)
    monkeypatch.setattr(Learner, "_train", lambda *a, **k: pytest.fail("trained again"))
    assert run_cells([cell], say=str) == {} and cell.status() == "done"
    assert average(cell) == pytest.approx(1 - old, abs=1e-6)  # the AUROC of the opposite score


def test_a_detector_that_was_not_asked_for_does_not_matter(copies, new_rule):
    for cell in copies:
        other = dataclasses.replace(cell.config, detectors=("energy",))
        assert Cell(other, cell.parent).status() == "done"
        everything = dataclasses.replace(cell.config, detectors=())
        assert Cell(everything, cell.parent).status() != "done"  # all are asked for, and three were measured


def test_figures_alone_are_not_trained_again_unasked_and_the_line_says_how(copies, new_rule, monkeypatch):
    _, cell = copies
    before = {file: file.read_bytes() for file in cell.path.rglob("*.[pms]*") if file.is_file()}
    monkeypatch.setattr(Learner, "learn", lambda *a, **k: pytest.fail("trained again"))
    assert cell.status() == "outdated metrics: maxlogit (version 1, now 2)"
    lines = []
    run(FIGURES, cell.path, say=lines.append)
    assert lines == [f"note: outdated metrics: maxlogit (version 1, now 2); remove {cell.path} to train the run again"]
    assert {file: file.read_bytes() for file in before} == before


def test_outputs_without_checkpoints_are_not_deleted_while_the_figures_are_outdated(copies, new_rule):
    cell, _ = copies
    shutil.rmtree(cell.path / "checkpoints")
    run(FIGURES, cell.path, say=str)
    assert len(Run(cell.path).steps()) == len(Run(cell.path).partition)


def test_a_file_without_versions_is_trusted_only_for_detectors_that_never_changed(copies):
    for cell in copies:
        assert cell.status() == "done" and CURRENT > 1 == MAXLOGIT.version
        made_by(cell.path, None)
        assert cell.status() == f"outdated metrics: tood_joint (unknown version, now {CURRENT})"
        never_changed = dataclasses.replace(cell.config, detectors=("energy", "maxlogit"))
        assert Cell(never_changed, cell.parent).status() == "done"


def test_the_commands(finished, tmp_path):
    out, file = shutil.copytree(finished[1], tmp_path / "runs"), tmp_path / "sweep.yaml"
    file.write_text(f"base: {json.dumps(FIGURES.to_mapping())}\ngrid: {{seed: [0]}}")
    (cell,) = read_sweep(file, out)
    new = (cell.path / "metrics.parquet").read_bytes()
    made_by(cell.path, {"energy": 1, "maxlogit": 1, "tood_joint": 1})
    old = (cell.path / "metrics.parquet").read_bytes()

    def command(*arguments):
        done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
        assert done.exit_code == 0, done.output
        return done

    stale = f"outdated metrics: tood_joint (version 1, now {CURRENT})"
    assert f"{cell.config.name}: note: {stale}" in command("sweep", file, "--out", out).stdout
    assert (cell.path / "metrics.parquet").read_bytes() == old
    assert f"note: {stale}; `tood run RUN/config.yaml" in command("report", cell.path, "--tables").stderr
    shutil.rmtree(cell.path)
    command("sweep", file, "--out", out)  # in a process of its own
    assert (cell.path / "metrics.parquet").read_bytes() == new != old
    assert "outdated" not in command("report", cell.path, "--tables").stderr


def test_versions_of_your_own_detectors_count(gap_run, tmp_path, monkeypatch):
    (tmp_path / "my_scores_with_versions.py").write_text(
        "from tood.detectors import Detector\n\n\nclass Mine(Detector):\n"
        '    name, title, version, fits_on = "mine_with_versions", "Mine", 3, "none"\n'
        '    needs = frozenset({"logits"})\n\n'
        "    def _score(self, rows, prepared):\n        return rows.logits.max(axis=1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = "my_scores_with_versions:Mine"
    table = measure(Run(gap_run), [Scorer("energy"), Scorer(path)]).table
    assert outdated(load_metrics(gap_run), [path]) == outdated(table) == []
    monkeypatch.setattr(detectors.classes()["mine_with_versions"], "version", 4)
    stale = [Outdated("mine_with_versions", 3, 4)]
    assert outdated(load_metrics(gap_run), [path]) == outdated(table) == stale
    assert outdated(table, ["energy"]) == outdated(table, ["no_such_module:Mine"]) == []
    assert issubclass(detectors.classes()["mine_with_versions"], Detector)
    detectors.base.REGISTRY._items.pop("mine_with_versions")
    assert outdated(table) == []  # nothing is imported because a file names it


def test_damaged_versions_are_refused(gap_run):
    measure(Run(gap_run), [Scorer("energy"), Scorer("maxlogit")])
    file = gap_run / "metrics.parquet"
    data = file.read_bytes()
    assert data.count(b'"maxlogit": 1}') == 1 and pq.read_metadata(file).metadata[VERSIONS]
    file.write_bytes(data.replace(b'"maxlogit": 1}', b'"maxlogit": 3}'))
    with pytest.raises(ToodError, match=r"metrics\.parquet: damaged: its content does not match its digest"):
        load_metrics(file)


def test_an_audit_that_leaves_outdated_figures_says_so(copies, new_rule):
    cell, _ = copies
    before = (cell.path / "metrics.parquet").read_bytes()
    notes = audit(Run(cell.path)).verdict.notes
    assert "metrics.parquet: outdated metrics: maxlogit (version 1, now 2)" in notes
    assert (cell.path / "metrics.parquet").read_bytes() == before  # `tood run` was told which detectors to measure
    run(ALL, cell.path, say=str)
    assert not any("outdated" in note for note in audit(Run(cell.path)).verdict.notes)
