import json

import numpy as np
import pytest

from tood import detectors
from tood.audit.evidence import Distances, Gap
from tood.audit.verdict import Repair, Verdict, diagnose, loss_error, recommend, supported_by
from tood.metrics import auroc


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        ({"restored": 0.20, "by_distance": 0.00, "nearer": 0.2}, "confidence gap"),
        ({"restored": 0.16, "by_distance": 0.19, "nearer": 0.2}, "confidence gap"),
        ({"restored": 0.10, "by_distance": 0.10, "nearer": 0.2}, "confidence gap and crowding"),
        ({"restored": 0.10, "by_distance": 0.10, "nearer": -0.2}, "confidence gap and lost features"),
        ({"restored": 0.10, "within_task": 0.3}, "confidence gap and lost features"),
        ({"restored": 0.10, "by_distance": 0.01, "nearer": 0.2}, "confidence gap, in part"),
        ({"restored": 0.10}, "confidence gap, in part"),
        ({"restored": 0.00, "by_distance": 0.10, "nearer": 0.2}, "crowding"),
        ({"restored": 0.00, "by_distance": 0.10, "nearer": 0.2, "within_task": 0.2}, "lost features"),
        ({"restored": -0.1, "by_distance": 0.01, "nearer": 0.2}, "something else"),
        ({"restored": 0.00}, "something else"),
        ({"lost": 0.019, "restored": 0.019}, "none"),  # too little to matter
        ({"lost": 0.05, "error": 0.03, "restored": 0.05}, "none"),  # not told from chance
        ({"lost": -0.1, "restored": 0.0}, "none"),
    ],
)
def test_the_rule(evidence, cause):
    assert diagnose(**{"lost": 0.2, "error": 0.01, "within_task": 0.0, **evidence}) == cause


def test_error_of_the_loss_is_that_of_repeated_sampling():
    """Draw the same experiment 400 times: four tasks, one OOD set, two steps."""
    rng = np.random.default_rng(0)
    counts, before, after = [60, 80, 100, 60], 1.8, 0.9  # distance of ID from OOD in standard deviations

    def once():
        ood = {shift: rng.normal(size=120) for shift in (before, after)}
        values = [[auroc(rng.normal(shift, size=n), ood[shift]) for n in counts] for shift in (before, after)]
        return values, np.mean(values[0]) - np.mean(values[1])

    draws = [once() for _ in range(400)]
    observed = np.std([lost for _, lost in draws])
    claimed = np.mean([loss_error(*values, counts, 120) for values, _ in draws])
    assert claimed == pytest.approx(observed, rel=0.2)


def test_no_error_without_old_tasks():
    assert loss_error([], [], [], 100) == 0.0


def test_default_is_kept_unless_another_is_clearly_better():
    default = Repair("tood_auto", None, 0.80, 0.1)
    assert recommend(0.798, [default]) is None
    assert recommend(0.70, [default, Repair("tood_mean_shift", 0.0, 0.804, 0.1)]) is default
    better = Repair("tood_mean_shift", 0.0, 0.81, 0.1)
    assert recommend(0.70, [default, better]) is better
    features = Repair("tood_joint", None, 0.806, 0.1)
    assert recommend(0.70, [default, better, features]) is features


def test_what_is_said_for_a_detector_are_the_figures_of_the_file():
    from importlib import resources

    known = json.loads((resources.files("tood.audit") / "supported.json").read_text())
    assert set(known["detectors"]) == {"tood_joint", "typicality", "tood_auto"}
    assert "past_tood.py" in known["command"]
    now = {name: detectors.create(name).get_params() for name in known["detectors"]}
    assert known["settings"] == now, "the defaults have changed since: measure again"
    for name, streams in known["detectors"].items():
        for stream, found in streams.items():
            assert 0 <= found["above"] <= found["of"]
            words = f"{found['above']} of {found['of']} runs on {stream} ({found['gain']:+.1f} points on average, "
            words += f"{found['near']:+.1f} on near-OOD)"
            assert words in supported_by(name)
    assert supported_by("msp") == ""


def verdict(**change):
    given = {
        "cause": "confidence gap",
        "tasks": 3,
        "forgetting": 0.2,
        "error": 0.01,
        "by_task": (0.3, 0.1),
        "accuracy_forgetting": 0.05,
        "within_task": 0.01,
        "average": 0.7,
        "restored": 0.18,
        "gap": Gap((4.0, 6.0, 10.0), (3.0, 6.0, 10.0), 2.0),
        "distances": Distances((4.0, 3.0, 2.0), (1.0, 1.0, 1.0), 0.0),
        "calibration": "memory",
        "repairs": (Repair("tood_auto", None, 0.85, 0.03), Repair("typicality", None, 0.84, 0.0)),
        "recommended": Repair("tood_auto", None, 0.85, 0.03),
        "best": ("tood_auto", 0.85),
    }
    return Verdict(**{**given, **change})


def test_words_carry_the_figures():
    text = " ".join(verdict().sentences())
    for part in ("20.0 ± 1.0 points", "task 0 30.0, task 1 10.0", "3.0 6.0 10.0", "18.0 points, 90 % of the loss"):
        assert part in text
    assert "Avg AUROC 70.0 → 85.0 with tood_auto, D_avg 20.0 → 3.0" in text
    assert f"Use tood_auto: Avg AUROC 70.0 → 85.0 here; {supported_by('tood_auto')}." in text
    other = verdict(recommended=Repair("tood_mean_shift", 0.0, 0.9, 0.03)).sentences()[3]
    assert "Use tood_mean_shift, margin 0: Avg AUROC 70.0 → 90.0 here, chosen on these very OOD sets" in other
    assert "hides" not in text and "does best" not in text
    assert "Of all detectors measured rmds does best: Avg AUROC 90.0." in verdict(best=("rmds", 0.9)).sentences()[3]


def test_calibration_set_that_hides_the_gap_is_called_out():
    hidden = verdict(gap=Gap((9.5, 9.7, 10.0), (3.0, 6.0, 10.0), 2.0))
    assert hidden.hides_gap() and "The calibration set (memory) hides the gap" in hidden.sentences()[2]
    level = verdict(gap=Gap((10.1, 9.9, 10.0), (9.9, 10.1, 10.0), 2.0))  # there is no gap to hide
    assert not level.hides_gap()


def test_one_task_has_nothing_to_forget():
    assert verdict(tasks=1, by_task=()).sentences() == ["One task has been learned: there is nothing yet to forget."]
