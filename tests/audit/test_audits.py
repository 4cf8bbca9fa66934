import json
import os
import shutil
import sys

import numpy as np
import pytest
from tests.processes import python, tood

from tood import ToodError
from tood.audit import audit, read_verdict
from tood.audit.advice import DEFAULT
from tood.evaluation import load_metrics, measure, trajectory
from tood.evaluation.metrics_file import detectors_of
from tood.metrics import auroc
from tood.outputs import Run, write_manifest, write_step

pytest.importorskip("pyarrow")

LOGITS_ONLY = ["energy", "tood_robust_anchor"]


@pytest.mark.parametrize(
    ("truth", "cause"),
    [
        ({"gap": 2.5}, "confidence gap"),
        ({"crowding": 0.9}, "crowding"),
        ({}, "none"),
        ({"gap": 0.8, "crowding": 0.8}, "confidence gap and crowding"),
        ({"fading": 0.6}, "lost features"),
    ],
)
def test_the_cause_is_what_the_run_was_made_with(build, tmp_path, truth, cause):
    found = audit(Run(build(tmp_path / "run", **truth)), LOGITS_ONLY)
    assert found.verdict.cause == cause, found.verdict


def test_gap_is_seen_in_the_energies_and_repaired(build, tmp_path):
    found = audit(Run(build(tmp_path / "run", gap=2.5)), LOGITS_ONLY).verdict
    # Own channels sink by 2.5 per step, by construction; so does what the audit reads from either set.
    for energies in (found.gap.test, found.gap.calibration):
        np.testing.assert_allclose(np.diff(energies), 2.5, atol=0.6)
    assert found.advice.use.startswith("tood") and found.advice.logits.gains["all"].low > 0.02
    assert found.by_task[0] == max(found.by_task)  # the oldest task has sunk furthest
    assert all(one.shares["features"].low < 0.1 for one in found.judgements)
    assert found.accuracy_forgetting > 0.1


def test_near_and_far_do_not_cancel(build, tmp_path):
    """Near-OOD comes closer while far-OOD, confused at first, moves away."""
    path = build(tmp_path / "run", crowding=0.6)
    rng = np.random.default_rng(0)
    for step in range(4):
        for file in (path / f"steps/{step:02d}/outputs/ood").glob("far_*.npz"):
            with np.load(file) as stored:
                logits = rng.normal(size=stored["logits"].shape) + 7 - 2 * step
            np.savez(file, logits=logits)
    verdict = audit(Run(path), LOGITS_ONLY).verdict
    near, far, whole = verdict.judgements
    assert near.state == "lost" and far.state == "gained" and abs(whole.loss.value) < near.loss.value
    card = verdict.card()
    assert card["lost"].index("near-OOD lost") < card["lost"].index("far-OOD gained")
    assert verdict.spoken == (near,) and "-" not in card["lost"].split("gained")[1]


def test_a_healthy_run_is_advised_to_keep_energy(build, tmp_path):
    found = audit(Run(build(tmp_path / "run")), LOGITS_ONLY).verdict
    assert found.advice.use == "energy" and found.cause == "none" and "energy is as good" in found.card()["from logits"]


def test_logits_only_are_told_nothing_that_they_cannot_use(build, tmp_path):
    found = audit(Run(build(tmp_path / "run", gap=2.5, features=False, fit=False)))
    words = json.dumps(found.verdict.to_dict())
    assert found.verdict.cause == "confidence gap" and found.verdict.judgements[-1].nearer is None
    assert found.verdict.advice.use in detectors_of(found.table)
    for name in ("tood_joint", "typicality", "knn", "CIFAR", "docs/"):
        assert name not in words.replace(json.dumps(list(found.verdict.notes)), "")


def test_detectors_that_were_named_and_left_out_are_on_the_card(build, tmp_path):
    path = build(tmp_path / "run", features=False, fit=False)
    result = tood("audit", path, "--detectors", "energy,mds")
    assert "left out (no features): mds." in " ".join(result.stdout.split())
    assert "left out" not in tood("audit", path).stdout


