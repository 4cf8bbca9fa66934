from __future__ import annotations

from functools import partial

import pytest

from tood.testing.problem import make_problem


@pytest.fixture(scope="session")
def problem():
    return make_problem(with_network=True)


@pytest.fixture(scope="session")
def build():
    return partial(make_problem, with_network=True)
