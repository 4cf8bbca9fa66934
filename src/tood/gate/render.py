"""A gate's result for people and machines: plain text, Markdown, HTML, JUnit XML, GitHub annotations."""

from __future__ import annotations

from html import escape
from xml.etree import ElementTree

from tood.gate.comparison import Gate
from tood.storage.files import printable

__all__ = ["github", "html", "junit", "markdown", "plain_text"]

HEADER = ("metric", "samples of", "old %", "new %", "gain", "interval", "")
STYLE = (
    "body{font:15px system-ui;margin:2em auto;max-width:60em}table{border-collapse:collapse}"
    "td,th{padding:.2em .7em;border-bottom:1px solid #ccc;text-align:left}pre{white-space:pre-wrap}"
)


def rows(gate: Gate, details: bool = True) -> list[list[str]]:
    """One row of texts per change: those over all samples and, with ``details``, per task and class."""
    table = [list(HEADER)]
    for change in [*gate.judged.changes, *(gate.tasks + gate.classes if details else ())]:
        low, high = change.interval(gate.alpha)
        state = "worse" if change in gate.judged.blocking else "undecided" if change in gate.judged.undecided else ""
        shares = [f"{100 * change.old:.1f}", f"{100 * change.new:.1f}", f"{change.points:+.1f}"]
        of = f"{printable(change.of)} ({change.samples:,})"
        table.append([change.name, of, *shares, f"{100 * low:+.1f} to {100 * high:+.1f}", state])
    return table


def plain_text(gate: Gate) -> str:
    """Verdict, notes and the changes over all samples, for a terminal."""
    table = rows(gate, details=False)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
    notes = "".join(f"Note: {note}.\n" for note in gate.notes)
    return printable(f"{gate.text}\n{notes}\n", keep="\n") + "\n".join(line.rstrip() for line in lines)


def markdown(gate: Gate) -> str:
    """Verdict and every change, for a pull request or the summary of a job."""
    verdict, *more = (_literal(line) for line in [*gate.text.splitlines(), *gate.notes])
    header, *entries = (f"| {' | '.join(map(_literal, row))} |" for row in rows(gate))
    lines = [f"**{verdict}**", "", *(f"- {line}" for line in more), "", header, "|" + " --- |" * len(HEADER), *entries]
    return "\n".join([*lines, ""])


def _literal(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "".join(f"\\{c}" if c in "\\|`*_[]<>#" else c for c in printable(text))


def html(gate: Gate) -> str:
    """One self-contained page."""
    verdict, more = escape(printable(gate.text, keep="\n")).split("\n", 1)
    header, *entries = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows(gate))
    table = "".join(f"<tr>{row}</tr>\n" for row in [header.replace("td>", "th>"), *entries])
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>tood gate: {gate.verdict}</title>\n'
        f"<style>{STYLE}</style>\n<h1>{verdict}</h1>\n<pre>{more}</pre>\n<table>\n{table}</table>\n</html>\n"
    )


def junit(gate: Gate) -> str:
    """One test case per change that decides: a loss is a failure, an undecided change an error."""
    found = {"failure": gate.judged.blocking}
    found["error"] = [change for change in gate.judged.undecided if change not in gate.judged.blocking]
    cases = dict.fromkeys([*(change for change in gate.judged.changes if change.name != "AUROC"), *found["failure"]])
    counts = {"tests": len(cases), "failures": len(found["failure"]), "errors": len(found["error"])}
    suite = ElementTree.Element("testsuite", {"name": "tood gate"} | {name: str(n) for name, n in counts.items()})
    for change in cases:
        name = printable(f"{change.name} ({change.of})")
        case = ElementTree.SubElement(suite, "testcase", classname="tood.gate", name=name)
        for kind in [kind for kind, changes in found.items() if change in changes]:
            ElementTree.SubElement(case, kind, message=printable(gate.describe(change)))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def github(gate: Gate) -> str:
    """Workflow commands that GitHub shows as annotations."""
    level = {"ship": "notice", "undecided": "warning"}.get(gate.verdict, "error")
    others = sorted(gate.judged.blocking, key=lambda change: change.gain)[1:]  # the verdict describes the worst
    messages = [gate.text.splitlines()[0], *map(gate.describe, others)]
    return "\n".join(f"::{level} title=tood gate::{printable(text).replace('%', '%25')}" for text in messages)
