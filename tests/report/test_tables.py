import csv
import io
import json
import shutil

import numpy as np
import pytest
from tests.processes import tood

from tood import ToodError
from tood.evaluation import Scorer, load_metrics, measure
from tood.metrics import auroc, fpr_at_ood_recall
from tood.outputs import Run, find_runs, write_manifest, write_step
from tood.paper.reference import reported
from tood.report.render import print_tables, to_csv, to_markdown
from tood.report.summary import Key, Summary, best_keys, collect, learner_label, ranks
from tood.report.tables import build, tables_of
from tood.storage.files import file_name

pc = pytest.importorskip("pyarrow.compute")

TASKS = [[0, 1], [2, 3], [4, 5]]
SETS = {"near": ["a"], "far": ["b", "c"]}


def make_run(path, seed, learner="icarl", detectors=("energy", "msp"), **more):
    rng = np.random.default_rng(seed + 100 * len(learner))
    write_manifest(path, TASKS, **SETS, stream="toy", learner=learner, seed=seed, **more)
    for step in range(3):
        labels = np.repeat(np.arange(2 * step + 2), 20)

        def known(labels=labels):
            return {"logits": rng.normal(size=(len(labels), 6)) + 2 * np.eye(6)[labels], "labels": labels}

        ood = {name: rng.normal(size=(50, 6)) + shift for name, shift in (("a", 0.5), ("b", 0.0), ("c", -0.3))}
        write_step(path, step, test=known(), calibration=known(), ood=ood)
    measure(Run(path), [Scorer(name) for name in detectors])
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    parent = tmp_path_factory.mktemp("runs")
    for learner in ("icarl", "der"):
        for seed in (0, 1, 2):
            make_run(parent / f"{learner}-{seed}", seed, learner)
    make_run(parent / "ber", 0, "icarl", ("energy",), finetune="ber")
    return parent


def measured(parent):
    return [(run, load_metrics(run.path)) for run in find_runs([parent])]


def by_hand(run, metric, group=None):
    """The average along the stream of energy, from the files alone: (near + far) / 2, or of one group."""
    steps = []
    for step in range(3):
        outputs = run / f"steps/{step:02d}/outputs"
        seen = list(range(2 * step + 2))
        energy = lambda logits, seen=seen: np.logaddexp.reduce(logits[:, seen], axis=1)  # noqa: E731
        test = np.load(outputs / "test.npz")
        ood = {name: energy(np.load(outputs / f"ood/{name}.npz")["logits"]) for name in "abc"}
        values = []
        for task in TASKS[: step + 1]:
            ids = energy(test["logits"])[np.isin(test["labels"], task)]
            means = [np.mean([metric(ids, ood[name]) for name in SETS[g]]) for g in ([group] if group else SETS)]
            values.append(np.mean(means))
        steps.append(np.mean(values))
    return 100 * np.mean(steps)


@pytest.mark.parametrize(
    ("column", "metric", "group"),
    [
        ("avg_auroc", auroc, None),
        ("near_auroc", auroc, "near"),
        ("far_auroc", auroc, "far"),
        ("avg_fpr95", fpr_at_ood_recall, None),
    ],
)
def test_a_cell_is_the_mean_over_seeds_of_a_computation_by_hand(runs, column, metric, group):
    figures = [by_hand(runs / f"icarl-{seed}", metric, group) for seed in (0, 1, 2)]
    found = collect(measured(runs))[Key("toy", "icarl", "energy", column)]
    assert found.mean == pytest.approx(np.mean(figures), abs=1e-9)
    assert found.std == pytest.approx(np.std(figures, ddof=1), abs=1e-9)
    assert found.seeds == 3


def test_accuracy_cell_is_the_average_incremental_accuracy(runs):
    figures = []
    for seed in (0, 1, 2):
        steps = []
        for step in range(3):
            test = np.load(runs / f"der-{seed}/steps/{step:02d}/outputs/test.npz")
            steps.append(np.mean(test["logits"][:, : 2 * step + 2].argmax(1) == test["labels"]))
        figures.append(100 * np.mean(steps))
    assert collect(measured(runs))[Key("toy", "der", "-", "avg_cil_acc")].mean == pytest.approx(np.mean(figures))


def test_runs_are_told_apart(runs, tmp_path):
    labels = {learner_label(run) for run, _ in measured(runs)}
    assert labels == {"icarl", "der", "icarl+ber"}
    options = write_manifest(tmp_path / "o", [[0]], learner="icarl", options={"memory": 500, "epochs": 3})
    assert learner_label(options) == "icarl (epochs=3, memory=500)"
    make_run(tmp_path / "again", 0)
    with pytest.raises(ToodError, match="same stream, learner and seed as"):
        collect([*measured(runs), *measured(tmp_path / "again")])


