"""The run directory: a manifest and one folder per step. Files are complete or absent; one process writes at a time.

The format is described in docs/how-to/run-directory.md. Nothing here needs torch, and nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt
from filelock import FileLock, Timeout

from tood.errors import ToodError, located
from tood.outputs.identity import RunIdentity
from tood.partition import Partition
from tood.storage.files import NAME, contained, reading, write_text

__all__ = ["FORMAT", "Run", "find_runs", "write_manifest"]

FORMAT = 1
GROUPS = ("near", "far")
LOCK = ".lock"
FILES = ("manifest.json", "config.yaml", "metrics.parquet", "verdict.json")
FOLDERS = ("steps", "backbone", "checkpoints", "report")
PATIENCE = 1.0  # seconds: a process that only checks a lock holds it for an instant
Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
PathLike: TypeAlias = "str | os.PathLike[str]"


class Run:
    """One run directory, opened and checked.

    Parameters
    ----------
    path:
        The directory that holds ``manifest.json``.

    Attributes
    ----------
    manifest:
        The content of ``manifest.json``.
    partition:
        The logit columns of every task of the stream.
    ood:
        The group, ``"near"`` or ``"far"``, of each OOD set, in the manifest's order.
    identity, learner, stream:
        Which run it is; the folder's name and ``"stream"`` stand in for what the manifest does not name.
    calibration:
        Source of the calibration set in use; ``"given"`` if the manifest has none.
    metrics_path:
        The file ``metrics.parquet``.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self.metrics_path = self.path / "metrics.parquet"
        file = self.path / "manifest.json"
        for name in FILES + FOLDERS:
            contained(self.path, self.path / name)
        with reading(file, "cannot be read as JSON"):
            self.manifest = dict(json.loads(file.read_text(encoding="utf-8")).items())
        with located(file):
            _check_manifest(self.manifest)
            self.partition = Partition(self.manifest["tasks"])
            self.ood = _ood_groups(self.manifest["ood"])
        self.identity = RunIdentity.from_manifest(self.manifest, self.path.resolve().name)
        self.learner, self.stream = self.identity.learner, self.identity.stream
        entry = self.manifest.get("calibration")
        self.calibration = str((entry.get("source") if isinstance(entry, dict) else entry) or "given")

    def folder(self, step: int) -> Path:
        """The folder of a step; those written by others may have more digits than two."""
        usual = contained(self.path, self.path / "steps" / f"{step:02d}")
        if usual.exists():
            return usual
        return next((f for f in usual.parent.glob(f"0*{step}") if f.name.isdigit() and int(f.name) == step), usual)

    def steps(self) -> list[int]:
        """The steps whose outputs are complete, ascending."""
        folders = (self.path / "steps").glob("[0-9]*")
        steps = sorted(int(f.name) for f in folders if f.name.isdigit() and (f / "outputs").is_dir())
        if steps and steps[-1] >= len(self.partition):
            raise ToodError(
                f"{self.folder(steps[-1])}: expected steps 0 to {len(self.partition) - 1}, one per task of the manifest"
            )
        return steps

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Context in which no other process can write this run."""
        return lock(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def write_manifest(
    run_dir: PathLike, tasks: Any, near: Sequence[str] = (), far: Sequence[str] = (), **more: Any
) -> Run:
    """Create a run directory, or replace its manifest.

    Parameters
    ----------
    run_dir:
        The directory; created if it does not exist.
    tasks:
        The logit columns of each task, oldest first, or a :class:`~tood.Partition`.
    near, far:
        The names of the OOD sets.
    more:
        Further entries that JSON can hold: ``stream``, ``learner``, ``seed``, ``classes``,
        ``calibration={"source": "memory", "size": 200}``.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> write_manifest(folder, tasks=[[0, 1], [2, 3]], near=["cifar100"], far=["svhn"], learner="icarl").ood
    {'cifar100': 'near', 'svhn': 'far'}
    """
    folder, partition = Path(run_dir), Partition(tasks)
    for group, names in (("near", near), ("far", far)):
        if isinstance(names, str):
            raise ToodError(f"{group}: expected a list of names, found {names!r}")
    ood = {"near": list(near), "far": list(far)}
    _ood_groups(ood)
    content = {"format": FORMAT, "tasks": [list(task) for task in partition], "ood": ood, **more}
    try:
        content["digest"] = _digest(content)
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ToodError(f"manifest: expected values that JSON can hold ({error})") from error
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder):
        if any((folder / "steps").glob("*")) and _has_other_tasks(folder, partition):
            raise ToodError(f"{folder}: has steps of other tasks; choose another folder, or remove its steps")
        write_text(folder / "manifest.json", text)
    return Run(folder)


def _has_other_tasks(folder: Path, partition: Partition) -> bool:
    with contextlib.suppress(ToodError):  # no manifest, or a damaged one: it may be replaced
        return Run(folder).partition != partition
    return False


def find_runs(paths: PathLike | Sequence[PathLike]) -> list[Run]:
    """The runs at one or several paths: run directories, or folders that contain run directories at any depth."""
    runs: dict[Path, Run] = {}
    for path in map(Path, [paths] if isinstance(paths, (str, os.PathLike)) else paths):
        is_run = (path / "manifest.json").exists()
        folders = [path] if is_run else sorted(manifest.parent for manifest in path.rglob("manifest.json"))
        if not folders:
            raise ToodError(f"{path}: expected a run directory or a folder of them, found no manifest.json")
        runs |= {folder.resolve(): Run(folder) for folder in folders}
    return list(runs.values())


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Raise unless entries and digest are right; the digest is removed."""
    for key in ("format", "tasks", "ood"):
        if key not in manifest:
            raise ToodError(f"the key {key!r} is missing; found {', '.join(manifest) or 'none'}")
    version = manifest["format"]
    if type(version) is not int or version != FORMAT:
        newer = type(version) is int and version > FORMAT
        hint = f"format {version} is newer than {FORMAT}: upgrade tood to read it"
        raise ToodError(hint if newer else f"format: expected {FORMAT}, found {version!r}")
    if manifest.pop("digest", None) not in (None, _digest(manifest)):  # manifests that others wrote have none
        raise ToodError("damaged: its content does not match its digest; if you edited it, remove its entry digest")


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _ood_groups(ood: Any) -> dict[str, str]:
    if not (isinstance(ood, dict) and set(ood) <= set(GROUPS) and all(isinstance(v, list) for v in ood.values())):
        raise ToodError(f'ood: expected {{"near": [names], "far": [names]}}, found {json.dumps(ood, default=str)}')
    groups: dict[str, str] = {}
    for group in GROUPS:
        for name in ood.get(group, []):
            if not (isinstance(name, str) and NAME.fullmatch(name)):
                raise ToodError(f"ood: expected names of letters, digits and . _ + -, found {name!r}")
            if name in groups:
                raise ToodError(f"ood: expected distinct names, found {name!r} twice")
            groups[name] = group
    return groups


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Context in which only this process writes in ``folder``; the system frees the lock when the process ends."""
    file = folder / LOCK
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise ToodError(f"{file}: expected a regular file, found a link, folder, pipe or device")
    held = FileLock(file, timeout=PATIENCE, thread_local=False, is_singleton=True)  # reentrant in this process
    try:
        held.acquire()
    except Timeout as error:
        raise ToodError(f"{folder}: another process is writing this run; wait until it is done, or stop it") from error
    except OSError as error:
        raise ToodError(f"{folder}: cannot be written ({error.strerror})") from error
    try:
        yield
    finally:
        held.release()


def has_checkpoints(folder: Path) -> bool:
    """True if training can resume in a run directory, or need not be repeated."""
    return (folder / "checkpoints").is_dir()


def is_locked(folder: Path) -> bool:
    """True if some process is writing in ``folder``."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True
