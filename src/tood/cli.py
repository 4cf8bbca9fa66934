"""The ``tood`` command: finds its subcommands by name and turns errors into one clear line."""

from __future__ import annotations

import importlib
import pkgutil
import signal
import sys
import traceback
from typing import cast

import click

import tood.commands
from tood import __version__
from tood.errors import ToodError, UnknownNameError

__all__ = ["main"]


class Commands(click.Group):
    """Subcommands are the modules of :mod:`tood.commands`, imported when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every module of the commands package."""
        return sorted(module.name for module in pkgutil.iter_modules(tood.commands.__path__))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The ``command`` of the module with that name."""
        if name not in self.list_commands(ctx):
            return None
        found = importlib.import_module(f"tood.commands.{name}").command
        return cast(click.Command, found)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest known name when there is no such command."""
        if args and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(str(UnknownNameError("command", args[0], self.list_commands(ctx))), ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tood", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the whole traceback of an error.")
def cli(debug: bool) -> None:
    """Does a continually learning classifier still know what it does not know?

    Measure how well each step of a stream rejects what it never learned, see where that ability was lost, and repair
    what can be repaired without training.

    Example: tood demo
    """


def _interrupt(number: int, frame: object) -> None:
    """Being asked to stop is being interrupted: locks are released and child processes stopped."""
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line: exit code 0 when done, 1 when something failed, 2 when it was called wrongly."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = cli.main(prog_name="tood", standalone_mode=False)  # click returns the code of ctx.exit(n)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as wrong:
        wrong.show()
        sys.exit(wrong.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("tood: interrupted", err=True)
        sys.exit(1)
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        elif isinstance(error, (ToodError, OSError)):
            click.echo(f"tood: {error}", err=True)
        else:
            click.echo(f"tood: {type(error).__name__}: {error} (a bug: `tood --debug …` shows where)", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
