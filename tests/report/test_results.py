"""docs/results: signs, orders, ranks and relations are what SciPy and pencil give; what is missing is said."""

import json
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from tood.pipeline import Run
from tood.report.ablations import differences, findings
from tood.report.agreement import claims, learner_orders, reference, signs, tood_ranks
from tood.report.collect import collect_runs
from tood.report.results import drift_relation, write_results
from tood.report.summary import Key, Summary, paper

VARIANTS = ("tood_mean_shift", "tood_robust_anchor")


def figures(values, stream="cifar10"):
    """``{learner: {detector: Avg AUROC}}`` as summaries."""
    return {
        Key(stream, learner, detector, "avg_auroc"): Summary(value, 0.0, 1)
        for learner, of in values.items()
        for detector, value in of.items()
    }


def test_signs_by_hand():
    # The paper, CIFAR-10: iCaRL 65.9 and 66.4, BiC 67.2 and 70.6 (energy, robust anchor).
    ours = figures(
        {
            "icarl": {"energy": 60.0, VARIANTS[1]: 59.0},
            "bic": {"energy": 50.0, VARIANTS[1]: 50.2},
            "er": {"energy": 1.0},
        }
    )
    found = {(s.learner, s.detector): s for s in signs(ours, paper())}
    assert set(found) == {("icarl", VARIANTS[1]), ("bic", VARIANTS[1])}
    icarl, bic = found["icarl", VARIANTS[1]], found["bic", VARIANTS[1]]
    assert icarl.paper == pytest.approx(0.5) and icarl.ours == -1.0 and not icarl.agrees
    assert bic.paper == pytest.approx(3.4) and bic.ours == pytest.approx(0.2) and bic.agrees


def test_orders_count_the_pairs_that_kendall_counts():
    rng = np.random.default_rng(0)
    names = ("icarl", "bic", "der", "wa", "lwf")
    ours = figures({name: {"energy": float(value)} for name, value in zip(names, rng.permutation(5), strict=True)})
    (order,) = learner_orders(ours, paper())
    theirs = [paper()[Key("cifar10", name, "energy", "avg_auroc")].mean for name in names]
    mine = [ours[Key("cifar10", name, "energy", "avg_auroc")].mean for name in names]
    tau = stats.kendalltau(theirs, mine).statistic
    assert order.pairs == 10 == len(list(combinations(names, 2)))
    assert order.same == round((tau + 1) * 10 / 2)
    assert order.ours == [name for _, name in sorted(zip(mine, names, strict=True), reverse=True)]


def test_ranks_are_among_the_detectors_of_both():
    ours = figures({"icarl": {"energy": 60.0, "msp": 70.0, "vim": 1.0, VARIANTS[1]: 65.0, "no such": 99.0}})
    (rank,) = tood_ranks(ours, paper())
    known = [paper()[Key("cifar10", "icarl", name, "avg_auroc")].mean for name in ("energy", "msp", "vim", VARIANTS[1])]
    assert rank.of == 4 and rank.ours == 2
    assert rank.paper == int(stats.rankdata([-value for value in known], method="min")[3])


def test_claims_hold_or_do_not():
    good = figures({name: {"energy": 60.0, VARIANTS[0]: 61.0, VARIANTS[1]: 59.0} for name in ("icarl", "der")})
    found = {claim.text: claim for claim in claims(good, paper())}
    mean = {v: np.mean([s.paper for s in signs(good, paper()) if s.detector == v]) for v in VARIANTS}
    for variant, holds in zip(VARIANTS, (True, False), strict=True):
        (claim,) = [c for text, c in found.items() if f"{variant} raises" in text]
        assert claim.holds is holds and claim.paper == f"{mean[variant]:+.1f}"


def test_the_papers_vit_stands_beside_its_own_runs_only():
    keys = [key for key in reference() if "vit_base_patch16_224" in key.learner]
    assert len(keys) == 10 and {key.stream for key in keys} == {"cifar10", "cifar100"}
    assert reference()[next(k for k in keys if k.learner.startswith("wa") and k.detector == "energy")].mean == 60.9


