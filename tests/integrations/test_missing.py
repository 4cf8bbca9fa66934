import importlib
import sys

import pytest

from tood import ToodError


@pytest.mark.parametrize(
    ("library", "install"),
    [
        ("avalanche", r'"tood\[avalanche\]"'),
        ("pytorch_ood", r'"tood\[pytorch-ood\]"'),
        ("openood", r"git\+https://github.com/Jingkang50/OpenOOD"),  # no extra can name what is not on PyPI
    ],
)
def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch, library, install):
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"tood.integrations.{library}", raising=False)
    with pytest.raises(ImportError, match=f"tood.integrations.{library} needs .*: pip install {install}") as caught:
        importlib.import_module(f"tood.integrations.{library}")
    assert isinstance(caught.value, ToodError)
