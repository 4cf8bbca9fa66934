"""Tables of the pretrained benchmark: means, gains and ranks by hand, from any part of the grid."""

import numpy as np
import pytest
from scipy import stats

from results_pages.collect import collect
from results_pages.frozen import METRICS, RUNS, SCORES, FrozenRuns, add_lines
from results_pages.markdown import fill
from results_pages.pretrained import pretrained_blocks, readme_table
from results_pages.tracks import TRACKS, track_blocks
from tood import detectors
from tood.evaluation import Scorer, measure
from tood.outputs import Run

# Avg AUROC of energy, mean shift and TOOD by seed.
GRID = {
    ("cifar10", "bic"): {"0": (80.0, 78.0, 80.5), "1": (82.0, 81.0, 82.5)},
    ("cifar10", "bic", "raw"): {"0": (70.0, 73.0, 74.0), "1": (72.0, 74.0, 75.0)},
    ("cifar10", "wa"): {"0": (60.0, 66.0, 68.0), "1": (61.0, 66.5, 69.0)},
    ("cifar10", "er"): {"0": (50.0, 51.0, 49.0)},
    ("cifar100-50", "wa"): {"0": (55.0, 57.0, 58.0)},
}


@pytest.fixture
def folder(tmp_path):
    scores, runs = [], []
    for (stream, learner, *raw), seeds in GRID.items():
        for seed, values in seeds.items():
            who = {"stream": stream, "learner": learner, "seed": seed}
            for detector, value in zip(("energy", "tood_mean_shift", "tood"), values, strict=True):
                name = detector + (" (raw logits)" if raw else "")
                scores.append({**who, "detector": name, **dict.fromkeys(METRICS, value)})
            if not raw:
                runs.append({**who, "tasks": 5, "accuracy": 70.5, "track": "memory"})
    add_lines(tmp_path / SCORES, scores)
    add_lines(tmp_path / RUNS, runs)
    return tmp_path


def test_tables_show_means_over_seeds_gains_with_their_interval_and_the_track(folder):
    blocks = {name: list(lines) for name, lines in pretrained_blocks(folder).items()}
    names = [line.split(" | ")[0] for line in blocks["learners on cifar10"][2:]]
    assert names == ["| WA", "| BiC (raw logits)", "| BiC", "| ER"]  # the largest gain of TOOD first
    assert "| BiC | 70.5 | 81.0 ± 1.4 | 79.5 ± 2.1 | 81.5 ± 1.4 | – |" in blocks["learners on cifar10"]
    streams = "\n".join(blocks["streams"])
    # Student's interval of mean shift: deviations over seeds 0.71 and 0.35, two degrees of freedom, ER has one seed.
    reach = stats.t.ppf(0.975, 2) * np.sqrt((0.5 + 0.125) / 2 * (1 / 2 + 1 / 2 + 1)) / 3
    gain = np.mean([-1.5, 5.75, 1.0])
    assert f"| CIFAR-10, 5 tasks | all (3) | 63.8 | {gain:+.1f} ± {reach:.1f} (-1.5) |" in streams
    assert "track: memory" in streams
    assert "| TOOD | 1.5 | 64.2 |" in blocks["ranks"]  # of three scores: 1, 1, 3, 1 in four settings


def test_a_run_that_is_collected_again_replaces_all_its_lines(folder):
    who = {"stream": "cifar10", "learner": "wa", "seed": "1"}
    add_lines(folder / SCORES, [{**who, "detector": "energy", **dict.fromkeys(METRICS, 90.0)}])
    after = FrozenRuns(folder)
    assert after.seeds(("cifar10", "wa"), "energy") == {"0": 60.0, "1": 90.0}
    assert after.seeds(("cifar10", "wa"), "tood_mean_shift") == {"0": 66.0}
    assert after.seeds(("cifar10", "bic"), "energy") == {"0": 80.0, "1": 82.0}


def test_outdated_metrics_are_left_out(made_run, tmp_path, monkeypatch):
    path = made_run(tmp_path / "run", stream="cifar10", learner="wa", preset="frozen")
    measure(Run(path), [Scorer(name) for name in ("energy", "maxlogit")])
    monkeypatch.setattr(detectors.classes()["maxlogit"], "version", 2)
    collect([path], tmp_path)
    frozen = FrozenRuns(tmp_path)
    assert list(frozen.seeds(("cifar10", "wa"), "energy")) == ["0"]
    assert not frozen.seeds(("cifar10", "wa"), "maxlogit")


def test_tables_stand_between_their_marks(tmp_path):
    page, said = tmp_path / "README.md", {"stream": "cifar10", "learner": "wa", "seed": "0", "track": "calibration"}
    values = {"energy": "60.5", "tood_mean_shift": "66.2", "tood": "68.5"}
    add_lines(tmp_path / TRACKS, [{**said, "detector": name, "avg_auroc": value} for name, value in values.items()])
    page.write_text("before\n<!-- pretrained -->\nold\n<!-- end -->\nafter\n<!-- other -->\nkept\n<!-- end -->\n")
    for _ in range(2):
        text = fill(page, {"pretrained": readme_table(tmp_path)}).read_text()
        assert text.startswith("before\n<!-- pretrained -->\n\n| stream, learner | Energy |") and "old" not in text
        assert "| images, WA | 60.5 | 66.2 | 68.5 | – |" in text
        assert text.endswith("<!-- end -->\nafter\n<!-- other -->\nkept\n<!-- end -->\n")


def test_ranks_by_track_are_over_runs_that_have_every_detector(tmp_path):
    values = {("er", "memory"): (60.0, 70.0), ("wa", "memory"): (80.0, 75.0), ("lwf", "memory"): (50.0,)}
    lines = [
        {"stream": "cifar10", "learner": learner, "seed": "0", "track": track, "detector": name, "avg_auroc": value}
        for (learner, track), own in values.items()
        for name, value in zip(("energy", "tood"), own, strict=False)
    ]
    add_lines(tmp_path / TRACKS, lines)
    text = "\n".join(track_blocks(tmp_path)["tracks"])
    assert "memory" in text and "| Energy | 70.0 (1.5) |" in text and "| TOOD | 72.5 (1.5) |" in text
