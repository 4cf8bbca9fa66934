"""Score many files of logits, one output a file: one after the other, or as tasks of a Ray cluster.

``OUT/scored.json`` says from what each output was made, so that the same command, started again, leaves out those that
are done; one that was under way goes on where it was (:func:`tood.deploy.score_file.score_file`).
"""

from __future__ import annotations

import glob
import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from tood.deploy.score_file import PathLike, Scored, score_file
from tood.errors import ToodError, UnknownNameError
from tood.files import write_text
from tood.ray_tasks import ray_tasks

__all__ = ["Engine", "find_files", "score_files"]

Engine: TypeAlias = Literal["local", "ray"]
Pairs: TypeAlias = dict[Path, Path]  # output: input
SUFFIXES = (".npy", ".npz", ".parquet")
RECORD = "scored.json"


def find_files(sources: Iterable[PathLike]) -> list[Path]:
    """The files that are meant by files, folders (all ``.npy``, ``.npz`` and ``.parquet`` in them) and patterns."""
    found: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            files = [file for file in source.iterdir() if file.suffix in SUFFIXES and file.is_file()]
        elif not source.exists() and glob.has_magic(str(source)):
            files = [file for file in map(Path, glob.glob(str(source), recursive=True)) if file.is_file()]
        else:
            files = [source]
        if not files:
            raise ToodError(f"{source}: no .npy, .npz or .parquet file there")
        found += sorted(files)
    return list(dict.fromkeys(found))


def score_files(
    calibrator: PathLike,
    sources: Iterable[PathLike],
    folder: PathLike,
    alpha: float | None = None,
    engine: Engine = "local",
    progress: Callable[[Path, Scored], object] = lambda target, scored: None,
) -> dict[Path, Scored]:
    """Score each file of ``sources`` into ``folder/NAME.parquet``.

    A file that fails does not keep the others from being scored; the error at the end names it.

    Parameters
    ----------
    calibrator, alpha:
        As in :func:`tood.deploy.score_file.score_file`.
    sources:
        Files, folders and patterns: see :func:`find_files`. No two files may have one name.
    folder:
        Where the outputs go; made if need be. It cannot be a folder of inputs.
    engine:
        ``"local"``: one file after the other. ``"ray"``: a task a file, on the cluster of ``RAY_ADDRESS`` or of a
        running Ray, else on this machine's cores; all nodes must see the files under the same paths.
    progress:
        Called with each output when it is whole.

    Returns
    -------
    Rows and resumed rows by output; an output that was there already counts as resumed.
    """
    if engine not in get_args(Engine):
        raise UnknownNameError("engine", engine, get_args(Engine))
    calibrator, folder = Path(calibrator).resolve(), Path(folder).resolve()
    record = _Record(folder / RECORD, calibrator, alpha)
    pairs = _targets([Path(source).resolve() for source in find_files(sources)], folder)
    folder.mkdir(parents=True, exist_ok=True)
    scored, failed = {}, []
    for target in pairs:
        if (rows := record.rows(target, pairs[target])) is not None:
            scored[target] = Scored(rows, rows)
            progress(target, scored[target])
    left = {target: source for target, source in pairs.items() if target not in scored}
    run = _on_ray if engine == "ray" and left else _one_by_one
    for target, outcome in run(calibrator, left, alpha):
        if isinstance(outcome, str):
            failed.append(outcome)
            continue
        scored[target] = outcome
        record.add(target, pairs[target], outcome.rows)
        progress(target, outcome)
    if failed:
        raise ToodError(f"{len(failed)} of {len(pairs)} files failed: {'; '.join(failed)}")
    return {target: scored[target] for target in pairs}


def _targets(sources: list[Path], folder: Path) -> Pairs:
    """Where each input goes, once no two go to one place and none lies where outputs are written."""
    pairs: Pairs = {}
    for source in sources:
        if source.parent == folder:
            raise ToodError(f"{folder}: outputs go to a folder of their own, and {source.name} is an input in it")
        target = folder / f"{source.stem}.parquet"
        if target in pairs:
            raise ToodError(f"{target}: would be the output of both {pairs[target]} and {source}; rename one")
        pairs[target] = source
    return pairs


def _attempt(calibrator: Path, source: Path, target: Path, alpha: float | None) -> Scored | str:
    """What came out, or why nothing did."""
    try:
        return score_file(calibrator, source, target, alpha)
    except (ToodError, OSError) as error:
        return str(error)


def _one_by_one(calibrator: Path, pairs: Pairs, alpha: float | None) -> Iterator[tuple[Path, Scored | str]]:
    for target, source in pairs.items():
        yield target, _attempt(calibrator, source, target, alpha)


def _attempt_with_warnings(*arguments: Any) -> tuple[Scored | str, list[str]]:
    """The same on a worker, whose warnings nobody would see there."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("once", UserWarning)
        outcome = _attempt(*arguments)
    return outcome, [str(warning.message) for warning in caught]


def _on_ray(calibrator: Path, pairs: Pairs, alpha: float | None) -> Iterator[tuple[Path, Scored | str]]:
    """A Ray task a file, in the order in which they end."""
    calls = {target: (calibrator, source, target, alpha) for target, source in pairs.items()}
    for target, result, gave_up in ray_tasks(_attempt_with_warnings, calls, max_retries=3):
        outcome, messages = (f"{pairs[target]}: {gave_up}", []) if gave_up else result
        for message in messages:
            warnings.warn(message, UserWarning, stacklevel=3)
        yield target, outcome


class _Record:
    """From what each output was made; a missing or unreadable record only means that all is scored again."""

    def __init__(self, path: Path, calibrator: Path, alpha: float | None) -> None:
        self.path, self.alpha = path, alpha
        if not calibrator.is_file():
            raise ToodError(f"{calibrator}: no such file")
        self.calibrator = hashlib.sha256(calibrator.read_bytes()).hexdigest()
        try:
            self.entries: dict[str, Any] = dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            self.entries = {}

    def rows(self, target: Path, source: Path) -> int | None:
        """How many rows ``target`` has, if it is whole and was made from ``source`` as it is now."""
        entry = self.entries.get(target.name)
        if not isinstance(entry, dict) or not target.exists() or not source.exists():
            return None
        rows = entry.get("rows")
        return rows if isinstance(rows, int) and entry == self._entry(target, source, rows) else None

    def add(self, target: Path, source: Path, rows: int) -> None:
        """Note that ``target`` is whole."""
        self.entries[target.name] = self._entry(target, source, rows)
        write_text(self.path, json.dumps(self.entries, indent=1))

    def _entry(self, target: Path, source: Path, rows: int) -> dict[str, Any]:
        stamps = {
            name: [str(path), path.stat().st_size, path.stat().st_mtime_ns]
            for name, path in {"input": source, "output": target}.items()
        }
        return {"rows": rows, "calibrator": self.calibrator, "alpha": self.alpha, **stamps}
