"""Libraries that are absent, or installed and broken: one line says what to do."""

import importlib
import sys

import pytest

from tood import ToodError

LIBRARIES = {
    "avalanche": '"tood[avalanche]"',
    "pytorch_ood": '"tood[pytorch-ood]"',
    "torchmetrics": '"tood[torchmetrics]"',
    "openood": "git+https://github.com/Jingkang50/OpenOOD",  # no extra can name what is not on PyPI
}


def import_error(monkeypatch, library):
    monkeypatch.delitem(sys.modules, f"tood.integrations.{library}", raising=False)
    with pytest.raises(ImportError) as caught:
        importlib.import_module(f"tood.integrations.{library}")
    assert isinstance(caught.value, ToodError)
    assert caught.value.__suppress_context__  # so the peer's own traceback is not shown before the message
    return str(caught.value)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    message = import_error(monkeypatch, library)
    assert message == f"tood.integrations.{library} needs {library}: pip install {LIBRARIES[library]}"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('raise RuntimeError("operator torchvision::nms does not exist\\nmore")', "RuntimeError: operator torchvision"),
        ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
    ],
)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_does_not_import_says_why_in_one_line(monkeypatch, tmp_path, library, source, reason):
    (tmp_path / library).mkdir()
    (tmp_path / library / "__init__.py").write_text(source)
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    message = import_error(monkeypatch, library)
    assert f"{library}, which is installed but does not import ({reason}" in message and "\n" not in message
