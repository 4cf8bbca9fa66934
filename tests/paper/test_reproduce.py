"""tood reproduce: the runs behind each table, shared between tables, and what is kept of them."""

import json
import shutil

import pytest
from click.testing import CliRunner

from tood import ToodError
from tood.commands.reproduce import command
from tood.evaluation import measure
from tood.evaluation.metrics_file import load_metrics, trajectory
from tood.evaluation.score import Scorer
from tood.outputs.directory import Run, find_runs
from tood.paper.reference import reported, stated
from tood.paper.reproduce import cells, presets_of
from tood.runs.config import RunConfig

FIVE = {"icarl", "bic", "der", "wa", "lwf"}


def names(target, **options):
    return [cell.config.name for cell in cells(target, "runs", **options)]


def test_nothing_is_trained_twice():
    first = set(names("table1"))
    assert len(first & set(names("table2"))) == 12 and len(set(names("table2")) - first) == 12
    assert all("+ber" in name for name in set(names("table2")) - first)
    drift = set(names("drift"))
    rest = {"finetune", "er", "ewc", "si", "agem", "gem", "joint"}
    assert drift - first == {f"cifar10-{name}-cpu-s0" for name in rest} and len(drift & first) == 5


def test_a_preset_of_another_target_is_refused():
    with pytest.raises(ToodError, match="unknown preset of pretrained 'paper'"):
        cells("pretrained", "runs", "paper")
    wrong = CliRunner().invoke(command, ["table1", "--preset", "frozen"])
    assert wrong.exit_code == 2 and "unknown preset of table1 'frozen'" in wrong.stderr


def test_presets_of_the_paper_are_evaluated_as_the_authors_did_and_the_others_as_a_user_would():
    evaluated = {p: {c.config.track for c in cells("table1", "runs", p)} for p in presets_of("table1")}
    assert evaluated == {"cpu": {("calibration",)}, "paper": {("paper",)}, "released": {("paper",)}}
    assert names("table1", preset="released")[0] == "cifar10-icarl-released-s0"  # no option of its own
    assert RunConfig(preset="released", track="memory").identity.options == {"track": "memory"}


def test_every_published_row_is_measured():
    """Of Tables 1, 3 and 4: each learner on each stream with each of the paper's detectors; WA with ViT on CIFAR-10."""
    made = {
        (c.identity.stream, c.identity.label, detector)
        for target in ("table1", "imagenet", "vit")
        for c in (cell.config for cell in cells(target, "runs", "paper", seeds=1))
        for detector in (*(c.detectors or ("energy", "tood_robust_anchor")), "-")
    }
    published = {key[:3] for key in reported() if "+ber" not in key.learner}
    assert published <= made and len(published) == 10 * 11 + 3 * 9 + 4 * 3 + 2
    assert len(names("vit")) == 6  # the sixth: WA on CIFAR-10, of which only the gain is published
    assert stated()["gain with ViT-B/16 on CIFAR-10", "wa"] == 1.1


def test_wrong_names_are_named():
    with pytest.raises(ToodError, match="did you mean 'drift'"):
        cells("drft", "runs")
    with pytest.raises(ToodError, match="did you mean 'paper'"):
        cells("table1", "runs", "papr")


def test_dry_run_lists_every_cell_and_makes_nothing(gap_run, tmp_path):
    measure(Run(gap_run), [Scorer("energy")])
    shutil.copytree(gap_run, tmp_path / "cifar10-er-cpu-s0")
    (tmp_path / "cifar10-wa-cpu-s0").mkdir()
    (tmp_path / "cifar10-wa-cpu-s0" / "metrics.parquet").touch()
    before = sorted(tmp_path.rglob("*"))
    arguments = ["drift", "--out", str(tmp_path), "--dry-run", "--json"]
    states = json.loads(CliRunner().invoke(command, arguments).stdout)
    assert list(states) == names("drift")
    assert [name for name, state in states.items() if state == "done"] == ["cifar10-er-cpu-s0"]
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_collected_gives_the_same_metrics_without_the_outputs(gap_run, tmp_path):
    from results_pages.collect import along, collect_runs
    from tood.report.gather import MeasuredRun

    scorers = [Scorer(name) for name in ("energy", "msp", "tood_robust_anchor")]
    measure(Run(gap_run), [*scorers, Scorer("tood_robust_anchor", {"margin": 0.0})])
    collect_runs([Run(gap_run)], tmp_path / "kept")
    (kept,) = find_runs([tmp_path / "kept"])
    assert sorted(p.name for p in kept.path.iterdir()) == ["collected.json", "manifest.json", "metrics.parquet"]
    assert kept.metrics_path.stat().st_size < 200_000
    for metric in ("auroc", "fpr_at_ood_recall"):
        before, after = (trajectory(load_metrics(path), "energy", metric) for path in (gap_run, kept.path))
        assert before.average() == after.average()
    collected = json.loads((kept.path / "collected.json").read_text())
    assert collected["point"]["drift"] == MeasuredRun(Run(gap_run)).drift() > 0
    assert collected["along"] == along(MeasuredRun(Run(gap_run)))


def test_against_the_paper_adds_its_variants_and_bic_is_compared_on_raw_logits(build, tmp_path):
    import numpy as np

    from tood.commands.report import command as report

    path = build(tmp_path / "bic", learner="bic", stream="cifar10", preset="cpu", per_class=10, detectors=("energy",))
    for file in (path / "steps").rglob("outputs/**/*.npz"):
        arrays = dict(np.load(file))
        np.savez(file, **arrays, raw_logits=arrays["logits"])
    measure(Run(path), [Scorer("energy", logits=which) for which in ("corrected", "raw")])
    done = CliRunner().invoke(report, [str(path), "--against", "paper", "--json"], catch_exceptions=False)
    rows = [r for r in json.loads(done.stdout) if r["table"] == "cifar10-main" and r["column"] != "avg_fpr95"]
    shown = {row["row"]: row.get("paper") for row in rows}
    assert shown == {
        "accuracy": 77.5,
        "energy": None,
        "energy (raw logits)": 67.2,
        "tood_mean_shift": None,
        "tood_mean_shift (raw logits)": 71.6,
        "tood_robust_anchor": None,
        "tood_robust_anchor (raw logits)": 70.6,
    }
