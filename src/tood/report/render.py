"""Tables as Markdown, CSV or on a terminal.

Detectors and learners are shown by title, as in plots and on the page; CSV keeps the names that commands take.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tood.report.appearance import label
from tood.report.tables import Column, Table, TableCell
from tood.storage.files import csv_text, printable, write_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

    from tood.report.gather import MeasuredRun

__all__ = [
    "markdown_line",
    "print_card",
    "print_results",
    "print_tables",
    "to_csv",
    "to_markdown",
    "write_tables",
]

CARDS = 3  # printed at most
_MARKDOWN = str.maketrans({"|": "&#124;", "<": "&lt;", ">": "&gt;", "[": r"\[", "]": r"\]"})


def to_markdown(table: Table) -> str:
    """A pipe table with its title above and its notes below."""
    table = _titled(table)
    head = [table.corner, *(f"{c.group} {c.name}".strip() for c in table.columns)]
    lines = [head, ["---", *["---:"] * len(table.columns)], *_texts(table, bold="**{}**")]
    pipes = [f"| {' | '.join(printable(entry).translate(_MARKDOWN) for entry in line)} |" for line in lines]
    title = printable(table.title).translate(_MARKDOWN)
    return "\n".join([f"**{title}**", "", *pipes, "", *(f"- {markdown_line(note)}" for note in table.notes)]) + "\n"


def to_csv(tables: Iterable[Table]) -> str:
    """One row per value: table, row, group, column, mean, std, seeds, best, and the paper's value if there is one."""
    names = ["table", "row", "group", "column", "mean", "std", "seeds", "best", "paper", "difference"]
    return csv_text([record for table in tables for record in table.records()], names)


def print_tables(tables: Iterable[Table], console: Console | None = None) -> None:
    """Print tables on a terminal; one that is too wide is divided into one part per learner."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console()
    for table in map(_titled, tables):
        console.print(Text(printable(table.title), style="bold"))
        places = range(len(table.columns))
        whole = _part(table, places)
        if console.measure(whole, options=console.options.update_width(sys.maxsize)).maximum <= console.width:
            console.print(whole)
        else:
            for _, own in groupby(places, key=lambda place: table.columns[place].group):
                console.print(_part(table, list(own)))
        for note in table.notes:
            console.print(Text(printable(note), style="dim"))
        console.print()


def _part(table: Table, places: Sequence[int]) -> RichTable:
    """Some columns of a table; the learner stands in the corner if all are of one."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    groups = {table.columns[place].group for place in places}
    alone = groups.pop() if len(groups) == 1 else ""
    shown.add_column(Text(printable(f"{alone}\n{table.corner}".strip(), keep="\n")), no_wrap=True)
    for place in places:
        group = "" if alone else table.columns[place].group
        head = f"{group}\n{table.columns[place].name}".strip()
        shown.add_column(Text(printable(head, keep="\n")), justify="right", no_wrap=True)
    for (name, *row), (_, cells) in zip(_texts(table), table.rows, strict=True):
        best = ["bold" if cell and cell.best else "" for cell in cells]
        shown.add_row(Text(printable(name)), *(Text(row[place], style=best[place]) for place in places))
    return shown


def print_card(verdict: Mapping[str, Any], notes: Iterable[str] = (), console: Console | None = None) -> None:
    """Print the card of a verdict, as ``Verdict.to_dict`` gives it, with what to check and notes."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    lines = [*verdict["card"].items(), *(("check", finding["text"]) for finding in verdict["findings"])]
    card = Grid.grid(padding=(0, 2))
    for name, text in [*lines, *(("note", f"{note}.") for note in notes)]:
        card.add_row(Text(name.capitalize(), style="bold"), Text(printable(text)))
    (console or Console(highlight=False)).print(card)


def print_results(
    measured: Sequence[MeasuredRun], verdicts: Mapping[Path, Mapping[str, Any] | None], tables: Sequence[Table]
) -> None:
    """Print the cards of at most three runs that have a verdict, then tables."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    judged = [(one.name, verdict) for one in measured if (verdict := verdicts.get(one.run.path))]
    for name, verdict in judged[:CARDS]:
        console.print(Text(printable(name), style="bold"))
        print_card(verdict, console=console)
        console.print()
    if len(judged) > CARDS:
        console.print(f"{len(judged) - CARDS} more cards are on the page.\n")
    print_tables(tables, console)


def write_tables(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Write ``tables.csv`` and ``tables.md``; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "tables.csv", to_csv(tables))
    write_text(folder / "tables.md", "\n".join(map(to_markdown, tables)))
    return [folder / "tables.csv", folder / "tables.md"]


def _titled(table: Table) -> Table:
    """The table with titles in place of the names of detectors and learners."""
    columns = tuple(replace(column, group=label(column.group)) for column in table.columns)
    return replace(table, columns=columns, rows=tuple((label(name), cells) for name, cells in table.rows))


def _texts(table: Table, bold: str = "{}") -> Iterator[list[str]]:
    """Each row as texts: its name, then its cells."""
    for name, cells in table.rows:
        yield [name, *(_cell(*pair, bold) for pair in zip(cells, table.columns, strict=True))]


def _cell(cell: TableCell | None, column: Column, bold: str) -> str:
    """``66.5 ± 1.5 (65.9, +0.6)``: mean, deviation over seeds, the paper's value and the difference from it."""
    if cell is None:
        return ""
    text = f"{cell.value.mean:.{column.digits}f}"
    text = bold.format(text) if cell.best else text
    text += f" ± {cell.value.std:.{column.digits}f}" if cell.value.seeds > 1 else ""
    return text + (f" ({cell.paper.mean:.1f}, {cell.value.mean - cell.paper.mean:+.1f})" if cell.paper else "")


def markdown_line(text: str) -> str:
    """Text as one line of Markdown without HTML."""
    return printable(text).replace("<", "&lt;")
