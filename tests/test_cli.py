import importlib
import signal
import subprocess
import sys

import click
import pytest

from tood import __version__
from tood.cli import Terminated, main


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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_says_one_line(tmp_path, number, code):
    process = subprocess.Popen(
        [sys.executable, "-m", "tood.cli", "toy", "--no-figure", "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    process.stderr.readline()  # the first run is done
    process.send_signal(number)
    assert process.wait(timeout=60) == code
    assert process.stderr.read().splitlines()[-1:] == ["tood: interrupted"]


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_within_a_finalizer_is_not_lost(number, code):
    """Python drops exceptions of finalizers and weak-reference callbacks; its imports have such callbacks."""
    program = f"""
import signal, time, click
from tood import cli

class Finalized:
    def __del__(self):
        signal.raise_signal(signal.{number})

@click.command()
def command():
    Finalized()
    time.sleep(30)
    print("not stopped")

cli.Commands.get_command = lambda self, ctx, name: command
cli.sys.argv = ["tood", "list"]
cli.main()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (code, "", "tood: interrupted\n")


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
@pytest.mark.parametrize(("command", "resumes"), [("audit", True), ("report", False)])
def test_what_can_be_resumed_is_said(monkeypatch, capsys, stop, code, command, resumes):
    def stopped(*_, **__):
        raise stop

    monkeypatch.setattr(
        importlib.import_module(f"tood.commands.{command}"), "command", click.Command(command, callback=stopped)
    )
    monkeypatch.setattr(sys, "argv", ["tood", command])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    assert capsys.readouterr().err == f"tood: interrupted{'; run the same command to resume' * resumes}\n"


def test_wrong_usage_exits_with_2_and_suggests():
    result = tood("complete")
    assert result.returncode == 2
    assert "unknown command 'complete'; did you mean 'completion'?" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_the_variable_click_reads(shell):
    assert "_TOOD_COMPLETE" in tood("completion", shell).stdout


def test_names_are_completed():
    from tood import detectors, learners
    from tood.commands._console import complete_names

    assert complete_names("detectors")(None, None, "energy,vi") == ["energy,vim"]
    assert complete_names("learners")(None, None, "") == list(learners.names())
    assert complete_names("detectors")(None, None, "") == list(detectors.names())
