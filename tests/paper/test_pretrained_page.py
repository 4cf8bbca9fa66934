"""docs/results/pretrained.md: counts, intervals and correlations by hand and by SciPy, from any part of the grid."""

import numpy as np
import pytest
from scipy import stats

from results_pages.gains import RAW
from results_pages.last_step import FILE, every_detector
from results_pages.pretrained import claims, count, coverage, facts, fill_readme, page, ranks
from results_pages.pretrained_data import (
    FACTS,
    METRICS,
    RUNS,
    SCORES,
    Table,
    add,
    collect,
    processor_minutes,
    write_csv,
)
from tood import detectors
from tood.paper.reproduce import cells
from tood.runs import Run, Scorer, measure

# Avg AUROC of energy and of mean shift by seed; D_avg is 100 minus Avg AUROC, so that its sign is the other one.
GRID = {
    ("cifar10", "bic"): {"0": (80.0, 78.0), "1": (82.0, 81.0)},
    ("cifar10", "bic", "raw"): {"0": (70.0, 73.0), "1": (72.0, 74.0)},
    ("cifar10", "wa"): {"0": (60.0, 66.0), "1": (61.0, 66.5)},
    ("cifar10", "er"): {"0": (50.0, 51.0)},
    ("cifar100-50", "wa"): {"0": (55.0, 57.0)},
    ("cifar100-50", "slda"): {"0": (75.0, 74.5)},
}


@pytest.fixture
def folder(tmp_path):
    scores, runs, steps = [], [], []
    for (stream, learner, *raw), seeds in GRID.items():
        for seed, pair in seeds.items():
            who = {"stream": stream, "learner": learner, "seed": seed}
            for detector, value in zip(("energy", "tood_mean_shift"), pair, strict=True):
                name = detector + (" (raw logits)" if raw else "")
                values = dict.fromkeys(METRICS, value) | {"d_avg": 100 - value}
                scores.append({**who, "detector": name, **values})
            if not raw:
                numbers = {"tasks": 5, "accuracy": 70.5, "accuracy_forgetting": pair[1], "drift": pair[0] / 100}
                minutes = {("wa", "0"): 1.0, ("wa", "1"): 2.0, ("er", "0"): 3.0}.get((learner, seed), "")
                minutes = minutes if stream == "cifar10" else ""
                runs.append({**who, **numbers, "gap": pair[1] - pair[0], "minutes": minutes})
    for step, value in enumerate((0.9, 0.7), start=1):
        steps.append(
            {"stream": "cifar10", "learner": "wa", "seed": 0, "step": step, "fact": "alignment", "value": value}
        )
    for name, rows in ((SCORES, scores), (RUNS, runs), (FACTS, steps)):
        write_csv(tmp_path / name, rows)
    return tmp_path


def test_settings_are_counted_and_bic_both_ways(folder):
    table = Table(folder)
    group = table.settings(("bic", "wa"))
    assert group == [("cifar10", "bic"), ("cifar10", "wa"), ("cifar100-50", "wa")]
    corrected = count(table, group, "tood_mean_shift", "avg_auroc", 1, "")
    assert corrected.startswith("2 of 3; mean +2.1 (") and corrected.endswith("median +2.0")  # -1.5, 5.75, 2
    raw = count(table, group, "tood_mean_shift", "avg_auroc", 1, RAW)
    assert raw.startswith("3 of 3; mean +3.4 (") and raw.endswith("median +2.5")  # 2.5, 5.75, 2
    forgotten = count(table, group, "tood_mean_shift", "d_avg", -1, "")
    assert forgotten.startswith("2 of 3; mean -2.1 (")
    # Student's interval: differences over seeds of BiC 1 and of WA 0.5, two degrees of freedom, WA alone has one seed.
    error = np.sqrt((0.5 + 0.125) / 2 * (1 / 2 + 1 / 2 + 1)) / 3
    low = np.mean([-1.5, 5.75, 2.0]) - stats.t.ppf(0.975, 2) * error
    assert f"({low:+.1f} to" in corrected
    assert count(table, group, "tood_auto", "avg_auroc", 1, "") == "not measured"


