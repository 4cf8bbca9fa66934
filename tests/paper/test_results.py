"""docs/results: rules hold on the paper's own values; counts, gains and relations are what SciPy and pencil give."""

import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import results_pages
from results_pages.__main__ import draw
from results_pages.benchmark import read_csv
from results_pages.claims import PaperToy, claims, mean_gain, toy_claims
from results_pages.collect import collect, collect_runs, read_collected
from results_pages.evidence import Causes, Evidence, Relation, as_scored, of_paper, of_runs, relation
from results_pages.paper import paper_blocks
from tood.outputs import Run
from tood.paper.reference import reported, stated
from tood.report.appearance import label
from tood.report.gather import MeasuredRun
from tood.report.summary import Key, Summary

VARIANTS = ("tood_mean_shift", "tood_robust_anchor")
NO_CAUSES = Causes({})
# Claims that the paper states without numbers, so that their rules cannot be applied to it.
WITHOUT_NUMBERS = {
    "MDS, ViM, NNGuide forget as well (D_avg above 0) in most settings",
    *(f"{label(name)} has a lower D_avg than energy in most settings" for name in VARIANTS),
    "cifar10: OOD forgetting of energy is at most weakly related to accuracy on old tasks",
    "cifar10: OOD forgetting of MDS is at most weakly related to accuracy on old tasks",
    "cifar10: TOOD gains most if task 0's energy came closest to OOD's",
    "cifar10, iCaRL: task 0 loses more AUROC of energy than accuracy",
    "cifar10, iCaRL: robust anchor (paper) restores most of that AUROC, summed over steps",
}


def of(evidence):
    return {claim.text: claim for claim in claims(evidence)}


def test_every_rule_says_yes_to_the_papers_own_values():
    paper = of(of_paper())
    assert {text: claim.holds for text, claim in paper.items()} == dict.fromkeys(paper, True)
    counts = [claim.numbers for text, claim in paper.items() if " in most " in text]
    assert counts == [
        "8 of 10",
        "8 of 10",
        "8 of 10",
        "7 of 10",
        "8 of 10, among 10 of the paper's ten detectors",
        "5 of 8",
    ]
    drift = paper["cifar10: feature drift has no significant relation with OOD forgetting D_avg"]
    assert "p = 0.270" in drift.numbers  # the paper's p follows from its r and 11 learners
    known = stated()
    toy = list(toy_claims(PaperToy(*(known[f"toy: {name}", ""] for name in ("gap", "gain", "crowded")))))
    assert len(toy) == 4 and all(claim.holds is True for claim in toy)


def values(changes, metric="avg_auroc", stream="cifar10"):
    """``{learner: {detector: value}}`` as summaries."""
    return {
        Key(stream, learner, detector, metric): Summary(value, 0.0, 1)
        for learner, of_learner in changes.items()
        for detector, value in of_learner.items()
    }


def test_every_rule_can_fail_and_says_unclear_if_too_little_was_measured():
    five = ("icarl", "bic", "der", "wa", "lwf")
    names = ("energy", *VARIANTS, "msp", "ash", "mds", "vim", "nnguide")
    bad = {}
    for stream in ("cifar10", "cifar100"):
        scores = {name: {d: 50.0 if d in VARIANTS else 60.0 for d in names} for name in five}
        scores |= {
            f"{name}+ber": dict.fromkeys(names, 55.0 if (stream, name) != ("cifar100", "icarl") else 65.0)
            for name in ("icarl", "bic")
        }
        bad |= values(scores, stream=stream) | values(scores, "old_auroc", stream)
        flipped = {who: {d: 100 - v for d, v in row.items()} for who, row in scores.items()}
        bad |= values(flipped, "avg_fpr95", stream) | values(
            {w: {d: v if d in VARIANTS else -1 for d, v in r.items()} for w, r in flipped.items()}, "d_avg", stream
        )
    gains = {(s, w, v): Summary(-10.0, 0.1, 3) for s in ("cifar10", "cifar100") for w in five for v in VARIANTS}
    pairs = [
        ("drift", "d_avg"),
        ("drift", "f_avg"),
        ("old_accuracy", "d_avg"),
        ("old_accuracy", "mds_d_avg"),
        ("closed", "gain"),
    ]
    relations = {pair: Relation(0.9 if pair == pairs[0] else -0.9, 12) for pair in pairs}
    causes = Causes(relations, (1.0, 2.0), 0.1, (5.0, 9.0), (1.0, 2.0), (1.0, 2.0), [False] * 5, [False] * 5)
    found = of(Evidence(bad, gains, causes, bad))
    assert {text: claim.holds for text, claim in found.items()} == dict.fromkeys(found, False)
    assert set(found) - set(of(of_paper())) == WITHOUT_NUMBERS and set(of(of_paper())) <= set(found)
    few = {
        key: value for key, value in bad.items() if key.stream == "cifar10" and key.learner in ("icarl", "icarl+ber")
    }
    one_seed = {key: Summary(5.0, 0.0, 1) for key in gains if key[0] == "cifar10"}
    some = Causes({pair: Relation(0.5, 5) for pair in pairs}, (2.0, 1.0), None, falls=[True] * 3)
    unclear = {text: claim.holds for text, claim in of(Evidence(few, one_seed, some, few)).items()}
    del unclear["cifar10, iCaRL: BER raises energy's Avg AUROC"]  # one number decides it
    del unclear["MDS, ViM, NNGuide forget as well (D_avg above 0) in most settings"]  # three detectors
    assert False not in unclear.values()
    assert unclear["cifar10: mean shift (paper) raises Avg AUROC over energy, mean over learners"] is None