def test_an_unfinished_run_is_not_averaged_with_finished_ones(runs, tmp_path):
    run = Run(make_run(tmp_path / "icarl-3", 3))
    shutil.rmtree(run.folder(2))
    measure(run, [Scorer("energy"), Scorer("msp")])
    collect([(run, load_metrics(run.path))])  # alone it may be shown
    with pytest.raises(ToodError, match=r"icarl-3: has metrics of 2 steps, .* of 3; .*finish the shorter one"):
        collect([*measured(runs), (run, load_metrics(run.path))])


# The entries that Table 1 of the paper prints in bold, by stream, metric and learner.
BOLD = {
    ("cifar10", "avg_auroc"): {
        "icarl": "ash energy tood_mean_shift tood_robust_anchor",
        "bic": "tood_mean_shift",
        "der": "msp tood_mean_shift tood_robust_anchor",
        "wa": "vim energy tood_mean_shift tood_robust_anchor",
        "lwf": "vim tood_mean_shift tood_robust_anchor",
    },
    ("cifar10", "avg_fpr95"): {
        "icarl": "ash dice",
        "bic": "tood_mean_shift",
        "der": "tood_mean_shift tood_robust_anchor",
        "wa": "vim energy tood_mean_shift tood_robust_anchor",
        "lwf": "tood_mean_shift tood_robust_anchor",
    },
    ("cifar100", "avg_auroc"): {
        "icarl": "msp",
        "bic": "tood_mean_shift tood_robust_anchor",
        "der": "tood_mean_shift",
        "wa": "energy",
        "lwf": "vim energy tood_mean_shift tood_robust_anchor",
    },
    ("cifar100", "avg_fpr95"): {
        "icarl": "msp nnguide",
        "bic": "tood_mean_shift tood_robust_anchor",
        "der": "msp tood_mean_shift tood_robust_anchor",
        "wa": "energy tood_mean_shift",  # not bold there: 68.8 against 68.3 ± 0.5, a tie once rounded
        "lwf": "ash vim energy tood_mean_shift tood_robust_anchor",
    },
}


def table_1():
    return {
        key: value for key, value in reported().items() if key.stream.startswith("cifar") and "+" not in key.learner
    }


def test_bold_marks_are_the_papers():
    best = best_keys(table_1())
    for (stream, metric), columns in BOLD.items():
        for learner, names in columns.items():
            found = {key.detector for key in best if (key.stream, key.learner, key.metric) == (stream, learner, metric)}
            assert found == set(names.split()), (stream, metric, learner)


def test_of_equally_good_ones_the_largest_deviation_counts():
    figures = {"a": (70.0, 0.1), "b": (70.0, 2.0), "c": (68.5, 0.0), "d": (67.9, 9.0)}
    for order in (figures, dict(reversed(figures.items()))):
        summaries = {Key("s", "l", name, "avg_auroc"): Summary(*order[name], 3) for name in order}
        assert {key.detector for key in best_keys(summaries)} == {"a", "b", "c"}
        lower = {key._replace(metric="avg_fpr95"): s._replace(mean=-s.mean) for key, s in summaries.items()}
        assert {key.detector for key in best_keys(lower)} == {"a", "b", "c"}


def test_ranks_are_the_papers():
    """ "At least one TOOD variant ranks first or second in eight of the ten CIFAR configurations." """
    found = ranks(table_1())
    assert all(len(places) == 10 for places in found.values())
    variants = zip(found["tood_mean_shift"], found["tood_robust_anchor"], strict=True)
    assert sum(min(places) <= 2 for places in variants) == 8
    (table,) = [t for t in build(table_1(), {}) if t.name == "ranks"]
    assert table.rows[0][0] == "tood_mean_shift" and table.rows[0][1][3].value.mean == 10
    assert [found[name][0] for name in ("tood_mean_shift", "tood_robust_anchor", "ash", "energy", "vim")] == [
        1,
        2,
        3,
        3,
        5,
    ]


def test_paper_data_is_whole():
    found = table_1()
    assert len(found) == 2 * 5 * (1 + 10 * 2)
    assert found[Key("cifar10", "der", "tood_mean_shift", "avg_auroc")] == Summary(69.3, 0.9, 3)
    assert reported()[Key("cifar10", "icarl+ber", "energy", "avg_fpr95")] == Summary(67.1, 0.0, 1)
    assert reported()[Key("imagenet1k", "bic", "energy", "avg_auroc")] == Summary(59.2, 0.0, 1)


def test_against_the_paper_shows_its_figure_and_the_difference():
    ours = {key: Summary(value.mean + 1.25, 0.5, 3) for key, value in table_1().items()}
    text = to_markdown(next(t for t in build(ours, reported()) if t.name == "cifar10-main"))
    row = next(line for line in text.splitlines() if line.startswith("| Energy"))
    assert row.split("|")[2].strip() == "67.2 ± 0.5 (65.9, +1.2)"  # 0.6 behind the best, whose deviation is 0.5
    assert "In brackets: the paper's value, and ours minus it." in text and "MDS lost its minus sign" in text


