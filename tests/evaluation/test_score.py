"""What a scorer is fitted on, and that kept scores of one choice never serve another."""

import json
import subprocess
import sys

import numpy as np
import pytest
from tests.made_runs import make_run

from tood import detectors
from tood.evaluation import Scorer, scores
from tood.evaluation.score import kept_scores
from tood.outputs import Run, Step, write_manifest, write_step


@pytest.mark.parametrize(("name", "fitted_on"), [("typicality", "calibration"), ("mds", "fit"), ("energy", "none")])
def test_scores_are_those_of_a_detector_fitted_on_what_it_declares(shared_run, name, fitted_on):
    step = Step(Run(shared_run), 2)
    sets = {"calibration": step.calibration(), "fit": step.fit, "none": None}
    detector = detectors.create(name).fit(sets[fitted_on], partition=step.partition, head=step.head)
    found = scores(step, Scorer(name), keep=False)
    np.testing.assert_array_equal(found.test, detector.score(step.test))
    np.testing.assert_array_equal(found.ood["far_b"], detector.score(step.ood["far_b"]))


def test_an_ood_set_may_be_called_test(tmp_path):
    run = Run(make_run(tmp_path / "run"))
    manifest = json.loads((run.path / "manifest.json").read_text())
    manifest["ood"]["near"] = ["test"]
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    for file in run.path.glob("steps/*/outputs/ood/near_a.npz"):
        file.rename(file.with_name("test.npz"))
    step = Step(Run(run.path), 3)
    computed = scores(step, Scorer("energy"))
    kept = kept_scores(step, Scorer("energy"))
    np.testing.assert_array_equal(kept.test, computed.test)
    assert list(kept.ood) == list(computed.ood) == ["test", "far_a", "far_b"]
    np.testing.assert_array_equal(kept.ood["test"], computed.ood["test"])


def test_kept_scores_know_what_they_were_fitted_on(gap_run):
    step, names = Step(Run(gap_run), 3), ["typicality", "mds", "energy"]
    for name in names:
        np.testing.assert_array_equal(scores(step, Scorer(name)).test, kept_scores(step, Scorer(name)).test)
    # The fit set changes: only what was fitted on it is stale.
    file = step.folder / "outputs/fit.npz"
    arrays = dict(np.load(file))
    arrays["features"][::2] += 1
    np.savez(file, **arrays)
    fresh = Step(Run(gap_run), 3)
    assert [name for name in names if kept_scores(fresh, Scorer(name)) is None] == ["mds"]


def test_an_edited_detector_of_ones_own_is_scored_again(tmp_path):
    run = write_manifest(tmp_path / "run", [[0], [1]], near=["a"])
    part = {"logits": np.random.default_rng(0).normal(size=(9, 2)), "labels": np.arange(9) % 2}
    write_step(run.path, 1, test=part, calibration=part, ood={"a": part["logits"]})
    code = (
        "from tood.detectors import Detector\n"
        "class Mine(Detector):\n"
        "    name, title, needs, fits_on, citation = 'mine', 'Mine', frozenset({'logits'}), 'none', 'me'\n"
        "    def _score(self, rows, prepared):\n"
        "        return SIGN * rows.logits[:, 0]\n"
    )
    found = []
    for sign in ("1.0", "-1.0"):  # of other lengths: Python compares size and second of the file with its bytecode
        (tmp_path / "own_detector.py").write_text(code.replace("SIGN", sign))
        script = (
            "from tood.outputs import Run, Step; from tood.evaluation.score import Scorer, scores; "
            "print(scores(Step(Run('run'), 1), Scorer('own_detector:Mine')).test[0])"
        )
        made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
        found.append(float(made.stdout))
    assert found == pytest.approx([part["logits"][0, 0], -part["logits"][0, 0]], rel=1e-6)
