import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tood import ToodError
from tood.audit import audit
from tood.metrics import auroc
from tood.runs import Run, load_metrics, measure, trajectory, write_manifest, write_step

pytest.importorskip("pyarrow")

LOGITS_ONLY = ["energy", "tood_robust_anchor"]


def tood(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "tood.cli", *map(str, arguments)], capture_output=True, text=True, timeout=120, **options
    )


@pytest.mark.parametrize(
    ("truth", "cause"),
    [
        ({"gap": 2.5}, "confidence gap"),
        ({"crowding": 0.9}, "crowding"),
        ({}, "none"),
        ({"gap": 0.8, "crowding": 0.95}, "confidence gap and crowding"),
        ({"fading": 0.6}, "lost features"),
    ],
)
def test_the_cause_is_what_the_run_was_made_with(build, tmp_path, truth, cause):
    found = audit(Run(build(tmp_path / "run", **truth)), LOGITS_ONLY)
    assert found.verdict.cause == cause, found.verdict


def test_gap_is_seen_in_the_energies_and_repaired(build, tmp_path):
    found = audit(Run(build(tmp_path / "run", gap=2.5)), LOGITS_ONLY).verdict
    # Own channels sink by 2.5 a step, by construction; so does what the audit reads from either set.
    for energies in (found.gap.test, found.gap.calibration):
        np.testing.assert_allclose(np.diff(energies), 2.5, atol=0.6)
    assert found.recommended is not None
    assert found.recommended.average > found.average + 0.02
    assert abs(found.recommended.forgetting) < 0.01 < found.forgetting
    assert found.by_task[0] == max(found.by_task)  # the oldest task has sunk furthest
    assert abs(found.distances.lost) < 0.01  # the features have not changed


def test_crowding_is_seen_in_the_features_and_not_repaired(build, tmp_path):
    found = audit(Run(build(tmp_path / "run", crowding=0.9)), LOGITS_ONLY).verdict
    assert np.ptp(found.gap.test) < 0.6
    assert found.distances.lost > 0.2 and found.distances.ratio[-1] < 0.5 * found.distances.ratio[0]
    assert max(repair.forgetting for repair in found.repairs) > 0.5 * found.forgetting


def test_a_gap_costs_no_accuracy_within_a_task_and_lost_features_do(build, tmp_path):
    sunk = audit(Run(build(tmp_path / "gap", gap=2.5)), LOGITS_ONLY).verdict
    assert sunk.accuracy_forgetting > 0.1 and sunk.within_task == 0
    faded = audit(Run(build(tmp_path / "fading", fading=0.6)), LOGITS_ONLY).verdict
    assert faded.within_task > 0.1


def test_without_features_crowding_cannot_be_told(build, tmp_path):
    found = audit(Run(build(tmp_path / "run", crowding=0.9, features=False, fit=False)), LOGITS_ONLY).verdict
    assert found.cause == "something else" and found.distances is None
    assert "no features were given, so crowding cannot be told" in found.sentences()[1]


def test_healthy_run_is_advised_to_keep_energy(build, tmp_path):
    found = audit(Run(build(tmp_path / "run")), LOGITS_ONLY).verdict
    assert found.recommended is None and abs(found.forgetting) < 0.005


def test_calibration_set_that_hides_the_gap_is_found_out(build, tmp_path):
    run = Run(build(tmp_path / "run", gap=2.5, hidden=0.9))
    assert audit(run, LOGITS_ONLY).verdict.hides_gap()
    other = audit(run, LOGITS_ONLY, calibration="memory").verdict  # these show all of it
    assert other.calibration == "memory" and not other.hides_gap()
    assert max(r.average for r in other.repairs) > 0.99


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
    assert found.forgetting == pytest.approx(np.mean(lost), abs=1e-6)
    average = np.mean([np.mean([by_hand(step, task) for task in range(step + 1)]) for step in range(4)])
    assert found.average == pytest.approx(average, abs=1e-6)


