"""The choice of a score by unlabelled traffic."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from tood import TOOD, choose, detectors, energy
from tood.choose import Strata, _one_class, _read
from tood.cli import cli
from tood.errors import ToodError
from tood.metrics import auroc


def draw(rng, rows, unknown=0.0, mix=(0.25, 0.25, 0.25, 0.25)):
    """Logits of four classes; unknown inputs belong to none."""
    labels = rng.choice(4, rows, p=mix)
    logits = rng.normal(size=(rows, 4)) + 5 * np.eye(4)[labels] * (rng.random((rows, 1)) >= unknown)
    return logits, labels


def noisy(rng, spread):
    """A score that is energy and noise."""
    return lambda logits: energy(logits) + rng.normal(0, spread, len(logits))


def test_auroc_and_standard_error_are_those_of_delong():
    rng = np.random.default_rng(0)
    known, traffic = rng.normal(1, 1, 60).round(1), rng.normal(0, 1, 80).round(1)
    reading = _read(known, traffic, _one_class(60, 80))
    assert reading.auroc == pytest.approx(auroc(known, traffic))
    # Sun and Xu (2014): placements from mid-ranks.
    together, first, second = (stats.rankdata(x) for x in (np.append(known, traffic), known, traffic))
    placements = (together[:60] - first) / 80, 1 - (together[60:] - second) / 60
    assert reading.known == pytest.approx(placements[0] - reading.auroc)
    assert reading.traffic == pytest.approx(placements[1] - reading.auroc)


def test_weights_by_class_give_the_auroc_of_the_same_mix():
    rng = np.random.default_rng(0)
    classes = Strata(np.repeat([0, 1], [50, 50]), np.repeat([0, 1], [20, 80]))
    known, traffic = classes.known + rng.normal(size=100), classes.traffic + rng.normal(size=100)
    repeated = np.concatenate([np.tile(known[:50], 1), np.tile(known[50:], 4)])  # one to four, as in the traffic
    assert _read(known, traffic, classes).auroc == pytest.approx(auroc(repeated, traffic))


def test_influences_give_the_spread_over_repeated_draws():
    rng = np.random.default_rng(0)
    found, errors = [], []
    for _ in range(400):
        classes = Strata(rng.choice(3, 150), rng.choice(3, 250, p=[0.5, 0.3, 0.2]))
        known, traffic = 2 * classes.known + rng.normal(size=150), 2 * classes.traffic + rng.normal(size=250)
        reading = _read(known, traffic, classes)
        found.append(reading.auroc)
        errors.append(np.mean(reading.known**2) / 150 + np.mean(reading.traffic**2) / 250)
    assert np.mean(found) == pytest.approx(0.5, abs=0.004)
    assert np.sqrt(np.mean(errors)) == pytest.approx(np.std(found), rel=0.12)


def test_the_better_score_is_chosen_and_the_share_found():
    rng = np.random.default_rng(1)
    choice = choose({"tood": noisy(rng, 3), "energy": energy}, draw(rng, 3000)[0], draw(rng, 3000, 0.2)[0])
    assert choice.name == "energy" and choice.scorer is energy and choice.plausible
    estimate, low, high = choice.unknown_share
    assert low < 0.2 < high and estimate == pytest.approx(0.2, abs=0.05)
    assert choice.text.startswith("Use energy") and choice.differences["energy"][1] > 0


def test_nothing_changes_without_unknown_inputs():
    rng = np.random.default_rng(2)
    changed = []
    for _ in range(200):
        candidates = {"tood": noisy(rng, 3), "a": energy, "b": noisy(rng, 1), "c": noisy(rng, 2)}
        changed.append(choose(candidates, draw(rng, 200)[0], draw(rng, 200)[0]).name != "tood")
    assert np.mean(changed) <= 0.05


def test_another_class_mix_is_no_reason_to_change():
    rng = np.random.default_rng(3)
    (known, _), (traffic, _) = draw(rng, 3000), draw(rng, 3000, mix=(0.7, 0.1, 0.1, 0.1))
    candidates = {"tood": energy, "fooled": lambda logits: -logits[:, 0]}  # low for class 0, which is now frequent
    choice = choose(candidates, known, traffic)
    assert choice.name == "tood" and choice.differences["fooled"][1] > 0
    assert "class mix" in choice.text and choice.mix_distance == pytest.approx(0.45, abs=0.03)
    pairs = {name: (score(known), score(traffic)) for name, score in candidates.items()}
    assert choose(pairs).name == "tood" and "would look like unknown" in choose(pairs).text


def test_drift_of_known_inputs_is_noticed():
    rng = np.random.default_rng(4)
    known, traffic = rng.normal(size=2000), rng.normal(-0.4, 0.8, size=2000)
    assert not choose({"tood": (known, traffic)}).plausible


def test_detectors_and_calibrators_are_scored_as_they_expect():
    rng = np.random.default_rng(5)
    cal = TOOD([[0, 1], [2, 3]]).fit(*draw(rng, 200))
    known, traffic = draw(rng, 300)[0], draw(rng, 300, 0.1)[0]
    candidates = {"tood": cal, "energy": detectors.create("energy"), "same": energy}
    found = {c.name: c.auroc for c in choose(candidates, known, traffic).candidates}
    assert found["energy"] == found["same"] == pytest.approx(auroc(energy(known), energy(traffic)))
    assert found["tood"] == pytest.approx(auroc(cal.score(known), cal.score(traffic)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"candidates": {"energy": energy}}, "default"),
        ({"candidates": {"tood": energy}, "known": None}, "known and traffic"),
        ({"candidates": {"tood": energy}, "alpha": 0}, "alpha"),
        ({"candidates": {"tood": (np.zeros(30), np.zeros(5))}}, "20 or more"),
        ({"candidates": {"tood": (np.zeros(30), np.full(30, np.nan))}}, "finite"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ToodError, match=message):
        choose(**{"known": np.zeros((30, 4)), "traffic": np.zeros((30, 4))} | arguments)


def test_the_command(tmp_path):
    rng = np.random.default_rng(6)
    logits, labels = draw(rng, 200)
    sets = {"cal": logits, "known": draw(rng, 400)[0], "traffic": draw(rng, 400, 0.2)[0]}
    for name, values in sets.items():
        np.savez(
            tmp_path / f"{name}.npz", logits=values, features=values, **({"labels": labels} if name == "cal" else {})
        )
    TOOD([[0, 1], [2, 3]]).fit(logits, labels).save(tmp_path / "cal.safetensors")
    options = ["--known", str(tmp_path / "known.npz"), "--traffic", str(tmp_path / "traffic.npz"), "--json"]

    def names(*arguments):
        result = CliRunner().invoke(cli, ["choose", *arguments, *options])
        assert result.exit_code == 0, result.output
        return {candidate["name"] for candidate in json.loads(result.stdout)["candidates"]}

    few = names(str(tmp_path / "cal.safetensors"))
    assert few == {"tood", "mean_shift", "robust_anchor", "energy", "maxlogit"}
    assert names(str(tmp_path / "cal.npz"), "--tasks", "[[0, 1], [2, 3]]") > few
    assert CliRunner().invoke(cli, ["choose", str(tmp_path / "cal.npz"), *options]).exit_code == 2