def test_without_ood_sets_the_calibration_set_decides(tmp_path):
    rng = np.random.default_rng(0)
    run = write_manifest(tmp_path / "run", [[0, 1], [2, 3]])

    def part(step, sunk):
        labels = np.repeat(np.arange(2 * (step + 1)), 40)
        logits = rng.normal(size=(len(labels), 4)) + 6 * np.eye(4)[labels]
        logits[:, :2] -= sunk * step
        return {"logits": logits, "labels": labels}

    for sunk, use in ((3.0, DEFAULT), (0.0, "energy")):
        for step in range(2):
            write_step(run.path, step, test=part(step, sunk), calibration=part(step, sunk), ood={})
        verdict = audit(run).verdict
        assert (verdict.advice.use, verdict.advice.basis) == (use, "calibration")
        assert (
            "no OOD sets" in verdict.card()["lost"]
            and "from the calibration set alone" in verdict.card()["from logits"]
        )
    result = tood("audit", run.path)
    assert result.returncode == 0 and "calibration set alone" in " ".join(result.stdout.split())


def test_figures_of_the_verdict_equal_a_computation_by_hand(gap_run):
    found = audit(Run(gap_run), LOGITS_ONLY).verdict
    tasks, groups = Run(gap_run).partition.tasks, {"near": ["near_a"], "far": ["far_a", "far_b"]}

    def by_hand(step, task):
        outputs = gap_run / f"steps/{step:02d}/outputs"
        seen = sorted(column for columns in tasks[: step + 1] for column in columns)
        energy = lambda file: np.logaddexp.reduce(np.load(file)["logits"][:, seen].astype(float), axis=1)  # noqa: E731
        known = energy(outputs / "test.npz")[np.isin(np.load(outputs / "test.npz")["labels"], tasks[task])]
        sets = {g: [auroc(known, energy(outputs / f"ood/{n}.npz")) for n in names] for g, names in groups.items()}
        return (np.mean(sets["near"]) + np.mean(sets["far"])) / 2

    lost = [by_hand(task, task) - by_hand(3, task) for task in range(3)]
    np.testing.assert_allclose(found.by_task, lost, atol=1e-6)
    assert found.judgements[-1].loss.value == pytest.approx(np.mean(lost), abs=1e-6)
    average = np.mean([np.mean([by_hand(step, task) for task in range(step + 1)]) for step in range(4)])
    assert found.advice.energy["all"].value == pytest.approx(average, abs=0.01)  # on half of the OOD samples


def test_plain_audit_writes_what_measure_writes(gap_run):
    found = audit(Run(gap_run))
    written = Run(gap_run).metrics_path.read_bytes()
    assert load_metrics(gap_run).equals(found.table)
    measure(Run(gap_run))
    assert Run(gap_run).metrics_path.read_bytes() == written
    audit(Run(gap_run), ["energy"])  # chosen detectors leave the file alone
    assert Run(gap_run).metrics_path.read_bytes() == written


def test_chosen_detectors_are_kept_if_there_are_no_figures_yet(gap_run, tmp_path):
    found = audit(Run(gap_run), ["msp"])
    assert load_metrics(gap_run).equals(found.table) and read_verdict(Run(gap_run))["card"] == found.verdict.card()
    result = tood("report", gap_run, "--out", tmp_path / "report")
    assert result.returncode == 0 and (tmp_path / "report/report.html").exists()


def test_figures_of_other_outputs_are_replaced(gap_run):
    audit(Run(gap_run))
    file = gap_run / "steps/03/outputs/ood/far_a.npz"
    arrays = dict(np.load(file))
    np.savez(file, **{**arrays, "logits": 3 * arrays["logits"]})
    found = audit(Run(gap_run), ["energy"])
    assert "metrics.parquet was of other outputs and has been replaced" in found.verdict.notes
    assert load_metrics(gap_run).equals(found.table) and read_verdict(Run(gap_run))["card"] == found.verdict.card()


