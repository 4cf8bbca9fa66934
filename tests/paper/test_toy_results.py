"""The toy's tables follow from its trajectories; what is collected agrees with toy.json; claims can fail."""

import json

import numpy as np
import pytest

from results_pages.claims import toy_claims
from results_pages.collect import collect_toy
from tood.paper.toy import MARGINS, METHODS, STANDARD, Settings, runs
from tood.paper.toy_results import rows as toy_rows
from tood.paper.toy_results import summarize, to_json

SMALL = Settings(tasks=6, train=20, exemplars=10, test=20, ood=30, hidden=8, epochs=1)


@pytest.fixture(scope="module")
def toys():
    return list(runs([3, 7], SMALL))


def by_hand(values, steps):
    """Eq. avg_auroc and D_avg from a list of lists with None for tasks not seen yet."""
    average = np.mean([np.mean([values[t][i] for i in range(t + 1)]) for t in range(steps)])
    return average, np.mean([values[i][i] - values[steps - 1][i] for i in range(steps - 1)])


def test_rows_follow_from_the_trajectories_in_the_json(toys):
    trajectories = {(r["regime"], r["seed"]): r["auroc"] for r in json.loads(to_json(toys, SMALL))["runs"]}
    rows = toy_rows(toys)
    assert len(rows) == len(STANDARD) * 2 * len(METHODS) * 2
    for row in rows:
        of = trajectories[row["regime"], int(row["seed"])]
        average, forgetting = by_hand(of[row["method"]], int(row["steps"]))
        energy, _ = by_hand(of["energy"], int(row["steps"]))
        found = [float(row[name]) for name in ("avg_auroc", "d_avg", "gain")]
        np.testing.assert_allclose(found, [average, forgetting, average - energy], atol=1e-12)


def test_json_gives_back_every_figure(toys):
    document = json.loads(to_json(toys, SMALL))
    assert document["settings"]["tasks"] == 6 and document["regimes"]["no_replay"] == {
        "radius": 4.0,
        "replay": False,
        "ood_std": 1.0,
    }
    for saved, r in zip(document["runs"], toys, strict=True):
        assert (saved["regime"], saved["seed"]) == (r.regime, r.seed)
        assert saved["own_channel"][0][1:] == [None] * 5
        for name in ("accuracy", "own_channel"):
            np.testing.assert_array_equal(np.array(saved[name], dtype=float), getattr(r, name))
        for name in ("auroc", "gap"):
            for key, values in getattr(r, name).items():
                np.testing.assert_array_equal(np.array(saved[name][key], dtype=float), values)


def test_summary_is_mean_and_sample_deviation_over_seeds(toys):
    for row in summarize(toys):
        of = [r for r in toys if r.regime == row["regime"]]
        figures = [by_hand(r.auroc[row["method"]], row["steps"])[0] for r in of]
        assert row["seeds"] == 2
        assert row["avg_auroc"] == pytest.approx(np.mean(figures), abs=1e-12)
        assert row["avg_auroc_std"] == pytest.approx(np.std(figures, ddof=1), abs=1e-12)
        assert np.mean(row["by_step"]) == pytest.approx(np.mean([r.trajectory(row["method"]).average() for r in of]))


@pytest.fixture
def kept(toys, tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.json").write_text(to_json(toys, SMALL))
    collect_toy(tmp_path / "toy", tmp_path / "kept")
    return json.loads((tmp_path / "kept" / "toy.json").read_text())


def test_what_is_kept_follows_from_the_runs(toys, kept):
    separated = [r for r in toys if r.regime == "separated"]
    assert kept["runs"] == [] and kept["gap"] == pytest.approx(np.mean([r.gap["before"][1:] for r in separated]))
    for regime, along in kept["margin_averages"].items():
        own = [r for r in toys if r.regime == regime]
        # Weight 0.5 is one of the methods as well.
        both = [r.trajectory("robust anchor, λ=0.5", 5).average() for r in own]
        assert len(along) == len(MARGINS) and along[MARGINS.index(0.5)] == pytest.approx(np.mean(both))


def test_claims_hold_or_do_not(kept):
    def judged(**changes):
        return list(toy_claims({**kept, **changes}))

    def summary(**best):
        """Every method has the AUROC of energy, but one step of one has ``best`` points more."""
        flat = [{**row, "avg_auroc": 0.5, "by_step": [0.5] * 6} for row in kept["summary"]]
        for row in flat:
            if row["regime"] in best and row["method"] == "robust anchor, λ=0":
                gain = best[row["regime"]]
                row |= {"by_step": [0.5, 0.5, 0.5 + gain, 0.5, 0.5, 0.9], "avg_auroc": 0.5 + gain / 2}
        return flat

    rising, flat = np.linspace(0.8, 0.9, len(MARGINS)).tolist(), [0.5] * len(MARGINS)
    as_said = {"separated": rising, "crowded": [*flat[:-1], 0.499]}
    good = judged(gap=18.0, summary=summary(separated=0.051), margin_averages=as_said)
    assert [claim.holds for claim in good] == [True] * 6
    assert good[1].numbers == "+5.1"  # the best step among the first five
    otherwise = {"separated": flat, "crowded": rising}
    bad = judged(gap=-1.0, summary=summary(crowded=0.05), margin_averages=otherwise)
    assert [claim.holds for claim in bad] == [False, False, True, False, False, False]
