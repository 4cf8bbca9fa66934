"""Score many files of logits, one output per file: one after the other, or as tasks of a Ray cluster.

``OUT/scored.json`` records what each output was made from. The same command, run again, skips finished files.
"""

from __future__ import annotations

import glob
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from tood.deploy.logit_files import SUFFIXES
from tood.deploy.score_file import WRITTEN, PathLike, Scored, score_file
from tood.errors import ToodError, UnknownNameError
from tood.files import sha256, write_text
from tood.ray_tasks import ray_tasks

__all__ = ["Engine", "find_files", "score_files"]

Engine: TypeAlias = Literal["local", "ray"]
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
    engine: Engine = "local",
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
    engine:
        ``"local"``: one file after the other. ``"ray"``: one Ray task per file, on the cluster of ``RAY_ADDRESS``, on
        a running Ray, or else on this machine's cores; all nodes must see the files under the same paths.
    progress:
        Called with each output when it is complete.
    settings:
        ``alpha``, ``risk``, ``invalid`` and ``keep``, as in :func:`tood.deploy.score_file.score_file`.

    Returns
    -------
    The summary of each output; one that an earlier call made has ``earlier`` 1.
    """
    if engine not in get_args(Engine):
        raise UnknownNameError("engine", engine, get_args(Engine))
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
    run = _on_ray if engine == "ray" and left else _one_by_one
    made_from = {target: record.made_from(source) for target, source in left.items()}  # inputs may change while scored
    try:
        for target, outcome in run(calibrator, left, settings):
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


def _one_by_one(calibrator: Path, pairs: Pairs, settings: dict[str, Any]) -> Iterator[tuple[Path, Scored | str]]:
    for target, source in pairs.items():
        yield target, _attempt(calibrator, source, target, settings)


def _attempt_with_warnings(*arguments: Any) -> tuple[Scored | str, list[str]]:
    """The outcome on a worker, with its warnings, which would not be shown there."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("once", UserWarning)
        outcome = _attempt(*arguments)
    return outcome, [str(warning.message) for warning in caught]


def _on_ray(calibrator: Path, pairs: Pairs, settings: dict[str, Any]) -> Iterator[tuple[Path, Scored | str]]:
    """One Ray task per file, in the order in which they end."""
    calls = {target: (calibrator, source, target, settings) for target, source in pairs.items()}
    for target, result, gave_up in ray_tasks(_attempt_with_warnings, calls, max_retries=3):
        outcome, messages = (f"{pairs[target]}: {gave_up}", []) if gave_up else result
        for message in messages:
            warnings.warn(message, UserWarning, stacklevel=3)
        yield target, outcome


class _Record:
    """What each output was made from; without a readable record all files are scored again."""

    def __init__(self, path: Path, calibrator: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.changed, self.due = False, 0.0
        if not calibrator.is_file():
            raise ToodError(f"{calibrator}: no such file")
        self.calibrator = sha256(calibrator)
        try:
            self.entries: dict[str, Any] = dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
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
            write_text(self.path, json.dumps(self.entries))
            ended = time.monotonic()
            self.changed, self.due = False, ended + max(SAVE_SECONDS, 10 * (ended - started))

    def made_from(self, source: Path) -> dict[str, Any]:
        """What the output of an input depends on."""
        return {"calibrator": self.calibrator, "settings": self.settings, "input": _stamp(source)}


def _stamp(path: Path) -> list[Any]:
    """What changes when a file does; its name alone if there is no such file, which its reader reports."""
    try:
        status = path.stat()
    except OSError:
        return [str(path)]
    return [str(path), status.st_size, status.st_mtime_ns]
