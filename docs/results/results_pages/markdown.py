"""Tables in Markdown, and the places of a page that are filled with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from tood.storage.files import write_text

__all__ = ["fill", "spread_of", "table"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table; a sentence instead if there are no rows."""
    rows = list(rows)
    for row in (head, ["---"] * len(head), *rows) if rows else ():
        yield f"| {' | '.join(row)} |"
    yield from () if rows else ("Not measured yet.",)


def spread_of(values: Iterable[float], form: str = ".1f") -> str:
    """Mean ± standard deviation over seeds; a dash without values."""
    seeds = list(values)
    deviation = f"±{np.std(seeds, ddof=1):.1f}" if len(seeds) > 1 else ""
    return f"{np.mean(seeds):{form}}{deviation}" if seeds else "–"


def fill(page: Path, blocks: Mapping[str, Iterable[str]]) -> Path:
    """Replace what stands between ``<!-- NAME -->`` and ``<!-- end -->`` in a page; names without it are skipped."""
    text = page.read_text(encoding="utf-8")
    for name, lines in blocks.items():
        content = "\n".join(lines)
        mark = rf"<!-- {re.escape(name)} -->.*?<!-- end -->"
        text = re.sub(mark, lambda _, new=content, of=name: f"<!-- {of} -->\n\n{new}\n\n<!-- end -->", text, flags=re.S)
    write_text(page, text)
    return page