def test_drift_and_forgetting_is_pearson_over_learners():
    rng = np.random.default_rng(1)
    points = [
        {"learner": name, "seed": seed, "drift": rng.random(), "d_avg": rng.normal()}
        for name in "abcdefgh"
        for seed in (0, 1)
    ]
    means = [
        [np.mean([p[k] for p in points if p["learner"] == name]) for name in "abcdefgh"] for k in ("drift", "d_avg")
    ]
    r, p, count = drift_relation(points, "d_avg")
    assert (r, p) == pytest.approx(tuple(stats.pearsonr(*means)), abs=1e-12) and count == 8
    assert drift_relation([{**p, "drift": None} for p in points], "d_avg") is None
    assert drift_relation(points[:4], "d_avg") is None


def test_differences_are_means_within():
    rows = [
        {"run": "a", "B": 5, "selection": "random", "avg_auroc": 1.0},
        {"run": "a", "B": 5, "selection": "random", "avg_auroc": 3.0},
        {"run": "a", "B": 5, "selection": "herding", "avg_auroc": 5.0},
        {"run": "a", "B": 9, "selection": "random", "avg_auroc": 9.0},
        {"run": "a", "B": 9, "selection": "herding", "avg_auroc": 8.0},
        {"run": "b", "B": 5, "selection": "random", "avg_auroc": 1.0},
    ]
    assert differences(rows, {"selection": "herding"}, {"selection": "random"}, "B") == [(3.0 - 1.0) / 2]
    assert differences(rows, {"selection": "herding"}, {"selection": "random"}, "B", largest=True) == [3.0]
    full = {row_name: values for row_name, _, values in findings({"buffer": rows})}
    assert full["herding"] == [3.0]  # with all nine samples both selections are the same set
    assert full["stable from B"] == [9.0, 5.0]


@pytest.fixture(scope="module")
def kept(tmp_path_factory, build):
    """Two learners of CIFAR-10, one of them with two seeds: a table 1 that is far from complete."""
    folder = tmp_path_factory.mktemp("runs")
    few = ("energy", "msp", *VARIANTS)
    for learner, seed, fade in (("icarl", 0, 0.6), ("icarl", 1, 0.6), ("der", 0, 0.75)):
        path = folder / f"cifar10-{learner}-cpu-s{seed}"
        build(path, learner=learner, seed=seed, fade=fade, per_class=10, detectors=few, stream="cifar10", preset="cpu")
    metrics = tmp_path_factory.mktemp("results") / "metrics"
    assert len(collect_runs([Run(path) for path in sorted(folder.iterdir())], metrics, commit="0123abc")) == 3
    return metrics


def test_the_pages_say_what_is_there_and_what_is_missing(kept):
    index, tables = (path.read_text() for path in write_results(kept, kept.parent))
    assert "| `tood reproduce table1 --preset cpu` | 3 of 30 |" in index
    assert "cifar10 der (seed 1, 2)" in index and "cifar10 icarl (seed 2)" in index
    assert "| 0 of 3 | imagenet1k bic (seed 0); imagenet1k wa (seed 0); imagenet1k der (seed 0) |" in index
    assert "commit `0123abc`" in index and "commit `0123abc`" in tables
    assert "`tood reproduce table1 --preset cpu`" in tables
    row = next(line for line in tables.splitlines() if line.startswith("| energy |"))
    assert "(65.9, " in row and "(61.2, " in row  # the paper's iCaRL and DER


def test_the_pages_follow_from_the_files_alone(kept, tmp_path):
    once = [path.read_bytes() for path in write_results(kept, tmp_path / "a")]
    assert once == [path.read_bytes() for path in write_results(kept, tmp_path / "a")]


def test_what_disagrees_stands_there(kept, tmp_path):
    (index, _) = write_results(kept, tmp_path)
    text = index.read_text().split("### What did not reproduce")[1]
    from tood.pipeline.metrics_file import load_metrics
    from tood.report.summary import collect

    runs = [Run(path.parent) for path in sorted(kept.rglob("manifest.json"))]
    ours = collect((run, load_metrics(run.path)) for run in runs)
    for sign in signs(ours, paper()):
        line = f"{sign.paper:+.1f}, here {sign.ours:+.1f}."
        assert (line in text) is not sign.agrees


def test_a_run_without_features_has_no_drift(kept, tmp_path):
    point = json.loads(next(kept.rglob("collected.json")).read_text())["point"]
    assert 0 < point["drift"] < 1
    assert drift_relation([point], "f_avg") is None
