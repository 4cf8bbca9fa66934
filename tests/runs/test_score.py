"""What a scorer is fitted on, and that kept scores of one choice never serve another."""

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from tests.made_runs import make_run

from tood import ToodError, detectors
from tood.runs import Run, Scorer, Step, figures, scores, trajectory, write_manifest, write_step
from tood.runs.network_scores import score_with_network
from tood.runs.score import kept_scores

CHOICES = [None, "calibration", "fit", "both"]


def chosen(step, fit_on):
    return {"calibration": step.calibration(), "fit": step.fit, "both": [step.calibration(), step.fit]}[fit_on]


@pytest.mark.parametrize("fit_on", ["calibration", "fit", "both"])
@pytest.mark.parametrize("name", ["typicality", "tood_joint", "tood_mean_shift", "mds"])
def test_scores_are_those_of_a_detector_fitted_on_what_was_asked_for(shared_run, name, fit_on):
    step = Step(Run(shared_run), 2)
    detector = detectors.create(name).fit(chosen(step, fit_on), partition=step.partition, head=step.head)
    found = scores(step, Scorer(name, fit_on=fit_on), keep=False)
    np.testing.assert_array_equal(found.test, detector.score(step.test))
    np.testing.assert_array_equal(found.ood["far_b"], detector.score(step.ood["far_b"]))


def test_fewer_calibration_samples_join_the_whole_fit_set(shared_run):
    step = Step(Run(shared_run), 3)
    few = scores(step, Scorer("typicality", fit_on="both", size=8, seed=1), keep=False).test
    assert not np.array_equal(few, scores(step, Scorer("typicality", fit_on="both"), keep=False).test)
    alone = scores(step, Scorer("typicality", fit_on="fit"), keep=False).test
    assert np.abs(few - alone).mean() < np.abs(few - scores(step, Scorer("typicality"), keep=False).test).mean()
    np.testing.assert_array_equal(alone, scores(step, Scorer("typicality", fit_on="fit", size=8), keep=False).test)


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


def test_rows_of_the_table_are_told_apart(shared_run):
    pytest.importorskip("pyarrow")
    scorers = [Scorer("typicality", fit_on=fit_on) for fit_on in (None, "fit", "both")]
    table, _ = figures(Run(shared_run), scorers)
    settings = {text for text in table["settings"].to_pylist() if text}
    assert {json.loads(text)["fit_on"] for text in settings} == {"fit", "both"}
    values = [trajectory(table, "typicality", settings=text).values for text in ("", *sorted(settings))]
    assert not any(np.array_equal(a, b, equal_nan=True) for a, b in pairwise(values))
    # What the detector does anyway is no setting.
    assert Scorer("typicality", fit_on="calibration").settings() == Scorer("mds", fit_on="fit").settings() == ""


def test_kept_scores_know_what_they_were_fitted_on(gap_run):
    step = Step(Run(gap_run), 3)
    kept = {fit_on: scores(step, Scorer("typicality", fit_on=fit_on)).test for fit_on in CHOICES}
    assert len(list((step.folder / "scores").glob("typicality*.npz"))) == 3
    for fit_on, expected in kept.items():
        np.testing.assert_array_equal(kept_scores(step, Scorer("typicality", fit_on=fit_on)).test, expected)
    # The fit set changes: only what was fitted on it is stale.
    file = step.folder / "outputs/fit.npz"
    arrays = dict(np.load(file))
    arrays["features"][::2] += 1
    np.savez(file, **arrays)
    fresh = Step(Run(gap_run), 3)
    stale = [fit_on for fit_on in CHOICES if kept_scores(fresh, Scorer("typicality", fit_on=fit_on)) is None]
    assert stale == ["fit", "both"]


def test_a_fit_set_that_is_not_there_is_missed(build, tmp_path):
    step = Step(Run(build(tmp_path / "run", fit=False)), 1)
    for fit_on in ("fit", "both"):
        with pytest.raises(ToodError, match=rf"steps/01: typicality \(fit_on {fit_on}\): outputs/fit\.npz: no such"):
            scores(step, Scorer("typicality", fit_on=fit_on))
    scores(step, Scorer("mds"))  # the calibration set stands in, and is kept under the same name
    with pytest.raises(ToodError, match=r"fit\.npz"):
        scores(step, Scorer("mds", fit_on="fit"))


def test_tood_on_a_fit_set_without_the_old_task_names_it(tmp_path):
    run = write_manifest(tmp_path / "run", [[0], [1]], far=["noise"])
    logits = np.random.default_rng(0).normal(size=(10, 2))
    known = {"logits": logits, "labels": np.arange(10) % 2}
    fit = {"logits": logits, "labels": np.ones(10, int)}
    write_step(run.path, 1, test=known, calibration=known, fit=fit, ood={"noise": logits})
    with pytest.raises(ToodError, match=r"tood_mean_shift \(fit_on fit\): labels: no calibration sample for task 0"):
        scores(Step(run, 1), Scorer("tood_mean_shift", fit_on="fit"), keep=False)
    scores(Step(run, 1), Scorer("tood_mean_shift", fit_on="both"), keep=False)


def test_choices_that_make_no_sense(shared_run):
    step = Step(Run(shared_run), 1)
    with pytest.raises(ToodError, match="unknown fit_on 'bot'; did you mean 'both'"):
        Scorer("typicality", fit_on="bot")
    with pytest.raises(ToodError, match="fit_on: expected None for energy, which is not fitted, found 'fit'"):
        scores(step, Scorer("energy", fit_on="fit"), keep=False)
    with pytest.raises(ToodError, match="fit_on: expected None for adascale, which runs the network again"):
        score_with_network(step, Scorer("adascale", fit_on="both"), None, None, None)


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
            "from tood.runs import Run, Step; from tood.runs.score import Scorer, scores; "
            "print(scores(Step(Run('run'), 1), Scorer('own_detector:Mine')).test[0])"
        )
        made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
        found.append(float(made.stdout))
    assert found == pytest.approx([part["logits"][0, 0], -part["logits"][0, 0]], rel=1e-6)