def test_bic_is_compared_on_its_raw_logits():
    both = values({"bic": {"energy": 72.0, "energy (raw logits)": 60.0}, "wa": {"energy": 65.0}})
    for raw, expected in ((True, 60.0), (False, 72.0)):
        scored = as_scored(both, raw)
        assert {key[1:3]: value.mean for key, value in scored.items()} == {
            ("bic", "energy"): expected,
            ("wa", "energy"): 65.0,
        }


def test_the_interval_of_one_learner_is_students():
    seeds = np.array([1.0, 2.5, 0.5, 3.0])
    found = mean_gain([Summary(seeds.mean(), seeds.std(ddof=1), 4)])
    low, high = stats.t.interval(0.95, 3, seeds.mean(), stats.sem(seeds))
    assert (found.low, found.high) == pytest.approx((low, high)) and found.positive is (True if low > 0 else None)
    alone = mean_gain([Summary(1.0, 0.0, 1), Summary(-3.0, 0.0, 1)])
    assert alone.value == -1.0 and np.isnan(alone.low) and alone.positive is None and "one seed" in str(alone)


def test_the_papers_vit_stands_beside_its_own_runs_only():
    keys = [key for key in reported() if "vit_base_patch16_224" in key.learner]
    assert len(keys) == 14 and {key.stream for key in keys} == {"cifar10", "cifar100"}
    assert reported()[next(k for k in keys if k.learner.startswith("wa") and k.detector == "energy")].mean == 60.9


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
    found = relation([*points, {"learner": "i", "drift": None, "d_avg": 1.0}], "drift", "d_avg")
    assert (found.r, found.p) == pytest.approx(tuple(stats.pearsonr(*means)), abs=1e-12) and found.learners == 8
    without = [stats.pearsonr(*np.delete(means, place, axis=1)).statistic for place in range(8)]
    assert (found.lowest, found.highest) == pytest.approx((min(without), max(without)), abs=1e-12)
    assert relation(points[:6], "drift", "d_avg") is None  # three learners


@pytest.fixture(scope="module")
def kept(tmp_path_factory, build):
    """Two learners of CIFAR-10, one of them with two seeds: a table 1 that is far from complete."""
    folder = tmp_path_factory.mktemp("runs")
    few = ("energy", "msp", *VARIANTS)
    for learner, seed, fade in (("icarl", 0, 0.6), ("icarl", 1, 0.6), ("der", 0, 0.75)):
        path = folder / f"cifar10-{learner}-cpu-s{seed}"
        build(path, learner=learner, seed=seed, fade=fade, per_class=10, detectors=few, stream="cifar10", preset="cpu")
    metrics = tmp_path_factory.mktemp("results") / "metrics"
    collect_runs([Run(path) for path in sorted(folder.iterdir())], metrics)
    return metrics


def test_gains_and_cells_are_means_over_seeds_beside_the_papers(kept):
    gains = next(line for line in paper_blocks(kept)["gains"] if "| from scratch |" in line).split(" | ")
    for own, column in (("icarl", 2), ("der", 4)):
        runs = [MeasuredRun(one.run) for one in read_collected(kept) if one.run.learner == own]
        averages = [
            [100 * run.trajectory(name).balanced().average() for name in (VARIANTS[0], "energy")] for run in runs
        ]
        gain = np.mean([tood - plain for tood, plain in averages])
        assert gains[column].startswith(f"{gain:+.1f}") and ("±" in gains[column]) is (own == "icarl")
        cell = next(row for row in read_csv(kept / "cells.csv") if (row["learner"], row["detector"]) == (own, "energy"))
        assert float(cell["avg_auroc"]) == pytest.approx(np.mean(averages, axis=0)[1], abs=0.005)
        assert cell["paper_avg_auroc"] == {"icarl": "65.9", "der": "61.2"}[own]


def test_short_training_does_not_refute_and_other_regimes_say_so(kept, build, tmp_path):
    metrics = tmp_path / "metrics"
    shutil.copytree(kept, metrics)
    few = ("energy", "mds", *VARIANTS)
    frozen = {"stream": "cifar10", "preset": "frozen", "options": {"frozen": True, "network": "efficientnet_lite0"}}
    for learner, fade in (("icarl", 2.0), ("bic", 1.0), ("wa", 0.5), ("er", 0.0)):
        build(tmp_path / "runs" / learner, learner=learner, fade=fade, per_class=10, detectors=few, **frozen)
    assert collect([tmp_path / "runs"], metrics) == 4
    head, _, *rows = (line.split(" | ") for line in paper_blocks(metrics)["claims"] if line.startswith("| "))
    assert head[1:] == ["paper", "from scratch", "frozen |"]
    words = [{row[column].split(":")[0].removesuffix(" |") for row in rows} for column in (2, 3)]
    assert words[0] <= {"yes", "unclear", "not tested at the paper's length", "–"}
    assert words[1] <= {"yes", "unclear", "not in this regime", "–"}
    both = {(row["regime"], row["bic"]) for row in read_csv(metrics / "claims.csv")}
    assert both == {(regime, bic) for regime in ("from scratch", "frozen") for bic in ("raw", "corrected")}


def test_every_item_has_a_status_and_the_counts_add_up():
    metrics = Path(results_pages.__file__).parents[1] / "metrics"
    rows = read_csv(metrics / "items.csv")
    assert {row["status"] for row in rows} == {"works", "partly", "differs", "missing"} and all(r["how"] for r in rows)
    page = (metrics.parent / "paper.md").read_text(encoding="utf-8")
    counts = Counter(row["status"] for row in rows)
    said = re.findall(r"has (\d+) things|(\d+) work,|(\d+) work in part|(\d+) differ|(\d+)\s+are missing", page)
    assert [int("".join(found)) for found in said] == [
        len(rows),
        *(counts[name] for name in ("works", "partly", "differs", "missing")),
    ]


def test_claims_about_causes_need_only_collected_runs(kept):
    own = read_collected(kept)
    causes = of_runs(own, raw=True).causes
    seeds = [one for one in own if one.run.learner == "icarl"]

    def mean(values):
        return np.mean(list(values), axis=0)

    for name, key in (("energy", "task0_energy"), ("ood_energy", "ood_energy"), ("nearest", "nearest")):
        np.testing.assert_allclose(getattr(causes, name), mean(one.along[key] for one in seeds))
    measured = [MeasuredRun(one.run) for one in seeds]
    accuracy = 100 * mean(one.accuracy[:, 0] for one in measured)
    plain, tood = (
        100 * mean(one.trajectory(name).balanced().mean()[:, 0] for one in measured) for name in ("energy", VARIANTS[1])
    )
    assert causes.lost == pytest.approx((plain[0] - plain[-1], accuracy[0] - accuracy[-1]))
    assert causes.restored == pytest.approx((tood - plain).sum() / (plain[0] - plain).sum())
    assert len(causes.falls) == len(causes.halves) == 2  # learners
    bare = of_runs([one._replace(along={}) for one in own], raw=True).causes
    assert not len(bare.energy) and not len(bare.nearest) and not bare.falls


def test_energies_and_distances_along_the_stream_are_those_of_the_outputs(build, tmp_path):
    from results_pages.collect import along as along_of
    from tood import energy
    from tood.outputs.steps import Step

    run = Run(build(tmp_path / "run", tasks=3, per_class=10, detectors=("energy", *VARIANTS)))
    along = along_of(MeasuredRun(run))
    step = Step(run, 2)
    own = energy(np.asarray(step.test.logits))[step.test_tasks() == 0]
    assert along["task0_energy"][2] == pytest.approx(own.mean())
    oods = [energy(np.asarray(outputs.logits)).mean() for outputs in step.ood.values()]
    assert along["ood_energy"][2] == pytest.approx(np.mean(oods))
    name = next(name for name in reversed(run.ood) if run.ood[name] == "far")
    known, unknown = (np.asarray(outputs.features) for outputs in (step.test, step.ood[name]))
    distances = np.linalg.norm(unknown[:, None] - known[None], axis=-1).min(axis=1)
    assert along["nearest"][2] == pytest.approx(np.median(distances), rel=1e-6)
    shutil.rmtree(run.path / "steps")
    assert along_of(MeasuredRun(Run(run.path))) == {}


def test_plots_of_collected_values_are_drawn(kept, tmp_path):
    shutil.copytree(kept, tmp_path / "metrics")
    draw(tmp_path / "metrics")
    assert (tmp_path / "metrics" / "plots" / "cifar10" / "drift.png").exists()
