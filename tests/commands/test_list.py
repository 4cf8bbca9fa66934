from __future__ import annotations

import json
import sys

from click.testing import CliRunner

from tood import detectors, learners, models, streams
from tood.commands.list import command


def run(*arguments):
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def test_detectors_say_what_they_declare():
    text = run("detectors").stdout
    for name, detector in detectors.classes().items():
        assert f"{name}: {detector.__doc__.splitlines()[0]}".replace("``", "") in text
        assert detector.reference in text
    assert "    dim = 256   [256, 1000]" in text
    assert "    reads head, inputs, network; fitted on the fit set" in text


def test_json_holds_every_declaration():
    shown = json.loads(run("detectors", "--json").stdout)
    assert list(shown) == ["detectors"]
    by_name = {entry["name"]: entry for entry in shown["detectors"]}
    assert list(by_name) == detectors.names()
    assert by_name["knn"]["parameters"]["k"] == {"default": 50, "grid": [50, 100, 200, 500, 1000]}
    assert by_name["tood_robust_anchor"]["fits_on"] == "calibration"
    assert by_name["adascale"]["reads"] == ["head", "inputs", "network"]


def test_everything_at_once_with_counts():
    text = run().stdout
    for kind, module in (("detectors", detectors), ("learners", learners), ("streams", streams), ("networks", models)):
        assert f"{kind} ({len(module.names())}): {' '.join(module.names())}" in text
    assert set(json.loads(run("--json").stdout)) == {"detectors", "learners", "streams", "networks"}


def test_a_missing_package_is_one_clear_line(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[:2] in (["tood", "learners"], ["tood", "models"])]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run()
    assert 'learners: training needs torch and lightning-fabric: pip install "tood[train]"' in result.stderr
    assert "detectors (" in result.stdout
    assert "learners (" not in result.stdout
