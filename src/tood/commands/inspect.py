"""``tood inspect``: what a file is, what made it, and what it promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tood.commands._console import FILE, JSON, SHARE


@click.command()
@click.argument("file", type=FILE)
@click.option("--alpha", type=SHARE, default=0.05, show_default=True, help="Show the threshold at this share.")
@JSON
def command(file: Path, alpha: float, as_json: bool) -> None:
    """Show what a file of tood is: kind, rule, versions, date, metadata, tasks, threshold and guarantee.

    Example: tood inspect cal.safetensors
    """
    from tood.storage.files import for_json, printable

    facts = for_json(describe(file, alpha))
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        text = ", ".join(f"{key} {entry}" for key, entry in value.items()) if isinstance(value, dict) else str(value)
        click.echo(f"{name:<16} {printable(text) or '-'}")


def describe(file: Path, alpha: float) -> dict[str, Any]:
    """The facts of a file by name."""
    from tood.calibration import TOOD
    from tood.calibration.tood import KIND as CALIBRATOR
    from tood.decision.conformal import KIND as CONFORMAL
    from tood.decision.conformal import Conformal
    from tood.decision.facts import decision_facts, score_facts
    from tood.deploy.drift import KIND as MONITOR
    from tood.deploy.drift import DriftMonitor
    from tood.errors import ToodError
    from tood.storage.files import kind_of, read_tensors

    kind = kind_of(file)
    if kind is None:
        raise ToodError(f"{file}: expected a safetensors file of tood, found none or another one")
    facts: dict[str, Any] = {"file": str(file), "kind": kind}
    if kind == CALIBRATOR:
        return facts | score_facts(TOOD.load(file))
    if kind == CONFORMAL:
        conformal = Conformal.load(file)
        return facts | score_facts(conformal.cal) | decision_facts(conformal, alpha)
    if kind == MONITOR:
        monitor = DriftMonitor.load(file)
        return facts | score_facts(monitor.cal) | {"report": str(monitor.report())}
    tensors, metadata = read_tensors(file, kind)
    return facts | {"arrays": len(tensors)} | {name: text[:200] for name, text in metadata.items()}
