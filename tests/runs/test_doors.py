"""What a user adds goes through run and sweep like what is built in: by path, in worker processes too."""

import numpy as np
import pytest
import torch
from tests.processes import tood

from tood import ToodError
from tood.evaluation import load_metrics
from tood.outputs import Run
from tood.runs import RunConfig, run
from tood.streams import Stream

MINE = '''
import numpy as np
from torch.nn.functional import cross_entropy
from tood import detectors, learners, streams

@learners.register
class Half(learners.Learner):
    """Half of the cross-entropy."""
    name, title = "half", "Half"
    def loss(self, batch, logits):
        return cross_entropy(logits, batch.columns) / 2

@detectors.register
class Gap(detectors.Detector):
    """Lead of the largest logit over the second."""
    name, title, citation = "gap_of_two", "Gap", "None."
    needs, fits_on = frozenset({"logits"}), "none"
    def _score(self, rows, prepared):
        ordered = np.sort(rows.logits, axis=1)
        return ordered[:, -1] - ordered[:, -2]

def blobs(tasks=3, order="label") -> streams.Stream:
    rng = np.random.default_rng(0)
    y = np.arange(120) % 6
    x = 4 * rng.normal(size=(6, 10))[y] + rng.normal(size=(120, 10))
    ood = {"near": {"between": x[:20] / 2}, "far": {"noise": 8 * rng.normal(size=(20, 10))}}
    return streams.Stream.from_arrays(x, y, x[:60], y[:60], tasks=tasks, order=order, ood=ood)
'''
SWEEP = """
base: {stream: "mine:blobs", preset: smoke, detectors: [energy, "mine:Gap"], tasks: 2}
grid: {learner: ["mine:Half", finetune]}
"""


def test_a_sweep_of_one_s_own_learner_stream_and_detector(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    done = tood("sweep", "sweep.yaml", "--out", "runs", "--workers", "2", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    runs = {Run(path).identity.learner: path for path in sorted((tmp_path / "runs").glob("blobs-*"))}
    assert runs.keys() == {"half", "finetune"} and runs["half"].name.startswith("blobs-Half-smoke-s0-")
    for path in runs.values():
        rows = load_metrics(path).to_pylist()
        assert {row["detector"] for row in rows} == {None, "energy", "gap_of_two"}
        assert Run(path).manifest["stream"] == "blobs" and len(Run(path).steps()) == 2
    assert Run(runs["half"]).manifest["learner_title"] == "Half"
    wrong = tood("run", "--learner", "mine:Hlf", "--preset", "smoke", cwd=tmp_path)
    assert wrong.returncode == 1 and "did you mean 'Half'?" in wrong.stderr and wrong.stderr.count("\n") == 1


def test_a_stream_object_goes_through_a_run(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(80, 5)), np.arange(80) % 4
    stream = Stream.from_arrays(x, y, x, y, tasks=2, ood={"far": {"noise": x[:9]}}, name="mine")
    config = RunConfig(learner="finetune", preset="smoke", detectors=("energy",))
    made = run(config, tmp_path / "run", stream=stream, say=str)
    assert made.stream == "mine" and len(made.steps()) == 2 and made.ood == {"noise": "far"}
    with pytest.raises(ToodError, match="a stream of your own has its tasks, order and OOD sets"):
        run(RunConfig(tasks=2), tmp_path / "run", stream=stream)
    alone = Stream.from_arrays(x, y, x, y, tasks=2)
    with pytest.raises(ToodError, match="expected at least one near- or far-OOD set"):
        run(config, tmp_path / "other", stream=alone)


def test_chosen_ood_sets_and_devices_that_are_not_there(tmp_path):
    arguments = ["run", "--preset", "smoke", "--learner", "finetune", "--detectors", "energy", "--tasks", "2"]
    done = tood(*arguments, "--ood", "noise", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0 and Run(tmp_path / "run").ood == {"noise": "far"}

    if not torch.cuda.is_available():
        wrong = tood(*arguments, "--device", "cuda", "--out", "other", cwd=tmp_path)
        assert wrong.returncode == 1
        assert (
            wrong.stderr == "tood: device: 'cuda' was asked for, but torch finds no such device; use 'cpu' or 'auto'\n"
        )
