"""The short form of ``benchmarks/fuzz.py``: no bare exception, no silent change after one flipped bit."""

import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("fuzz", Path(__file__).parents[1] / "benchmarks" / "fuzz.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)


@pytest.mark.untraced
@pytest.mark.parametrize("name", module.KINDS)
def test_damaged_files_are_errors_that_name_them(name):
    kind = module.KINDS[name]
    tally, wrong = module.fuzz(name, kind, flips=30, cases=30, seed=1)
    assert not wrong
    assert (tally["flips"], tally["cases"]) == (30 * kind.digest, 30)
    if name not in ("learner.json", "verdict.json"):  # without a usable one, a report shows less
        assert (tally["refused"] > 0) != kind.derived
