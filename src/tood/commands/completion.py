"""``tood completion``: shell completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a shell-completion script.

    \b
    Example for bash; run it once:
      tood completion bash >> ~/.bashrc
    """
    script = get_completion_class(shell)
    if script is None:  # click always knows these three
        raise click.UsageError(f"no completion for {shell}")
    click.echo(script(ctx.find_root().command, {}, "tood", "_TOOD_COMPLETE").source())
