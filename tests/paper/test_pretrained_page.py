"""docs/results/pretrained.md and the section on training length: by hand and by SciPy, from any part of the grid."""

import json

import numpy as np
import pytest
from scipy import stats

from results_pages.collect import collect
from results_pages.frozen import METRICS, RUNS, SCORES, FrozenRuns, add_lines, read_csv
from results_pages.length import FILE, collect_length, length_section
from results_pages.length import SCORES as LENGTH_SCORES
from results_pages.pretrained import _claims, _count, _ranks, fill_readme, write_pretrained
from tood import detectors
from tood.evaluation import Scorer, measure
from tood.outputs import Run
from tood.report.summary import run_figures

# Avg AUROC of energy and of mean shift by seed; D_avg is 100 minus Avg AUROC, so that its sign is the other one.
GRID = {
    ("cifar10", "bic"): {"0": (80.0, 78.0), "1": (82.0, 81.0)},
    ("cifar10", "bic", "raw"): {"0": (70.0, 73.0), "1": (72.0, 74.0)},
    ("cifar10", "wa"): {"0": (60.0, 66.0), "1": (61.0, 66.5)},
    ("cifar10", "er"): {"0": (50.0, 51.0)},
    ("cifar100-50", "wa"): {"0": (55.0, 57.0)},
    ("cifar100-50", "slda"): {"0": (75.0, 74.5)},
}
OF_SCORE, OF_RUN = ("stream", "learner", "seed", "detector"), ("stream", "learner", "seed")


@pytest.fixture
def folder(tmp_path):
    scores, runs = [], []
    for (stream, learner, *raw), seeds in GRID.items():
        for seed, pair in seeds.items():
            who = {"stream": stream, "learner": learner, "seed": seed}
            for detector, value in zip(("energy", "tood_mean_shift"), pair, strict=True):
                name = detector + (" (raw logits)" if raw else "")
                scores.append({**who, "detector": name, **dict.fromkeys(METRICS, value), "d_avg": 100 - value})
            if not raw:
                numbers = {"tasks": 5, "accuracy": 70.5, "accuracy_forgetting": pair[1], "drift": pair[0] / 100}
                runs.append({**who, **numbers, "gap": pair[1] - pair[0]})
    add_lines(tmp_path / SCORES, scores, OF_SCORE)
    add_lines(tmp_path / RUNS, runs, OF_RUN)
    return tmp_path


def test_settings_are_counted_and_bic_both_ways(folder):
    frozen = FrozenRuns(folder)
    group = frozen.settings(("bic", "wa"))
    assert group == [("cifar10", "bic"), ("cifar10", "wa"), ("cifar100-50", "wa")]
    corrected = _count(frozen, group, "tood_mean_shift", "avg_auroc", 1, raw=False)
    assert corrected.startswith("2 of 3; mean +2.1 (") and corrected.endswith("median +2.0")  # -1.5, 5.75, 2
    raw = _count(frozen, group, "tood_mean_shift", "avg_auroc", 1, raw=True)
    assert raw.startswith("3 of 3; mean +3.4 (") and raw.endswith("median +2.5")  # 2.5, 5.75, 2
    assert _count(frozen, group, "tood_mean_shift", "d_avg", -1, raw=False).startswith("2 of 3; mean -2.1 (")
    # Student's interval: differences over seeds of BiC 1 and of WA 0.5, two degrees of freedom, WA alone has one seed.
    error = np.sqrt((0.5 + 0.125) / 2 * (1 / 2 + 1 / 2 + 1)) / 3
    low = np.mean([-1.5, 5.75, 2.0]) - stats.t.ppf(0.975, 2) * error
    assert f"({low:+.1f} to" in corrected
    assert _count(frozen, group, "msp", "avg_auroc", 1, raw=False) == "not measured"


def test_collected_lines_replace_their_own_only(folder):
    who = {"stream": "cifar10", "learner": "wa", "seed": 1}
    before = FrozenRuns(folder)
    add_lines(folder / SCORES, [{**who, "detector": "energy", **dict.fromkeys(METRICS, 90.0)}], OF_SCORE)
    add_lines(folder / RUNS, [{**who, "tasks": 5, "accuracy": 71.5, "drift": 0.1}], OF_RUN)
    after = FrozenRuns(folder)
    assert after.seeds(("cifar10", "wa"), "energy") == {"0": 60.0, "1": 90.0}
    assert after.seeds(("cifar10", "wa"), "tood_mean_shift") == {"0": 66.0, "1": 66.5}  # not measured again
    assert after.of_run(("cifar10", "wa"), "accuracy") == [70.5, 71.5]
    assert after.seeds(("cifar10", "bic"), "energy") == before.seeds(("cifar10", "bic"), "energy")


