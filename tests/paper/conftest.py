"""Runs of several learners, as the tests of the report make them; ``made_run`` makes the smaller kind."""

import pytest
from tests.made_runs import make_run
from tests.report.conftest import build, five, long, sweep

__all__ = ["build", "five", "long", "made_run", "sweep"]


@pytest.fixture
def made_run():
    return make_run
