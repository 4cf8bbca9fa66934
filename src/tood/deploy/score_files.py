"""Score many files of logits, one output per file.

``OUT/scored.json`` records what each output was made from. The same command, run again, skips finished files.
"""

from __future__ import annotations

import glob
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from tood.deploy.logit_files import SUFFIXES
from tood.deploy.score_file import WRITTEN, PathLike, Scored, score_file
from tood.errors import ToodError
from tood.storage.files import sha256, write_text

__all__ = ["find_files", "score_files"]

Pairs: TypeAlias = dict[Path, Path]  # output: input
RECORD = "scored.json"
SAVE_SECONDS = 1.0  # between two saves of the record, which grows with the number of files


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
    calibrator, folder = Path(calibrator).resolve(), Path(folder).resolve()
    if folder.suffix.lower() in WRITTEN and not folder.is_dir():
        raise ToodError(
            f"{folder}: expected the name of a folder, for one .parquet file per input, found that of a file"
        )
    record = _Record(folder / RECORD, calibrator, settings)
    pairs = _targets([Path(source).resolve() for source in find_files(sources)], folder)
    folder.mkdir(parents=True, exist_ok=True)
    scored, failed = {}, []
    for target in pairs:
        if (summary := record.summary(target, pairs[target])) is not None:
            scored[target] = summary
            progress(target, summary)
    left = {target: source for target, source in pairs.items() if target not in scored}
    made_from = {target: record.made_from(source) for target, source in left.items()}  # inputs may change while scored
    try:
        for target, source in left.items():
            outcome = _attempt(calibrator, source, target, settings)
            if isinstance(outcome, str):
                failed.append(outcome)
                continue
            scored[target] = outcome
            record.add(target, made_from[target], outcome)
            progress(target, outcome)
    finally:  # after Ctrl-C too
        record.save()
    if failed:
        raise ToodError(f"{len(failed)} of {len(pairs)} files failed: {'; '.join(failed)}")
    return {target: scored[target] for target in pairs}


def _targets(sources: list[Path], folder: Path) -> Pairs:
    """The output of each input; two inputs with one output, or an input in the output folder, are an error."""
    pairs: Pairs = {}
    for source in sources:
        if source.parent == folder:
            raise ToodError(f"{folder}: outputs go to a folder of their own, and {source.name} is an input in it")
        target = folder / f"{source.stem}.parquet"
        if target in pairs:
            raise ToodError(f"{target}: would be the output of both {pairs[target]} and {source}; rename one")
        pairs[target] = source
    return pairs


def _attempt(calibrator: Path, source: Path, target: Path, settings: dict[str, Any]) -> Scored | str:
    """The summary, or the error message."""
    try:
        return score_file(calibrator, source, target, **settings)
    except (ToodError, OSError) as error:
        return str(error)


class _Record:
    """What each output was made from; without a readable record all files are scored again."""

    def __init__(self, path: Path, calibrator: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.changed, self.due = False, 0.0
        if not calibrator.is_file():
            raise ToodError(f"{calibrator}: no such file")
        self.calibrator = sha256(calibrator)
        try:
            record = json.loads(path.read_text())
            self.entries: dict[str, Any] = dict(record["files"]) if record["digest"] == _digest(record["files"]) else {}
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            self.entries = {}

    def summary(self, target: Path, source: Path) -> Scored | None:
        """The summary of ``target``, if it is complete and was made from ``source`` in its present state."""
        entry = self.entries.get(target.name)
        if not isinstance(entry, dict) or not target.exists() or not source.exists():
            return None
        made = {name: value for name, value in entry.items() if name != "scored"}
        if made != {**self.made_from(source), "output": _stamp(target)}:
            return None
        try:
            return Scored(**{**entry["scored"], "earlier": 1})
        except (KeyError, TypeError):
            return None

    def add(self, target: Path, made_from: dict[str, Any], scored: Scored) -> None:
        """Record that ``target`` is complete. Saving takes a tenth of the time at most."""
        self.entries[target.name] = {**made_from, "output": _stamp(target), "scored": vars(scored)}
        self.changed = True
        if time.monotonic() >= self.due:
            self.save()

    def save(self) -> None:
        """Write the record if it has changed. Files that it lacks after a crash are scored again."""
        if self.changed:
            started = time.monotonic()
            write_text(self.path, json.dumps({"digest": _digest(self.entries), "files": self.entries}))
            ended = time.monotonic()
            self.changed, self.due = False, ended + max(SAVE_SECONDS, 10 * (ended - started))

    def made_from(self, source: Path) -> dict[str, Any]:
        """What the output of an input depends on."""
        return {
            "calibrator": self.calibrator,
            "settings": self.settings,
            "input": [str(source), sha256(source) if source.is_file() else ""],
        }


def _digest(entries: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _stamp(path: Path) -> list[int]:
    """What changes when an output does."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
