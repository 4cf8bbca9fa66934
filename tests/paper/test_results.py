"""docs/results: signs, orders, ranks and relations are what SciPy and pencil give; what is missing is said."""

import json
import shutil
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from results_pages.__main__ import write_results
from results_pages.agreement import claims, learner_orders, reference, signs, tood_ranks
from results_pages.gains import both_protocols, mean_over_learners
from results_pages.mechanisms import interval, mechanism_claims, relation
from results_pages.pretrained_data import Table
from results_pages.pretrained_data import collect as collect_frozen
from tood.paper.ablation_summary import differences, draw_ablations, findings, over_seeds, summarize
from tood.paper.collect import Collected, collect_runs, read_collected
from tood.paper.reference import reported
from tood.report.appearance import label
from tood.report.gather import Measured
from tood.report.summary import Key, Summary
from tood.runs import Run
from tood.runs.identity import RunIdentity
from tood.runs.metrics_file import load_metrics, save_metrics

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
    found = {(s.learner, s.detector): s for s in signs(ours, reported())}
    assert set(found) == {("icarl", VARIANTS[1]), ("bic", VARIANTS[1])}
    icarl, bic = found["icarl", VARIANTS[1]], found["bic", VARIANTS[1]]
    assert icarl.paper == pytest.approx(0.5) and icarl.ours == -1.0
    assert bic.paper == pytest.approx(3.4) and bic.ours == pytest.approx(0.2) and bic.agrees
    deviations = [reported()[Key("cifar10", "icarl", name, "avg_auroc")].std for name in ("energy", VARIANTS[1])]
    assert icarl.spread == max(deviations) == 1.5 and not icarl.significant  # 0.5 is less than its seeds differ
    assert icarl.agrees and not icarl._replace(ours=-1.6).agrees and not icarl._replace(ours=1.6).agrees
    assert icarl._replace(ours=-1.6, own_spread=0.2).agrees
    assert bic.significant and (bic.own_spread, bic.seeds) == (0.0, 1) and not bic._replace(ours=-0.1).agrees
    assert bic._replace(paper=0.1, spread=None).significant  # one seed: its sign is all there is
    key = Key("cifar10", "bic", VARIANTS[1], "avg_auroc")
    several = next(s for s in signs(ours | {key: Summary(50.2, 0.7, 3)}, reported()) if s.learner == "bic")
    assert (several.own_spread, several.seeds) == (0.7, 3)


def test_orders_count_the_pairs_that_kendall_counts():
    rng = np.random.default_rng(0)
    names = ("icarl", "bic", "der", "wa", "lwf")
    ours = figures({name: {"energy": float(value)} for name, value in zip(names, rng.permutation(5), strict=True)})
    sure = {key: value._replace(std=0.0) for key, value in reported().items()}
    (order,) = learner_orders(ours, sure)
    theirs = [reported()[Key("cifar10", name, "energy", "avg_auroc")].mean for name in names]
    mine = [ours[Key("cifar10", name, "energy", "avg_auroc")].mean for name in names]
    tau = stats.kendalltau(theirs, mine).statistic
    assert order.pairs == 10 == len(list(combinations(names, 2)))
    assert order.same == round((tau + 1) * 10 / 2)
    assert order.ours == [name for _, name in sorted(zip(mine, names, strict=True), reverse=True)]
    (told,) = learner_orders(
        ours, reported()
    )  # of 67.2 ± 1.0 and 65.9 ± 1.5 the paper's seeds do not say which is more
    assert told.pairs == 9 and told.same in (order.same, order.same - 1)


def test_ranks_are_among_the_detectors_of_both():
    ours = figures({"icarl": {"energy": 60.0, "msp": 70.0, "vim": 1.0, VARIANTS[1]: 65.0, "no such": 99.0}})
    (rank,) = tood_ranks(ours, reported())
    known = [
        reported()[Key("cifar10", "icarl", name, "avg_auroc")].mean for name in ("energy", "msp", "vim", VARIANTS[1])
    ]
    assert rank.of == 4 and rank.ours == 2
    assert rank.paper == int(stats.rankdata([-value for value in known], method="min")[3])


