from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from click.testing import CliRunner

import tood.commands
from tood import detectors, learners, models, streams
from tood.commands.list import command


def run(*arguments):
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def test_detectors_say_what_they_declare():
    text = run("detectors").stdout
    for name, detector in detectors.classes().items():
        assert f"{name}: {detector.title}\n    {detector.__doc__.splitlines()[0]}".replace("``", "") in text
        assert detector.citation in text
    assert "    dim = 256   [256, 1000]" in text
    assert "    needs head, inputs, network; fitted on the fit set" in text


def test_json_holds_every_declaration():
    shown = json.loads(run("detectors", "--json").stdout)
    assert list(shown) == ["detectors"]
    by_name = {entry["name"]: entry for entry in shown["detectors"]}
    assert list(by_name) == detectors.names()
    assert by_name["knn"]["parameters"]["k"] == {"default": 50, "grid": [50, 100, 200, 500, 1000]}
    assert by_name["tood_robust_anchor"]["fits_on"] == "calibration"
    assert by_name["adascale"]["needs"] == ["head", "inputs", "network"]


def test_installed_detectors_are_listed_and_a_broken_one_is_one_clear_line(install):
    text = "from tood.detectors import Detector\n\nclass Theirs(Detector):\n    'Theirs.'\n    name = 'theirs'\n"
    text += "    needs = frozenset({'logits'})\n    citation = 'They, 2031'\n"
    install("their_package", text, {"theirs": "their_package:Theirs", "gone": "their_package:Gone"}, "tood.detectors")
    shown = run("detectors").stdout
    assert "theirs: theirs\n    Theirs.\n    needs logits; fitted on the fit set\n    They, 2031" in shown
    assert "gone: not available\n    detector 'gone': loading their_package:Gone of the package their_package" in shown
    assert " theirs gone\n" in run().stdout


def test_learners_say_what_they_declare():
    text = run("learners").stdout
    for name, learner in learners.classes().items():
        assert f"{name}: {learner.title}\n" in text
        assert learner.citation in text
    presets = run("presets").stdout
    assert "released   As the authors of the TOOD paper ran it" in presets
    assert all(line.endswith(".") for line in presets.splitlines())
    shown = {entry["name"]: entry for entry in json.loads(run("learners", "--json").stdout)["learners"]}
    assert list(shown) == learners.names()
    assert "memory" in shown["icarl"]["parameters"] and "epochs" not in shown["icarl"]["parameters"]


def test_everything_at_once_with_counts():
    text = run().stdout
    for kind, module in (("detectors", detectors), ("learners", learners), ("streams", streams), ("networks", models)):
        assert f"{kind} ({len(module.names())})\n" in text and {*module.names()} <= {*text.split()}
    assert set(json.loads(run("--json").stdout)) == {"detectors", "learners", "streams", "networks", "presets"}


def test_a_missing_package_is_one_clear_line(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[:2] in (["tood", "learners"], ["tood", "models"])]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run()
    assert 'learners: training needs torch and lightning-fabric: pip install "tood[train]"' in result.stderr
    assert "detectors (" in result.stdout
    assert "learners (" not in result.stdout


def test_no_command_imports_another():
    """What commands share is in modules that begin with an underscore, or below the commands."""
    for file in Path(tood.commands.__path__[0]).glob("*.py"):
        assert not re.findall(r"(?:from|import) tood\.commands\.[a-z]", file.read_text(encoding="utf-8")), file.name