def test_outdated_metrics_are_left_out(made_run, tmp_path, monkeypatch):
    path = made_run(tmp_path / "run", stream="cifar10", learner="wa", preset="frozen")
    measure(Run(path), [Scorer(name) for name in ("energy", "maxlogit")])
    monkeypatch.setattr(detectors.classes()["maxlogit"], "version", 2)
    collect([path], tmp_path)
    frozen = FrozenRuns(tmp_path)
    assert list(frozen.seeds(("cifar10", "wa"), "energy")) == ["0"]
    assert not frozen.seeds(("cifar10", "wa"), "maxlogit")


def test_relations_are_pearsons_over_settings(folder):
    lines = [line for line in _claims(FrozenRuns(folder)) if line.startswith("| mean shift's gain grows")]
    assert "too few settings (3)" in lines[0] and "r = 1.00" in lines[0] and "n = 5" in lines[0]
    (line,) = [line for line in _claims(FrozenRuns(folder)) if line.startswith("| feature drift goes with accuracy")]
    points = [np.mean(list(seeds.values()), axis=0) for key, seeds in GRID.items() if "raw" not in key]
    r = stats.pearsonr([p[0] for p in points], [p[1] for p in points]).statistic
    rank = stats.spearmanr([p[0] for p in points], [p[1] for p in points]).statistic
    assert f"r = {r:.2f}" in line and f"ρ = {rank:.2f}" in line


def test_a_part_of_the_grid_makes_a_page_that_says_what_is_missing(folder, tmp_path):
    text = write_pretrained(folder, tmp_path).read_text()
    assert "| tinyimagenet-100 | 0 | 0 | every learner |" in text and "| cifar10 | 3 | 5 | every learner |" in text
    assert "| BiC | 70.5 ± 0.0 | -1.5 | **81.0 ± 1.4** | 79.5 ± 2.1 |" in text
    assert "| BiC (raw logits) | 70.5 ± 0.0 | -1.5 | 71.0 ± 1.4 | **73.5 ± 0.7** |" in text
    assert "the paper's five learners (3 settings) | all learners (5 settings)" in text
    assert "D_avg: energy → TOOD" in text  # every column names its variant


def test_readmes_table_stands_between_its_marks(folder, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- pretrained -->\nold\n<!-- end -->\nafter\n")
    fill_readme(folder, readme)
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("<!-- end -->\nafter\n") and "old" not in text
    assert "| WA | 60.5 ± 0.7 | – | 39.5 → – | – | – | – → – |" in text and "CIFAR-10: TOOD" in text


def test_detectors_are_ranked_within_settings(folder):
    lines = list(_ranks(FrozenRuns(folder)))
    assert any(line.startswith("| mean shift (paper) | 1.4 |") for line in lines)  # 2, 1, 1, 1, 2
    assert any("Means over 5 settings" in line for line in lines)


ROW = {"preset": "cpu", "stream": "digits", "learner": "wa", "epochs": 12, "seed": 0, "network": "convnet"}
VALUES = {"accuracy": 90.0, "d_avg": 5.0, "energy": 60.0, **dict.fromkeys(LENGTH_SCORES, 62.0)}


def test_gains_by_training_length_are_means_over_seeds(tmp_path):
    assert list(length_section(tmp_path)) == []
    second = {**ROW, **VALUES, "seed": 1, "energy": 62.0, LENGTH_SCORES[0]: 61.0}  # gains of mean shift: +2 and -1
    longer = {**ROW, **VALUES, "epochs": 170, "tood_robust_anchor": 59.0}
    add_lines(tmp_path / FILE, [longer, {**ROW, **VALUES}, second], ("epochs", "seed"))
    rows = [line.split(" | ") for line in length_section(tmp_path) if line.startswith("| digits")]
    assert [row[2] for row in rows] == ["12", "170"]
    assert rows[0][3] == "2" and "+0.5 ± 2.1" in rows[0] and "61.0 ± 1.4" in rows[0]
    assert rows[1][-1] == "-1.0 |"  # one seed has no deviation


@pytest.mark.parametrize("options", [{}, {"epochs": 40}])
def test_collected_lines_have_the_epochs_of_the_preset_or_of_the_run(tmp_path, made_run, options):
    path = made_run(tmp_path / "run", stream="digits", learner="wa", preset="cpu", options=options)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"seed": 2}))
    run = Run(path)
    table = measure(run, [Scorer(name) for name in ("energy", *LENGTH_SCORES)]).table
    for _ in range(2):
        collect_length([run], tmp_path)
    (row,) = read_csv(tmp_path / FILE)  # collected twice, kept once
    assert (row["learner"], row["seed"], row["network"]) == ("wa", "2", "convnet")
    assert int(row["epochs"]) == options.get("epochs", 12)
    figures = run_figures(table, run.calibration)
    assert float(row["tood_mean_shift"]) == pytest.approx(figures["tood_mean_shift", "avg_auroc"], abs=0.005)
