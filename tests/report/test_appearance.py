"""Display names: class data, a manifest's title, or the stored name; nothing that a run names is imported."""

from __future__ import annotations

import json
import sys

import pytest

from tood import detectors, learners
from tood.outputs import Run
from tood.report.appearance import label, remember_title
from tood.report.gather import scores_at
from tood.report.summary import learner_label


def test_titles_are_class_data():
    assert all(label(name) == kind.title for name, kind in detectors.classes().items())
    ours = {name: kind for name, kind in learners.classes().items() if kind.__module__.startswith("tood.")}
    assert len(ours) >= 17 and all(label(name) == kind.title for name, kind in ours.items())
    assert label("ash (variant=s)") == "ASH (variant=s)"
    assert label("icarl+ber (memory=500)") == "iCaRL+BER (memory=500)"
    assert label("near") == "near-OOD"


@pytest.mark.parametrize("name", ["their_detector", "os.path:join", "antigravity:fly"])
def test_a_name_that_is_not_registered_stays_and_imports_nothing(name):
    assert label(name) == name
    assert "antigravity" not in sys.modules


def test_a_learner_is_written_as_its_run_says(gap_run):
    path = gap_run / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "learner": "theirs", "learner_title": "Theirs"}))
    assert label(learner_label(Run(gap_run))) == "Theirs"
    remember_title("theirs", "")
    assert label("theirs") == "Theirs"


def test_the_page_does_not_import_a_detector_that_a_run_names(gap_run, tmp_path, monkeypatch):
    (tmp_path / "received.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert scores_at(Run(gap_run), ["received:Detector"], [0], None) == {}
    assert "received" not in sys.modules
