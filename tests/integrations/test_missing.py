"""Libraries that are absent, or installed and broken: one line says what to do."""

import importlib
import sys

import pytest

from tood import ToodError
from tood.integrations.adapter import peer

LIBRARIES = [
    ("avalanche", r'"tood\[avalanche\]"'),
    ("pytorch_ood", r'"tood\[pytorch-ood\]"'),
    ("torchmetrics", r'"tood\[torchmetrics\]"'),
    ("openood", r"git\+https://github.com/Jingkang50/OpenOOD"),  # no extra can name what is not on PyPI
]


def import_error(monkeypatch, library):
    monkeypatch.delitem(sys.modules, f"tood.integrations.{library}", raising=False)
    with pytest.raises(ImportError) as caught:
        importlib.import_module(f"tood.integrations.{library}")
    assert isinstance(caught.value, ToodError)
    assert caught.value.__suppress_context__  # so the peer's own traceback is not shown before the message
    return str(caught.value)


@pytest.mark.parametrize(("library", "install"), LIBRARIES)
def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch, library, install):
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    message = import_error(monkeypatch, library)
    assert f"tood.integrations.{library} needs {library}: pip install " + install.replace("\\", "") == message


@pytest.mark.parametrize(
    ("source", "reason", "advice"),
    [
        (
            'raise RuntimeError("operator torchvision::nms does not exist\\nmore")',
            "RuntimeError: operator torchvision::nms does not exist",
            "torchvision was built for another torch",
        ),
        (
            "import a_module_that_is_not_there",
            "ModuleNotFoundError: No module named 'a_module_that_is_not_there'",
            'see `python -c "import {}"`',
        ),
    ],
)
@pytest.mark.parametrize("library", [library for library, _ in LIBRARIES])
def test_a_library_that_does_not_import_says_why_in_one_line(monkeypatch, tmp_path, library, source, reason, advice):
    (tmp_path / library).mkdir()
    (tmp_path / library / "__init__.py").write_text(source)
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    message = import_error(monkeypatch, library)
    assert f"{library}, which is installed but does not import ({reason}); {advice.format(library)}" in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["torch", "a_module_that_is_not_there"])
def test_an_absent_library_is_not_said_to_be_installed_if_another_import_fails_first(name):
    with pytest.raises(ToodError) as caught, peer("no_such_peer", '"tood[peer]"', "the adapter"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    assert str(caught.value) == 'the adapter needs no_such_peer: pip install "tood[peer]"'
    with pytest.raises(ToodError, match="needs no_such_peer: pip install"), peer("no_such_peer", "it", "the adapter"):
        raise RuntimeError(name)


def test_an_installed_library_whose_import_of_another_fails_is_broken():
    with pytest.raises(ToodError, match="json, which is installed but does not import"), peer("json", "json", "it"):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
