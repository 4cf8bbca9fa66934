"""The ``tood`` command line: loads subcommands by name, reports errors in one line, sets the exit code."""

from __future__ import annotations

import _thread
import importlib
import pkgutil
import re
import signal
import sys
import threading
import traceback
from typing import Any, cast

import click

import tood.commands
from tood import __version__
from tood.errors import MissingDependencyError, ToodError, UnknownNameError
from tood.storage.files import printable

__all__ = ["main"]

FAILED, INTERRUPTED, TERMINATED = 1, 130, 143  # 0 is success, 2 is click's code for wrong usage
LINES = "\n\t"  # control characters that an error message may have
RESUMABLE = {"audit", "demo", "monitor", "reproduce", "run", "score", "sweep"}  # these keep finished parts
GROUPS = {  # of commands in the help; the rest is for benchmarks
    "Use": ("demo", "calibrate", "score", "choose", "known", "audit", "inspect", "list", "completion"),
    "Release": ("gate", "monitor", "export"),
}
EXTRAS = {  # packages that commands import, and the extra that installs them
    **dict.fromkeys(("torch", "lightning_fabric", "sklearn", "scipy", "PIL", "yaml"), "train"),
    **dict.fromkeys(("pyarrow", "matplotlib"), "report"),
}


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled like Ctrl-C: locks are released and child processes are stopped."""


class Commands(click.Group):
    """Command group whose commands are the modules of :mod:`tood.commands`, imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands: one per module of the package that does not begin with an underscore."""
        return sorted(m.name for m in pkgutil.iter_modules(tood.commands.__path__) if not m.name.startswith("_"))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The object ``command`` of the module with that name."""
        if name not in self.list_commands(ctx):
            return None
        return cast(click.Command, importlib.import_module(f"tood.commands.{name}").command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by group, each with the first sentence of its help."""
        rest = [name for name in self.list_commands(ctx) if not any(name in names for names in GROUPS.values())]
        for title, names in {**GROUPS, "Benchmark": rest}.items():
            helps = {name: getattr(self.get_command(ctx, name), "help", "") for name in names}
            with formatter.section(title):
                formatter.write_dl([(name, re.split(r"(?<=[.?])\s", text)[0]) for name, text in helps.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; an unknown command is an error that suggests the nearest name."""
        if args and args[0] not in self.list_commands(ctx):
            raise click.UsageError(str(UnknownNameError("command", args[0], self.list_commands(ctx))), ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """As click does; an interrupted command says in one line whether it resumes, and sets the exit code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            hint = "; run the same command to resume" if ctx.invoked_subcommand in RESUMABLE else ""
            click.echo(f"tood: interrupted{hint}", err=True)
            raise click.exceptions.Exit(TERMINATED if isinstance(stop, Terminated) else INTERRUPTED) from stop


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tood", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the full traceback of an error.")
def cli(debug: bool) -> None:
    """Out-of-distribution detection in continual learning: measure how it decays, and repair it without training.

    Example: tood demo
    """


def _terminate(number: int, frame: object) -> None:
    raise Terminated


def _interrupt_again(ignored: Any) -> None:
    """Send a signal again that arrived in a callback whose errors Python ignores, such as one of an import."""
    if isinstance(ignored.exc_value, KeyboardInterrupt):
        number = signal.SIGTERM if isinstance(ignored.exc_value, Terminated) else signal.SIGINT
        threading.Timer(0.05, _thread.interrupt_main, (number,)).start()
    else:
        sys.__unraisablehook__(ignored)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _interrupt_again
    try:
        code = cli.main(prog_name="tood", standalone_mode=False)  # click returns the code of ctx.exit(n)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as wrong:
        wrong.show()
        sys.exit(wrong.exit_code)
    except click.Abort:  # Ctrl-C before a command began
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        sys.stderr.close()
        sys.exit(FAILED)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
            error = MissingDependencyError(error.name, EXTRAS[error.name], "this command")
        if "--debug" in sys.argv:
            traceback.print_exc()
        elif isinstance(error, (ToodError, OSError)):
            click.echo(f"tood: {printable(str(error), keep=LINES)}", err=True)
        else:
            message = printable(f"{type(error).__name__}: {error}", keep=LINES)
            click.echo(f"tood: {message} (a bug: `tood --debug …` shows where)", err=True)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