def one_seed(summaries):
    """The gains behind summaries of one seed each."""
    return {(s.stream, s.learner, s.detector): [s.ours] for s in signs(summaries, reported())}


def test_claims_hold_or_do_not():
    good = figures({name: {"energy": 60.0, VARIANTS[0]: 61.0, VARIANTS[1]: 59.0} for name in ("icarl", "der", "wa")})
    found = {claim.text: claim for claim in claims(good, reported(), one_seed(good))}
    two = {key: value for key, value in good.items() if key.learner != "wa"}
    assert {claim.holds for claim in claims(two, reported(), one_seed(two))} == {None}  # too few to say
    mean = {v: np.mean([s.paper for s in signs(good, reported()) if s.detector == v]) for v in VARIANTS}
    for variant, holds in zip(VARIANTS, (True, False), strict=True):
        (claim,) = [c for text, c in found.items() if f"cifar10: {label(variant)} raises" in text]
        assert claim.holds is None and claim.paper == f"{mean[variant]:+.1f}"  # one seed each: no interval
        (claim,) = [c for text, c in found.items() if text.startswith(f"{label(variant)} raises")]
        assert claim.holds is holds and claim.ours == ("3 of 3" if holds else "0 of 3")


def test_a_mean_gain_within_its_interval_over_seeds_is_unclear():
    names = ("icarl", "der", "wa")
    ours = figures({name: {"energy": 60.0, VARIANTS[0]: 61.0} for name in names})

    def holds(*seeds):
        given = {("cifar10", name, VARIANTS[0]): list(of) for name, of in zip(names, seeds, strict=True)}
        return next(c for c in claims(ours, reported(), given) if "mean of 3" in c.text)

    assert holds([1.0, 1.2], [0.9, 1.1], [1.0]).holds is True
    assert holds([-1.0, -1.2], [-0.9, -1.1], [-1.0]).holds is False
    unclear = holds([3.0, -1.0], [0.5, 1.5], [1.0])
    assert unclear.holds is None and unclear.ours.startswith("+1.0 (-")


def test_the_interval_of_one_learner_is_students():
    seeds = np.array([1.0, 2.5, 0.5, 3.0])
    found = mean_over_learners([seeds])
    low, high = stats.t.interval(0.95, 3, seeds.mean(), stats.sem(seeds))
    assert (found.low, found.high) == pytest.approx((low, high))
    alone = mean_over_learners([[1.0], [-3.0]])
    assert alone.value == -1.0 and np.isnan(alone.low) and alone.sign is None and "one seed" in str(alone)


def test_both_kinds_of_logits_are_listed_for_bic():
    gains = {("cifar10", name, VARIANTS[0]): [1.0] for name in ("icarl", "bic", "bic (raw logits)")}
    gains["cifar10", "bic (raw logits)", VARIANTS[0]] = [4.0, 6.0]
    corrected, raw = both_protocols(gains, {("cifar10", "bic", VARIANTS[0]): 2.0})
    assert corrected[2:5] == ("corrected", "+1.0 (1)", "+1.0 (1)") and raw[2:5] == ("raw", "+1.0 (1)", "+5.0 (2)")
    assert raw[-2].startswith("+3.0 (") and raw[-1] == "+2.0"