def test_formats_carry_the_same_figures(runs):
    tables = tables_of(measured(runs))
    main = next(t for t in tables if t.name == "toy-main")
    cell = dict(main.rows)["energy"][[c.group for c in main.columns].index("der")]
    figure = f"{cell.value.mean:.1f}"
    records = list(csv.DictReader(io.StringIO(to_csv(tables))))
    (record,) = [
        r
        for r in records
        if (r["table"], r["row"], r["group"], r["column"]) == ("toy-main", "energy", "der", "avg_auroc")
    ]
    assert float(record["mean"]) == cell.value.mean and record["seeds"] == "3"
    assert figure in to_markdown(main)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_terminal_shows_every_figure_whatever_its_width(runs, width):
    from rich.console import Console

    (main,) = [t for t in tables_of(measured(runs)) if t.name == "toy-main"]
    out = io.StringIO()
    print_tables([main], Console(file=out, width=width))
    assert "…" not in out.getvalue()
    for _, cells in main.rows:
        for cell in filter(None, cells):
            assert f"{cell.value.mean:.1f}" in out.getvalue()


def test_runs_of_several_presets_are_no_seeds_of_each_other(build, tmp_path):
    from tood.paper.ablation_summary import gather_ablations, over_seeds
    from tood.report.gather import MeasuredRun
    from tood.report.page.content import content
    from tood.report.plots import draw_all

    options = {"tasks": 2, "detectors": ("energy", "tood_mean_shift")}
    runs = [Run(build(tmp_path / preset, preset=preset, seed=0, **options)) for preset in ("cpu", "paper")]
    reference = {Key("digits", "icarl", "energy", "avg_auroc"): Summary(50.0, 1.0, 3)}
    page = content(MeasuredRun.all_of(runs), reference, {})
    assert [shown["name"] for shown in page["runs"]] == [f"iCaRL [{p}] on digits, seed 0" for p in ("cpu", "paper")]
    assert len(page["verdicts"]) == 2
    assert {row["values"]["avg_auroc"]["paper"] for row in page["table"] if row["detector"] == "energy"} == {50.0}
    folders = {path.parent.name for path in draw_all(runs, tmp_path / "plots")}
    assert {file_name("icarl [cpu]"), file_name("icarl [paper]")} <= folders
    rows = gather_ablations(runs, ["margin"])
    assert {row["learner"] for row in over_seeds(rows["margin"])} == {"icarl [cpu]", "icarl [paper]"}


def test_command(runs, tmp_path):
    def report(*arguments):
        return tood("report", *arguments)

    result = report(runs, "--tables", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("**toy: Avg AUROC and Avg FPR@95, percent (track: given)**")
    assert "fpr_at_ood_recall" in result.stdout  # which definition is said
    assert {"tables.md", "tables.csv"} <= {path.name for path in tmp_path.iterdir()}
    brief = report(runs).stdout  # the ten best scores, the best first; ranks of two settings mean nothing
    assert "2 best of 2 scores" in brief and "fpr_at" not in brief
    records = json.loads(report(runs, "--json").stdout)
    assert {record["table"] for record in records} >= {"toy-main", "toy-groups", "toy-forgetting"}
    result = report(tmp_path)
    assert result.returncode == 1 and result.stderr.count("\n") == 1 and "found no manifest.json" in result.stderr


def test_raw_logits_have_rows_of_their_own_in_tables_and_page(build, tmp_path):
    from tood.report.gather import MeasuredRun
    from tood.report.page.content import content

    build(tmp_path / "bic", tasks=2, learner="bic", detectors=("energy", "tood_mean_shift"))
    for file in (tmp_path / "bic/steps/01/outputs").rglob("*.npz"):
        arrays = dict(np.load(file))
        np.savez(file, **arrays, raw_logits=arrays["logits"] - [0, 0, 4, 4])
    run = Run(tmp_path / "bic")
    measure(
        run, [Scorer(name, logits=which) for name in ("energy", "tood_mean_shift") for which in ("corrected", "raw")]
    )
    one = MeasuredRun(run)
    table = next(table for table in tables_of([(run, one.table)]) if table.name == "digits-main")
    assert {"energy", "energy (raw logits)"} <= {label for label, _ in table.rows}
    shown = content([one], {}, {})["runs"][0]
    assert shown["detectors"] == ["energy", "tood_mean_shift", "energy (raw logits)", "tood_mean_shift (raw logits)"]
    ours, raw = (shown["metrics"][name]["auroc"]["noise"] for name in ("energy", "energy (raw logits)"))
    assert ours[0] == raw[0] and ours[1:] != raw[1:]  # the first step has no correction
