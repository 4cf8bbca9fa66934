"""``tood list``: the detectors, learners, streams and networks there are, from what they declare themselves."""

from __future__ import annotations

import importlib
import json
from typing import Any

import click

__all__ = ["command"]

KINDS = {"detectors": "detectors", "learners": "learners", "streams": "streams", "networks": "models"}


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Print the detectors as a Markdown table.")
def command(kind: str | None, as_json: bool, markdown: bool) -> None:
    """List what can be named: detectors, learners, streams, networks; all of them unless one KIND is given.

    Of each detector: what it reads, on which set it is fitted, its hyper-parameters with their defaults and the values
    a search would try, and whom to cite.

    Example: tood list detectors
    """
    if markdown:
        click.echo(markdown_table())
        return
    found = {name: _names(name) for name in ([kind] if kind else KINDS)}
    if as_json:
        shown: dict[str, Any] = {name: None if names is None else list(names) for name, names in found.items()}
        if shown.get("detectors"):
            shown["detectors"] = _declarations()
        click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    elif kind == "detectors":
        click.echo("\n\n".join(map(_described, _declarations())))
    else:
        for name, names in found.items():
            if names is not None:
                click.echo(f"{name} ({len(names)}): {' '.join(names)}")


def _names(kind: str) -> list[str] | None:
    """The names of a kind; none, and a line that says why, where a package is missing."""
    try:
        names: list[str] = importlib.import_module(f"tood.{KINDS[kind]}").names()
    except ImportError as error:
        click.echo(f"{kind}: {error}", err=True)
        return None
    return names


def _declarations() -> list[dict[str, Any]]:
    from tood import detectors

    return [
        {
            "name": name,
            "summary": (detector.__doc__ or "").partition("\n")[0].replace("``", ""),
            "reads": sorted(detector.needs),
            "fits_on": detector.fits_on,
            "parameters": {
                parameter: {"default": declared.default, "grid": list(declared.grid)}
                for parameter, declared in detector.parameters.items()
            },
            "reference": detector.reference,
        }
        for name, detector in detectors.classes().items()
    ]


def markdown_table() -> str:
    """The detectors as a table, for the docs."""
    rows = ["| name | what | reads | fitted on | settings | reference |", "| --- | --- | --- | --- | --- | --- |"]
    for d in _declarations():
        settings = ", ".join(f"`{name}={parameter['default']}`" for name, parameter in d["parameters"].items())
        fitted = {"none": "–", "fit": "fit set", "calibration": "calibration set"}[d["fits_on"]]
        cells = (f"`{d['name']}`", d["summary"], ", ".join(d["reads"]), fitted, settings, d["reference"])
        rows.append(f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |")
    return "\n".join(rows)


def _described(declared: dict[str, Any]) -> str:
    """A few lines about one detector."""
    fitted = {"none": "not fitted", "fit": "fitted on the fit set", "calibration": "fitted on the calibration set"}
    lines = [
        f"{declared['name']}: {declared['summary']}",
        f"    reads {', '.join(declared['reads'])}; {fitted[declared['fits_on']]}",
    ]
    for name, parameter in declared["parameters"].items():
        grid = parameter["grid"]
        tried = ", ".join(map(str, grid[:8])) + (f", … ({len(grid)})" if len(grid) > 8 else "")
        lines.append(f"    {name} = {parameter['default']}" + (f"   [{tried}]" if grid else ""))
    return "\n".join([*lines, f"    {declared['reference']}"])
