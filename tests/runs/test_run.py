"""tood run, end to end, on digits: what it writes, and that nothing is lost whatever happens to it."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.processes import Process, tood

from tood import ToodError, detectors, learners, streams
from tood.cli import cli
from tood.evaluation import load_metrics, trajectory
from tood.metrics import auroc
from tood.models import Network
from tood.outputs import Run, Step
from tood.report.tables import tables_of
from tood.runs.build import build
from tood.runs.config import RunConfig
from tood.runs.extract import step_rows
from tood.runs.plan import plan
from tood.runs.stages import run
from tood.storage.yaml_files import read_yaml

SETTINGS = {"epochs": 3, "memory": 80}
CONFIG = RunConfig(learner="icarl", preset="smoke", settings=SETTINGS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "digits"
    lines = []
    run(CONFIG, folder, say=lines.append)
    return folder, lines


def test_an_ood_set_may_be_added_to_a_finished_run(finished, tmp_path):
    folder = shutil.copytree(finished[0], tmp_path / "run")
    fewer = dataclasses.replace(CONFIG, ood=(next(iter(Run(folder).ood)),))
    run(fewer, folder, say=str)
    assert len(Run(folder).ood) == 1
    run(CONFIG, folder, say=str)
    assert Run(folder).ood == Run(finished[0]).ood
    assert (folder / "metrics.parquet").read_bytes() == (finished[0] / "metrics.parquet").read_bytes()


def test_tuples_and_paths_in_settings_are_as_in_the_file():
    config = RunConfig(stream={"npz": Path("x.npz"), "shape": (8, 8)}, settings={"milestones": (1, 2)})
    values = config.to_mapping()
    assert values["stream"] == {"npz": "x.npz", "shape": [8, 8]} and values["settings"] == {"milestones": [1, 2]}
    assert RunConfig.from_mapping(values).name == config.name


def test_outputs_are_what_the_saved_network_answers(finished):
    folder, _ = finished
    stream, _ = build(CONFIG)
    for index in (0, 3):
        step = Step(Run(folder), index)
        network = Network.load(step.folder / "model.safetensors").eval()
        rows = np.concatenate([stream.test_rows(task) for task in range(index + 1)])
        from tood.streams.augment import prepare

        with torch.no_grad():
            expected = network(prepare(stream.test.take(rows), stream.mean, stream.std)).numpy()
        np.testing.assert_allclose(step.test.logits, expected, atol=1e-4)
        np.testing.assert_allclose(
            step.test.features @ step.head.weight.T + step.head.bias, step.test.logits, atol=1e-4
        )
        np.testing.assert_array_equal(step.test.labels, stream.columns(stream.test.labels[rows]))


def test_calibration_sets_are_balanced_disjoint_and_of_three_sources(finished):
    folder, _ = finished
    step = Step(Run(folder), 3)
    sizes = {s: np.bincount(step.calibration(s).labels).tolist() for s in ("train", "memory", "calibration")}
    assert sizes == {s: [10] * 8 for s in ("train", "memory", "calibration")} and step.fit is None
    stream, _ = build(CONFIG)
    trained = np.concatenate([stream.train_rows(task) for task in range(4)])
    reserved = np.concatenate([stream.reserved_rows(task) for task in range(4)])
    assert not np.intersect1d(trained, reserved).size and len(reserved) == 80
    rows = step_rows(CONFIG, stream, 3, memory=trained[::11])
    assert np.isin(rows.calibration["train"], trained).all()
    np.testing.assert_array_equal(rows.calibration["memory"], np.sort(trained[::11]))
    np.testing.assert_array_equal(rows.calibration["calibration"], np.sort(reserved))


def test_tracks_all_and_paper_have_all_training_data_seen():
    stream, _ = build(CONFIG)
    seen, memory = np.union1d(stream.train_rows(0), stream.train_rows(1)), np.empty(0, np.int64)
    np.testing.assert_array_equal(
        step_rows(RunConfig(preset="smoke", track="all"), stream, 1, memory).calibration["all"], seen
    )
    paper = step_rows(RunConfig(preset="smoke", track="paper", calibration_size=80), stream, 1, memory)
    np.testing.assert_array_equal(paper.fit, seen)
    labels = stream.train.labels[paper.calibration["paper"]]
    assert np.unique(labels, return_counts=True)[1].tolist() == [20] * 4  # B is shared by the classes seen


def test_every_detector_is_fitted_on_the_set_of_the_track(finished, tmp_path):
    folder = shutil.copytree(finished[0], tmp_path / "run")
    names = ("msp", "mds", "tood_mean_shift")
    run(dataclasses.replace(CONFIG, detectors=names, track="calibration,memory"), folder, say=str)
    table, step = load_metrics(folder), Step(Run(folder), 3)
    for name in names[1:]:
        found = [trajectory(table, name, calibration=track).values[3, 0, 0] for track in ("calibration", "memory")]
        for track, value in zip(("calibration", "memory"), found, strict=True):
            detector = detectors.create(name).fit(step.calibration(track), partition=step.partition, head=step.head)
            known = detector.score(step.test)[step.test_tasks() == 0]
            ood = next(iter(table.filter(table["ood_set"].is_valid())["ood_set"].to_pylist()))
            assert value == pytest.approx(auroc(known, detector.score(step.ood[ood])))
        assert found[0] != found[1]
    with pytest.raises(ToodError, match="track"):
        tables_of([(Run(folder), table)], track="all")
    assert all("memory" in built.title for built in tables_of([(Run(folder), table)], track="memory"))


def test_scores_that_need_old_classes_are_left_out_of_the_track_memory_without_one(tmp_path):
    said = []
    config = RunConfig(learner="finetune", preset="smoke", track="calibration,memory", detectors=("energy", "mds"))
    run(config, tmp_path, say=said.append)
    rows = load_metrics(tmp_path).to_pylist()
    assert {r["detector"] for r in rows if r["calibration"] == "memory"} == {"energy"}
    assert "memory" in said[-1]


def test_ber_does_not_go_on_from_a_run_of_other_settings(tmp_path):
    plain = RunConfig(learner="er", preset="smoke", settings={"epochs": 1, "memory": 80})
    run(plain, tmp_path / "er", say=str)
    (tmp_path / "er").rename(tmp_path / dataclasses.replace(plain, settings={"epochs": 2, "memory": 80}).name)
    lines = []
    with_ber = dataclasses.replace(plain, learner="er+ber", settings={"epochs": 2, "memory": 80, "ber_epochs": 1})
    run(with_ber, tmp_path / "ber", say=lines.append)
    assert lines[0].startswith("not resuming from the base run: ") and "settings" in lines[0] and len(lines) == 5


def test_accuracy_with_ber_is_that_of_the_plain_head(tmp_path):
    found = []
    for learner, more in (("er", {}), ("er+ber", {"ber_epochs": 3, "ber_lr": 0.05})):
        config = RunConfig(learner=learner, preset="smoke", settings={"memory": 80, **more}, detectors=("energy",))
        run(config, tmp_path / learner, say=str)
        rows = load_metrics(tmp_path / learner).to_pylist()
        found.append([row["value"] for row in rows if row["metric"] == "accuracy"])
    assert found[0] == pytest.approx(found[1])


def test_accuracy_is_the_nearest_class_mean_s(finished):
    folder, _ = finished
    step = Step(Run(folder), 3)
    rows = load_metrics(folder).to_pylist()
    stored = next(r["value"] for r in rows if r["metric"] == "accuracy" and r["step"] == 3 and r["task"] is None)
    assert stored == pytest.approx((step.predictions == step.test.labels).mean())
    _, learner = build(CONFIG)
    for task in range(4):
        learner.learn(task, folder / "checkpoints")  # loads what was trained
    np.testing.assert_array_equal(learner.predict(step.test.features, step.test.logits), step.predictions)


def test_nothing_is_done_twice(finished, monkeypatch):
    folder, _ = finished
    before = (folder / "metrics.parquet").read_bytes()
    stamps = {p: p.stat().st_mtime_ns for p in folder.rglob("outputs/**/*.npz")}
    monkeypatch.setattr(learners.Learner, "_epoch", lambda *a, **k: pytest.fail("trained again"))
    run(CONFIG, folder, say=lambda line: None)
    assert (folder / "metrics.parquet").read_bytes() == before
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("outputs/**/*.npz")} == stamps


def test_another_calibration_source_needs_no_training(finished, tmp_path, monkeypatch):
    import shutil

    folder, _ = finished
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    monkeypatch.setattr(learners.Learner, "_epoch", lambda *a, **k: pytest.fail("trained again"))
    run(dataclasses.replace(CONFIG, track="memory", detectors=("energy", "tood_mean_shift")), copy, say=str)
    assert {r["calibration"] for r in load_metrics(copy).to_pylist()} == {"memory"}
    with pytest.raises(ToodError, match=r"was made with seed = 0, not 1; choose another --out"):
        run(dataclasses.replace(CONFIG, seed=1), copy)


def test_killed_at_random_instants_it_ends_with_the_same_bytes():
    script = Path(__file__).parents[2] / "benchmarks" / "kill.py"
    done = subprocess.run([sys.executable, script, "--kills", "5"], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("5 kills") and "byte-identical" in done.stdout


def test_interrupted_or_out_of_space_it_says_one_line_and_goes_on(finished, tmp_path):
    reference = (finished[0] / "metrics.parquet").read_bytes()
    arguments = ("run", "--preset", "smoke", "--set", "epochs=3", "--set", "memory=80", "--out", tmp_path / "r")
    process = Process(arguments)
    while not (tmp_path / "r" / "steps" / "00").exists() and process.running():
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    stopped = process.wait(timeout=60)
    assert stopped.returncode == 143 and stopped.stderr == "tood: interrupted; run the same command to resume\n"
    full = tood(*arguments, limit=100_000)
    assert full.returncode == 1
    assert full.stderr.startswith("tood: ") and full.stderr.count("\n") == 1 and "too large" in full.stderr
    ended = tood(*arguments)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "r" / "metrics.parquet").read_bytes() == reference


def test_two_processes_on_one_run_and_a_damaged_checkpoint(finished, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(finished[0], copy)
    arguments = ("run", "--preset", "smoke", "--set", "epochs=3", "--set", "memory=80", "--out", copy)
    with Run(copy).lock():
        second = tood(*arguments)
    assert second.returncode == 1 and "is writing this run" in second.stderr
    checkpoint = copy / "checkpoints" / "task-02.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1000])
    with pytest.raises(ToodError, match=r"task-02.safetensors: cannot be read"):
        run(CONFIG, copy, say=str)


def test_the_command_line_reads_yaml_and_suggests(tmp_path):
    def command_line(*arguments):
        return CliRunner().invoke(cli, ["run", *map(str, arguments)])

    (tmp_path / "run.yaml").write_text("learner: er\npreset: smoke\nsettings: {memory: 80}\n")
    result = command_line(tmp_path / "run.yaml", "--seed", "3", "--set", "epochs=2", "--dry-run", "--json")
    found = json.loads(result.stdout)
    assert found["run"].startswith("digits-er-smoke-s3-") and "2 epochs" in found["learner"]
    (tmp_path / "typo.yaml").write_text("learnr: er\n")
    for arguments, message in (
        ((tmp_path / "typo.yaml",), r"typo.yaml 'learnr'; did you mean 'learner'\?"),
        (("--learner", "icral", "--preset", "smoke"), r"did you mean 'icarl'\?"),
        (("--preset", "smoke", "--set", "epoch=2"), r"did you mean 'epochs'\?"),
        (("--stream", "digitz"), r"did you mean 'digits'\?"),
    ):
        with pytest.raises(ToodError, match=message):
            raise command_line(*arguments).exception


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--set", "lr", "expected NAME=VALUE, found 'lr'"),
        ("--logits", "rawr", "'rawr' is not one of 'corrected', 'raw', 'both'"),
    ],
)
def test_wrong_options_are_wrong_usage(option, value, message):
    result = CliRunner().invoke(cli, ["run", option, value])
    assert result.exit_code == 2 and message in result.stderr


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--detectors", "enrgy"), "did you mean 'energy'"),
        (("--track", "memory"), "track: finetune keeps no memory"),
        (("--set", "lr=-1"), "lr: expected a number above 0, found -1"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(tmp_path, options, message, dry_run):
    arguments = ["run", "--learner", "finetune", "--preset", "smoke", "--out", str(tmp_path / "new"), *options]
    result = CliRunner().invoke(cli, arguments + ["--dry-run"] * dry_run)
    assert isinstance(result.exception, ToodError) and message in str(result.exception)
    assert not (tmp_path / "new").exists()


def test_plan_counts_the_images_that_run_forwards(finished):
    found = plan(CONFIG, Path("nowhere"))
    stream, _ = build(CONFIG)
    trained = sum(len(stream.train_rows(task)) for task in range(4)) * 3 + 3 * 80 * 3
    assert found["training"].startswith(f"{trained:,} images")
    assert not Path("nowhere").exists()
    joint = plan(RunConfig(learner="joint", preset="smoke", settings={"epochs": 1}), Path("nowhere"))
    seen = sum(len(stream.train_rows(task)) for step in range(4) for task in range(step + 1))
    assert joint["training"].startswith(f"{seen:,} images")


@pytest.mark.parametrize(("options", "expected"), [({}, "auto"), ({"preset": "paper"}, "32-true")])
def test_what_is_compared_with_the_paper_is_computed_in_full_precision(monkeypatch, options, expected):
    asked = {}
    monkeypatch.setattr(learners, "create", lambda *args, **settings: asked.update(settings) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build(RunConfig(**options))
    assert asked["precision"] == expected


def test_config_round_trip_and_names(tmp_path, finished):
    assert RunConfig.from_mapping(read_yaml(finished[0] / "config.yaml")) == CONFIG
    assert RunConfig().name == "digits-icarl-cpu-s0"
    permuted = [
        build(RunConfig(preset="smoke", order=order, seed=seed))[0].order for order, seed in ((3, 0), ("seed", 3))
    ]
    assert permuted[0] == permuted[1] != build(CONFIG)[0].order
    assert RunConfig(device="cpu", threads=4).name == "digits-icarl-cpu-s0"
    assert RunConfig(track="all").name == RunConfig(track="memory").name  # the same networks
    assert RunConfig(network="vit", stream="cifar10").name == "cifar10-icarl-cpu-s0-21e1c0"  # as it always was
    assert RunConfig(precision="32-true").name != RunConfig().name
    assert RunConfig(stream="cifar100", preset="paper").calibration_per_class(100) == 7
    assert RunConfig(stream="cifar10", preset="paper").reserved_per_class(10) == 0
    assert RunConfig(stream="cifar10").reserved_per_class(10) == 20
    for bad in ({"seed": -1}, {"track": "test"}, {"track": "all,paper"}, {"order": "random"}, {"settings": 3}):
        with pytest.raises(ToodError):
            RunConfig(**bad)


def test_gradient_detectors_are_scored_when_asked_for(finished, tmp_path):
    import shutil

    from tood import detectors
    from tood.detectors import Outputs
    from tood.evaluation.score import Scorer, scores
    from tood.streams.augment import prepare

    copy = tmp_path / "copy"
    shutil.copytree(finished[0], copy)
    with pytest.raises(ToodError, match="runs the network again and has not been scored"):
        scores(Step(Run(copy), 3), Scorer("adascale"))
    run(dataclasses.replace(CONFIG, detectors=("energy", "odin", "adascale")), copy, say=str)
    assert {r["detector"] for r in load_metrics(copy).to_pylist()} == {None, "energy", "odin", "adascale"}
    stream, _ = build(CONFIG)
    step = Step(Run(copy), 3)
    source = next(s.source for s in stream.ood if s.name == "noise")
    inputs = prepare(source.take(np.arange(40)), stream.mean, stream.std)
    odin = detectors.create("odin", std=stream.std)
    odin.fit(network=Network.load(step.folder / "model.safetensors").eval())
    expected = odin.score(Outputs(logits=step.ood["noise"].logits[:40], inputs=inputs))
    stored = scores(step, Scorer("odin", from_stream={"std": stream.std})).ood["noise"][:40]
    np.testing.assert_allclose(stored, expected, rtol=1e-4)


def test_plan_counts_what_is_replayed():
    stream, _ = build(CONFIG)
    new = [len(stream.train_rows(task)) for task in range(4)]

    def images(what, **changes):
        return int(plan(RunConfig(**{"preset": "smoke", **changes}), Path("nowhere"))[what].split()[0].replace(",", ""))

    settings = {"epochs": 1, "memory": 80, "batch_size": 32}
    assert images("training", learner="er", settings=settings) == sum(new) + sum(new[1:])  # a batch with each batch
    per_class = {"epochs": 1, "memory": 5, "memory_unit": "class"}
    assert images("training", learner="icarl", settings=per_class) == sum(new) + 5 * (2 + 4 + 6)


def test_other_images_are_not_learned_on_with_old_checkpoints(tmp_path):
    digits = streams.load("digits")
    images = 255 - digits.train.take(np.arange(len(digits.train)))
    changed = dataclasses.replace(digits, train=streams.ArraySource(images, digits.train.labels))
    config = dataclasses.replace(CONFIG, detectors=("energy",))
    run(config, tmp_path / "run", stream=digits, say=str)
    with pytest.raises(ToodError, match=r"made with stream.samples = \w+, not \w+; use the same or another directory"):
        run(config, tmp_path / "run", stream=changed, say=str)
    run(config, tmp_path / "run", stream=streams.load("digits"), say=str)
    normalised = dataclasses.replace(digits, mean=(0.5,))
    with pytest.raises(ToodError, match=r"made with stream.mean = .*, not \[0.5\]"):
        run(config, tmp_path / "run", stream=normalised, say=str)


@pytest.mark.parametrize("changed", ["test labels", "one OOD image", "one training image"])
def test_every_image_and_label_counts(tmp_path, changed):
    rng = np.random.default_rng(0)
    arrays = {"train": rng.normal(size=(200, 5)), "test": rng.normal(size=(80, 5)), "ood": rng.normal(size=(70, 5))}
    labels = {"train": np.arange(200) % 4, "test": np.arange(80) % 4}

    def stream():
        return streams.Stream.from_arrays(
            *(arrays["train"], labels["train"], arrays["test"], labels["test"]),
            tasks=2,
            ood={"far": {"noise": arrays["ood"]}},
        )

    config = dataclasses.replace(
        CONFIG, learner="finetune", network="mlp", settings={"epochs": 1}, detectors=("energy",)
    )
    run(config, tmp_path / "run", stream=stream(), say=str)
    if changed == "test labels":
        labels["test"] = labels["test"][::-1].copy()
    else:
        arrays["ood" if "OOD" in changed else "train"][3] *= 20
    if changed == "one training image":
        with pytest.raises(ToodError, match=r"made with stream.samples"):
            run(config, tmp_path / "run", stream=stream(), say=str)
        return
    again = run(config, tmp_path / "run", stream=stream(), say=str)
    fresh = run(config, tmp_path / "fresh", stream=stream(), say=str)
    assert again.metrics_path.read_bytes() == fresh.metrics_path.read_bytes()
