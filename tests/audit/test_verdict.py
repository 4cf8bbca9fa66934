"""The rule and the words, from evidence made up."""

import json

import numpy as np
import pytest

from tood.audit.advice import advise, default_score
from tood.audit.causes import judge
from tood.audit.evidence import Evidence

BASE = {"learned": 0.95, "kept": 0.95, "recentred": 0.95, "fresh": 0.95}


def evidence(spread=0.002, features=True, **values):
    given = {**BASE, "end": 0.9, "within": 0.0, **({"nearer": 0.5} if features else {}), **values}
    given.setdefault("restored", given["recentred"])
    if features:
        given.setdefault("channels", given["recentred"])
    given["loss"] = given["learned"] - given["kept"]
    rng = np.random.default_rng(0)
    draws = {("learned", "all"): 0}
    draws = {(name, "all"): value + spread * rng.normal(size=1000) for name, value in given.items()}
    draws["loss", "all"] = draws["learned", "all"] - draws["kept", "all"]
    return Evidence(("all",), {(name, "all"): value for name, value in given.items()}, draws)


@pytest.mark.parametrize(
    ("given", "causes", "undecided"),
    [
        ({"kept": 0.75, "recentred": 0.94}, ("confidence gap",), ()),
        ({"kept": 0.75, "recentred": 0.76, "fresh": 0.76}, ("crowding",), ()),
        ({"kept": 0.75, "recentred": 0.85, "fresh": 0.85}, ("confidence gap", "crowding"), ()),
        ({"kept": 0.75, "recentred": 0.76, "fresh": 0.76, "nearer": 0.0}, (), ()),  # newer channels, no crowding
        ({"kept": 0.75, "recentred": 0.76, "fresh": 0.76, "nearer": 0.0513}, (), (("crowding",),)),  # is it 5 %?
        ({"kept": 0.75, "recentred": 0.75, "restored": 0.94}, ("lost features",), ()),
        ({"kept": 0.75, "recentred": 0.75, "restored": 0.94, "channels": 0.93}, ("dead channels",), ()),
        ({"kept": 0.75, "recentred": 0.75, "restored": 0.94, "channels": 0.85}, ("lost features", "dead channels"), ()),
        (
            {"kept": 0.75, "recentred": 0.75, "restored": 0.94, "channels": 0.80},
            ("lost features",),
            (("dead channels",),),
        ),
        (
            {"kept": 0.75, "recentred": 0.75, "restored": 0.83, "channels": 0.79},
            (),
            (("lost features", "dead channels"),),
        ),
        ({"kept": 0.75, "recentred": 0.80}, (), (("confidence gap",),)),  # a quarter exactly
        ({"kept": 0.75, "recentred": 0.75}, (), ()),  # nothing shows why
        ({"kept": 0.2, "recentred": 0.5, "restored": 0.9, "channels": 0.9}, ("confidence gap", "dead channels"), ()),
    ],
)
def test_the_rule(given, causes, undecided):
    found = judge(evidence(**given), "all")
    assert (found.state, found.causes, found.undecided) == ("lost", causes, undecided)


def test_without_features_lost_features_and_dead_channels_look_alike():
    found = judge(evidence(features=False, kept=0.75, recentred=0.75, restored=0.94), "all")
    assert found.causes == () and found.undecided == (("lost features", "dead channels"),)
    assert judge(evidence(features=False, kept=0.75, recentred=0.76, fresh=0.75), "all").causes == ("crowding",)


def test_parts_add_up_to_the_loss():
    found = judge(evidence(kept=0.65, recentred=0.75, fresh=0.9, restored=0.87, channels=0.79), "all")
    parts = [part.value for part in (found.gap, found.crowding, found.features, found.channels, found.left)]
    assert parts == pytest.approx([0.1, 0.05, 0.08, 0.04, 0.03]) and sum(parts) == pytest.approx(found.loss.value)


@pytest.mark.parametrize(
    ("kept", "spread", "state"),
    [
        (0.75, 0.01, "lost"),
        (0.94, 0.002, "kept"),  # a point does not matter
        (0.91, 0.03, "unsure"),  # four points that may be none or ten
        (0.99, 0.005, "gained"),
    ],
)
def test_states(kept, spread, state):
    assert judge(evidence(spread, kept=kept), "all").state == state


def scores(spread=0.004, **averages):
    """Avg AUROC of scores: a pair is (half to choose by, half to report)."""
    rng = np.random.default_rng(1)
    both = {name: value if isinstance(value, tuple) else (value, value) for name, value in averages.items()}
    scopes = ("near", "far", "all")
    values = {(f"score:{name}", scope): reported for name, (_, reported) in both.items() for scope in scopes}
    draws = {key: value + spread * rng.normal(size=1000) for key, value in values.items()}
    return Evidence(scopes, values, draws, {name: chosen for name, (chosen, _) in both.items()})


def test_what_was_best_by_luck_is_not_recommended():
    found = advise(scores(energy=0.70, knn=(0.73, 0.701), vim=0.69))
    assert found.best == "knn" and found.use == "energy" and found.tried == 3
    assert found.gain.low < 0 < found.gain.high


def test_what_is_surely_better_is_recommended_with_the_figures_of_the_other_half():
    found = advise(scores(energy=0.70, knn=(0.80, 0.78), rmds=0.60))
    assert found.use == "knn" and found.score.value == pytest.approx(0.78) and found.gain.value == pytest.approx(0.08)
    assert [name for name, _ in found.losers] == ["rmds"] and set(found.gains) == {"near", "far"}


def test_the_default_is_kept_unless_another_is_clearly_better_and_its_loss_is_named():
    default = default_score()
    assert advise(scores(energy=0.70, knn=0.804, **{default: 0.80})).use == default
    worse = advise(scores(energy=0.70, knn=0.75, **{default: 0.62}))
    assert worse.use == "knn" and worse.default_gain.value == pytest.approx(-0.08)
    assert worse.losers[0][0] == default


def test_a_default_that_gains_nothing_does_not_hide_a_score_that_does():
    found = advise(scores(spread=0.0005, energy=0.800, vim=0.8065, **{default_score(): 0.802}))
    assert found.best == found.use == "vim"


def test_a_kept_verdict_is_stale_once_the_figures_change(gap_run):
    from tood.audit import audit, read_verdict
    from tood.runs import Run

    run = Run(gap_run)
    found = audit(run)
    kept = read_verdict(run)
    assert kept["card"] == found.verdict.card() and kept["cause"] == "confidence gap"
    run.metrics_path.write_bytes(run.metrics_path.read_bytes() + b" ")
    assert read_verdict(run) is None
    (gap_run / "verdict.json").write_text("[" * 100_000)
    assert read_verdict(run) is None
    (gap_run / "verdict.json").write_text(json.dumps({"format": 99}))
    assert read_verdict(run) is None
