"""``tood reproduce --dry-run --json``: the progress of each run, and on request the totals."""

import json

import pytest
from click.testing import CliRunner

from tood import ToodError
from tood.commands.reproduce import command
from tood.paper.reproduce import cells
from tood.runs import plan


def printed(*arguments):
    return json.loads(CliRunner().invoke(command, [*arguments, "--dry-run", "--json"], catch_exceptions=False).stdout)


def test_totals_are_asked_for_and_the_progress_stays_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "estimate", lambda config: plan.Estimate(1, 1, 3000.0, 600.0, disk=2e8, parameters=1))
    arguments = ["table1", "--seeds", "1", "--out", str(tmp_path)]
    count = len(cells("table1", tmp_path, seeds=1))
    states = printed(*arguments)
    assert set(states.values()) == {"waiting"} and len(states) == count
    found = printed(*arguments, "--totals")
    assert found["runs"] == states
    expected = {"runs": count, "seconds": 3600 * count, "gigabytes": 0.2 * count, "images": 0, "extraction_seconds": 0}
    assert found["total"] == pytest.approx(expected)


def test_totals_that_cannot_be_estimated_say_why(tmp_path, monkeypatch):
    def missing(config):
        raise ToodError("no images")

    monkeypatch.setattr(plan, "estimate", missing)
    found = printed("imagenet", "--out", str(tmp_path), "--totals")
    assert found["total"] == {"runs": 3, "error": "no images"} and len(found["runs"]) == 3


def test_totals_need_json(tmp_path):
    result = CliRunner().invoke(command, ["table1", "--out", str(tmp_path), "--dry-run", "--totals"])
    assert result.exit_code == 2 and "--totals: expected --dry-run --json with it" in result.stderr
