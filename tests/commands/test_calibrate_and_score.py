import json
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tood import TOOD
from tood.commands.calibrate import command as calibrate
from tood.commands.score import command as score
from tood.decision import Conformal


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 600)
    draw = lambda: rng.normal(size=(600, 6)) + 5 * np.eye(6)[labels]  # noqa: E731
    np.savez("cal.npz", logits=draw(), labels=labels)
    np.savez("more.npz", logits=draw(), labels=labels)
    np.save("new.npy", draw())
    (tmp_path / "tasks.json").write_text("[[0, 1], [2, 3], [4, 5]]")
    return tmp_path


def run(command, *arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)


GIVEN = ("--logits", "cal.npz", "--tasks", "tasks.json", "--out", "cal.safetensors")


def test_a_calibrator_is_the_one_fit_gives(folder):
    result = run(calibrate, *GIVEN, "--variant", "mean_shift", "--margin", 0.2, "--reference", "oldest", "--json")
    data = np.load("cal.npz")
    expected = TOOD([[0, 1], [2, 3], [4, 5]], "mean_shift", 0.2, "oldest").fit(data["logits"], data["labels"])
    loaded = TOOD.load("cal.safetensors")
    np.testing.assert_array_equal(loaded.score(data["logits"]), expected.score(data["logits"]))
    rows = json.loads(result.stdout)["tasks"]
    assert [row["median"] for row in rows] == expected.statistics_["median"].tolist()


def test_a_manifest_serves_as_tasks(folder):
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "tasks": [[0, 1], [2, 3], [4, 5]]}))
    run(calibrate, *GIVEN)
    first = (folder / "cal.safetensors").read_bytes()
    run(calibrate, "--logits", "cal.npz", "--tasks", "manifest.json", "--out", "cal.safetensors")
    assert (folder / "cal.safetensors").read_bytes() == first


def test_p_values_from_a_second_file_and_rejected_shares(folder):
    run(calibrate, *GIVEN, "--conformal", "more.npz")
    data, more, new = np.load("cal.npz"), np.load("more.npz"), np.load("new.npy")
    cal = TOOD([[0, 1], [2, 3], [4, 5]]).fit(data["logits"], data["labels"])
    expected = Conformal(cal).fit(more["logits"]).decide(new, alpha=0.1)
    result = run(score, "--calibrator", "cal.safetensors", "--in", "new.npy", "--out", "s.parquet", "--alpha", 0.1)
    assert "s.parquet: 600 rows scored" in result.stdout
    np.testing.assert_array_equal(pq.read_table("s.parquet")["accept"].to_numpy(), expected.accept)


def test_holdout_splits_every_sample_into_one_half(folder):
    run(calibrate, *GIVEN, "--holdout", 0.25, "--per-task", "true")
    conformal = Conformal.load("cal.safetensors")
    assert conformal.cal.statistics_["count"].sum() == 450
    assert sum(len(ranks.values) for ranks in conformal._folds[0][1].values()) == 150
    run(calibrate, *GIVEN, "--folds", 4)
    assert Conformal.load("cal.safetensors").cal.statistics_["count"].sum() == 600


def test_trained_on_samples_are_warned_about(folder):
    result = run(calibrate, *GIVEN, "--holdout", 0.5, "--source", "memory")
    assert result.exit_code == 0 and "warning: source='memory'" in result.stderr
    arguments = ("--calibrator", "cal.safetensors", "--in", "new.npy", "--out", "s.parquet", "--alpha", 0.001)
    result = run(score, *arguments)
    assert result.exit_code == 0
    assert result.stderr.count("tood: warning: 300 calibration samples cannot reject anything at alpha=0.001") == 1


def test_errors_are_one_line(folder):
    def tood(*arguments):
        return subprocess.run([sys.executable, "-m", "tood.cli", *arguments], capture_output=True, text=True)

    np.savez("bare.npz", logits=np.zeros((3, 6)))
    result = tood("calibrate", "--logits", "bare.npz", "--tasks", "tasks.json", "--out", "x.safetensors")
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("tood: bare.npz: expected the arrays logits and labels, found logits")
    result = tood("calibrate", *GIVEN, "--holdout", "0.5", "--folds", "3")
    assert result.returncode == 2 and "one of --holdout, --conformal and --folds" in result.stderr
    result = tood("calibrate", *GIVEN, "--ties", "randomized")
    assert result.returncode == 2 and "--ties is about p-values" in result.stderr
    result = tood("calibrate", "--logits", "bare.npz", "--tasks", "tasks.json", "--out", "bare.npz")
    assert result.returncode == 2 and "bare.npz is an input" in result.stderr
