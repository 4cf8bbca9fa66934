"""The examples in the docstrings are true, and the metrics load nothing heavy."""

import doctest
import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["detection", "trajectory", "representation"])
def test_examples(name):
    result = doctest.testmod(importlib.import_module(f"tood.metrics.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_nothing_heavy_is_imported():
    heavy = "{'torch', 'scipy', 'sklearn', 'pandas', 'matplotlib'} & set(sys.modules)"
    script = f"import sys, tood.metrics; print(sorted({heavy}))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"