def test_the_advice_does_not_depend_on_the_order_of_ood_samples(tmp_path):
    """Every second OOD sample is of another kind, which energy alone accepts."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 60)
    known = rng.normal(size=(240, 4)) + 8 * np.eye(4)[labels]
    strange = rng.normal(size=(400, 4))
    strange[1::2] += 7
    advised = {}
    for name, order in (("alternating", np.arange(400)), ("shuffled", rng.permutation(400))):
        run = write_manifest(tmp_path / name, [[0, 1, 2, 3]], far=["strange"])
        part = {"logits": known, "labels": labels}
        write_step(run.path, 0, test=part, calibration=part, ood={"strange": strange[order]})
        advised[name] = audit(run, ["energy", "msp"]).verdict.advice
    assert advised["alternating"].best == advised["shuffled"].best == "msp"
    first, second = (advice.energy["all"].value for advice in advised.values())
    assert first == pytest.approx(second, abs=0.05)


def test_one_task_and_one_group(tmp_path):
    run = write_manifest(tmp_path / "run", [[0, 1], [2, 3]], far=["noise"])
    rng = np.random.default_rng(0)
    part = {"logits": rng.normal(size=(40, 2)) + 4 * np.eye(2)[np.arange(40) % 2], "labels": np.arange(40) % 2}
    write_step(run.path, 0, test=part, calibration=part, ood={"noise": rng.normal(size=(30, 2))})
    found = audit(run)
    assert found.verdict.card()["lost"] == "Not known: one task has been learned."
    values = trajectory(found.table, "energy")
    assert values.average() == values.balanced().average() == values.group("far").average()


def test_what_cannot_be_audited(tmp_path, gap_run, shared_run):
    shutil.rmtree(gap_run / "steps/01/outputs")
    with pytest.raises(ToodError, match=r"expected the outputs of every step from 0 on.*found steps \[0, 2, 3\]"):
        audit(Run(gap_run))
    with pytest.raises(ToodError, match="found none"):
        audit(write_manifest(tmp_path / "empty", [[0], [1]], far=["a"]))
    with pytest.raises(ToodError, match="unknown detector 'enrgy'; did you mean 'energy'"):
        audit(Run(shared_run), ["enrgy"])


def test_command_prints_a_card_then_the_best_scores(gap_run):
    given = ("audit", gap_run, "--detectors", "energy,tood_robust_anchor")
    result = tood(*given, env={**os.environ, "COLUMNS": "80"})
    assert result.returncode == 0 and result.stderr == ""
    assert max(map(len, result.stdout.splitlines())) <= 80
    card, table = result.stdout.split("3 best of 3 scores", 1)
    rows = [line.split()[0] for line in card.splitlines() if line[:1].strip()]
    assert rows[:5] == ["Lost", "Cause", "From", "Kept", "Note"]  # note: columns of later tasks are ignored
    assert "Confidence gap" in card and "Energy" in table and "tood report" in table
    assert "Calibration set:" not in result.stdout and "Calibration set:" in tood(*given, "--full").stdout


def test_command_prints_json(gap_run):
    result = tood("audit", gap_run, "--detectors", "energy", "--json")
    found = json.loads(result.stdout)
    assert found["verdict"]["cause"] == "confidence gap" and set(found["verdict"]["card"]) == {
        "lost",
        "cause",
        "from logits",
        "kept decision",
    }
    assert {record["row"] for record in found["figures"] if record["table"] == "stream-main"} == {
        "accuracy",
        "energy",
        DEFAULT,
    }


def test_command_gives_one_line_while_another_process_writes(gap_run):
    with Run(gap_run).lock():
        result = tood("audit", gap_run)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.startswith(f"tood: {gap_run}: another process ") and result.stderr.count("\n") == 1


BOUND = """
import ctypes, sys
# Root is bound by no permission until it gives up the capabilities to override them.
libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc.capget(header, sets)
sets[0] &= ~6
sets[1] &= ~6
libc.capset(header, sets)
"""
AUDIT = BOUND + "from tood.cli import main; sys.argv[1:1] = ['audit', '--full']; main()"
MEASURE = BOUND + "from tood.evaluation import measure; from tood.outputs import Run; measure(Run(sys.argv[1]))"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="capabilities are Linux's")
def test_read_only_directory_is_judged_and_left_as_it_is(gap_run):
    before = {p: p.stat().st_mtime_ns for p in gap_run.rglob("*[!k]")}
    folders = [gap_run, *(path for path in gap_run.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        shown, refused = (python(code, gap_run) for code in (AUDIT, MEASURE))
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert shown.returncode == 0, shown.stderr
    assert "Confidence gap" in shown.stdout
    assert "cannot be written: the metrics are shown but not kept" in " ".join(shown.stdout.split())
    assert "scores/msp.npz: cannot be written (Permission denied)" in refused.stderr.splitlines()[-1]
    assert {path: path.stat().st_mtime_ns for path in gap_run.rglob("*[!k]")} == before
