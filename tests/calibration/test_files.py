"""What a file promises: it decides tomorrow as today, and says what it is."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.golden.make import TASKS, draw

from tood import TOOD, ToodError
from tood.calibration import rules, statistics
from tood.commands.calibrate import command as calibrate
from tood.commands.export import command as export
from tood.commands.inspect import command as inspect
from tood.commands.score import command as score
from tood.decision import Conformal
from tood.deploy import DriftMonitor

CONSTANTS = [(module, name) for module in (rules, statistics) for name in vars(module) if name.isupper()]
NUMBERS = [(module, name) for module, name in CONSTANTS if isinstance(getattr(module, name), float)]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit, held_out = draw(0), draw(1)
    np.savez("cal.npz", logits=fit.logits, labels=fit.labels)
    np.save("new.npy", draw(2, rows=300).logits)
    cal = TOOD(TASKS).fit(fit.logits, fit.labels)
    Conformal(cal).fit(held_out.logits).save("decider.safetensors")
    DriftMonitor(cal).fit(held_out.logits).save("monitor.safetensors")
    return tmp_path


def run(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize(("module", "name"), NUMBERS, ids=lambda value: getattr(value, "__name__", value))
def test_an_upgrade_of_the_rule_changes_no_decision(files, monkeypatch, module, name):
    """Each constant of the rule is changed, as an upgrade would; the loaded file decides as its ONNX graph does."""
    onnxruntime = pytest.importorskip("onnxruntime")
    logits = np.load("new.npy").astype(np.float32)
    run(export, "decider.safetensors", "--onnx", "decider.onnx", "--alpha", 0.05)
    expected = Conformal.load("decider.safetensors").decide(logits, alpha=0.05)
    monkeypatch.setattr(module, name, getattr(module, name) * 3)
    decision = Conformal.load("decider.safetensors").decide(logits, alpha=0.05)
    np.testing.assert_array_equal(decision.score, expected.score)
    np.testing.assert_array_equal(decision.accept, expected.accept)
    accept = onnxruntime.InferenceSession("decider.onnx").run(["accept"], {"logits": logits})[0]
    np.testing.assert_array_equal(decision.accept, accept)
    assert not DriftMonitor.load("monitor.safetensors").update(logits).report().more_unknowns


def test_a_saved_torch_program_decides_in_another_process(files):
    pytest.importorskip("torch")
    assert run(export, "decider.safetensors", "--torch", "decider.pt2", "--alpha", 0.05).exit_code == 0
    program = """
import numpy as np, torch
module = torch.export.load("decider.pt2").module()
accept = [module(torch.from_numpy(np.load("new.npy")[:n]).float())[2].numpy() for n in (1, 7, 300)]
np.save("accept.npy", np.concatenate(accept))
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    logits = np.load("new.npy").astype(np.float32)
    expected = Conformal.load("decider.safetensors").decide(logits, alpha=0.05).accept
    np.testing.assert_array_equal(np.load("accept.npy"), np.r_[expected[:1], expected[:7], expected])


def test_files_say_what_they_are(files):
    given = ("--logits", "cal.npz", "--tasks", json.dumps(TASKS), "--out", "mine.safetensors", "--holdout", 0.5)
    shown = run(calibrate, *given, "--metadata", "owner=ann", "--parent", "decider.safetensors").stdout
    assert "decision samples: 120" in shown and "smallest alpha: 0.008264" in shown and "threshold at 0.05" in shown
    facts = json.loads(run(inspect, "mine.safetensors", "--json").stdout)
    assert facts["kind"] == "tood-conformal" and facts["tasks"] == TASKS and facts["decision samples"] == 120
    assert facts["metadata"]["owner"] == "ann" and len(facts["metadata"]["parent_sha256"]) == 64
    assert facts["rule"].startswith(TOOD(TASKS).variant) and facts["created"].startswith("20")
    run(score, "--calibrator", "mine.safetensors", "--in", "new.npy", "--out", "s.parquet", "--alpha", 0.05)
    kept = pq.read_schema("s.parquet").metadata
    assert json.loads(kept[b"tood.metadata"])["owner"] == "ann" and {b"tood.rule", b"tood.tood"} <= {*kept}
    for name in ("decider.safetensors", "monitor.safetensors"):
        assert "rule" in run(inspect, name).stdout
    with pytest.raises(ToodError, match="expected a file that tood wrote"):
        run(inspect, "cal.npz")
    assert run(export, "mine.safetensors").exit_code == 2


def test_another_model_or_order_is_noticed_and_stationary_traffic_is_not(files):
    """False warnings on batches of 200 of the same distribution: at most 1 %; here, of unknown mixes too."""
    rng = np.random.default_rng(0)
    fit = draw(0, rows=600)
    cal = TOOD(TASKS).fit(fit.logits, fit.labels)
    for wrong, match in (
        (draw(7).logits[:, rng.permutation(6)], "permuted"),
        (3 * draw(7).logits + 9, "another network|outside the range"),
    ):
        with pytest.warns(UserWarning, match=match):
            cal.score(wrong)
    warned = 0
    for seed in range(300):
        batch = draw(100 + seed, rows=200).logits
        batch[: seed % 21] = draw(1000 + seed, rows=seed % 21, known=False).logits  # up to a tenth is unknown
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cal.score(batch)
        warned += bool(caught)
    assert warned <= 3


def test_no_file_accepts_everything(files):
    few = Conformal(Conformal.load("decider.safetensors").cal).fit(draw(5, rows=10).logits)
    with pytest.raises(ToodError, match="10 calibration samples cannot reject anything"):
        few.thresholds(0.05)
    few.save("few.safetensors")
    assert run(inspect, "few.safetensors").stdout.count("none: alpha") == 1
    with pytest.raises(ToodError, match="cannot reject anything"):
        run(export, "few.safetensors", "--onnx", "few.onnx", "--alpha", 0.05)
    assert not (files / "few.onnx").exists()
