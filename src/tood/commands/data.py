"""``tood data``: which image sets are present."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import click

from tood.commands._console import FILE, JSON
from tood.storage.files import printable


@click.group()
def command() -> None:
    """Image sets of the named streams.

    Example: tood data check
    """


@command.command()
@click.option("--root", type=FILE, help="Folder of the sets.  [default: $TOOD_DATA, or the user's cache]")
@JSON
def check(root: Path | None, as_json: bool) -> None:
    """Show which image sets are present, what is missing for which table of the paper, and where to get it.

    Tables are the targets of `tood reproduce`. Packed sets are compared with SHA256SUMS in the same folder; exit code 1
    if one is damaged.

    Example: tood data check --root ~/data
    """
    from tood.errors import ToodError
    from tood.storage.files import sha256
    from tood.streams.catalog import CATALOG, data_root, locate, origin, places
    from tood.streams.packed import checksums

    folder = data_root(root)
    sums = checksums(folder)
    sets: dict[str, dict[str, Any]] = {}
    streams: dict[str, list[str]] = {}
    for stream, entry in CATALOG.items():
        paths = locate(entry, folder)
        streams[stream] = [entry.sets[part] for part, path in paths.items() if path is None]
        for part, path in paths.items():
            about: dict[str, Any] = {
                "path": path and str(path.relative_to(folder)),
                "state": "present" if path else "missing",
            }
            if path and path.name in sums:
                about["state"] = "intact" if sha256(path) == sums[path.name] else "damaged"
            sets.setdefault(entry.sets[part], about | {"places": places(entry, part)} | origin(entry.sets[part]))
    tables = _tables()
    if as_json:
        found = {"root": str(folder), "sets": sets, "streams": streams, "tables": tables}
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(f"{folder}:" if folder.is_dir() else f"{folder}: no such folder; set TOOD_DATA or give --root")
        for name, about in sets.items():
            source = f"{about['source']} ({about['licence']}; {about['size']})"
            click.echo(printable(f"  {name:<20}{about['state']:<9}{about['path'] or source}"))
            if not about["path"]:
                click.echo(f"{'':<31}put it at {' or '.join(about['places'])}")
        for stream, lacking in streams.items():
            wanted = f" ({', '.join(tables[stream])})" if stream in tables else ""
            click.echo(f"stream {stream}{wanted}: " + (f"missing {', '.join(lacking)}" if lacking else "ready"))
    if damaged := [name for name, about in sets.items() if about["state"] == "damaged"]:
        raise ToodError(f"{folder}: damaged: {', '.join(damaged)}; get the files again")


def _tables() -> dict[str, list[str]]:
    """The targets of ``tood reproduce`` by stream."""
    from tood.paper.reproduce import TARGETS, cells

    targets: dict[str, list[str]] = defaultdict(list)
    for target in TARGETS:
        for stream in sorted({cell.config.identity.stream for cell in cells(target, "runs", seeds=1)}):
            targets[stream].append(target)
    return targets
