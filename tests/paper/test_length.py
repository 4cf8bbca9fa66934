"""docs/results: the section on training length, by hand, and the collection of runs that it is made from."""

import json

import pytest

from results_pages.length import FILE, SCORES, collect, length_section
from results_pages.pretrained_data import read_csv, write_csv
from tood.report.summary import run_figures
from tood.runs import Run, measure
from tood.runs.score import Scorer

ROW = {"preset": "cpu", "stream": "digits", "learner": "wa", "epochs": 12, "seed": 0, "network": "convnet"}
FIGURES = {"accuracy": 90.0, "d_avg": 5.0, "energy": 60.0, **dict.fromkeys(SCORES, 62.0)}


def test_gains_are_means_over_seeds_and_longer_training_follows(tmp_path):
    second = {**ROW, **FIGURES, "seed": 1, "energy": 62.0, SCORES[0]: 61.0}  # gains of mean shift: +2 and -1
    longer = {**ROW, **FIGURES, "epochs": 170, "tood_shrinkage": 59.0}
    write_csv(tmp_path / FILE, [longer, {**ROW, **FIGURES}, second])
    rows = [line.split(" | ") for line in length_section(tmp_path) if line.startswith("| digits")]
    assert [row[2] for row in rows] == ["12", "170"]
    assert rows[0][3] == "2" and "+0.5 ± 2.1" in rows[0] and "61.0 ± 1.4" in rows[0]
    assert rows[1][-1] == "-1.0 |"  # one seed has no deviation


def test_no_measurements_no_section(tmp_path):
    assert list(length_section(tmp_path)) == []


@pytest.mark.parametrize("options", [{}, {"epochs": 40}])
def test_collected_lines_have_the_epochs_of_the_preset_or_of_the_run(tmp_path, made_run, options):
    path = made_run(tmp_path / "run", stream="digits", learner="wa", preset="cpu", options=options)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"seed": 2}))
    run = Run(path)
    table = measure(run, [Scorer(name) for name in ("energy", *SCORES)]).table
    assert collect([str(run.path)], tmp_path) == 1 and collect([str(run.path)], tmp_path) == 1
    (row,) = read_csv(tmp_path / FILE)  # collected twice, kept once
    assert (row["learner"], row["seed"], row["network"]) == ("wa", "2", "convnet")
    assert int(row["epochs"]) == options.get("epochs", 12)
    figures = run_figures(table, run.calibration)
    assert float(row["tood_shrinkage"]) == pytest.approx(figures["tood_shrinkage", "avg_auroc"], abs=0.005)
