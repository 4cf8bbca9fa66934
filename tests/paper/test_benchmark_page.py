"""Tables of the benchmark on frozen features: means, gains and relations by hand, from any part of the grid."""

import numpy as np
import pytest
from scipy import stats

from results_pages.benchmark import METRICS, RUNS, SCORES, Benchmark, Setting, add_lines
from results_pages.collect import collect
from results_pages.markdown import fill
from results_pages.tables import readme_blocks, result_blocks
from tood.evaluation import Scorer, measure
from tood.outputs import Run

# Avg AUROC of energy, mean shift and TOOD by seed.
GRID = {
    ("cifar10", "bic"): {"0": (80.0, 78.0, 80.5), "1": (82.0, 81.0, 82.5)},
    ("cifar10", "wa"): {"0": (60.0, 66.0, 68.0), "1": (61.0, 66.5, 69.0)},
    ("cifar10", "er"): {"0": (50.0, 51.0, 49.0)},
    ("clinc", "wa"): {"0": (55.0, 57.0, 58.0)},
}


@pytest.fixture
def folder(tmp_path):
    scores, runs = [], []
    for track in ("calibration", "train"):
        for (stream, learner), seeds in GRID.items():
            for seed, values in seeds.items():
                who = {"stream": stream, "learner": learner, "seed": seed, "track": track}
                for detector, value in zip(("energy", "tood_mean_shift", "tood"), values, strict=True):
                    scores.append({**who, "detector": detector, **dict.fromkeys(METRICS, value)})
                numbers = dict.fromkeys(("accuracy", "old_accuracy", "accuracy_forgetting", "drift", "gap"), 70.5)
                runs.append({**who, "tasks": 5, **numbers})
    add_lines(tmp_path / SCORES, scores)
    add_lines(tmp_path / RUNS, runs)
    return tmp_path


def test_tables_show_means_over_seeds_and_gains_with_their_interval(folder):
    blocks = {name: list(lines) for name, lines in result_blocks(folder).items()}
    assert [line.split(" | ")[0] for line in blocks["images"][2:]] == ["| WA", "| BiC", "| ER"]  # largest gain first
    assert "| BiC | 2 | 70.5±0.0 | 81.0±1.4 | 79.5±2.1 | 81.5±1.4 |" in blocks["images"]
    assert "| WA | 1 | 70.5 | 55.0 | 57.0 | 58.0 |" in blocks["text"]
    # Student's interval of mean shift: deviations over seeds 0.71 and 0.35, two degrees of freedom, ER has one seed.
    reach = stats.t.ppf(0.975, 2) * np.sqrt((0.5 + 0.125) / 2 * (1 / 2 + 1 / 2 + 1)) / 3
    gain = np.mean([-1.5, 5.75, 1.0])
    assert f"| CIFAR-10, 5 tasks | all (3) | 63.8 | {gain:+.1f} ± {reach:.1f} (-1.5) | – |" in blocks["streams"]


def test_gains_of_scores_are_over_energy_with_the_same_learner_and_data(folder):
    who = {"stream": "cifar10", "seed": "0", "track": "calibration"}
    text = {"stream": "clinc", "seed": "0", "track": "calibration"}
    lines = []
    for count, (name, energy, knn) in enumerate([("a", 50, 60), ("b", 60, 61), ("c", 70, 69), ("d", 80, 85)]):
        for detector, value in (("energy", energy), ("knn", knn)):
            line = {"learner": name, "detector": detector, **dict.fromkeys(METRICS, value)}
            lines += [{**who, **line}, *([{**text, **line}] * (count < 4))]
    lines += [{**of, "learner": "e", "detector": d, "avg_auroc": 50} for of in (who, text) for d in ("energy", "knn")]
    add_lines(folder / SCORES, lines)
    rows = list(result_blocks(folder)["scores"])
    assert rows[-1] == "| KNN | +3.0 (-1.0) [5] | +3.0 (-1.0) [5] |"


def test_a_run_that_is_collected_again_replaces_all_its_lines(folder):
    who = {"stream": "cifar10", "learner": "wa", "seed": "1", "track": "train"}
    add_lines(folder / SCORES, [{**who, "detector": "energy", **dict.fromkeys(METRICS, 90.0)}])
    after, wa = Benchmark(folder), Setting("cifar10", "wa", "train")
    assert after.seeds(wa, "energy") == {"0": 60.0, "1": 90.0}
    assert after.seeds(wa, "tood_mean_shift") == {"0": 66.0}
    assert after.seeds(wa._replace(track="calibration"), "energy") == {"0": 60.0, "1": 61.0}


def test_frozen_runs_become_lines_by_track(made_run, tmp_path):
    path = made_run(tmp_path / "run", stream="cifar10", learner="wa", preset="frozen")
    table = measure(Run(path), [Scorer(name) for name in ("energy", "maxlogit")])
    assert collect([path], tmp_path) == 1 and table is not None
    found = Benchmark(tmp_path)
    (setting,) = found.runs
    assert setting[:2] == ("cifar10", "wa") and len(found.of_run(setting, "gap")) == 1
    assert list(found.seeds(setting, "maxlogit")) == ["0"]


def test_tables_stand_between_their_marks(folder):
    page = folder / "README.md"
    page.write_text("before\n<!-- pretrained -->\nold\n<!-- end -->\nafter\n<!-- other -->\nkept\n<!-- end -->\n")
    for _ in range(2):
        text = fill(page, readme_blocks(folder)).read_text()
        assert text.startswith("before\n<!-- pretrained -->\n\n| stream, learner | Energy |") and "old" not in text
        assert "| images, WA | 60.5 | 66.2 | 68.5 | – |" in text
        assert text.endswith("<!-- end -->\nafter\n<!-- other -->\nkept\n<!-- end -->\n")