def test_most_settings_are_counted_over_both_streams():
    """FPR@95, D_avg and what old tasks end with, by hand."""
    energy, tood = "energy", VARIANTS[1]

    def measured(learner, stream, fpr, d_avg, old):
        rows = {"avg_fpr95": (80.0, fpr), "d_avg": (10.0, d_avg), "old_auroc": (60.0, old)}
        return {
            Key(stream, learner, detector, metric): Summary(value, 0.0, 1)
            for metric, pair in rows.items()
            for detector, value in zip((energy, tood), pair, strict=True)
        }

    ours = measured("icarl", "cifar10", 79.0, 9.0, 61.0) | measured("bic", "cifar10", 81.0, 9.0, 59.0)
    ours |= measured("wa", "cifar100", 79.0, 11.0, 61.0)
    found = {claim.text: claim for claim in claims(ours, reported(), one_seed(ours))}
    fpr = found["TOOD (robust anchor) lowers FPR@95 in most settings"]
    keys = [(k._replace(detector=tood), k._replace(detector=energy)) for k in ours if k.metric == "avg_fpr95"]
    theirs = len({a for a, b in keys if reported()[a].mean < reported()[b].mean})
    assert (fpr.ours, fpr.paper, fpr.holds) == ("2 of 3", f"{theirs} of 3", True)
    less = found["TOOD (robust anchor) has a lower D_avg than energy in most settings"]
    assert less.ours == "2 of 3; in 1 of them old tasks end above energy's AUROC" and less.holds


def test_fine_tuning_is_compared_with_calibrating():
    def measured(plain, tuned):
        rows = {("icarl", "energy"): plain, ("icarl+ber", "energy"): tuned}
        rows |= {("icarl", name): (70.0, 70.0) for name in VARIANTS} | {("icarl+ber", name): tuned for name in VARIANTS}
        return {
            Key("cifar10", learner, detector, metric): Summary(value, 0.0, 1)
            for (learner, detector), pair in rows.items()
            for metric, value in zip(("avg_auroc", "avg_fpr95"), pair, strict=True)
        }

    def of(ours):
        found = {claim.text: claim for claim in claims(ours, reported(), one_seed(ours))}
        return (next(c for text, c in found.items() if word in text) for word in ("by BER has", "without training"))

    change, better = of(measured((68.0, 75.0), (71.0, 60.0)))
    assert (change.ours, change.paper, change.holds) == ("+3.0", "+7.6", True)
    assert better.ours == "0 of 2" and better.holds is None  # two columns
    change, better = of(measured((68.0, 75.0), (65.0, 80.0)))
    assert change.holds is False and better.ours == "2 of 2"


def test_the_papers_vit_stands_beside_its_own_runs_only():
    keys = [key for key in reference() if "vit_base_patch16_224" in key.learner]
    assert len(keys) == 14 and {key.stream for key in keys} == {"cifar10", "cifar100"}
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
    found = relation(points, "drift", "d_avg")
    assert found[:2] == pytest.approx(tuple(stats.pearsonr(*means)), abs=1e-12) and found.learners == 8
    without = [stats.pearsonr(*np.delete(means, place, axis=1)).statistic for place in range(8)]
    assert (found.lowest, found.highest) == pytest.approx((min(without), max(without)), abs=1e-12)
    assert relation([{**p, "drift": None} for p in points], "drift", "d_avg") is None
    assert relation(points[:6], "drift", "d_avg") is None  # three learners


def test_differences_are_means_within():
    rows = [
        {"run": run, "stream": "digits", "B": size, "selection": selection, "avg_auroc": value}
        for run, size, selection, value in (
            ("a", 5, "random", 1.0),
            ("a", 5, "random", 3.0),
            ("a", 5, "herding", 5.0),
            ("a", 9, "random", 9.0),
            ("a", 9, "herding", 8.0),
            ("b", 5, "random", 1.0),
        )
    ]
    assert differences(rows, {"selection": "herding"}, {"selection": "random"}, "B") == [(3.0 - 1.0) / 2]
    assert differences(rows, {"selection": "herding"}, {"selection": "random"}, "B", largest=True) == [3.0]
    full = {row_name: values for row_name, _, values in findings({"buffer": rows})}
    assert full["herding"] == [3.0]  # with all nine samples both selections are the same set
    assert full["settled by B = 100, share of settings"] == [0.0, 0.0]  # not below all that is stored
    longer = [
        {"run": "c", "stream": "cifar10", "B": size, "selection": "random", "avg_auroc": value}
        for size, value in ((5, 60.0), (20, 69.8), (50, 70.4), (200, 70.0))
    ]
    elsewhere = [{**row, "run": "d", "stream": "cifar100"} for row in longer]
    full = {row_name: values for row_name, _, values in findings({"buffer": longer + elsewhere})}
    assert full["settled by B = 100, share of settings"] == [1.0]  # the paper's figure is of CIFAR-10


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