def test_plain_audit_writes_what_measure_writes(gap_run):
    found = audit(Run(gap_run))
    written = Run(gap_run).metrics_path.read_bytes()
    assert load_metrics(gap_run).equals(found.table)
    measure(Run(gap_run))
    assert Run(gap_run).metrics_path.read_bytes() == written
    audit(Run(gap_run), ["energy"])  # chosen detectors leave the file alone
    assert Run(gap_run).metrics_path.read_bytes() == written


def test_one_task_and_one_group(tmp_path):
    run = write_manifest(tmp_path / "run", [[0, 1], [2, 3]], far=["noise"])
    rng = np.random.default_rng(0)
    part = {"logits": rng.normal(size=(40, 2)) + 4 * np.eye(2)[np.arange(40) % 2], "labels": np.arange(40) % 2}
    write_step(run.path, 0, test=part, calibration=part, ood={"noise": rng.normal(size=(30, 2))})
    found = audit(run)
    assert found.verdict.sentences() == ["One task has been learned: there is nothing yet to forget."]
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


def test_command_says_words_first_then_tables(gap_run, tmp_path):
    result = tood("audit", gap_run, "--detectors", "energy,tood_robust_anchor", "--out", tmp_path / "out")
    assert result.returncode == 0 and result.stderr == ""
    words, tables = result.stdout.split("AUROC of energy by step and task", 1)
    assert words.startswith("Energy has lost") and "It is the confidence gap" in words
    assert "tood_robust_anchor" in tables and "Note: " in tables
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"verdict.json", "verdict.md", "tables.md", "tables.csv", "metrics.parquet", "stream-main.tex"} <= files
    assert json.loads((tmp_path / "out/verdict.json").read_text())["cause"] == "confidence gap"


def test_command_prints_json(gap_run):
    result = tood("audit", gap_run, "--detectors", "energy", "--json")
    found = json.loads(result.stdout)
    assert found["verdict"]["cause"] == "confidence gap" and len(found["verdict"]["sentences"]) == 4
    assert {record["row"] for record in found["figures"] if record["table"] == "stream-main"} == {
        "accuracy ↑",
        "energy",
    }


def test_command_gives_one_line_for_bad_input(gap_run):
    manifest = json.loads((gap_run / "manifest.json").read_text())
    (gap_run / "manifest.json").write_text(json.dumps(manifest | {"format": 9}))
    result = tood("audit", gap_run)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr == f"tood: {gap_run}/manifest.json: format 9 is newer than 1: upgrade tood to read it\n"


def test_command_gives_one_line_while_another_process_writes(gap_run):
    with Run(gap_run).lock():
        result = tood("audit", gap_run)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.startswith(f"tood: {gap_run}: another process (pid ") and result.stderr.count("\n") == 1


BOUND = """
import ctypes, sys
# Root is bound by no permission until it gives up the capabilities to override them.
libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc.capget(header, sets)
sets[0] &= ~6
sets[1] &= ~6
libc.capset(header, sets)
"""
AUDIT = BOUND + "from tood.cli import main; sys.argv[1:1] = ['audit']; main()"
MEASURE = BOUND + "from tood.runs import Run, measure; measure(Run(sys.argv[1]))"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="capabilities are Linux's")
def test_read_only_directory_is_judged_and_left_as_it_is(gap_run):
    before = {path: path.stat().st_mtime_ns for path in gap_run.rglob("*[!k]")}
    folders = [gap_run, *(path for path in gap_run.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        shown, refused = (
            subprocess.run([sys.executable, "-c", code, gap_run], capture_output=True, text=True, timeout=120)
            for code in (AUDIT, MEASURE)
        )
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert shown.returncode == 0, shown.stderr
    assert "It is the confidence gap" in shown.stdout
    assert f"Note: {gap_run} cannot be written: the figures are shown and not kept." in shown.stdout
    assert "scores/msp.npz: cannot be written (Permission denied)" in refused.stderr.splitlines()[-1]
    assert {path: path.stat().st_mtime_ns for path in gap_run.rglob("*[!k]")} == before  # all but .lock
