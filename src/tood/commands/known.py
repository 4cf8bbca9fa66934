"""``tood known``: known classes of embeddings in a file: add, remove, score, inspect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tood.commands._console import FILE, JSON, SHARE, warnings_as_lines

VECTORS = "Vectors [n, D]: .npy, .npz (the array with two axes), .parquet, .arrow or .csv."


@click.group()
def command() -> None:
    """Unknown detection for embeddings: classes are added and removed without training.

    Example: tood known add intents.known --in vectors.npz
    """


@command.command()
@click.argument("file", type=FILE)
@click.option("--in", "source", type=FILE, required=True, help=f"{VECTORS} A column labels names the classes.")
@click.option("--name", help="The class of all vectors, in place of labels.")
def add(file: Path, source: Path, name: str | None) -> None:
    """Add classes, or samples of known ones, to FILE; makes FILE if it does not exist.

    Example: tood known add intents.known --in refunds.npy --name refund
    """
    from tood.errors import ToodError
    from tood.known import Known

    vectors, labels = _read(source)
    if name is None and labels is None:
        raise ToodError(f"{source}: expected labels beside the vectors, found none; give the class by --name")
    with warnings_as_lines():
        known = Known.load(file) if file.exists() else Known()
        known = known.add(name, vectors) if name is not None else known.partial_fit(vectors, labels)
        known.save(file)
    click.echo(f"{file}: {len(vectors):,} samples added; {len(known.classes_)} classes")


@command.command()
@click.argument("file", type=FILE)
@click.argument("names", nargs=-1, required=True)
def remove(file: Path, names: tuple[str, ...]) -> None:
    """Remove classes from FILE.

    Example: tood known remove intents.known refund
    """
    from tood.known import Known

    known = Known.load(file)
    by_text = {str(name): name for name in known.classes_.tolist()}
    with warnings_as_lines():
        for name in names:
            known.remove(by_text.get(name, name))
        known.save(file)
    click.echo(f"{file}: {', '.join(names)} removed; {len(known.classes_)} classes")


@command.command()
@click.argument("file", type=FILE)
@click.option("--in", "source", type=FILE, required=True, help=VECTORS)
@click.option("--alpha", type=SHARE, help="Also accept or reject: at most this share of known inputs is rejected.")
@JSON
def score(file: Path, source: Path, alpha: float | None, as_json: bool) -> None:
    """Print the score of each vector (higher = known), the nearest class and, with --alpha, the decision, as CSV.

    Example: tood known score intents.known --in new.npy --alpha 0.05
    """
    from tood.known import Known
    from tood.storage.files import csv_text

    known, vectors = Known.load(file), _read(source)[0]
    with warnings_as_lines():
        columns = {"score": known.score(vectors).tolist(), "class": known.predict(vectors).tolist()}
        if alpha is not None:
            columns["accept"] = known.decide(vectors, alpha).tolist()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    click.echo(json.dumps(rows) if as_json else csv_text(rows, list(columns)), nl=as_json)


@command.command()
@click.argument("file", type=FILE)
@JSON
def inspect(file: Path, as_json: bool) -> None:
    """Show the classes of FILE, their numbers of samples, settings and metadata.

    Example: tood known inspect intents.known
    """
    from tood.known import RULE, Known
    from tood.storage.files import printable

    known = Known.load(file)
    about: dict[str, Any] = {"rule": RULE, "created": known.created_, **known.get_params(), **known.metadata_}
    about |= {"not exactly removable": known.inexact_}
    if as_json:
        click.echo(json.dumps({**about, "classes": known.counts_}))
        return
    lines = [repr(known), *(f"{name}: {value}" for name, value in about.items())]
    lines += [f"{size:>9,}  {name}" for name, size in known.counts_.items()]
    click.echo("\n".join(map(printable, lines)))


def _read(path: Path) -> tuple[Any, Any]:
    """Vectors and labels, None without."""
    from tood.deploy.logit_files import LogitsFile
    from tood.errors import ToodError
    from tood.storage.npz import read_npz

    if path.suffix != ".npz":
        table = LogitsFile(path)
        return table.read(), None if table.label_column is None else table.column(table.label_column)
    arrays, _ = read_npz(path)
    vectors = [array for array in arrays.values() if array.ndim == 2]
    if len(vectors) != 1:
        raise ToodError(f"{path}: expected one array with two axes, found {len(vectors)} among {', '.join(arrays)}")
    return vectors[0], arrays.get("labels")
