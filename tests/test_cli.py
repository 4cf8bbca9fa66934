import subprocess
import sys

import pytest

from tood import __version__


def tood(*arguments):
    return subprocess.run([sys.executable, "-m", "tood.cli", *arguments], capture_output=True, text=True, timeout=120)


def test_version_and_help():
    assert tood("--version").stdout == f"tood {__version__}\n"
    result = tood("--help")
    assert result.returncode == 0 and "completion" in result.stdout


def test_every_command_has_help_with_an_example():
    from tood.cli import cli

    names = cli.list_commands(None)
    assert {"completion", "list", "toy"} <= set(names)
    for name in names:
        assert "Example" in cli.get_command(None, name).help, name
        assert "\\b" not in cli.get_command(None, name).help, name  # click's own mark, not two characters


def test_wrong_usage_exits_with_2_and_suggests():
    result = tood("complete")
    assert result.returncode == 2
    assert "unknown command 'complete'; did you mean 'completion'?" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_the_variable_click_reads(shell):
    assert "_TOOD_COMPLETE" in tood("completion", shell).stdout


def test_importing_tood_is_light():
    code = "import sys, numpy; before = set(sys.modules); import tood; print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"torch", "scipy", "sklearn", "matplotlib", "pyarrow", "rich", "click", "yaml", "PIL"}
    assert not heavy & set(loaded)