def test_collected_lines_replace_their_own_only(folder):
    who = {"stream": "cifar10", "learner": "wa", "seed": 1}
    score = {**who, "detector": "energy", **dict.fromkeys(METRICS, 90.0)}
    run = {**who, "tasks": 5, "accuracy": 71.5, "accuracy_forgetting": 1.0, "drift": 0.1, "gap": 2.0}
    before = Table(folder)
    add({SCORES: [score], RUNS: [run], FACTS: []}, folder)
    after = Table(folder)
    assert after.seeds("cifar10", "wa", "energy") == {"0": 60.0, "1": 90.0}
    assert after.seeds("cifar10", "wa", "tood_mean_shift") == {"0": 66.0, "1": 66.5}  # not measured again
    assert after.of_run(("cifar10", "wa"), "accuracy") == [70.5, 71.5]
    assert after.seeds("cifar10", "bic", "energy") == before.seeds("cifar10", "bic", "energy")
    assert len(after.facts) == len(before.facts) == 2  # of seed 0, which stays


def test_outdated_figures_are_left_out_and_named(made_run, tmp_path, monkeypatch, capsys):
    path = made_run(tmp_path / "run", stream="cifar10", learner="wa", preset="frozen")
    measure(Run(path), [Scorer(name) for name in ("energy", "maxlogit")])
    monkeypatch.setattr(detectors.classes()["maxlogit"], "version", 2)
    collect([str(path)], tmp_path)
    table = Table(tmp_path)
    assert list(table.seeds("cifar10", "wa", "energy")) == ["0"]
    assert not table.seeds("cifar10", "wa", "maxlogit")
    assert "left out, run: outdated figures: maxlogit (version 1, now 2)" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "minutes"), [("processor time: 0:02:30", "2.50"), ("processor time: 42 s", "0.70")])
def test_the_time_of_a_run_is_read_from_the_log_of_its_sweep(made_run, tmp_path, text, minutes):
    run = Run(made_run(tmp_path / "run", stream="cifar10", learner="wa", preset="frozen"))
    assert processor_minutes(run) == ""
    (tmp_path / ".logs").mkdir()
    (tmp_path / ".logs" / "run.log").write_text(f"step 1/2\n{text}\nrun: the metrics are in metrics.parquet\n")
    assert processor_minutes(run) == minutes


def test_relations_are_pearsons_over_settings(folder):
    lines = [line for line in claims(Table(folder)) if line.startswith("| mean shift's gain grows")]
    assert "too few settings (3)" in lines[0] and "r = 1.00" in lines[0] and "n = 5" in lines[0]
    (line,) = [line for line in claims(Table(folder)) if line.startswith("| feature drift goes with accuracy")]
    points = [np.mean(list(seeds.values()), axis=0) for key, seeds in GRID.items() if "raw" not in key]
    r = stats.pearsonr([p[0] for p in points], [p[1] for p in points]).statistic
    rank = stats.spearmanr([p[0] for p in points], [p[1] for p in points]).statistic
    assert f"r = {r:.2f}" in line and f"ρ = {rank:.2f}" in line


def test_runs_with_every_detector_of_the_sweep_are_counted(folder):
    table = Table(folder)
    wanted = {name for cell in cells("pretrained", "runs") for name in cell.config.detectors}
    for name in wanted:
        table.scores.setdefault(("cifar10", "wa", name), {}).update({"1": dict.fromkeys(METRICS, "60.0")})
    assert {row[0]: row[4] for row in coverage(table)}["cifar10"] == "1"
    del table.scores["cifar10", "wa", "vim"]
    assert {row[0]: row[4] for row in coverage(table)}["cifar10"] == "0"


