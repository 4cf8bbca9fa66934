import csv
import json
import sys

import pytest
from click.testing import CliRunner

from tood.commands.toy import command
from tood.errors import MissingDependencyError


def test_prints_figures_and_writes_them(tmp_path):
    pytest.importorskip("matplotlib")
    result = CliRunner().invoke(command, ["--seeds", "0", "--out", str(tmp_path / "new" / "toy")])
    assert result.exit_code == 0, result.output
    folder = tmp_path / "new" / "toy"
    assert sorted(path.name for path in folder.iterdir()) == ["toy.csv", "toy.json", "toy.pdf", "toy.png"]
    assert (folder / "toy.png").read_bytes().startswith(b"\x89PNG") and (folder / "toy.pdf").read_bytes()[:4] == b"%PDF"
    with (folder / "toy.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["regime"] for row in rows} == {"separated", "crowded", "no_replay"}
    for row in rows:  # every figure of the file is in the printed table, to its precision
        assert f" {100 * float(row['avg_auroc']):.1f} " in result.output


def test_json_on_the_output_and_nothing_else_there(tmp_path, monkeypatch):
    # Without matplotlib everything but the picture still works.
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = ["--seeds", "1", "--out", str(tmp_path), "--json", "--no-figure"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads((tmp_path / "toy.json").read_text(encoding="utf-8"))["summary"]


def test_a_missing_matplotlib_is_noticed_after_the_figures_are_safe(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(command, ["--seeds", "2", "--out", str(tmp_path)])
    assert isinstance(result.exception, (MissingDependencyError, ModuleNotFoundError))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy.csv", "toy.json"]


@pytest.mark.parametrize(("seeds", "code"), [("", 2), ("a", 2), ("0,,1", 2), ("1,1", 1), ("-1", 1)])
def test_wrong_seeds_are_named(seeds, code, tmp_path):
    result = CliRunner().invoke(command, ["--seeds", seeds, "--out", str(tmp_path)])
    assert result.exit_code == code and "expected distinct integers" in f"{result.output} {result.exception}"
