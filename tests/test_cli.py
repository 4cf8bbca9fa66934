import subprocess
import sys

import click
import pytest

from tood import __version__


def tood(*arguments):
    return subprocess.run([sys.executable, "-m", "tood.cli", *arguments], capture_output=True, text=True, timeout=120)


def test_version_and_help():
    assert tood("--version").stdout == f"tood {__version__}\n"
    result = tood("--help")
    assert result.returncode == 0 and "completion" in result.stdout


def commands():
    from tood.cli import cli

    for name in cli.list_commands(None):
        command = cli.get_command(None, name)
        yield name, command
        yield from ((f"{name} {child}", inner) for child, inner in getattr(command, "commands", {}).items())


def test_every_command_has_help_with_an_example():
    assert {"calibrate", "completion", "list", "toy"} <= {name for name, _ in commands()}
    for name, command in commands():
        assert f"tood {name}" in command.help and "Example" in command.help, name
        assert "\\b" not in command.help, name  # click's own mark, not two characters


def test_every_option_is_explained():
    for name, command in commands():
        for option in command.params:
            assert not isinstance(option, click.Option) or option.help, f"{name} {option.opts[0]}"


def test_a_failure_is_one_line_and_exits_with_1(tmp_path):
    for arguments in (["audit", tmp_path / "absent"], ["report", tmp_path], ["score", "--calibrator", "absent"]):
        result = tood(*map(str, arguments))
        assert result.returncode in (1, 2) and "Traceback" not in result.stderr, arguments
    result = tood("--debug", "audit", str(tmp_path / "absent"))
    assert result.returncode == 1 and "Traceback" in result.stderr


def test_a_missing_package_names_the_extra(monkeypatch, capsys):
    from tood import cli

    def fails(*_, **__):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(cli.cli, "main", fails)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    assert capsys.readouterr().err == 'tood: this command needs torch: pip install "tood[train]"\n'


def test_an_interrupted_command_exits_with_130(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "tood.cli", "toy", "--no-figure", "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stderr.readline()  # the first run is done
    process.terminate()
    assert process.wait(timeout=60) == 130
    assert "tood: interrupted" in process.stderr.read()


def test_wrong_usage_exits_with_2_and_suggests():
    result = tood("complete")
    assert result.returncode == 2
    assert "unknown command 'complete'; did you mean 'completion'?" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_the_variable_click_reads(shell):
    assert "_TOOD_COMPLETE" in tood("completion", shell).stdout


def test_names_are_completed():
    from tood import detectors, learners
    from tood.console import complete_names

    assert complete_names("detectors")(None, None, "energy,vi") == ["energy,vim"]
    assert complete_names("learners")(None, None, "") == list(learners.names())
    assert complete_names("detectors")(None, None, "") == list(detectors.names())