def split_claims(index):
    """The lines before the rows of the table of claims, and its rows."""
    lines = index.split("## Claims of the paper\n\n")[1].split("\n\n## ")[0].splitlines()
    first = lines.index(next(line for line in lines if line.startswith("| ---"))) + 1
    return lines[:first], [line for line in lines[first:] if line]


def test_the_pages_say_what_is_there_and_what_is_missing(kept):
    index, tables = (path.read_text() for path in write_results(kept, kept.parent))
    assert "| `tood reproduce table1 --preset cpu` | 3 of 30 |" in index
    assert "cifar10, seed 0, 1, 2: bic, wa, lwf; " in index
    assert "cifar10, seed 1, 2: der; " in index and "cifar10, seed 2: icarl" in index
    assert "| 0 of 3 | imagenet1k, seed 0: bic, wa, der |" in index
    assert "3 runs (seed 0, 1), collected" in index
    of_icarl, of_der = (
        next(line for line in index.splitlines() if f"| {name} | TOOD" in line) for name in ("iCaRL", "DER")
    )
    assert ", 2 seeds |" in of_icarl and "| one seed |" in of_der
    (*counts, _, head, _), rows = split_claims(index)
    words = [row.split(" | ")[2].split(":")[0] for row in rows]
    held, failed, unsure = (words.count(word) for word in ("yes", "**no**", "unclear"))
    assert held + failed + unsure == len(words) and unsure > held
    assert head == "| claim | paper | preset `cpu`, from scratch |"
    assert counts == [f"- preset `cpu`, from scratch: {held} hold, {failed} do not, {unsure} are unclear."]
    assert "commit `0123abc`" in index and "commit `0123abc`" in tables
    assert "`tood reproduce table1 --preset cpu`" in tables
    row = next(line for line in tables.splitlines() if line.startswith("| Energy |"))
    assert "(65.9, " in row and "(61.2, " in row  # the paper's iCaRL and DER


