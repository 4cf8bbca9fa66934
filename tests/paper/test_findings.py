"""Findings of ablations: means and differences by hand, beside the paper's."""

from tood.paper.ablation_summary import differences, findings, over_seeds, summarize

CASES = (
    ("a", 0, 0.0, 1.0),
    ("a", 1, 0.0, 3.0),
    ("a", 0, 0.5, 5.0),
    ("a", 1, 0.5, 9.0),
    ("b", 0, 0.0, 1.0),
    ("b", 0, 0.5, 0.0),
)


def test_differences_are_means_within():
    rows = [
        {
            "learner": who,
            "stream": "digits",
            "detector": f"at {size}",
            "B": size,
            "selection": how,
            "avg_auroc": value,
        }
        for who, size, how, value in (
            ("a", 5, "random", 1.0),
            ("a", 5, "random", 3.0),
            ("a", 5, "herding", 5.0),
            ("a", 9, "random", 9.0),
            ("a", 9, "herding", 8.0),
            ("b", 5, "random", 1.0),
        )
    ]
    assert differences(rows, {"selection": "herding"}, {"selection": "random"}) == [(3.0 - 1.0) / 2]
    assert differences(rows, {"selection": "herding"}, {"selection": "random"}, largest=True) == [3.0]
    rows = [{**row, "detector": "tood_robust_anchor"} for row in rows]
    full = {name: values for (name, _), values in findings({"buffer": rows}).items()}
    assert full["herding"] == [3.0]  # with all nine samples both selections are the same set


def test_seeds_of_a_setting_count_once():
    rows = [
        {"run": f"{who}-{seed}", "stream": "s", "learner": who, "seed": seed, "margin": m, "avg_auroc": value}
        for who, seed, m, value in CASES
    ]
    settings = over_seeds(rows)
    assert [(row["learner"], row["margin"], row["avg_auroc"]) for row in settings] == [
        ("a", 0.0, 2.0),
        ("a", 0.5, 7.0),
        ("b", 0.0, 1.0),
        ("b", 0.5, 0.0),
    ]
    assert differences(settings, {"margin": 0.5}, {"margin": 0.0}) == [5.0, -1.0]


def test_signs_stand_beside_the_papers():
    who = [
        {"run": f"cifar10-{learner}", "stream": "cifar10", "learner": learner, "seed": 0}
        for learner in ("icarl", "bic")
    ]
    rows = [
        {**own, "mechanism": name, "gain": gain}
        for own in who
        for name, gain in (("temperature", -1.0), ("tood_mean_shift", -2.0))
    ]
    table = summarize({"mechanism": rows})
    assert [cell.value.mean for cell in dict(table.rows)["Temperature"]] == [-1.0, -1.0, -1.0, 2.0, -3.6]
