"""Markdown of tables and words on the results pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from results_pages.agreement import Claim

__all__ = ["claim_table", "grid", "quoted", "table", "yes_or_no"]


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table and an empty line; a sentence instead if there are no rows."""
    yield from (grid(head, rows) if rows else ["Nothing to compare yet."])
    yield ""


def claim_table(judged: Iterable[Claim]) -> Iterator[str]:
    """A table of claims: the paper's numbers, ours, and whether they hold."""
    rows = [(claim.text, claim.paper, claim.ours, yes_or_no(claim.holds)) for claim in judged]
    yield from table(("claim", "paper", "here", "holds"), rows)


def quoted(names: Iterable[str]) -> str:
    """Names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def yes_or_no(holds: bool | None) -> str:
    """Whether something holds, in a word."""
    return {True: "yes", False: "**no**", None: "unclear"}[holds]