def test_claims_of_frozen_runs_stand_beside_those_from_scratch(kept, build, tmp_path):
    metrics = tmp_path / "metrics"
    shutil.copytree(kept, metrics)
    few = ("energy", "mds", *VARIANTS)
    frozen = {"stream": "cifar10", "preset": "frozen", "options": {"frozen": True, "network": "efficientnet_lite0"}}
    runs = tmp_path / "runs"
    for learner, fade in (("icarl", 2.0), ("bic", 1.0), ("wa", 0.5), ("er", 0.0)):
        build(runs / learner, learner=learner, fade=fade, per_class=10, detectors=few, **frozen)
    collect_frozen([str(runs)], metrics)
    collect_runs([Run(runs / "icarl")], metrics, commit="0123abc")
    index, tables = (path.read_text() for path in write_results(metrics, tmp_path / "pages"))
    (scratch, here, _, seeds, _, head, _), rows = split_claims(index)
    assert (
        seeds.endswith("are of seed 0, other rows of all seeds.")
        and head == "| claim | paper | preset `cpu`, from scratch | pretrained, frozen |"
    )
    assert scratch in write_results(kept, tmp_path / "without")[0].read_text()  # the other regime does not change it
    cells = {row.split(" | ")[0].removeprefix("| "): row.removesuffix(" |").split(" | ")[1:] for row in rows}
    words = [row[2].split(":")[0] for row in cells.values()]
    held, failed, unsure = (words.count(word) for word in ("yes", "**no**", "unclear"))
    assert here == f"- pretrained, frozen: {held} hold, {failed} do not, {unsure} are unclear." and held + failed > 2
    table = Table(metrics)
    gains = [table.changes(("cifar10", name), VARIANTS[0], "avg_auroc") for name in ("icarl", "bic", "wa")]
    above = sum(gain > 0 for (gain,) in gains)
    name = f"{label(VARIANTS[0])} raises Avg AUROC over energy in most settings"
    assert cells[name][2].endswith(f": {above} of 3 (paper: 3 of 3)") and cells[name][0] == "2 of 2"
    text = f"cifar10: {label(VARIANTS[0])} raises Avg AUROC over energy, mean of 3 learners"
    assert cells[text][1] == "–" and f"{np.mean(gains):+.1f} (no interval" in cells[text][2]
    settings = [("cifar10", name) for name in ("icarl", "bic", "wa", "er")]
    points = [(table.value(setting, "old_accuracy"), table.value(setting, "d_avg")) for setting in settings]
    r = stats.pearsonr(*zip(*points, strict=True)).statistic
    found = cells["cifar10: OOD forgetting of energy does not correlate with accuracy on old tasks"][2]
    assert f"r = {r:.2f} (" in found and found.endswith("4 learners")
    energies = next(one for one in read_collected(metrics) if one.preset == "frozen").along["task0_energy"]
    falls = cells["cifar10, iCaRL: the mean energy of task 0 falls to that of OOD"]
    assert f": {energies[0]:.1f} to {energies[-1]:.1f}, OOD" in falls[2]
    assert "frozen" not in tables and "Preset `frozen`" not in index  # they have their own page


def test_each_ood_set_has_its_column_with_means_over_seeds(kept, tmp_path):
    from tood.runs.metrics_file import load_metrics, trajectory

    tables = [load_metrics(kept / "cifar10" / f"cifar10-icarl-cpu-s{seed}") for seed in (0, 1)]
    index = write_results(kept, tmp_path)[0].read_text()
    head, _, _, icarl = index.split("### By OOD set")[1].splitlines()[4:8]
    names = head.split(" | ")[1:]
    assert names and icarl.startswith("| iCaRL | ")
    for name, cell in zip(names, icarl.split(" | ")[1:], strict=True):
        name = name.removesuffix(" |")
        energy, *rest = (
            np.mean([100 * trajectory(table, detector, ood_set=name).average() for table in tables])
            for detector in ("energy", *VARIANTS)
        )
        assert cell.removesuffix(" |") == f"{energy:.1f} ({rest[0] - energy:+.1f}, {rest[1] - energy:+.1f})"


def test_old_tasks_at_the_last_step_are_means_over_seeds(kept, tmp_path):
    index = write_results(kept, tmp_path)[0].read_text()
    row = next(line for line in index.split("### Old tasks")[1].splitlines() if line.startswith("| cifar10 | iCaRL |"))
    own = [Measured(Run(kept / "cifar10" / f"cifar10-icarl-cpu-s{seed}")) for seed in (0, 1)]
    energy = 100 * np.mean([one.trajectory("energy").balanced().mean()[-1, :-1] for one in own])
    channel = 100 * np.mean(
        [one.along["own_channel"][:-1] for one in read_collected(kept) if one.run.learner == "icarl"]
    )
    assert row.startswith(f"| cifar10 | iCaRL | {channel:.1f} | {energy:.1f} | ") and row.endswith("|  |  |")


def test_the_pages_follow_from_the_files_alone(kept, tmp_path):
    once = [path.read_bytes() for path in write_results(kept, tmp_path / "a")]
    assert once == [path.read_bytes() for path in write_results(kept, tmp_path / "a")]


def test_what_disagrees_stands_there(kept, tmp_path):
    (index, _) = write_results(kept, tmp_path)
    text = index.read_text().split("### What did not reproduce")[1]
    from tood.report.summary import collect
    from tood.runs.metrics_file import load_metrics

    runs = [Run(path.parent) for path in sorted(kept.rglob("manifest.json"))]
    ours = collect((run, load_metrics(run.path)) for run in runs)
    for sign in signs(ours, reported()):
        line = f"| {sign.paper:+.1f} | {sign.ours:+.1f} |"
        assert (line in text) is not sign.agrees


