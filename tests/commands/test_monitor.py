import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from filelock import FileLock

from tood import TOOD, ToodError
from tood.commands.monitor import command
from tood.deploy import DriftMonitor

FIRST = ("--calibrator", "cal.safetensors", "--reference", "reference.npy", "--state", "m.safetensors")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)

    def draw(rows, shift=0.0):
        labels = rng.integers(0, 4, rows)
        return rng.normal(size=(rows, 4)) + 6 * np.eye(4)[labels] + shift, labels

    TOOD([[0, 1], [2, 3]]).fit(*draw(400)).save("cal.safetensors")
    np.save("reference.npy", draw(600)[0])
    np.save("same.npy", draw(600)[0])
    np.save("moved.npy", draw(400, shift=np.array([2.0, 2.0, 0, 0]))[0])
    return tmp_path


def run(*arguments, text=None):
    return CliRunner().invoke(command, [str(a) for a in arguments], input=text)


def test_files_are_what_the_monitor_gets(folder):
    run(*FIRST, "--alpha", 0.05)
    figures = json.loads(run("--state", "m.safetensors", "--in", "same.npy", "--in", "moved.npy", "--json").stdout)
    expected = DriftMonitor(TOOD.load("cal.safetensors"), alpha=0.05).fit(np.load("reference.npy"))
    for name in ("same.npy", "moved.npy"):
        rows = np.load(name)
        expected.update(rows, [f"{name}:{row}" for row in range(len(rows))])
    assert {name: figures[name] for name in expected.to_dict()} == json.loads(json.dumps(expected.to_dict()))
    assert figures["drift_detected"] and figures["drifted"] == [True, False]
    result = run("--state", "m.safetensors", "--in", "same.npy")
    assert "1,000 inputs so far" in result.stdout  # rows taken before are not taken again
    assert "task 0: accepted inputs have changed" in result.stdout
    assert "0 inputs so far" in run("--state", "m.safetensors", "--reset").stdout
    assert "600 inputs so far" in run("--state", "m.safetensors", "--in", "same.npy").stdout


def test_a_file_that_has_grown_is_refused(folder):
    run(*FIRST, "--in", "same.npy")
    np.save("same.npy", np.concatenate([np.load("same.npy"), np.load("moved.npy")]))
    result = run("--state", "m.safetensors", "--in", "same.npy")
    assert "same.npy: has changed since 600 of its rows were counted" in str(result.exception)
    assert DriftMonitor.load("m.safetensors").to_dict()["rows"] == 600


