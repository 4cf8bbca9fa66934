"""``tood inspect``: what a file is, what made it, and what it promises."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import click

from tood.commands._console import FILE, JSON, SHARE
from tood.errors import ToodError


@click.command()
@click.argument("file", type=FILE)
@click.option("--alpha", type=SHARE, default=0.05, show_default=True, help="Show the threshold at this share.")
@JSON
def command(file: Path, alpha: float, as_json: bool) -> None:
    """Show what a file of tood is: kind, rule, versions, date, metadata, tasks, threshold and guarantee.

    FILE is anything that tood writes for a deployed score: .safetensors, .onnx, .pt2, or a .parquet file of scores.

    Example: tood inspect cal.safetensors
    """
    from tood.storage.files import for_json, printable

    facts = for_json(describe(file, alpha))
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        pairs = [f"{key} {entry}" for key, entry in value.items()] if isinstance(value, dict) else [str(value)]
        text = ", ".join(pairs).replace("\n", "; ")
        click.echo(f"{name:<16} {printable(text) or '-'}")


def describe(file: Path, alpha: float) -> dict[str, Any]:
    """The facts of a file by name."""
    from tood.decision.facts import decision_facts, load_decision, score_facts
    from tood.deploy.drift import KIND as MONITOR
    from tood.deploy.drift import DriftMonitor
    from tood.storage.files import kind_of, read_tensors

    if not file.is_file():
        raise ToodError(f"{file}: no such file")
    kind = kind_of(file)
    if kind is None:
        return {"file": str(file)} | _exported(file)
    facts: dict[str, Any] = {"file": str(file), "kind": kind}
    if kind in ("tood-calibrator", "tood-detector"):
        return facts | score_facts(load_decision(file))
    if kind in ("tood-conformal", "tood-sets"):
        decision = load_decision(file)
        return facts | score_facts(decision.cal) | decision_facts(decision, alpha)
    if kind == MONITOR:
        monitor = DriftMonitor.load(file)
        return facts | score_facts(monitor.cal) | {"report": str(monitor.report())}
    tensors, metadata = read_tensors(file, kind)
    return facts | {"arrays": len(tensors)} | {name: text[:200] for name, text in metadata.items()}


def _exported(file: Path) -> dict[str, Any]:
    """The metadata of an exported scorer or of a table of scores."""
    from tood.storage.files import reading

    texts: dict[str, str] = {}
    with reading(file, "expected a file that tood wrote"):
        if file.suffix == ".onnx":
            import onnx

            texts = {entry.key: entry.value for entry in onnx.load(file).metadata_props}
        elif file.suffix == ".parquet":
            from pyarrow.parquet import read_metadata

            texts = {name.decode(): text.decode() for name, text in (read_metadata(file).metadata or {}).items()}
        elif zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                names = [name for name in archive.namelist() if name.endswith("tood.json")]
                texts = {f"tood.{key}": text for name in names for key, text in json.loads(archive.read(name)).items()}
    facts = {name.removeprefix("tood."): text for name, text in texts.items() if name.startswith("tood.")}
    if not facts:
        raise ToodError(f"{file}: expected a file that tood wrote, found none or another one")
    return {"kind": f"exported {file.suffix[1:]}"} | facts