def test_points_that_lack_a_value_are_left_out():
    points = [{"learner": str(i), "drift": i / 10, "f_avg": i**2} for i in range(5)]
    known = relation(points, "drift", "f_avg")
    assert known == relation([*points, {"learner": "9", "drift": None, "f_avg": 3.0}], "drift", "f_avg")
    assert known.learners == 5 and relation(points[:3], "drift", "f_avg") is None


def test_claims_about_causes_need_only_collected_runs(kept, tmp_path):
    own = read_collected(kept)
    found = {claim.text: claim for claim in mechanism_claims(own)}
    seeds = [one for one in own if one.run.learner == "icarl"]
    assert len(seeds) == 2 and all(len(one.along["nearest"]) == 5 for one in own)

    def mean(values):
        return np.mean(list(values), axis=0)

    def claim(part):
        return next(claim for text, claim in found.items() if part in text)

    energies, oods = (mean(one.along[name] for one in seeds) for name in ("task0_energy", "ood_energy"))
    sinks = claim("falls to that of OOD")
    assert sinks.ours == f"{energies[0]:.1f} to {energies[-1]:.1f}, OOD within {oods.min():.1f} to {oods.max():.1f}"
    assert sinks.paper == "18 to 6, OOD within 6 to 8"
    assert sinks.holds is bool(energies[-1] < energies[0] and energies[-1] - oods[-1] < (energies[0] - oods[0]) / 2)
    nearest = mean(one.along["nearest"] for one in seeds)
    svhn = claim("iCaRL: SVHN")
    assert svhn.holds is bool(nearest[-1] < nearest[0]) and svhn.paper == "2.20 to 1.59 (-28%)"
    measured = [Measured(one.run) for one in seeds]
    accuracy = 100 * mean(one.accuracy[:, 0] for one in measured)
    plain, tood = (
        100 * mean(one.trajectory(name).balanced().mean()[:, 0] for one in measured) for name in ("energy", VARIANTS[1])
    )
    loses = claim("loses more AUROC")
    assert f"AUROC {plain[0]:.1f} to {plain[-1]:.1f}, lowest {plain.min():.1f};" in loses.ours
    assert loses.holds is bool(plain[0] - plain[-1] > accuracy[0] - accuracy[-1])
    assert claim("restores most of that").ours == f"{(tood - plain).sum() / (plain[0] - plain).sum():.0%}"
    assert claim("falls, with every learner").ours.endswith("of 2")
    assert claim("at least halves").holds is not True  # two learners
    bare = [one._replace(along={}) for one in own]
    assert not any("SVHN" in claim.text or "falls to" in claim.text for claim in mechanism_claims(bare))


def test_energies_and_distances_along_the_stream_are_those_of_the_outputs(build, tmp_path):
    from tood import energy, task_energies
    from tood.metrics import auroc
    from tood.runs.steps import Step

    run = Run(build(tmp_path / "run", tasks=3, per_class=10, detectors=("energy", *VARIANTS)))
    along = Measured(run).along()
    step = Step(run, 2)
    own = energy(np.asarray(step.test.logits))[step.test_tasks() == 0]
    assert along["task0_energy"][2] == pytest.approx(own.mean())
    oods = [energy(np.asarray(outputs.logits)).mean() for outputs in step.ood.values()]
    assert along["ood_energy"][2] == pytest.approx(np.mean(oods))
    energies = task_energies(np.asarray(step.test.logits), step.partition)[:, 1]
    sets = {"near": [], "far": []}
    for ood, outputs in step.ood.items():
        unknown = task_energies(np.asarray(outputs.logits), step.partition)[:, 1]
        sets[run.ood[ood]].append(auroc(energies[step.test_tasks() == 1], unknown))
    assert along["own_channel"][1] == pytest.approx(np.mean([np.mean(sets["near"]), np.mean(sets["far"])]))
    name = Measured(run).crowding_set
    assert run.ood[name] == "far"
    known, unknown = (np.asarray(outputs.features) for outputs in (step.test, step.ood[name]))
    distances = np.linalg.norm(unknown[:, None] - known[None], axis=-1).min(axis=1)
    assert along["nearest"][2] == pytest.approx(np.median(distances), rel=1e-6)
    shutil.rmtree(run.path / "steps")
    assert Measured(Run(run.path)).along() == {}


