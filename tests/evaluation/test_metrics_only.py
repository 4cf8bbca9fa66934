"""``store: metrics``: the same figures, a fraction of the disk, nothing trained twice."""

import dataclasses
import shutil

import pytest
from click.testing import CliRunner

from tood import ToodError, learners
from tood.cli import cli
from tood.evaluation.metrics_only import keep_metrics, step_facts
from tood.metrics import confidence_gap
from tood.outputs import Run, Step
from tood.report.gather import MeasuredRun
from tood.runs.config import RunConfig, measured_as
from tood.runs.stages import run
from tood.runs.sweep import Cell

ALL = RunConfig(learner="wa", preset="smoke", detectors=("energy", "tood_mean_shift", "mds"))
FIGURES = dataclasses.replace(ALL, store="metrics")


def size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.fixture(scope="module")
def parents(tmp_path_factory):
    """One run of each kind; a sweep's cell knows both by the same name."""
    kept, short = tmp_path_factory.mktemp("all"), tmp_path_factory.mktemp("figures")
    run(ALL, kept / ALL.name, say=str)
    run(FIGURES, short / FIGURES.name, say=str)
    return kept, short


def test_figures_are_the_same_and_little_else_is_kept(parents):
    kept, short = (parent / ALL.name for parent in parents)
    assert ALL.name == FIGURES.name
    assert (short / "metrics.parquet").read_bytes() == (kept / "metrics.parquet").read_bytes()
    assert not Run(short).steps() and not (short / "checkpoints").exists()
    assert [file.parent.name for file in short.rglob("model.safetensors")] == ["03"]
    assert size(short) < size(kept) / 8


@pytest.mark.parametrize("change", [{"track": "memory"}, {"track": "all"}, {"ood": ("noise",)}])
def test_figures_of_other_settings_are_not_taken_for_those_asked_for(parents, tmp_path, change):
    folder = shutil.copytree(parents[1] / ALL.name, tmp_path / ALL.name)
    before = (folder / "metrics.parquet").read_bytes()
    run(dataclasses.replace(FIGURES, **change), folder, say=str)
    assert (folder / "metrics.parquet").read_bytes() != before
    run(FIGURES, folder, say=str)
    assert (folder / "metrics.parquet").read_bytes() == before


def test_what_needs_outputs_is_kept_as_numbers(parents):
    kept, short = (Run(parent / ALL.name) for parent in parents)
    assert MeasuredRun(short).point() == pytest.approx(MeasuredRun(kept).point())
    test, partition = Step(kept, 3).test, kept.partition
    energies = confidence_gap(test.logits, test.labels, partition)
    assert step_facts(short, 3)["gap"] == pytest.approx(energies[-1] - energies[:-1].mean())
    factors = [step_facts(short, step).get("alignment") for step in range(4)]  # WA's; there is nothing to align at 0
    assert factors == [step_facts(kept, step).get("alignment") for step in range(4)]
    assert factors[0] is None and all(factors[1:])


def test_a_finished_run_is_left_alone_and_an_interrupted_deletion_ends(parents, monkeypatch):
    kept, short = parents
    assert Cell(FIGURES, short).status() == "done"
    monkeypatch.setattr(learners.Learner, "learn", lambda *a, **k: pytest.fail("trained again"))
    before = (short / FIGURES.name / "metrics.parquet").read_bytes()
    facts = step_facts(Run(short / FIGURES.name), 3)
    run(FIGURES, short / FIGURES.name, say=str)
    assert (short / FIGURES.name / "metrics.parquet").read_bytes() == before
    assert step_facts(Run(short / FIGURES.name), 3) == facts

    monkeypatch.setattr("shutil.rmtree", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        keep_metrics(Run(kept / ALL.name))
    monkeypatch.undo()
    run(FIGURES, kept / ALL.name, say=str)  # measured with `store: all`: only the deletion is left
    assert not Run(kept / ALL.name).steps() and step_facts(Run(kept / ALL.name), 3) == facts


def test_reports_work_and_audits_say_why_not(parents):
    short = parents[1] / FIGURES.name
    shown = CliRunner().invoke(cli, ["report", str(short)])
    assert shown.exit_code == 0 and "mean shift (paper)" in shown.stdout
    with pytest.raises(ToodError, match=r"found none; a run with `store: metrics` keeps none"):
        raise CliRunner().invoke(cli, ["audit", str(short)]).exception


def test_old_figures_are_not_taken_for_new_ones_after_an_interruption(parents, tmp_path):
    folder = shutil.copytree(parents[1] / ALL.name, tmp_path / ALL.name)
    other = dataclasses.replace(FIGURES, track="all")

    def interrupt(step, rows):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(other, folder, say=str, on_step=interrupt)
    assert measured_as(other, folder) is None and measured_as(FIGURES, folder) is not None
    run(other, folder, say=str)
    fresh = run(other, tmp_path / "fresh", say=str)
    assert (folder / "metrics.parquet").read_bytes() == fresh.metrics_path.read_bytes()
    assert measured_as(other, folder) is not None
