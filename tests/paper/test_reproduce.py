"""tood reproduce: the runs behind each table, shared between tables, and what is kept of them."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tood import ToodError, learners, models, streams
from tood.commands.reproduce import STORED, TRAINED, command
from tood.paper.reproduce import TARGETS, cells, command_of, notes, presets_of
from tood.runs import measure
from tood.runs.config import RunConfig
from tood.runs.directory import Run, find_runs
from tood.runs.metrics_file import load_metrics, trajectory
from tood.runs.score import Scorer

FIVE = {"icarl", "bic", "der", "wa", "lwf"}


def names(target, **options):
    return [cell.config.name for cell in cells(target, "runs", **options)]


def test_table1_is_five_learners_on_two_streams_with_three_seeds():
    found = [cell.config for cell in cells("table1", "runs")]
    assert len(found) == len({c.name for c in found}) == 30
    assert {c.stream for c in found} == {"cifar10", "cifar100"} and {c.seed for c in found} == {0, 1, 2}
    assert {c.learner for c in found} == FIVE and {c.preset for c in found} == {"cpu"}
    assert [c.seed for c in found] == sorted(c.seed for c in found)  # a sweep that is cut short has whole seeds


def test_nothing_is_trained_twice():
    first = set(names("table1"))
    assert len(first & set(names("table2"))) == 12 and len(set(names("table2")) - first) == 12
    assert all("+ber" in name for name in set(names("table2")) - first)
    drift = set(names("drift"))
    rest = {"finetune", "er", "ewc", "si", "agem", "gem", "joint"}
    assert drift - first == {f"cifar10-{name}-cpu-s0" for name in rest} and len(drift & first) == 5


@pytest.mark.parametrize(("target", "preset"), [(t, p) for t in TARGETS for p in presets_of(t)])
def test_every_run_is_one_that_can_be_made(target, preset):
    for cell in cells(target, "runs", preset):
        config = cell.config
        run = config.identity
        assert run.stream in streams.names() and run.learner in learners.names()
        assert "network" in learners.preset(preset, run.stream, run.learner, run.finetune)
        assert config.network in ("", *models.names()) or config.network.startswith("timm:")
        assert command_of(config.name, preset) is not None


def test_pretrained_is_every_learner_on_short_and_long_streams_with_three_seeds():
    found = [cell.config for cell in cells("pretrained", "runs")]
    assert all(c.frozen and c.preset == "frozen" for c in found)
    every = {*learners.names()} - {"ber"}
    assert {(c.stream, c.learner, c.seed) for c in found} == {
        (stream, learner, seed)
        for stream in ("cifar10", "cifar100", "cifar100-50", "tinyimagenet-100")
        for learner in every
        for seed in range(3)
    }
    with pytest.raises(ToodError, match="unknown preset of pretrained 'paper'"):
        cells("pretrained", "runs", "paper")
    wrong = CliRunner().invoke(command, ["table1", "--preset", "frozen"])
    assert wrong.exit_code == 2 and "unknown preset of table1 'frozen'" in wrong.stderr


def test_released_is_evaluated_as_the_authors_did_and_the_other_presets_as_a_user_would():
    evaluated = {
        p: {(c.config.calibration, c.config.fit) for c in cells("table1", "runs", p)} for p in presets_of("table1")
    }
    assert evaluated == {
        "cpu": {("train", "current")},
        "paper": {("train", "current")},
        "released": {("augmented", "all")},
    }
    assert names("table1", preset="released")[0] == "cifar10-icarl-released-s0"  # no option of its own
    chosen = RunConfig(preset="released", calibration="train")
    assert chosen.fit == "all" and chosen.identity.options == {"calibration": "train"}


def test_the_small_vit_is_said_to_be_from_scratch():
    (cell,) = cells("vit", "runs", "cpu")
    assert cell.config.network == "vit" and "from scratch" in notes("vit", "cpu")[0]
    assert {cell.config.network for cell in cells("vit", "runs", "paper")} == {
        "timm:vit_base_patch16_224+pretrained"
    } and not notes("vit", "paper")
    assert command_of("digits-er-cpu-s0", "cpu") is None


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


def test_dry_run_adds_up_time_and_disk_of_what_is_left(tmp_path, monkeypatch):
    from tood.runs import plan

    asked = []

    def estimate(config):
        asked.append(config.name)
        return plan.Estimate(1, 1, training=3000.0, evaluation=600.0, disk=2e8, parameters=1)

    monkeypatch.setattr(plan, "estimate", estimate)
    result = CliRunner().invoke(command, ["table1", "--seeds", "2", "--out", str(tmp_path), "--dry-run"])
    count = len(cells("table1", tmp_path, seeds=2))
    assert f"{count} runs left: about {count}:00:00 on this device" in result.stdout
    assert f"and {count * 0.2:.1f} GB" in result.stdout
    assert len(asked) == count / 2  # seeds cost the same


def test_dry_run_counts_the_extraction_of_features_once_per_stream_and_network(tmp_path, monkeypatch):
    from tood.runs import plan

    asked = []

    def extraction(config):
        asked.append((config.stream, plan.feature_network(config)))
        own = {Path(f"{config.stream.split('-')[0]}.npy"): 1000}
        return own | {Path("places.npy"): 200}, 3.6  # one set of all streams, and seconds per image

    monkeypatch.setattr(plan, "estimate", lambda config: plan.Estimate(1, 1, 0.0, 0.0, disk=0.0, parameters=1))
    monkeypatch.setattr(plan, "extraction", extraction)
    result = CliRunner().invoke(command, ["pretrained", "--seeds", "2", "--out", str(tmp_path), "--dry-run"])
    members = [cell.config for cell in cells("pretrained", tmp_path, seeds=2)]
    expected = {(config.stream.split("-")[0], plan.feature_network(config)) for config in members}
    assert {(stream.split("-")[0], network) for stream, network in asked} == expected and len(asked) == len(expected)
    images = 1000 * len(expected) + 200
    assert f"runs left: about {len(expected)}:12:00 on this device" in result.stdout
    assert f"with features of {images:,} images (about {len(expected)}:12:00; not in the GB)" in result.stdout


def test_targets_are_those_of_the_package():
    assert set(TRAINED) == set(TARGETS) and set(STORED) == {"figures", "ablations", "toy"}


def test_what_is_collected_gives_the_same_figures_without_the_outputs(gap_run, tmp_path):
    from tood.report.gather import Measured
    from tood.runs.measure import measure
    from tood.runs.score import Scorer

    scorers = [Scorer(name) for name in ("energy", "msp", "tood_robust_anchor")]
    measure(Run(gap_run), [*scorers, Scorer("tood_robust_anchor", {"margin": 0.0})])
    arguments = ["figures", "--out", str(gap_run), "--collect", str(tmp_path / "kept"), "--commit", "abc"]
    assert "1 of 1 finished runs are new" in CliRunner().invoke(command, arguments, catch_exceptions=False).stdout
    (kept,) = find_runs([tmp_path / "kept"])
    assert sorted(p.name for p in kept.path.iterdir()) == ["collected.json", "manifest.json", "metrics.parquet"]
    assert kept.metrics_path.stat().st_size < 200_000
    for metric in ("auroc", "fpr_at_ood_recall"):
        before, after = (trajectory(load_metrics(path), "energy", metric) for path in (gap_run, kept.path))
        assert before.average() == after.average()
    point = json.loads((kept.path / "collected.json").read_text())["point"]
    assert point["drift"] == Measured(Run(gap_run)).drift() and point["drift"] > 0
    again = CliRunner().invoke(command, [*arguments[:-1], "later"], catch_exceptions=False)
    assert "0 of 1 finished runs are new" in again.stdout
    assert json.loads((kept.path / "collected.json").read_text())["commit"] == "abc"
    (kept.path / "collected.json").write_text(json.dumps({"commit": "abc", "point": point}))  # an older format
    again = CliRunner().invoke(command, [*arguments[:-1], "later"], catch_exceptions=False)
    assert "1 of 1 finished runs are new" in again.stdout
    renewed = json.loads((kept.path / "collected.json").read_text())
    assert renewed["commit"] == "later" and renewed["along"] == Measured(Run(gap_run)).along()


def test_of_figures_drawn_twice_the_one_over_most_runs_is_kept(tmp_path):
    from tood.paper.collect import collect_figures

    for target in ("drift", "table1", "table2"):
        folder = tmp_path / "runs" / "report" / target / "figures" / "cifar10"
        folder.mkdir(parents=True)
        (folder / "drift.png").write_text(target)
        for learner in ("icarl", "bic"):
            (folder / learner).mkdir()
            for name in ("ridges", "heat-maps"):
                (folder / learner / f"{name}.png").write_text(f"{learner} {name}")
    (tmp_path / "runs" / "ablations").mkdir()
    (tmp_path / "runs" / "ablations" / "summary.md").write_text("| finding |\n")
    for commit in ("abc", "def"):  # what has not changed keeps the commit that made it
        collect_figures(tmp_path / "runs", tmp_path / "kept", commit)
    figures = {file.name: file.read_text() for file in (tmp_path / "kept" / "figures" / "cifar10").iterdir()}
    assert figures == {"drift.png": "drift", "icarl-ridges.png": "icarl ridges"}  # of one run: what the paper shows
    assert (tmp_path / "kept" / "ablations.md").read_text().endswith("at commit `abc`.\n")


def test_ablations_are_of_finished_runs(gap_run, tmp_path):
    for name in ("whole", "going"):
        shutil.copytree(gap_run, tmp_path / name)
    measure(Run(tmp_path / "whole"), [Scorer("energy")])
    (tmp_path / "going" / "metrics.parquet").unlink(missing_ok=True)
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tood.commands.ablate.command.callback", lambda paths, **_: asked.extend(paths))
        CliRunner().invoke(command, ["ablations", "--out", str(tmp_path)], catch_exceptions=False)
    assert [path.name for path in asked] == ["whole"]


def test_options_are_what_sets_a_run_apart():
    assert (
        RunConfig().identity.options
        == {}
        == RunConfig(stream="cifar10", learner="wa", seed=3, preset="paper").identity.options
    )
    changed = RunConfig(order=0, network="vit", calibration="memory", settings={"epochs": 3})
    assert changed.identity.options == {"order": 0, "network": "vit", "calibration": "memory", "epochs": 3}