def test_a_replaced_file_of_the_same_size_and_time_is_refused(folder):
    run(*FIRST, "--in", "same.npy")
    before = os.stat("same.npy")
    np.save("same.npy", -np.load("same.npy"))
    os.utime("same.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "same.npy: has changed" in str(run("--state", "m.safetensors", "--in", "same.npy").exception)


@pytest.mark.parametrize("notes", ["1", '{"taken": 3}', '{"taken": {"a": [1]}}', '{"made_from": 1}', "[" * 99_999, "x"])
def test_notes_of_another_kind_are_refused(folder, notes):
    DriftMonitor(TOOD.load("cal.safetensors")).fit(np.load("reference.npy")).save("m.safetensors", notes=notes)
    with pytest.raises(ToodError, match=r"m\.safetensors: not a usable monitor: notes"):
        raise run("--state", "m.safetensors", "--in", "same.npy").exception


def test_json_lines_come_from_standard_input(folder):
    run(*FIRST)
    moved = np.load("moved.npy").tolist()
    text = "\n".join(json.dumps({"logits": row, "id": 3} if number % 2 else row) for number, row in enumerate(moved))
    result = run("--state", "m.safetensors", "--in", "-", text=text + "\n\n")
    assert "400 inputs so far" in result.stdout
    assert "ALARM at standard input, line " in result.stderr
    one = DriftMonitor.load("m.safetensors").report()
    assert one.drifted.tolist() == [True, False]
    result = run("--state", "m.safetensors", "--in", "-", text="[1, 2, 3, 4]\nnot json\n")
    assert "standard input, line 2: expected a list of 4 logits" in str(result.exception)
    result = run("--state", "m.safetensors", "--in", "-", text="[1, 2, null, 4]\n")
    assert "standard input, line 1" in str(result.exception)
    result = run("--state", "m.safetensors", "--in", "-", "--invalid", "reject", text="[1, 2, null, 4]\n")
    assert "invalid and left out: 1" in result.stdout


def test_a_killed_monitor_continues_where_it_was_saved(folder):
    code = """
import os, signal, sys
from tood.commands import monitor
from tood.deploy import logit_files
logit_files.BLOCK_BYTES, monitor.SAVE_SECONDS = 3200, 0
save, count = monitor._Watch.save, [0]
def saved(self):
    save(self)
    count[0] += 1
    if count[0] == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
monitor._Watch.save = saved
monitor.command(["--state", sys.argv[2], "--in", "same.npy", "--in", "moved.npy"])
"""
    for state in ("m", "whole"):
        run(*FIRST[:4], "--state", f"{state}.safetensors")
    start = lambda stop, state: subprocess.run([sys.executable, "-c", code, str(stop), f"{state}.safetensors"])  # noqa: E731
    assert start(4, "m").returncode == -signal.SIGKILL
    assert DriftMonitor.load("m.safetensors").report().rows == 400
    assert start(-1, "m").returncode == 0 and start(-1, "whole").returncode == 0
    assert DriftMonitor.load("m.safetensors").to_dict() == DriftMonitor.load("whole.safetensors").to_dict()


def test_wrong_usage_is_told(folder):
    assert "give --calibrator and --reference to make it" in run("--state", "m.safetensors").output
    run(*FIRST, "--alpha", 0.05)
    assert run(*FIRST, "--alpha", 0.05, "--in", "same.npy").exit_code == 0  # the same command: it continues
    assert "600 inputs so far" in run(*FIRST, "--in", "same.npy").stdout
    for changed in (("--alpha", 0.1), ("--reference", "same.npy"), ("--reject", 0.2)):
        result = run(*FIRST, *changed)
        assert result.exit_code == 2 and f"was made with another {changed[0]}" in result.output


def test_an_invalid_row_has_its_number_in_the_file(folder, monkeypatch):
    monkeypatch.setattr("tood.deploy.logit_files.BLOCK_BYTES", 3200)  # 100 rows
    logits = np.load("same.npy")
    logits[417, 2] = np.nan
    np.save("bad.npy", logits)
    assert "bad.npy: row 417, column 2: expected a finite number" in str(run(*FIRST, "--in", "bad.npy").exception)
    result = run("--state", "m.safetensors", "--in", "bad.npy", "--invalid", "reject")
    assert "599 inputs so far" in result.stdout and "left out: 1" in result.stdout
    new = ("--calibrator", "cal.safetensors", "--reference", "bad.npy", "--state", "new.safetensors")
    assert "bad.npy: row 417, column 2" in str(run(*new).exception)
    assert run(*new, "--invalid", "reject").exit_code == 0
    assert len(DriftMonitor.load("new.safetensors").reference) == 599


def test_rows_that_do_not_fit_are_told_with_their_place(folder):
    run(*FIRST)
    np.save("narrow.npy", np.zeros((5, 3)))
    assert "narrow.npy, rows 0 to 4: logits: expected 4 columns" in str(
        run("--state", "m.safetensors", "--in", "narrow.npy").exception
    )
    result = run("--state", "m.safetensors", "--in", "-", text="\n[1, 2, 3]\n")
    assert "standard input, line 2: expected a list of 4 logits" in str(result.exception)


def test_rows_of_standard_input_are_kept_when_a_line_is_bad(folder):
    rows = np.load("same.npy")[:50].tolist()
    result = run(*FIRST, "--in", "-", text="\n".join([*map(json.dumps, rows), "[1, 2]", json.dumps(rows[0])]))
    assert result.exit_code == 1 and "line 51" in str(result.exception)
    assert DriftMonitor.load("m.safetensors").to_dict()["rows"] == 50


def test_two_monitors_do_not_write_one_state(folder):
    run(*FIRST)
    with FileLock(".m.safetensors.lock"):
        for arguments in (("--reset",), ("--in", "same.npy")):
            assert "another `tood monitor` is using it" in str(run("--state", "m.safetensors", *arguments).exception)
        assert "0 inputs so far" in run("--state", "m.safetensors").stdout  # a report changes nothing
    assert "missing: no such folder" in str(run(*FIRST[:-1], "missing/m.safetensors").exception)


def test_lines_that_cannot_be_read_are_left_out_if_asked(folder):
    rows = np.load("same.npy")[:3].tolist()
    good = [json.dumps(row).encode() for row in rows[:2]]
    long, deep = b"[%s, 1, 2, 3]" % (b"9" * 400), b"[" * 100_000
    bad = [b"broken", b'{"other": 1}', long, b"9" * 5000, b"\xff\xfe[1]", b"[1, 2, 3]", b"[[1, 2, 3, 4]]", deep]
    result = run(*FIRST, "--in", "-", "--invalid", "reject", text=b"\n".join([good[0], *bad, good[1]]))
    assert result.exit_code == 0 and "2 inputs so far" in result.stdout and "left out: 8" in result.stdout
    for line in bad:
        with pytest.raises(ToodError, match="line 1: expected a list of 4 logits"):
            raise run("--state", "m.safetensors", "--in", "-", text=line).exception


def test_drift_is_an_exit_code_if_asked(folder):
    assert run(*FIRST, "--in", "same.npy", "--fail-on-drift").exit_code == 0
    assert run("--state", "m.safetensors", "--in", "moved.npy").exit_code == 0  # the default
    for quiet in ((), ("--quiet",), ("--json",)):
        result = run("--state", "m.safetensors", "--fail-on-drift", *quiet)
        assert result.exit_code == 1
        assert result.stderr == "tood: m.safetensors: drift detected, so the exit code is 1 (--fail-on-drift)\n"
    assert json.loads(result.stdout)["drift_detected"] is True
    assert DriftMonitor.load("m.safetensors").report().rows == 1000
    assert run("--state", "m.safetensors", "--reset", "--fail-on-drift").exit_code == 0
