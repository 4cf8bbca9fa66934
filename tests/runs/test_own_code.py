"""Learners and detectors of one's own: an error names class and stage; edited code is not mixed with old results."""

import importlib
import sys

import numpy as np
import pytest
from tests.processes import tood

from tood import ToodError, detectors, learners
from tood.outputs import Step
from tood.registry import source_digest
from tood.runs import RunConfig, run
from tood.streams import Stream

MINE = """
import numpy as np
from tood.detectors import Detector
from tood.learners import Learner

class Plain(Learner):
    name = "plain_of_mine"

class Weak(Learner):
    name = "weak_of_mine"
    def end_task(self, task):
        if task == 1:
            raise KeyError("no such class")

class Score(Detector):
    name, title, citation, needs, fits_on = "score_of_mine", "Score", "me", frozenset({"logits"}), "fit"
    def _score(self, rows, prepared):
        if rows.logits.shape[1] == 4:
            raise RuntimeError("first line\\nsecond line")
        return rows.logits[:, 0]

class Fit(Score):
    name, needs = "fit_of_mine", frozenset({"logits", "network", "inputs"})
    def _fit(self, data):
        return 1 / 0

class Made(Score):
    name = "made_of_mine"
    def __init__(self, size):
        self.size = size
"""


@pytest.fixture
def mine(tmp_path, monkeypatch, registries):
    """Writes the module and imports it anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python compares only size and second of a file with it

    def write(text=MINE):
        (tmp_path / "mine_of_test.py").write_text(text)
        sys.modules.pop("mine_of_test", None)
        return importlib.import_module("mine_of_test")

    return write


@pytest.fixture
def stream():
    x, y = np.random.default_rng(0).integers(0, 256, (80, 8, 8, 1), dtype=np.uint8), np.arange(80) % 4
    return Stream.from_arrays(x, y, x, y, tasks=2, ood={"far": {"noise": x[:9]}}, name="mine")


@pytest.mark.parametrize(
    ("learner", "detector", "message"),
    [
        (
            "finetune",
            ["mine_of_test:Score"],
            r"^mine_of_test:Score: score at step 1 of \S*run failed: RuntimeError: first line \(",
        ),
        (
            "finetune",
            ["mine_of_test:Fit"],
            r"^mine_of_test:Fit: fit at step 0 of \S*run failed: ZeroDivisionError: division by zero",
        ),
        ("finetune", ["mine_of_test:Made"], r"^mine_of_test:Made: __init__ failed: TypeError: .*'size'"),
        ("mine_of_test:Weak", [], r"^mine_of_test:Weak: learning task 1 in \S*run failed: KeyError: 'no such cl"),
    ],
)
def test_an_error_of_ones_own_class_names_it_and_the_stage(mine, stream, tmp_path, learner, detector, message):
    mine()
    config = RunConfig(learner=learner, preset="smoke", detectors=("energy", *detector))
    with pytest.raises(ToodError, match=message) as caught:
        run(config, tmp_path / "run", stream=stream, say=str)
    assert "\n" not in str(caught.value) and caught.value.__cause__ is not None


def test_the_command_line_has_one_line_or_the_traceback(tmp_path):
    (tmp_path / "mine_of_test.py").write_text(MINE)
    (tmp_path / "run.yaml").write_text("{preset: smoke, learner: 'mine_of_test:Weak', detectors: [energy], tasks: 2}")
    arguments = ["run", "run.yaml", "--out", "run", "--quiet"]
    line = tood(*arguments, cwd=tmp_path)
    assert line.returncode == 1
    assert line.stderr == (
        "tood: mine_of_test:Weak: learning task 1 in run failed: KeyError: 'no such class' "
        "(`tood --debug …` shows where)\n"
    )
    trace = tood("--debug", *arguments, cwd=tmp_path)
    assert trace.returncode == 1 and 'raise KeyError("no such class")' in trace.stderr


def test_checkpoints_of_an_edited_learner_are_refused(mine, stream, tmp_path):
    def learn(text):
        mine(text)
        learners.create("mine_of_test:Plain", stream, epochs=1).learn(0, tmp_path / "checkpoints")

    learn(MINE)
    learn(MINE)  # resumes
    edited = MINE.replace('name = "plain_of_mine"', 'name = "plain_of_mine"\n    distils = True')
    with pytest.raises(ToodError, match=r"task-00\.safetensors: made before mine_of_test:Plain was edited; choose ano"):
        learn(edited)


def test_an_edit_during_a_run_does_not_pass_for_the_code_that_runs(mine, stream, tmp_path):
    mine()
    learner, detector = learners.create("mine_of_test:Plain", stream), detectors.create("mine_of_test:Score")
    before = learner.config()["code"]
    (tmp_path / "mine_of_test.py").write_text(MINE + "\n# edited\n")
    assert learner.config()["code"] == source_digest(type(detector)) == before
    mine(MINE + "\n# edited\n")
    assert learners.create("mine_of_test:Plain", stream).config()["code"] != before


def test_predictions_are_those_of_the_edited_learner(mine, stream, tmp_path):
    config = RunConfig(learner="mine_of_test:Plain", preset="smoke", detectors=("energy",))
    always = MINE.replace(
        'name = "plain_of_mine"',
        'name = "plain_of_mine"\n    def predict(self, features, logits):\n        return np.zeros(len(logits), int)',
    )
    mine(always)
    made = run(config, tmp_path / "run", stream=stream, say=str)
    assert (Step(made, 1).predictions == 0).all()
    mine(always.replace("np.zeros(len(logits), int)", "np.full(len(logits), 1)"))
    for file in (tmp_path / "run" / "checkpoints").iterdir():  # as the message says
        file.unlink()
    made = run(config, tmp_path / "run", stream=stream, say=str)
    assert (Step(made, 1).predictions == 1).all()
