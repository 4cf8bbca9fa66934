"""The short form of ``benchmarks/fuzz.py``: no bare exception, no silent change after one flipped bit."""

import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("fuzz", Path(__file__).parents[1] / "benchmarks" / "fuzz.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)


@pytest.mark.parametrize("name", module.KINDS)
def test_damaged_files_are_errors_that_name_them(name):
    tally, wrong = module.fuzz(name, module.KINDS[name], count=60, seed=1)
    assert tally["cases"] == 60 and tally["errors"] > 0
    assert not wrong
