import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile

import numpy as np
import pytest
from tests.made_runs import without_digest

from tood import ToodError
from tood.outputs import Run, Step, find_runs, write_manifest, write_step
from tood.outputs.directory import is_locked
from tood.storage.npz import read_npz, write_npz

HOLD = """
import sys, time
from tood.outputs import Run
with Run(sys.argv[1]).lock():
    print("locked", flush=True)
    time.sleep(60)
"""

LOOK = """
import sys
from pathlib import Path
from tood.outputs.directory import is_locked
print("looking", flush=True)
while True:
    is_locked(Path(sys.argv[1]))
"""


def hold_lock(path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    return process


def small_step(value=0.0):
    logits = np.full((4, 2), value)
    return {
        "test": {"logits": logits, "labels": [0, 1, 0, 1]},
        "calibration": {"logits": logits, "labels": [0, 1, 0, 1]},
        "ood": {"noise": logits},
    }


@pytest.fixture
def small(tmp_path):
    write_manifest(tmp_path / "run", [[0, 1], [2, 3]], far=["noise"])
    without_digest(tmp_path / "run")
    return tmp_path / "run"


def test_manifest_is_the_documented_json(small):
    assert json.loads((small / "manifest.json").read_text()) == {
        "format": 1,
        "tasks": [[0, 1], [2, 3]],
        "ood": {"near": [], "far": ["noise"]},
        "digest": None,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2 is newer than 1: upgrade tood"),
        ({"format": "1"}, "format: expected 1, found '1'"),
        ({"tasks": None}, "the key 'tasks' is missing"),
        ({"ood": None}, "the key 'ood' is missing"),
        ({"tasks": [[0, 1], [1, 2]]}, "column 1 is in task 0 and in task 1"),
        ({"ood": {"close": ["a"]}}, "ood: expected"),
        ({"ood": {"near": ["noise"], "far": "svhn"}}, "ood: expected"),
        ({"ood": {"near": ["../a"]}}, "found '../a'"),
        ({"ood": {"near": ["a"], "far": ["a"]}}, "expected distinct names, found 'a' twice"),
    ],
)
def test_bad_manifest_names_the_file_and_what_is_wrong(small, change, message):
    content = json.loads((small / "manifest.json").read_text()) | change
    content = {key: value for key, value in content.items() if value is not None}
    (small / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(ToodError, match=r"manifest\.json") as error:
        Run(small)
    assert message in str(error.value)


def test_manifest_that_is_absent_or_not_json(small):
    (small / "manifest.json").write_text('{"format": 1,')
    with pytest.raises(ToodError, match="cannot be read as JSON"):
        Run(small)
    (small / "manifest.json").unlink()
    with pytest.raises(ToodError, match="no such file"):
        Run(small)
    with pytest.raises(ToodError, match=r"found no manifest\.json"):
        find_runs([small])


def test_runs_are_found_below_a_parent(tmp_path):
    for name in ("b", "a"):
        write_manifest(tmp_path / name, [[0]])
    assert [run.path.name for run in find_runs([tmp_path, tmp_path / "a"])] == ["a", "b"]


def test_npz_bytes_depend_on_the_arrays_alone(tmp_path):
    arrays = {"logits": np.arange(6.0).reshape(2, 3), "labels": np.array([0, 1])}
    write_npz(tmp_path / "a.npz", arrays)
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    write_npz(tmp_path / "b.npz", arrays)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert read_npz(tmp_path / "a.npz")[1] == read_npz(tmp_path / "b.npz")[1]


def test_nothing_is_unpickled(tmp_path):
    np.savez(tmp_path / "bad.npz", logits=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ToodError, match=r"bad\.npz: truncated, .*logits.npy: expected numbers, found Python objects"):
        read_npz(tmp_path / "bad.npz")


def test_second_process_gets_one_clear_line(small):
    process = hold_lock(small)
    try:
        assert is_locked(small)
        with pytest.raises(ToodError, match="another process is writing this run"):
            write_step(small, 0, **small_step())
        assert not (small / "steps").exists()
    finally:
        process.kill()
        process.wait()


def test_lock_dies_with_its_owner(small):
    process = hold_lock(small)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not is_locked(small)
    write_step(small, 0, **small_step())
    assert Run(small).steps() == [0]


def test_step_appears_whole_or_not_at_all(small, monkeypatch):
    write_step(small, 0, **small_step(1.0))

    def fails(path, arrays):
        if path.name == "noise.npz":
            raise ToodError("no room")
        write_npz(path, arrays)

    monkeypatch.setattr("tood.outputs.steps.write_npz", fails)
    with pytest.raises(ToodError, match="no room"):
        write_step(small, 0, **small_step(2.0))
    assert (Step(Run(small), 0).test.logits == 1.0).all()  # the old one is as it was
    assert sorted(p.name for p in (small / "steps/00").iterdir()) == ["outputs"]


FILL = """
import resource, sys
import numpy as np
from tood.errors import ToodError
from tood.outputs import write_step
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
logits = np.random.default_rng(0).normal(size=(5000, 2))
half = {"logits": logits, "labels": np.arange(5000) % 2}
try:
    write_step(sys.argv[1], 0, test=half, calibration=half, ood={"noise": logits})
except ToodError as error:
    print(error)
"""


def test_full_disk_is_one_line_and_loses_nothing(small):
    write_step(small, 0, **small_step(1.0))
    before = {p: p.read_bytes() for p in small.rglob("*.npz")}
    result = subprocess.run([sys.executable, "-c", FILL, str(small)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and result.stderr == ""
    (line,) = result.stdout.splitlines()
    assert "test.npz: cannot be written (File too large)" in line
    assert {p: p.read_bytes() for p in small.rglob("*.npz")} == before
    assert not list(small.rglob("*.tmp")) and not list(small.rglob(".outputs*"))


KILLED = """
import sys, numpy as np
from tood.outputs import write_step
rng = np.random.default_rng(0)
logits = rng.normal(size=(20_000, 2))
half = {"logits": logits, "labels": np.arange(20_000) % 2}
print("go", flush=True)
while True:
    write_step(sys.argv[1], 0, test=half, calibration=half, ood={"noise": logits})
"""


@pytest.mark.parametrize("delay", [0.0, 0.03])
def test_killed_writer_leaves_a_whole_step_or_none(small, delay):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(small)], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    time.sleep(delay)
    process.kill()
    process.wait()
    run = Run(small)
    for index in run.steps():
        step = Step(run, index)
        assert len(step.test.logits) == len(step.ood["noise"].logits) == len(step.calibration().logits) == 20_000
    write_step(small, 0, **small_step())  # and writing goes on
    assert not list(small.rglob(".outputs*"))


@pytest.mark.parametrize(
    ("entry", "source"), [({"source": "memory"}, "memory"), ("train", "train"), ({}, "given"), (None, "given")]
)
def test_the_source_of_the_calibration_set(tmp_path, entry, source):
    write_manifest(tmp_path, [[0], [1]], near=["noise"], **({} if entry is None else {"calibration": entry}))
    assert Run(tmp_path).calibration == source


def test_a_lock_is_released_and_shared_by_the_threads_of_a_process(small, tmp_path):
    assert not is_locked(tmp_path)
    run, entered = Run(small), []

    def enter():
        with run.lock():
            entered.append(True)

    with run.lock():
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        assert entered == [True]
    assert not is_locked(small)


def test_looking_at_a_lock_does_not_stop_who_wants_it(small):
    run = Run(small)
    process = subprocess.Popen([sys.executable, "-c", LOOK, str(small)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "looking\n"
        for _ in range(200):
            with run.lock():
                pass
    finally:
        process.kill()
        process.wait()


def test_a_manifest_is_not_replaced_under_steps_of_other_tasks(tmp_path):
    run = write_manifest(tmp_path / "run", [[0], [1]], near=["a"])
    part = {"logits": np.random.default_rng(0).normal(size=(4, 2)), "labels": np.arange(4) % 2}
    write_step(run.path, 1, test=part, calibration=part, ood={"a": part["logits"]})
    with pytest.raises(ToodError, match="has steps of other tasks"):
        write_manifest(run.path, [[0, 1]], near=["a"])
    assert Run(run.path).partition.tasks == ((0,), (1,))
    write_manifest(run.path, [[0], [1]], near=["a"], learner="mine")
    with pytest.raises(ToodError, match="near: expected a list of names, found 'svhn'"):
        write_manifest(tmp_path / "other", [[0]], near="svhn")


def test_folders_of_steps_may_have_more_than_two_digits(tmp_path):
    run = write_manifest(tmp_path / "run", [[0], [1]], far=["noise"])
    for step, labels in enumerate(([0], [0, 1])):
        part = {"logits": np.eye(2)[labels], "labels": labels}
        write_step(run.path, step, test=part, calibration=part, ood={"noise": np.zeros((1, 2))})
        run.folder(step).rename(tmp_path / f"run/steps/{step:03d}")
    assert run.steps() == [0, 1]
    assert np.asarray(Step(run, 1).test.labels).tolist() == [0, 1]
