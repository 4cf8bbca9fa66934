"""The examples in the docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import tood
from tood.errors import MissingDependencyError
from tood.integrations.adapter import PeerError

MODULES = sorted(module.name for module in pkgutil.walk_packages(tood.__path__, "tood."))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    if name == "tood.integrations.pytorch_ood":
        request.getfixturevalue("peers")
    try:
        module = importlib.import_module(name)
    except (MissingDependencyError, PeerError) as error:
        pytest.skip(str(error))
    assert doctest.testmod(module).failed == 0
