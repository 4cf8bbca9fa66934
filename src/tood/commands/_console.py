"""Shared by commands: options, warnings, progress, states of runs, names separated by commas."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tood.errors import ToodError, located
from tood.storage.files import printable

if TYPE_CHECKING:
    from tood.partition import Partition

FILE = click.Path(path_type=Path)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)
LOGITS = "Logits [n, C]: .npy, .npz, .parquet, .arrow or .csv; columns logits (lists) or logit_0, logit_1, …"


def invalid_option(action: str) -> Callable[[Any], Any]:
    """The option ``--invalid error|reject``; ``action`` describes what ``reject`` does."""
    what = f"Rows with a missing, NaN or infinite logit: stop, or {action}."
    return click.option(
        "--invalid", type=click.Choice(["error", "reject"]), default="error", show_default=True, help=what
    )


@contextlib.contextmanager
def warnings_as_lines(quiet: bool = False) -> Iterator[None]:
    """Print each different warning once, as ``tood: warning: …`` on standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if quiet else "once", UserWarning)
        warnings.showwarning = lambda message, *_: click.echo(f"tood: warning: {printable(str(message))}", err=True)
        yield


@contextlib.contextmanager
def progress_bar(unit: str, quiet: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """A bar with the time left on a terminal; nothing elsewhere. Yields ``update(done, total)``; total may be None."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(unit, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_states(states: Mapping[str, str], as_json: bool) -> None:
    """Print the progress of each run of a sweep."""
    if as_json:
        click.echo(json.dumps(states, indent=2))
        return
    for name, state in states.items():
        click.echo(f"{name:<50} {printable(state)}")


def exit_if_failed(failed: Mapping[str, str], total: int) -> None:
    """Print the errors of the runs of a sweep that failed and exit with code 1; return if none failed."""
    for name, error in failed.items():
        click.echo(f"tood: {name}: {error}", err=True)
    if failed:
        click.echo(f"tood: {len(failed)} of {total} runs failed; start the command again to retry them", err=True)
        sys.exit(1)


def read_tasks(text: str) -> Partition:
    """Columns per task from JSON, from a JSON file, or from the ``manifest.json`` of a run."""
    from tood.partition import Partition

    inline = text.lstrip().startswith(("[", "{"))
    with located("--tasks"):
        try:
            document = json.loads(text if inline else Path(text).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ToodError(f"expected JSON such as '[[0, 1], [2, 3]]' or a file, found {text!r} ({error})") from error
        tasks: Any = document.get("tasks") if isinstance(document, dict) else document
        return Partition(tasks)


def split_names(text: str) -> list[str]:
    """Names separated by commas, as in ``energy, vim``."""
    return [name.strip() for name in text.split(",") if name.strip()]


def complete_names(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Shell completion of registered names; ``kind`` is ``"detectors"``, ``"learners"`` or ``"streams"``.

    Names after a comma are completed too: ``energy,vi`` gives ``energy,vim``.
    """

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        names = importlib.import_module(f"tood.{kind}").names()
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete
