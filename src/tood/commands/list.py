"""``tood list``: detectors, learners, streams and networks by name, described by what they declare."""

from __future__ import annotations

import importlib
import json
from typing import Any

import click

from tood.errors import ToodError

__all__ = ["command", "markdown_table"]

MODULES = {"detectors": "detectors", "learners": "learners", "streams": "streams", "networks": "models"}
FITTED = {"none": "not fitted", "fit": "fitted on the fit set", "calibration": "fitted on the calibration set"}


@click.command()
@click.argument("kind", type=click.Choice(list(MODULES)), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Print the detectors as a Markdown table.")
def command(kind: str | None, as_json: bool, markdown: bool) -> None:
    """List detectors, learners, streams and networks; only one KIND if given.

    Installed packages that offer any of these (entry points tood.detectors, tood.learners, tood.streams) are included.
    Per detector: its title, what it needs, the set it is fitted on, its hyper-parameters with defaults and the values
    that a search tries, and the citation.

    Example: tood list detectors
    """
    if markdown:
        click.echo(markdown_table())
        return
    names = {name: listed for name in ([kind] if kind else MODULES) if (listed := _names(name)) is not None}
    if as_json:
        shown: dict[str, Any] = dict(names)
        if "detectors" in names:
            shown["detectors"] = _declarations()
        click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    elif kind == "detectors":
        click.echo("\n\n".join(map(_described, _declarations())))
    else:
        for name, listed in names.items():
            click.echo(f"{name} ({len(listed)}): {' '.join(listed)}")


def _names(kind: str) -> list[str] | None:
    """The names of a kind; None, and a line on stderr, if a package is missing."""
    try:
        names: list[str] = importlib.import_module(f"tood.{MODULES[kind]}").names()
    except ImportError as error:
        click.echo(f"{kind}: {error}", err=True)
        return None
    return names


def _declarations() -> list[dict[str, Any]]:
    """What each detector declares; for an installed one that cannot be imported, the error."""
    from tood.detectors.registry import REGISTRY

    declared: list[dict[str, Any]] = []
    for name in REGISTRY.names():
        try:
            detector = REGISTRY.get(name)
        except ToodError as error:
            declared.append({"name": name, "error": str(error)})
            continue
        parameters = {
            parameter: {"default": value.default, "grid": list(value.grid)}
            for parameter, value in detector.parameters.items()
        }
        declared.append(
            {
                "name": name,
                "title": detector.title or name,
                "summary": (detector.__doc__ or "").partition("\n")[0].replace("``", ""),
                "needs": sorted(detector.needs),
                "fits_on": detector.fits_on,
                "parameters": parameters,
                "citation": detector.citation,
            }
        )
    return declared


def markdown_table() -> str:
    """The detectors as a Markdown table, for the documentation."""
    rows = ["| name | title | score | needs | fitted on | settings | citation |", f"|{' --- |' * 7}"]
    for d in _declarations():
        if "error" not in d:
            settings = ", ".join(f"`{name}={parameter['default']}`" for name, parameter in d["parameters"].items())
            fitted = FITTED[d["fits_on"]].removeprefix("fitted on the ")
            cells = (f"`{d['name']}`", d["title"], d["summary"], ", ".join(d["needs"]), fitted, settings, d["citation"])
            rows.append(f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |")
    return "\n".join(rows)


def _described(declared: dict[str, Any]) -> str:
    """A few lines about one detector."""
    if "error" in declared:
        return f"{declared['name']}: not available\n    {declared['error']}"
    lines = [
        f"{declared['name']}: {declared['title']}",
        f"    {declared['summary']}",
        f"    needs {', '.join(declared['needs'])}; {FITTED[declared['fits_on']]}",
    ]
    for name, parameter in declared["parameters"].items():
        grid = parameter["grid"]
        tried = ", ".join(map(str, grid[:8])) + (f", … ({len(grid)})" if len(grid) > 8 else "")
        lines.append(f"    {name} = {parameter['default']}" + (f"   [{tried}]" if grid else ""))
    return "\n".join([*lines, f"    {declared['citation']}"])
