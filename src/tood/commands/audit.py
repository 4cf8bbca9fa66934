"""``tood audit``: the verdict on run directories, whichever framework made them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tood.commands._console import FILE, complete_names, split_names

if TYPE_CHECKING:
    from tood.audit import Audit
    from tood.report.tables import Table


@click.command()
@click.argument("paths", nargs=-1, required=True, type=FILE, metavar="RUN...")
@click.option(
    "--detectors",
    shell_complete=complete_names("detectors"),
    help="Detectors, separated by commas.  [default: all that can be scored]",
)
@click.option("--track", help="Data that detectors are fitted on, such as memory.  [default: the run's]")
@click.option("--full", is_flag=True, help="Also print the evidence and every table.")
@click.option("--json", "as_json", is_flag=True, help="Print verdicts and tables as JSON.")
def command(paths: tuple[Path, ...], detectors: str | None, track: str | None, full: bool, as_json: bool) -> None:
    """Judge run directories: how much OOD detection was lost, why, and which score to use.

    RUN needs only logits and labels, from any framework: tood.runs.write_manifest and tood.runs.write_step write it.
    The verdict is kept in RUN/verdict.json.

    \b
    Examples:
      tood audit runs/digits-icarl-cpu-s0
      tood audit my-run --detectors energy,tood_robust_anchor --json
      tood audit my-run --track memory --full
    """
    from tood.audit import audit
    from tood.outputs import find_runs
    from tood.report.tables import best_tables, tables_of

    names = split_names(detectors) if detectors else None
    with _status_line(quiet=as_json) as progress:
        audits = [audit(run, names, track, progress) for run in find_runs(paths)]
    measured = [(one.run, one.table) for one in audits if one.evidence]
    choose = tables_of if full or as_json else best_tables
    tables = choose(measured, track=track or "") if measured else []
    if as_json:
        click.echo(json.dumps(_for_json(audits, tables), indent=2))
    else:
        _print(audits, tables, full, named=names is not None)


def _print(audits: list[Audit], tables: list[Table], full: bool, named: bool) -> None:
    """Print a card per run, then the tables; ``named``: the user named the detectors."""
    from rich.console import Console

    from tood.report.render import print_card, print_tables
    from tood.storage.files import printable

    console = Console(highlight=False, markup=False)
    for one in audits:
        if len(audits) > 1:
            console.print(printable(str(one.run.path)), style="bold")
        notes = one.verdict.notes if full else _about_the_run(one.verdict.notes, named)
        print_card(one.verdict.to_dict(), notes, console)
        console.print("\n".join(["", *map(printable, one.verdict.sentences() if full else []), *[""] * full]))
    print_tables(tables, console)
    console.print("Next: `tood report RUN` writes the page, --full prints the evidence and every table.", style="dim")


def _about_the_run(notes: Sequence[str], named: bool) -> list[str]:
    """The notes for a card: not those of single detectors, and those about all of them only if the user named some."""
    from tood.detectors import names

    known, about_all = set(names()), ("left out", "no fit set")
    return [note for note in notes if note.partition(":")[0] not in known and (named or not note.startswith(about_all))]


def _for_json(audits: list[Audit], tables: list[Table]) -> dict[str, object]:
    verdicts = [{"runs": [str(one.run.path)], "verdict": one.verdict.to_dict()} for one in audits]
    only = {"run": str(audits[0].run.path), "verdict": verdicts[0]["verdict"]} if len(audits) == 1 else {}
    records = [record for table in tables for record in table.records()]
    return {**only, "verdicts": verdicts, "notes": list(audits[0].verdict.notes), "figures": records}


@contextlib.contextmanager
def _status_line(quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """A line with the step and detector being scored, on a terminal only; it is removed at the end."""
    from rich.console import Console

    with Console(stderr=True, quiet=quiet).status("reading") as status:  # draws nothing if it is no terminal
        yield lambda step, detector: status.update(f"scoring detectors: {detector}, step {step}")