def test_runs_with_options_stand_apart(kept, tmp_path):
    """BER, another network, other settings, another calibration set: in the tables, not in what is compared."""
    metrics = tmp_path / "metrics"
    shutil.copytree(kept, metrics)
    source = metrics / "cifar10" / "cifar10-der-cpu-s0"
    others = {
        "lwf": {"learner": "lwf", "options": {"alpha": 3.0, "ce": "new"}},
        "memory": {"options": {"calibration": "memory"}},
        "ber": {"finetune": "ber"},
    }
    for name, change in others.items():
        shutil.copytree(source, metrics / "cifar10" / name)
        file = metrics / "cifar10" / name / "manifest.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    before, after = (
        write_results(folder, tmp_path / name)[0].read_text() for name, folder in (("a", kept), ("b", metrics))
    )
    claims_of = [
        (split_claims(text), text.split("### Both protocols")[1].split("### What did not")[0])
        for text in (before, after)
    ]
    assert claims_of[0] == claims_of[1]
    tables = (tmp_path / "b" / "tables.md").read_text()
    assert all(f"{name} AUROC" in tables for name in ("LwF (alpha=3.0, ce=new)", "DER (calibration=memory)", "DER+BER"))
    assert "cifar10, seed 0: lwf (alpha=3.0, ce_weight=one), er (epochs=3), " in after  # not a run of that name


def test_a_correlation_is_judged_by_its_interval():
    rng = np.random.default_rng(5)

    def holds(forgetting, part):
        points = [
            {"learner": str(i), "drift": 0.1 * i, "d_avg": f, "f_avg": f, "old_accuracy": 0.0, "gain": 0.0}
            for i, f in enumerate(forgetting)
        ]
        identity = RunIdentity("cifar10", "x")
        run = SimpleNamespace(stream="cifar10", learner="x", manifest={}, identity=identity)
        own = [Collected(run, None, "", point, {}) for point in points]
        return next(claim for claim in mechanism_claims(own) if part in claim.text).holds

    rising = np.arange(12.0) + rng.normal(size=12)
    flat = rng.normal(size=40)
    for part, expected in (("correlates with accuracy forgetting", True), ("drift does not correlate", False)):
        assert holds(rising, part) is expected
        assert holds(flat, part) is not expected
        assert holds(-rising, part) is False  # a relation, and not the one that is meant
        assert holds(rising[[4, 0, 9, 2, 7]], part) is None  # five learners
        assert holds([*flat[:8], 99.0], part) is None  # one of them makes it
        assert holds(rising[:3], part) is None


def test_an_interval_of_r_is_the_usual_one():
    x, y = np.random.default_rng(0).normal(size=(2, 15))
    found = stats.pearsonr(x, y)
    low, high = found.confidence_interval(0.95)
    assert interval(found.statistic, 15) == pytest.approx((low, high), abs=1e-4)


