"""``tood list``: detectors, learners, streams, networks and presets by name, with what they declare."""

from __future__ import annotations

import dataclasses
import importlib
import json
import textwrap
from typing import Any

import click

from tood.commands._console import JSON
from tood.errors import ToodError
from tood.registry import Registry

MODULES = {  # whose function ``names`` lists each kind; of presets, ``presets``
    **{"detectors": "tood.detectors", "learners": "tood.learners", "streams": "tood.streams"},
    **{"networks": "tood.models", "presets": "tood.learners"},
}
FITTED = {"none": "not fitted", "fit": "fitted on the fit set", "calibration": "fitted on the calibration set"}


@click.command()
@click.argument("kind", type=click.Choice([*MODULES]), required=False)
@JSON
def command(kind: str | None, as_json: bool) -> None:
    """List detectors, learners, streams, networks and presets; only one KIND if given.

    Installed packages that offer any of these (entry points tood.detectors, tood.learners, tood.streams) are included.
    With KIND detectors or learners: title, what it needs, settings with their defaults, and the citation.

    Example: tood list detectors
    """
    names = {}
    for each in [kind] if kind else MODULES:
        try:
            names[each] = getattr(importlib.import_module(MODULES[each]), "presets" if each == "presets" else "names")()
        except ImportError as error:
            click.echo(f"{each}: {error}", err=True)
    if as_json:
        shown: dict[str, Any] = {each: _declarations(each) or listed for each, listed in names.items()}
        click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    elif kind in ("detectors", "learners") and kind in names:
        click.echo("\n\n".join(map(_described, _declarations(kind))))
    elif kind == "presets" and kind in names:
        from tood.learners.preset_files import descriptions

        for name, description in descriptions().items():
            click.echo(f"{name:<10} {description}")
    else:
        for each, listed in names.items():
            click.echo(f"{each} ({len(listed)})")
            click.echo(textwrap.fill(" ".join(listed), 78, initial_indent="  ", subsequent_indent="  "))


def _declarations(kind: str) -> list[dict[str, Any]]:
    """What each detector or learner declares; for an installed one that cannot be imported, the error."""
    if kind not in ("detectors", "learners"):
        return []
    module = importlib.import_module("tood.detectors.base" if kind == "detectors" else "tood.learners.base")
    registry: Registry[Any] = module.REGISTRY if kind == "detectors" else module.LEARNERS
    return [_declaration(registry, name) for name in importlib.import_module(MODULES[kind]).names()]


def _declaration(registry: Registry[Any], name: str) -> dict[str, Any]:
    try:
        item = registry.get(name)
    except ToodError as error:
        return {"name": name, "error": str(error)}
    summary = (item.__doc__ or "").partition("\n")[0].replace("``", "")
    entry = {"name": name, "title": item.title or name, "summary": summary}
    if hasattr(item, "needs"):  # a detector
        entry |= {"needs": sorted(item.needs), "fits_on": item.fits_on}
        parameters = {each: (default, list(item.grid.get(each, ()))) for each, default in item.parameters.items()}
    else:
        from tood.learners.settings import Settings, settings_class

        common = {field.name for field in dataclasses.fields(Settings)}
        own = (field for field in dataclasses.fields(settings_class(item)) if field.name not in common)
        parameters = {field.name: (field.default, []) for field in own}
    declared = {each: {"default": default, "grid": grid} for each, (default, grid) in parameters.items()}
    return {**entry, "parameters": declared, "citation": item.citation}


def _described(declared: dict[str, Any]) -> str:
    """A few lines about one detector or learner."""
    if "error" in declared:
        return f"{declared['name']}: not available\n    {declared['error']}"
    lines = [f"{declared['name']}: {declared['title']}", f"    {declared['summary']}"]
    if "needs" in declared:
        lines.append(f"    needs {', '.join(declared['needs'])}; {FITTED[declared['fits_on']]}")
    for name, parameter in declared["parameters"].items():
        grid = parameter["grid"]
        tried = ", ".join(map(str, grid[:8])) + (f", … ({len(grid)})" if len(grid) > 8 else "")
        lines.append(f"    {name} = {parameter['default']}" + (f"   [{tried}]" if grid else ""))
    if declared["citation"]:
        lines.append(f"    {declared['citation']}")
    return "\n".join(lines)
