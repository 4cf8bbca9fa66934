"""``tood list``: detectors, learners, streams, networks and presets by name, with what they declare."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable
from typing import Any

import click

from tood.errors import ToodError
from tood.registry import Registry

__all__ = ["command"]

SOURCES = {  # the function that gives the names of each kind
    "detectors": ("tood.detectors", "names"),
    "learners": ("tood.learners", "names"),
    "streams": ("tood.streams", "names"),
    "networks": ("tood.models", "names"),
    "presets": ("tood.learners", "presets"),
}
FITTED = {"none": "not fitted", "fit": "fitted on the fit set", "calibration": "fitted on the calibration set"}


@click.command()
@click.argument("kind", type=click.Choice([*SOURCES]), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(kind: str | None, as_json: bool) -> None:
    """List detectors, learners, streams, networks and presets; only one KIND if given.

    Installed packages that offer any of these (entry points tood.detectors, tood.learners, tood.streams) are included.
    With KIND detectors or learners: title, what it needs, settings with their defaults, and the citation.

    Example: tood list detectors
    """
    names = {name: listed for name in ([kind] if kind else SOURCES) if (listed := _names(name)) is not None}
    if as_json:
        shown: dict[str, Any] = {name: _declarations(name) or listed for name, listed in names.items()}
        click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    elif kind in ("detectors", "learners") and kind in names:
        click.echo("\n\n".join(map(_described, _declarations(kind))))
    elif kind == "presets" and kind in names:
        from tood.learners.preset_files import descriptions

        for name, description in descriptions().items():
            click.echo(f"{name:<10} {description}")
    else:
        for name, listed in names.items():
            click.echo(f"{name} ({len(listed)}): {' '.join(listed)}")


def _names(kind: str) -> list[str] | None:
    """The names of a kind; None, and a line on stderr, if a package is missing."""
    try:
        module, function = SOURCES[kind]
        return getattr(importlib.import_module(module), function)()  # type: ignore[no-any-return]
    except ImportError as error:
        click.echo(f"{kind}: {error}", err=True)
        return None


def _declarations(kind: str) -> list[dict[str, Any]]:
    """What each detector or learner declares; for an installed one that cannot be imported, the error."""
    if kind == "detectors":
        from tood.detectors.registry import REGISTRY as DETECTORS

        return [_declaration(DETECTORS, name, _detector) for name in DETECTORS.names()]
    if kind == "learners":
        from tood.learners.registry import LEARNERS

        return [_declaration(LEARNERS, name, _learner) for name in sorted(LEARNERS.names())]
    return []


def _declaration(registry: Registry[Any], name: str, describe: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    try:
        item = registry.get(name)
    except ToodError as error:
        return {"name": name, "error": str(error)}
    summary = (item.__doc__ or "").partition("\n")[0].replace("``", "")
    return {"name": name, "title": item.title or name, "summary": summary, **describe(item), "citation": item.citation}


def _detector(detector: Any) -> dict[str, Any]:
    parameters = {
        name: {"default": parameter.default, "grid": list(parameter.grid)}
        for name, parameter in detector.parameters.items()
    }
    return {"needs": sorted(detector.needs), "fits_on": detector.fits_on, "parameters": parameters}


def _learner(learner: Any) -> dict[str, Any]:
    from tood.learners.settings import Settings, settings_class

    common = {field.name for field in dataclasses.fields(Settings)}
    own = [field for field in dataclasses.fields(settings_class(learner)) if field.name not in common]
    return {"parameters": {field.name: {"default": field.default, "grid": []} for field in own}}


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