def test_seeds_of_a_setting_count_once():
    rows = [
        {"run": f"{learner}-{seed}", "stream": "s", "learner": learner, "seed": seed, "margin": m, "avg_auroc": value}
        for learner, seed, m, value in (
            ("a", 0, 0.0, 1.0),
            ("a", 1, 0.0, 3.0),
            ("a", 0, 0.5, 5.0),
            ("a", 1, 0.5, 9.0),
            ("b", 0, 0.0, 1.0),
            ("b", 0, 0.5, 0.0),
        )
    ]
    settings = over_seeds({"margin": rows})["margin"]
    assert [(row["run"], row["margin"], row["avg_auroc"]) for row in settings] == [
        ("s a", 0.0, 2.0),
        ("s a", 0.5, 7.0),
        ("s b", 0.0, 1.0),
        ("s b", 0.5, 0.0),
    ]
    assert differences(settings, {"margin": 0.5}, {"margin": 0.0}) == [5.0, -1.0]


def test_signs_of_ablations_stand_beside_the_papers():
    rows = {
        "mechanism": [
            {
                "run": f"cifar10-{learner}",
                "stream": "cifar10",
                "learner": learner,
                "seed": 0,
                "mechanism": name,
                "gain": gain,
            }
            for learner in ("icarl", "bic")
            for name, gain in (("temperature", -1.0), ("tood_mean_shift", -2.0))
        ]
    }
    notes = summarize(rows).notes
    assert "Same sign as the paper: Temperature." in notes
    assert "Opposite sign to the paper: TOOD (mean shift)." in notes


def test_figures_of_ablations_are_of_the_papers_learners(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "tood.report.figures.margin", lambda rows, note: drawn.append(({r["learner"] for r in rows}, note))
    )
    monkeypatch.setattr("tood.report.figures.style.save", lambda figure, path: [path])
    row = {"stream": "cifar10", "seed": 0, "detector": VARIANTS[1], "margin": 0.0, "avg_auroc": 1.0, "d_avg": 1.0}
    both = [{**row, "run": name, "learner": name} for name in ("icarl", "er")]
    draw_ablations({"margin": both}, tmp_path)
    draw_ablations({"margin": both[1:]}, tmp_path)
    assert drawn == [
        ({"icarl"}, "cifar10: 1 run of 1 learner; TOOD (robust anchor)."),
        ({"er"}, "cifar10: 1 run of 1 learner; TOOD (robust anchor)."),
    ]


def test_what_was_written_by_hand_and_drawn_is_on_the_page(kept, tmp_path):
    metrics = tmp_path / "metrics"
    shutil.copytree(kept, metrics)
    (metrics / "short.md").write_text("In short.\n")
    (metrics / "why.md").write_text("- Because.\n")
    (metrics / "figures" / "cifar10").mkdir(parents=True)
    for name in ("margin", "drift", "icarl-task0"):
        (metrics / "figures" / "cifar10" / f"{name}.png").write_bytes(b"")
    index = write_results(metrics, tmp_path)[0].read_text()
    parts = [
        "In short.",
        "## Preset",
        "icarl-task0.png",
        "(main_panel)*",
        "drift.png",
        "(cka)*",
        "margin.png",
        "- Because.",
    ]
    places = [index.index(part) for part in parts]
    assert places == sorted(places)


def test_raw_and_corrected_logits_and_the_implementation_are_named(build, tmp_path):
    """BiC is kept with both kinds of logits, and each table says which learners and which logits it shows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    path = build(tmp_path / "run", tasks=3, per_class=10, detectors=("energy", *VARIANTS))
    table = load_metrics(path)
    scores = table.filter(pc.is_valid(table["detector"]))
    settings = pa.array(['{"logits": "raw"}'] * len(scores), table.schema.field("settings").type)
    raw = scores.set_column(table.column_names.index("settings"), table.schema.field("settings"), settings)
    save_metrics(pa.concat_tables([table, raw]), path / "metrics.parquet")
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "preset": "released"}))
    collect_runs([Run(path)], tmp_path / "kept", commit="abc")
    tables = write_results(tmp_path / "kept", tmp_path / "pages")[1].read_text()
    assert "| Energy (raw logits) |" in tables and "| Energy |" in tables
    assert "before its bias correction" in tables
    assert "## Preset `released`: as the authors ran it" in tables and "Learners: as the authors ran it." in tables