def test_a_part_of_the_grid_makes_a_page_that_says_what_is_missing(folder, tmp_path):
    page(folder, tmp_path)
    text = (tmp_path / "pretrained.md").read_text()
    assert "| cifar10 | 3 | 0, 1 | 5 | 0 | 2.0 | ≥ 0.2 |" in text  # WA 1 and 2 minutes, ER 3: three seeds each
    assert "| tinyimagenet-100 | 0 | – | 0 | 0 | – | – |" in text
    assert "| BiC | 2 | 70.5 ± 0.0 | -1.5 | **81.0 ± 1.4** | 79.5 ± 2.1 | 19.0 → – |" in text
    assert "| BiC (raw logits) | 2 | 70.5 ± 0.0 | – | 71.0 ± 1.4 | **73.5 ± 0.7** |" in text
    assert "the paper's five learners (3 settings) | all learners (5 settings)" in text
    assert "1: 0.90, 2: 0.70" in text and text.count("![") == 2
    for name in ("gap", "drift"):
        assert (folder / "figures" / f"pretrained-{name}.png").stat().st_size > 5_000
    assert not list(facts(Table(tmp_path / "nowhere")))


def test_readmes_table_stands_between_its_marks(folder, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- pretrained -->\nold\n<!-- end -->\nafter\n")
    fill_readme(folder, readme)
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("<!-- end -->\nafter\n") and "old" not in text
    assert "| WA | 60.5 ± 0.7 | – | 39.5 → – | – | – | – → – |" in text


def test_every_detector_at_the_last_step_is_ranked_within_settings(tmp_path):
    aurocs = {  # stream, learner: energy, knn, msp
        ("cifar10", "wa"): (80.0, 70.0, 60.0),
        ("cifar10", "er"): (50.0, 70.0, 60.0),
        ("cifar100-50", "wa"): (55.0, 55.0, 40.0),
    }
    rows = [
        {"stream": stream, "learner": learner, "seed": 2, "detector": detector, "auroc": value}
        for (stream, learner), values in aurocs.items()
        for detector, value in zip(("energy", "knn", "msp"), values, strict=True)
    ]
    write_csv(tmp_path / FILE, rows)
    lines = list(every_detector(tmp_path))
    assert "| KNN | 1.5 | 1.5 | 70.0 | 1.5 | 55.0 |" in lines  # ranks 2, 1 and, tied, 1.5
    assert "| Energy | 1.8 | 2.0 | 65.0 | 1.5 | 55.0 |" in lines
    assert lines.index("| KNN | 1.5 | 1.5 | 70.0 | 1.5 | 55.0 |") < lines.index(
        "| Energy | 1.8 | 2.0 | 65.0 | 1.5 | 55.0 |"
    )
    assert "cifar10 2, cifar100-50 1; one seed" in "\n".join(lines)
    assert list(every_detector(tmp_path / "none")) == []


def test_detectors_are_ranked_over_all_streams_and_over_those_with_more_detectors(folder):
    extra = [
        {"stream": stream, "learner": learner, "seed": seed, "detector": "knn", **dict.fromkeys(METRICS, 79.0)}
        for stream, learner, *raw in GRID
        for seed in GRID[(stream, learner, *raw)]
        if stream == "cifar10" and not raw
    ]
    add({SCORES: extra}, folder)
    lines = list(ranks(Table(folder)))
    first, second = (
        next(i for i, line in enumerate(lines) if words in line) for words in ("all streams, 5", "-100, 3")
    )
    assert any(line.startswith("| TOOD (mean shift) | 1.4 |") for line in lines[first:second])  # 2, 1, 1, 1, 2
    assert not any("KNN" in line for line in lines[first:second])
    assert any(line.startswith("| KNN | 1.7 | 79.0 |") for line in lines[second:])  # 3, 1, 1
    assert not any("longer streams" in line for line in lines)
    er, wa = ({"stream": "cifar100-50", "learner": learner, "seed": "0"} for learner in ("er", "wa"))
    others = [(er, "energy", 50.0), (er, "tood_mean_shift", 51.0), (wa, "knn", 56.0)]
    more = [{**who, "detector": name, **dict.fromkeys(METRICS, value)} for who, name, value in others]
    add({SCORES: more, RUNS: [{**er, "tasks": 50}]}, folder)
    lines = list(ranks(Table(folder)))
    third = next(i for i, line in enumerate(lines) if "the longer streams, 1 settings (WA)" in line)
    assert any(line.startswith("| KNN | 2.0 | 56.0 |") for line in lines[third:])  # mean shift 57, energy 55
