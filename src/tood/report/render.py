"""Tables as Markdown, CSV, LaTeX or on a terminal.

Detectors and learners are shown by title, as in plots and on the page; CSV keeps the names that commands take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tood.report.appearance import label
from tood.report.tables import Column, Table, TableCell
from tood.storage.files import csv_text, file_name, printable, write_text

if TYPE_CHECKING:
    from rich.console import Console

    from tood.report.gather import MeasuredRun

__all__ = [
    "markdown_line",
    "print_card",
    "print_results",
    "print_tables",
    "to_csv",
    "to_latex",
    "to_markdown",
    "write_tables",
]

CARDS = 3  # printed at most
_LATEX = str.maketrans(
    {
        **{character: rf"\{character}" for character in "_%&#${}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
        "±": r"$\pm$",
        "→": r"$\rightarrow$",
    }
)
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


def to_latex(table: Table) -> str:
    """A ``booktabs`` table, as in the paper."""
    table = _titled(table)
    groups = [(name, len(list(columns))) for name, columns in groupby(table.columns, key=lambda c: c.group)]
    over = ["", *(rf"\multicolumn{{{width}}}{{c}}{{{_tex(name)}}}" for name, width in groups)]
    head = [_tex(table.corner), *(_tex(column.name) for column in table.columns)]
    rows = [[_tex(name), *cells] for name, *cells in _texts(table, r"\textbf{{{}}}", r"\,{{\scriptsize$\pm${}}}")]
    above, *body = (" & ".join(entries) + r" \\" for entries in (over, head, *rows))
    lines = [
        r"\begin{table}[t]",
        r"\centering\footnotesize",
        rf"\caption{{{_tex(table.title)}. {_tex(' '.join(table.notes))}}}",
        rf"\begin{{tabular}}{{l {'r' * len(table.columns)}}}",
        r"\toprule",
        *([above] if any(name for name, _ in groups) else []),
        body[0],
        r"\midrule",
        *body[1:],
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def print_tables(tables: Iterable[Table], console: Console | None = None) -> None:
    """Print tables on a terminal; a table that is too wide is split between learners."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = console or Console()
    for table in map(_titled, tables):
        console.print(Text(printable(table.title), style="bold"))
        texts = list(_texts(table))
        for part in _parts(table, texts, console.width):
            shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
            shown.add_column(table.corner, no_wrap=True)
            heads = _heads(table)
            for place in part:
                text = "\n".join(heads[place]) if any(column.group for column in table.columns) else heads[place][1]
                shown.add_column(Text(printable(text, keep="\n")), justify="right", no_wrap=True)
            for (name, *row), (_, cells) in zip(texts, table.rows, strict=True):
                best = ["bold" if cell and cell.best else "" for cell in cells]
                shown.add_row(Text(printable(name)), *(Text(row[place], style=best[place]) for place in part))
            console.print(shown)
        for note in table.notes:
            console.print(Text(printable(note), style="dim"))
        console.print()


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
    """Write ``tables.csv``, ``tables.md`` and one LaTeX file per table; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {folder / "tables.csv": to_csv(tables), folder / "tables.md": "\n".join(map(to_markdown, tables))}
    contents |= {folder / f"{file_name(table.name)}.tex": to_latex(table) for table in tables}
    for path, text in contents.items():
        write_text(path, text)
    return list(contents)


def _titled(table: Table) -> Table:
    """The table with titles in place of the names of detectors and learners."""
    columns = tuple(replace(column, group=label(column.group)) for column in table.columns)
    return replace(table, columns=columns, rows=tuple((label(name), cells) for name, cells in table.rows))


def _parts(table: Table, texts: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Columns split into parts that fit into ``width`` characters; a group of columns is not divided."""
    names, *columns = zip(*texts, strict=True) if texts else [(), *((),) * len(table.columns)]
    widths = [max(map(len, (*head, *own))) for head, own in zip(_heads(table), columns, strict=True)]
    room = width - max(map(len, (table.corner, *names))) - 2
    parts: list[list[int]] = [[]]
    for _, places in groupby(range(len(widths)), key=lambda place: table.columns[place].group):
        group = list(places)
        if parts[-1] and sum(widths[place] + 3 for place in [*parts[-1], *group]) > room:
            parts.append([])
        parts[-1] += group
    return parts


def _heads(table: Table) -> list[tuple[str, str]]:
    """The two lines of each heading; the group stands over its first column only."""
    grouped = groupby(table.columns, key=lambda column: column.group)
    return [("" if place else name, column.name) for name, own in grouped for place, column in enumerate(own)]


def _texts(table: Table, bold: str = "{}", deviation: str = " ± {}") -> Iterator[list[str]]:
    """Each row as texts: its name, then its cells."""
    for name, cells in table.rows:
        yield [name, *(_cell(*pair, bold, deviation) for pair in zip(cells, table.columns, strict=True))]


def _cell(cell: TableCell | None, column: Column, bold: str, deviation: str) -> str:
    """``66.5 ± 1.5 (65.9, +0.6)``: mean, deviation over seeds, the paper's value and the difference from it."""
    if cell is None:
        return ""
    text = f"{cell.value.mean:.{column.digits}f}"
    if cell.best:
        text = bold.format(text)
    if cell.value.seeds > 1:
        text += deviation.format(f"{cell.value.std:.{column.digits}f}")
    if cell.paper is not None:
        text += f" ({cell.paper.mean:.1f}, {cell.value.mean - cell.paper.mean:+.1f})"
    return text


def markdown_line(text: str) -> str:
    """Text as one line of Markdown without HTML."""
    return printable(text).replace("<", "&lt;")


def _tex(text: str) -> str:
    return printable(text).translate(_LATEX).replace("`", "")
