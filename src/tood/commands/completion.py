"""``tood completion``: shell completion."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice([*SHELLS]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a shell-completion script.

    \b
    Example for bash; run it once:
      tood completion bash >> ~/.bashrc
    """
    click.echo(SHELLS[shell](ctx.find_root().command, {}, "tood", "_TOOD_COMPLETE").source())
