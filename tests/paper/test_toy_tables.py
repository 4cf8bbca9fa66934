import csv
import io
import json

import numpy as np
import pytest

from tood.paper.toy import METHODS, REGIMES, Settings, runs
from tood.paper.toy_tables import summarize, to_csv, to_json

SMALL = Settings(tasks=6, train=20, exemplars=10, test=20, ood=30, hidden=8, epochs=1)


@pytest.fixture(scope="module")
def results():
    return list(runs([3, 7], SMALL))


def by_hand(values, steps):
    """Eq. avg_auroc and D_avg from a list of lists with None for tasks not seen yet."""
    average = np.mean([np.mean([values[t][i] for i in range(t + 1)]) for t in range(steps)])
    return average, np.mean([values[i][i] - values[steps - 1][i] for i in range(steps - 1)])


def test_csv_holds_what_follows_from_the_trajectories_in_the_json(results):
    trajectories = {(r["regime"], r["seed"]): r["auroc"] for r in json.loads(to_json(results, SMALL))["runs"]}
    rows = list(csv.DictReader(io.StringIO(to_csv(results))))
    assert len(rows) == len(REGIMES) * 2 * len(METHODS) * 2
    for row in rows:
        of = trajectories[row["regime"], int(row["seed"])]
        average, forgetting = by_hand(of[row["method"]], int(row["steps"]))
        energy, _ = by_hand(of["energy"], int(row["steps"]))
        found = [float(row[name]) for name in ("avg_auroc", "d_avg", "gain")]
        np.testing.assert_allclose(found, [average, forgetting, average - energy], atol=1e-12)


def test_json_gives_back_every_figure(results):
    document = json.loads(to_json(results, SMALL))
    assert document["settings"]["tasks"] == 6 and document["regimes"]["no_replay"] == {"radius": 4.0, "replay": False}
    for saved, r in zip(document["runs"], results, strict=True):
        assert (saved["regime"], saved["seed"]) == (r.regime, r.seed)
        assert saved["own_channel"][0][1:] == [None] * 5
        for name in ("accuracy", "own_channel", "margins"):
            np.testing.assert_array_equal(np.array(saved[name], dtype=float), getattr(r, name))
        for name in ("auroc", "gap"):
            for key, values in getattr(r, name).items():
                np.testing.assert_array_equal(np.array(saved[name][key], dtype=float), values)


def test_summary_is_mean_and_sample_deviation_over_seeds(results):
    for row in summarize(results):
        of = [r for r in results if r.regime == row["regime"]]
        figures = [by_hand(r.auroc[row["method"]], row["steps"])[0] for r in of]
        assert row["seeds"] == 2
        assert row["avg_auroc"] == pytest.approx(np.mean(figures), abs=1e-12)
        assert row["avg_auroc_std"] == pytest.approx(np.std(figures, ddof=1), abs=1e-12)
        assert np.mean(row["by_step"]) == pytest.approx(np.mean([r.trajectory(row["method"]).average() for r in of]))
