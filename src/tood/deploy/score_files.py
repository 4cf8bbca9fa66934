"""Score many files of logits, one output per file.

Each output keeps what it was made from and its summary. The same command, run again, skips finished files.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tood.deploy.logit_files import SUFFIXES
from tood.deploy.score_file import WRITTEN, PathLike, Scored, score_file
from tood.errors import ToodError
from tood.storage.files import sha256

__all__ = ["find_files", "score_files"]


def find_files(sources: Iterable[PathLike]) -> list[Path]:
    """The files named by files, folders (every file of logits in them) and patterns."""
    every: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            files = [file for file in source.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file()]
        elif not source.exists() and glob.has_magic(str(source)):
            files = [file for file in map(Path, glob.glob(str(source), recursive=True)) if file.is_file()]
        else:
            files = [source]
        if not files:
            raise ToodError(f"{source}: expected files of logits ({', '.join(SUFFIXES)}) there, found none")
        every += sorted(files)
    return list(dict.fromkeys(every))


def score_files(
    calibrator: PathLike,
    sources: Iterable[PathLike],
    folder: PathLike,
    progress: Callable[[Path, Scored], object] = lambda target, scored: None,
    **settings: Any,
) -> dict[Path, Scored]:
    """Score each file of ``sources`` into ``folder/NAME.parquet``.

    A file that fails does not keep the others from being scored; the error at the end names it.

    Parameters
    ----------
    calibrator:
        As in :func:`tood.deploy.score_file.score_file`.
    sources:
        Files, folders and patterns: see :func:`find_files`. No two files may have the same name.
    folder:
        The folder of the outputs, made if it does not exist. It cannot be a folder of inputs.
    progress:
        Called with each output when it is complete.
    settings:
        ``alpha``, ``risk``, ``invalid`` and ``keep``, as in :func:`tood.deploy.score_file.score_file`.

    Returns
    -------
    The summary of each output; one that an earlier call made has ``earlier`` 1.
    """
    import pyarrow as pa
    from pyarrow.parquet import read_metadata

    calibrator, folder = Path(calibrator).resolve(), Path(folder).resolve()
    if folder.suffix.lower() in WRITTEN and not folder.is_dir():
        raise ToodError(f"{folder}: expected the name of a folder, for one .parquet file per input")
    if not calibrator.is_file():
        raise ToodError(f"{calibrator}: no such file")
    pairs = _targets([Path(source).resolve() for source in find_files(sources)], folder)
    folder.mkdir(parents=True, exist_ok=True)
    used, scored, failed = {"calibrator": sha256(calibrator), "settings": settings}, {}, []
    for target, source in pairs.items():
        digest = sha256(source) if source.is_file() else ""  # before it is scored: the input may change meanwhile
        made_from = json.dumps({**used, "input": [str(source), digest]}, sort_keys=True)
        try:
            kept = read_metadata(target).metadata or {}
        except (OSError, pa.ArrowException):  # none yet, or not complete
            kept = {}
        try:
            if kept.get(b"tood.made_from") == made_from.encode():
                scored[target] = Scored(**{**json.loads(kept[b"tood.summary"]), "earlier": 1})
            else:
                scored[target] = score_file(calibrator, source, target, made_from=made_from, **settings)
        except (ToodError, OSError) as error:
            failed.append(str(error))
            continue
        progress(target, scored[target])
    if failed:
        raise ToodError(f"{len(failed)} of {len(pairs)} files failed: {'; '.join(failed)}")
    return scored


def _targets(sources: list[Path], folder: Path) -> dict[Path, Path]:
    """The output of each input; two inputs with one output, or an input in the output folder, are an error."""
    pairs: dict[Path, Path] = {}
    for source in sources:
        if source.parent == folder:
            raise ToodError(f"{folder}: outputs go to a folder of their own, and {source.name} is an input in it")
        target = folder / f"{source.stem}.parquet"
        if target in pairs:
            raise ToodError(f"{target}: would be the output of both {pairs[target]} and {source}; rename one")
        pairs[target] = source
    return pairs
