"""What a stranger's configuration or run directory can make tood do: nothing, before it is refused."""

import os
import signal
import sys
import time

import pytest
from tests.processes import Process, tood

from tood import ToodError, detectors, learners, models, streams
from tood.outputs.directory import is_locked
from tood.runs.config import RunConfig
from tood.storage.yaml_files import write_yaml


def test_only_factories_of_streams_are_called():
    for stream in (
        {"stream": "os:system", "command": "touch ran"},
        "os:getcwd",
        {"stream": "subprocess:Popen", "args": "ls"},
    ):
        with pytest.raises(ToodError, match="expected a function annotated '-> Stream', or registered"):
            streams.load(stream)
    with pytest.raises(ToodError, match=r"network 'subprocess:Popen': expected a subclass of torch\.nn\.Module"):
        models.create("subprocess:Popen", (8, 8, 1))
    for registry in (detectors.base.REGISTRY, learners.base.LEARNERS):
        with pytest.raises(ToodError, match="expected a subclass of tood"):
            registry.get("subprocess:Popen")
    assert streams.load("tood.streams.bundled:open_digits").name == "open_digits"


@pytest.fixture
def trap(tmp_path):
    """A folder with a module that leaves a file when it is imported."""
    (tmp_path / "trap.py").write_text("open('imported', 'w')")
    return tmp_path


def test_a_dry_run_and_a_status_import_nothing_of_the_users(trap):
    names = "{learner: 'trap:X', stream: 'trap:f', detectors: ['trap:Y'], network: 'trap:Z'}"
    (trap / "run.yaml").write_text(names)
    (trap / "sweep.yaml").write_text(f"also: [{names}]")
    planned = tood("run", "run.yaml", "--dry-run", cwd=trap)
    assert planned.returncode == 0 and "trap:f, trap:X, trap:Z, trap:Y: a dry run imports nothing" in planned.stdout
    assert "waiting" in tood("sweep", "sweep.yaml", "--status", cwd=trap).stdout
    assert not (trap / "imported").exists()


def test_a_strangers_run_is_refused_before_its_classes_are_imported(trap):
    (trap / "run").mkdir()
    write_yaml(trap / "run" / "config.yaml", RunConfig(learner="trap:X", network="mlp").to_mapping())
    refused = tood("run", "--preset", "smoke", "--out", "run", cwd=trap)
    assert refused.returncode == 1 and "was made with learner = 'trap:X'" in refused.stderr
    assert not (trap / "imported").exists()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="python -P is new in 3.11")
def test_workers_do_not_import_modules_of_the_current_folder_in_place_of_others(tmp_path):
    (tmp_path / "numpy.py").write_text("raise SystemExit('replaced')")
    (tmp_path / "s.yaml").write_text("also: [{preset: smoke, learner: finetune, tasks: 2, detectors: [energy]}]")
    done = tood("sweep", "s.yaml", "--out", "runs", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_cells_end_with_a_sweep_that_is_killed(tmp_path):
    (tmp_path / "s.yaml").write_text("also: [{preset: smoke, learner: finetune, settings: {epochs: 300}}]")
    sweep = Process(["sweep", tmp_path / "s.yaml", "--out", tmp_path / "runs"])
    folders = []
    while not (folders := list(tmp_path.glob("runs/*/steps"))) and sweep.running():
        time.sleep(0.1)
    assert is_locked(folders[0].parent)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.wait(timeout=60)
    deadline = time.monotonic() + 60
    while is_locked(folders[0].parent):
        assert time.monotonic() < deadline, "the cell is still running"
        time.sleep(0.1)
