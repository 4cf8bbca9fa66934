"""``tood data``: list, verify and prepare image sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tood.commands._console import FILE, JSON
from tood.storage.files import printable

KNOWN_BY = {  # files that tell what a folder is
    "cifar": {"train.bin", "test.bin", "test_batch.bin", "data_batch_1.bin", "test_batch", "data_batch_1", "meta"},
    "huggingface": {"dataset_info.json", "dataset_dict.json"},
}
root_option = click.option("--root", type=FILE, help="Folder of the sets.  [default: $TOOD_DATA, or the user's cache]")


@click.group()
def command() -> None:
    """Image sets: list and verify those that are present, prepare those that are missing.

    Example: tood data list
    """


@command.command("list")
@root_option
@JSON
def list_sets(root: Path | None, as_json: bool) -> None:
    """List image sets, present or missing, with size, source and licence, and which streams can be used.

    The size of a missing set is that of the publisher's whole set.

    Example: tood data list --root ~/data
    """
    from tood.streams.catalog import CATALOG, data_root, missing, origin

    folder = data_root(root)
    sets = [_describe(path) for path in sorted(folder.glob("*.npz"))]
    streams = {name: missing(name, folder) for name in sorted(CATALOG)}
    named = {file: origin(name)._asdict() for file, name in _named_sets(folder).items()}
    folders = [
        {"file": file, "layout": "folder" if (folder / file).is_dir() else "list"} | about
        for file, about in named.items()
        if not file.endswith(".npz") and (folder / file).exists()
    ]
    absent = [{"file": file} | named[file] for file in sorted({name for names in streams.values() for name in names})]
    if as_json:
        found = {"root": str(folder), "sets": sets, "folders": folders, "missing": absent, "streams": streams}
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(f"{folder}: {len(sets) + len(folders)} sets" if folder.is_dir() else f"{folder}: no such folder")
    for entry in [*sets, *folders, *absent]:
        click.echo("  " + _line(entry))
    for name, lacking in streams.items():
        click.echo(f"stream {name}: " + ("ready" if not lacking else f"missing {', '.join(lacking)}"))
    if absent:
        click.echo("Set TOOD_DATA to a folder that has them, or make them: tood data prepare --help")


def _named_sets(folder: Path) -> dict[str, str]:
    """The files and folders of all named streams, relative to ``folder``; each with the name its origin is found by."""
    from tood.streams.catalog import CATALOG, family, locate

    names: dict[str, str] = {}
    for stream, entry in CATALOG.items():
        for name, path in locate(entry, folder).items() if entry else ():
            own = family(stream) if name in ("train", "test") else name
            names[str(path.relative_to(folder))] = path.name if path.suffix == ".npz" else own
    return dict(sorted(names.items()))


def _describe(path: Path) -> dict[str, Any]:
    from tood.errors import ToodError
    from tood.streams.catalog import origin
    from tood.streams.packed import PackedSource

    try:
        source = PackedSource(path)
    except ToodError as error:
        return {"file": path.name, "error": str(error)}
    return {
        "file": path.name,
        "images": len(source),
        "classes": len(source.classes),
        "shape": list(source.shape),
        "layout": source.layout,
        "bytes": path.stat().st_size,
        "source": origin(path.name).source,
        "licence": origin(path.name).licence,
    }


def _line(entry: dict[str, Any]) -> str:
    """One line about a set that is packed, damaged, present as image files, or missing."""
    if "error" in entry:
        return printable(f"{entry['file']:<24}{entry['error']}")
    if "images" in entry:
        height, width, _ = entry["shape"]
        what = f"{entry['images']:>9,} images{entry['classes']:>6,} classes  {height}x{width}"
        what += f"  {entry['bytes'] / 2**20:>6.1f} MiB"
    else:
        what = f"image {entry['layout']}" if "layout" in entry else f"missing: {entry['size']}"
    return printable(f"{entry['file']:<24}{what}  {entry['source']}  ({entry['licence']})")


@command.command()
@root_option
@JSON
def verify(root: Path | None, as_json: bool) -> None:
    """Compare every set with its checksum in SHA256SUMS; exit code 1 if one differs or is missing.

    Example: tood data verify
    """
    from tood.errors import ToodError
    from tood.storage.files import sha256
    from tood.streams.catalog import data_root
    from tood.streams.packed import CHECKSUMS, checksums

    folder = data_root(root)
    if not folder.is_dir():
        raise ToodError(f"{folder}: no such folder; set TOOD_DATA or give --root")
    expected = checksums(folder)
    states = dict.fromkeys(sorted({*expected, *(path.name for path in folder.glob("*.npz"))}), "no checksum")
    for name, checksum in expected.items():
        present = (folder / name).is_file()
        states[name] = "missing" if not present else "intact" if sha256(folder / name) == checksum else "damaged"
    if as_json:
        click.echo(json.dumps({"root": str(folder), "sets": states}, indent=2))
    else:
        lines = "\n".join(f"{name}: {state}" for name, state in states.items())
        click.echo(lines or f"{folder}: no sets and no {CHECKSUMS}")
    bad = [name for name, state in states.items() if state in ("missing", "damaged")]
    if bad:
        raise ToodError(f"{len(bad)} of {len(states)} sets are damaged or missing: {', '.join(bad)}")


@command.command()
@click.argument("name")
@click.argument("split")
@click.option("--from", "origin", required=True, help="A folder, or with --kind huggingface a name on the Hub.")
@click.option(
    "--kind",
    type=click.Choice(["auto", "folder", "cifar", "huggingface"]),
    default="auto",
    show_default=True,
    help="A folder of class folders, CIFAR's binary or Python files, or a Hugging Face data set.",
)
@click.option("--size", type=click.IntRange(1, 1024), help="Pixels per side; needed if images differ in size.")
@click.option("--image-column", default="image", show_default=True, help="Image column of a Hugging Face data set.")
@click.option("--label-column", default="label", show_default=True, help="Label column of a Hugging Face data set.")
@click.option("--revision", help="Commit (always the same data) or tag of a data set on the Hub.")
@click.option("--force", is_flag=True, help="Replace a set that exists.")
@root_option
def prepare(
    name: str, split: str, origin: str, kind: str, size: int | None, force: bool, root: Path | None, **columns: Any
) -> None:
    """Make the set NAME-SPLIT.npz, without loss, and record its checksum.

    `tood data list` names the sets that streams need and that are missing.

    Example: tood data prepare cifar10 train --from cifar-10-batches-bin
    """
    from tood.errors import ToodError
    from tood.streams.catalog import data_root
    from tood.streams.packed import write_packed

    folder = data_root(root)
    if not all(part and part.isascii() and part.replace("_", "").isalnum() for part in (name, split)):
        raise ToodError(f"name, split: expected letters, digits and underscores, found {name!r} and {split!r}")
    target = folder / f"{name}-{split}.npz"
    if target.exists() and not force:
        raise ToodError(f"{target}: exists; --force replaces it")
    source, classes = _open(origin, kind, split, size, columns)
    if (highest := int(source.labels.max())) >= len(classes):
        raise ToodError(f"{origin}: expected labels below the {len(classes)} class names, found {highest}")
    path = write_packed(folder, target.stem, source, classes)
    click.echo(f"{path}: {len(source):,} images, {len(classes):,} classes, {path.stat().st_size / 2**20:.1f} MiB")


def _open(origin: str, kind: str, split: str, size: int | None, columns: dict[str, Any]) -> tuple[Any, Any]:
    """The images to pack and the names of their classes."""
    from tood.errors import ToodError
    from tood.streams import FolderSource, from_huggingface
    from tood.streams.cifar import read_cifar

    folder = Path(origin)
    files = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if kind == "auto":
        kind = next((kind for kind, names in KNOWN_BY.items() if files & names), "folder")
    if kind == "cifar":
        return read_cifar(folder, split)
    if kind == "huggingface":
        hub_source = from_huggingface(origin, split, size=size, **columns)
        return hub_source, hub_source.classes
    if size is None:
        raise ToodError("--size: expected the pixels per side that images of a folder are resized to, found none")
    source = FolderSource(folder, size=size)
    return source, source.classes
