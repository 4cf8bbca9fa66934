"""The rule and the words, from evidence made up."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from tood.audit import audit, read_verdict
from tood.audit.advice import DEFAULT, advise
from tood.audit.causes import judge
from tood.audit.evidence import Evidence
from tood.audit.wording import use
from tood.outputs import Run

BASE = {"learned": 0.95, "kept": 0.95, "recentred": 0.95, "fresh": 0.95}


def evidence(spread=0.002, features=True, **values):
    given = {**BASE, "end": 0.9, **({"nearer": 0.5} if features else {}), **values}
    given.setdefault("restored", given["recentred"])
    if features:
        given.setdefault("channels", given["recentred"])
    rng = np.random.default_rng(0)
    drawn = {(name, "all"): value + spread * noise(rng) for name, value in given.items()}
    drawn["loss", "all"] = drawn["learned", "all"] - drawn["kept", "all"]
    return Evidence(("all",), drawn)


def noise(rng):
    """None for the value, then that of a thousand resamples."""
    return np.append(0.0, rng.normal(size=1000))


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
    parts = [0.3 * found.shares[name].value for name in ("gap", "crowding", "features", "channels", "left")]
    assert parts == pytest.approx([0.1, 0.05, 0.08, 0.04, 0.03]) and found.loss.value == pytest.approx(0.3)


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
    drawn = {key: value + spread * noise(rng) for key, value in values.items()}
    return Evidence(scopes, drawn, {name: chosen for name, (chosen, _) in both.items()})


def test_what_was_best_by_luck_is_not_recommended():
    found = advise(scores(energy=0.70, knn=(0.73, 0.701), vim=0.69))
    assert found.best == found.features.name == "knn" and found.use == "energy" and found.tried == 3
    assert found.features.gains["all"].low < 0 < found.features.gains["all"].high


def test_what_is_surely_better_is_recommended_with_the_values_of_the_other_half():
    found = advise(scores(energy=0.70, knn=(0.80, 0.78), rmds=0.60))
    assert found.use == "knn" and found.features.scores["all"].value == pytest.approx(0.78)
    assert found.features.gains["near"].value == pytest.approx(0.08)


def test_the_default_is_kept_unless_another_is_clearly_better():
    default = DEFAULT
    found = advise(scores(energy=0.70, msp=0.804, knn=0.804, **{default: 0.80}))
    assert found.use == found.logits.name == default and found.features.name == "knn"
    worse = advise(scores(energy=0.70, msp=0.75, **{default: 0.62}))
    assert worse.use == "msp" and worse.default.gains["all"].value == pytest.approx(-0.08)


def test_a_default_that_gains_nothing_does_not_hide_a_score_that_does():
    found = advise(scores(spread=0.0005, energy=0.800, gen=0.8065, **{DEFAULT: 0.802}))
    assert found.best == found.use == "gen"


def test_logits_and_features_have_a_line_each_with_near_before_far():
    advice = advise(scores(energy=0.70, gmm=0.90, **{DEFAULT: 0.80}))
    lines = use(SimpleNamespace(advice=advice, cause="confidence gap", traffic={}))
    assert list(lines) == ["from logits", "with features"] and lines["with features"].startswith("GMM: near-OOD 70.0 →")
    assert lines["from logits"].startswith("TOOD") and lines["from logits"].index("near") < lines["from logits"].index(
        "far"
    )
    useless = advise(scores(energy=0.70, **{DEFAULT: 0.70}))
    words = use(SimpleNamespace(advice=useless, cause="confidence gap", traffic={}))["from logits"]
    assert "with this calibration set" in words  # why the score for this cause is not advised


def test_a_kept_verdict_is_stale_once_the_figures_change(gap_run):
    run = Run(gap_run)
    found = audit(run)
    kept = read_verdict(run)
    assert kept["card"] == found.verdict.card() and kept["cause"] == "confidence gap"
    run.metrics_path.write_bytes(run.metrics_path.read_bytes() + b" ")
    assert read_verdict(run) is None
    audit(run)
    text = (gap_run / "verdict.json").read_text()
    for damaged in ("[" * 100_000, "[]", json.dumps({"format": 99}), text.replace("confidence gap", "crowding", 1)):
        (gap_run / "verdict.json").write_text(damaged)
        assert read_verdict(run) is None
