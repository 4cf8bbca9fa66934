"""What every command does with a full disk, and with a file that holds more than it should."""

import io
import json
import re
import shutil
import sys
import tracemalloc
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
from click.testing import CliRunner
from tests.made_runs import make_run

from tood.cli import cli
from tood.evaluation import Scorer, measure
from tood.outputs import Run

resource = pytest.importorskip("resource", reason="limits of file sizes are POSIX")
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(600, 4)) + 4 * np.eye(4)[np.arange(600) % 4]
TASKS = "[[0, 1], [2, 3]]"


@contextmanager
def room(size):
    """No file may become larger than ``size`` bytes: what a full disk looks like to a program."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # Python would keep truncated .pyc files
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = bytecode


def tood(*arguments):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A measured run, a calibrator, logits and a state of the monitor. Nobody changes them."""
    folder = tmp_path_factory.mktemp("made")
    make_run(folder / "runs" / "run", gap=2.0, per_class=10, ood_count=30, seed=0)
    measure(Run(folder / "runs" / "run"), [Scorer("energy"), Scorer("tood_mean_shift")])
    np.savez(folder / "cal.npz", logits=LOGITS, labels=np.arange(600) % 4)
    arguments = ["--tasks", TASKS, "--holdout", "0.5", "--out", folder / "cal.safetensors"]
    assert tood("calibrate", "--logits", folder / "cal.npz", *arguments).exit_code == 0
    return folder


WRITING = {
    "audit": ["audit", "{new}/run", "--detectors", "energy"],
    "report": ["report", "{made}/runs/run", "--out", "{new}"],
    "report --plots": ["report", "{made}/runs/run", "--plots", "--out", "{new}"],
    "ablate": ["ablate", "{made}/runs/run", "--only", "margin", "--no-plots", "--out", "{new}"],
    "toy": ["toy", "--seeds", "0", "--no-figure", "--out", "{new}"],
    "run": ["run", "--preset", "smoke", "--set", "epochs=1", "--detectors", "energy", "--out", "{new}"],
    "sweep": ["sweep", "{made}/sweep.yaml", "--out", "{new}"],
    "calibrate": ["calibrate", "--logits", "{made}/cal.npz", "--tasks", TASKS, "--out", "{new}/c"],
    "score": ["score", "--calibrator", "{made}/cal.safetensors", "--in", "{made}/cal.npz", "--out", "{new}/s.parquet"],
    "monitor": [
        *("monitor", "--state", "{new}/m", "--calibrator", "{made}/cal.safetensors"),
        *("--reference", "{made}/cal.npz", "--in", "{made}/cal.npz"),
    ],
}


@pytest.mark.parametrize("name", WRITING)
def test_on_a_full_disk_the_file_is_named(made, tmp_path, name):
    (made / "sweep.yaml").write_text("base: {preset: smoke, settings: {epochs: 1}}\ngrid: {seed: [0]}")
    new = tmp_path / "new"
    shutil.copytree(made / "runs", new)
    with room(60):
        done = tood(*(argument.format(made=made, new=new) for argument in WRITING[name]))
    assert done.exit_code == 1
    said = str(done.exception) if not isinstance(done.exception, SystemExit) else done.stderr
    assert re.search(r"(^|: )/\S+: .*cannot be written \(File too large\)", said), said
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.fixture(scope="module")
def bombs(made, tmp_path_factory):
    """A run, logits and a stream; each file has an array too many: 64 MB, and little on the disk."""
    folder = tmp_path_factory.mktemp("bombs")
    shutil.copytree(made / "runs" / "run", folder / "run")
    shutil.copyfile(made / "cal.npz", folder / "cal.npz")
    shutil.copyfile(made / "cal.safetensors", folder / "c0")
    arrays = {"train": LOGITS, "train_labels": np.arange(600) % 4, "ood_far_x": LOGITS}
    np.savez(folder / "stream.npz", test=LOGITS, test_labels=np.arange(600) % 4, **arrays)
    audit = [argument.format(here=folder) for argument in READING["audit"]]
    assert tood(*audit).exit_code == 0  # keeps scores; and what is imported now takes no memory later
    bomb = io.BytesIO()
    np.save(bomb, np.zeros(1 << 23))
    for file in folder.rglob("*.npz"):
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("unused.npy", bomb.getbuffer())
    return folder


READING = {
    "audit": ["audit", "{here}/run", "--detectors", "energy,react"],
    "report": ["report", "{here}/run", "--tables"],
    "ablate": ["ablate", "{here}/run", "--only", "margin", "--no-plots", "--out", "{here}/out"],
    "calibrate": ["calibrate", "--logits", "{here}/cal.npz", "--tasks", TASKS, "--out", "{here}/c"],
    "score": ["score", "--calibrator", "{here}/c0", "--in", "{here}/cal.npz", "--out", "{here}/s.parquet"],
    "monitor": ["monitor", "--state", "{here}/m", "--calibrator", "{here}/c0", "--reference", "{here}/cal.npz"],
    "run": ["run", "{here}/run.yaml", "--dry-run"],
}


@pytest.mark.parametrize("name", READING)
def test_an_array_that_nobody_asked_for_takes_no_memory(bombs, tmp_path, name):
    here = tmp_path / "here"
    shutil.copytree(bombs, here)
    described = {"stream": {"npz": str(here / "stream.npz"), "tasks": 2}, "learner": "er"}
    (here / "run.yaml").write_text(json.dumps(described))
    tracemalloc.start()
    try:
        done = tood(*(argument.format(here=here) for argument in READING[name]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if name == "run":  # a stream's file has arrays of known names and no others
        assert "unknown array" in str(done.exception)
    else:
        assert done.exit_code == 0, done.output
    assert peak < 40 << 20
