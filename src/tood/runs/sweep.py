"""Sweep: a grid of runs, as local processes with one thread each or as tasks on a Ray cluster.

A sweep has no state besides its run directories; started again, it resumes every cell.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from filelock import FileLock, Timeout

from tood.errors import ToodError, UnknownNameError
from tood.ray_tasks import ray_tasks
from tood.registry import Registry
from tood.runs.config import RunConfig
from tood.runs.directory import has_checkpoints, is_locked
from tood.runs.measure import is_measured_as, outdated_figures
from tood.runs.versions import describe, how_to_renew
from tood.runs.yaml_files import read_yaml, write_yaml

__all__ = ["Cell", "read_sweep", "run_cells"]

Engine: TypeAlias = Literal["local", "ray"]
POLL = 0.5  # seconds between checks of a cell that another process is running
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GOMP_SPINCOUNT": "0",
}


@dataclass(frozen=True)
class Cell:
    """One run of a sweep, and its parent folder."""

    config: RunConfig
    parent: Path

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.parent / self.config.name

    @property
    def log(self) -> Path:
        """The file with the output of the run."""
        return self.parent / ".logs" / f"{self.config.name}.log"

    def status(self) -> str:
        """``done``, ``running``, ``failed: …``, ``outdated figures: …``, ``2 steps`` (interrupted) or ``waiting``."""
        measured = self.is_measured()
        stale = outdated_figures(self.path, self.config.detectors) if measured else []
        if measured and not stale:
            return "done"
        if is_locked(self.path):
            return "running"
        if self.log.exists() and (lines := self.log.read_text(errors="replace").splitlines()):
            last = lines[-1]
            if last.startswith("tood: ") and not last.startswith("tood: interrupted"):
                return f"failed: {last.removeprefix('tood: ')}"
        if stale:
            return describe(stale)
        steps = len(list(self.path.glob("steps/*/outputs")))
        return f"{steps} steps" if steps else "waiting"

    def is_measured(self) -> bool:
        """True if there are metrics of every step and detector, outdated or not."""
        return is_measured_as(self.config, self.path)

    def renewal(self) -> str:
        """One line about outdated metrics that only training can renew, with the command; empty if there are none."""
        if has_checkpoints(self.path) or not self.is_measured():
            return ""
        stale = outdated_figures(self.path, self.config.detectors)
        return f"{self.config.name}: {describe(stale)}; {how_to_renew(self.path)} trains the run again" if stale else ""


def read_sweep(path: str | Path, parent: str | Path) -> list[Cell]:
    """The cells of a sweep file.

    The file has ``base`` (settings of all cells), ``grid`` (lists of values; each combination is a cell) and ``also``
    (further cells, one mapping each); see the page "Run and sweep".
    """
    content = read_yaml(path)
    for key in content:
        if key not in ("base", "grid", "also"):
            raise UnknownNameError(f"section of {path}", str(key), ("base", "grid", "also"))
    base, grid, also = content.get("base") or {}, content.get("grid") or {}, content.get("also") or []
    for name, section, kind in (("base", base, Mapping), ("grid", grid, Mapping), ("also", also, list)):
        if not isinstance(section, kind):
            raise ToodError(f"{path}: {name}: expected a {kind.__name__.lower()}, found {section!r}")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ToodError(f"{path}: grid: {key}: expected a list of values, found {values!r}")
    combined = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())] if grid else []
    cells: dict[str, Cell] = {}
    for values in [*combined, *also]:
        if not isinstance(values, Mapping):
            raise ToodError(f"{path}: also: expected one mapping per cell, found {values!r}")
        config = _canonical(RunConfig.from_mapping({**base, **values}, where=str(path)))
        cell = Cell(config, Path(parent))
        if cells.setdefault(config.name, cell) != cell:
            raise ToodError(
                f"{path}: two cells belong to the folder {config.name} and differ only in settings that its name does "
                "not show, such as detectors; put them into one cell"
            )
    if not cells:
        raise ToodError(f"{path}: no cells; give a grid, such as 'grid: {{learner: [icarl, der], seed: [0, 1]}}'")
    return list(cells.values())


def _canonical(config: RunConfig) -> RunConfig:
    if not config.network and config.adapter < 0:  # without importing torch
        return config
    from tood.runs.check import canonical

    return canonical(config)


def run_cells(
    cells: list[Cell],
    workers: int = 2,
    engine: Engine = "local",
    say: Callable[[str], object] = print,
    renew: bool = False,
    where: str = "sweep",
) -> dict[str, str]:
    """Run every cell that is not done. A failure does not stop the others; returns the errors by name of the cell.

    Names and settings of all these cells are checked before the first one starts; ``where`` names the file in messages.

    Outdated metrics are measured again. If this needs training (``store: figures``), it is done only with ``renew``;
    otherwise ``say`` gets a line about them.

    Workers import ``package.module:Class`` from installed packages and the current directory. Names that user code
    registered are passed to them as ``package.module:Name``.
    """
    if engine not in get_args(Engine):
        raise UnknownNameError("engine", engine, get_args(Engine))
    left = {} if renew else {cell.path: line for cell in cells if (line := cell.renewal())}
    waiting = [cell for cell in cells if cell.path not in left and cell.status() != "done"]
    _check(waiting, where)
    failed: dict[str, str] = {}
    finished = len(cells) - len(waiting)
    outcomes = _locally(waiting, workers, say, renew) if engine == "local" else _on_ray(waiting, renew)
    for cell, error in outcomes:
        finished += 1
        if error:
            failed[cell.config.name] = error
        say(f"[{finished}/{len(cells)}] {cell.config.name}: {f'failed: {error}' if error else 'done'}")
    for line in left.values():
        say(line)
    return failed


def _check(cells: list[Cell], where: str) -> None:
    """Raise if a cell has an unknown name or a wrong setting, or a name that a worker cannot import."""
    if not cells:
        return
    from tood.runs.check import check_config

    for cell in cells:
        try:
            check_config(importable(cell.config))
        except ToodError as error:
            raise ToodError(f"{where}: cell {cell.config.name}: {error}") from error


def _locally(cells: list[Cell], workers: int, say: Callable[[str], object], renew: bool) -> Iterator[tuple[Cell, str]]:
    """Run each cell in a process of its own; a cell that another process is running is tried again at the end."""
    running: set[subprocess.Popen[str]] = set()
    stop = threading.Event()
    with ThreadPoolExecutor(max(1, workers)) as pool:
        try:
            jobs = {pool.submit(_run_if_free, cell, running, say, stop, renew, wait=False): cell for cell in cells}
            busy = []
            for job in as_completed(jobs):
                if (error := job.result()) is None:
                    busy.append(jobs[job])
                    say(f"{jobs[job].config.name}: another process is running it")
                else:
                    yield jobs[job], error
            jobs = {pool.submit(_run_if_free, cell, running, say, stop, renew, wait=True): cell for cell in busy}
            for job in as_completed(jobs):
                yield jobs[job], job.result() or ""
        except BaseException:  # such as Ctrl-C: stop the child processes too; their checkpoints stay
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.terminate()
            raise


def _run_if_free(
    cell: Cell,
    running: set[subprocess.Popen[str]],
    say: Callable[[str], object],
    stop: threading.Event,
    renew: bool,
    wait: bool,
) -> str | None:
    """Run a cell and return its error, empty if there was none; None if another process is running it."""
    cell.log.parent.mkdir(parents=True, exist_ok=True)
    mine = FileLock(cell.log.with_suffix(".lock"))
    while not stop.is_set():
        try:
            with mine.acquire(timeout=0):
                if not is_locked(cell.path):
                    return "" if cell.status() == "done" else _run_in_process(cell, running, say, stop, renew)
        except Timeout:
            pass
        if not wait:
            return None
        stop.wait(POLL)
    return "interrupted"


def _run_in_process(
    cell: Cell,
    running: set[subprocess.Popen[str]],
    say: Callable[[str], object],
    stop: threading.Event,
    renew: bool,
) -> str:
    config = cell.log.with_suffix(".yaml")
    write_yaml(config, importable(cell.config).to_mapping())
    arguments = [sys.executable, "-m", "tood.cli", "run", str(config), "--out", str(cell.path)]
    arguments += ["--renew"] if renew else []
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    lines: list[str] = []
    try:
        with (
            cell.log.open("w") as log,
            subprocess.Popen(arguments, env={**os.environ, **ONE_THREAD}, **options) as process,
        ):
            running.add(process)
            if stop.is_set():  # since the last look: whoever stops the others may not have seen this one
                process.terminate()
            for line in process.stdout or ():
                lines.append(line.rstrip())
                log.write(line)
                log.flush()
                if line.startswith("step "):
                    say(f"{cell.config.name}: {line.rstrip()}")
    except OSError as error:
        return f"{cell.log}: cannot be written ({error.strerror})"
    running.discard(process)
    if process.returncode == 0:
        return ""
    if process.returncode < 0:
        return f"stopped by signal {-process.returncode}"
    last = next((line for line in reversed(lines) if line), f"exit code {process.returncode}")
    return last.removeprefix("tood: ")


def _on_ray(cells: list[Cell], renew: bool) -> Iterator[tuple[Cell, str]]:
    """Run cells as Ray tasks; if a worker or node dies, its cells resume elsewhere from their checkpoints."""
    by_path = {str(cell.path.resolve()): cell for cell in cells}
    calls = {path: (importable(cell.config).to_mapping(), path, renew) for path, cell in by_path.items()}
    searched = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    environment = {**ONE_THREAD, "PYTHONPATH": searched}
    options = {"max_retries": 5, "max_calls": 1, "runtime_env": {"env_vars": environment}}
    for path, error, gave_up in ray_tasks(_run_one, calls, **options):
        yield by_path[path], gave_up or error


def _run_one(config: dict[str, Any], path: str, renew: bool) -> str:
    """Run one cell and return its error, empty if there was none."""
    from tood.runs.stages import run

    try:
        run(RunConfig.from_mapping(config), Path(path), say=lambda line: None, renew=renew)
    except ToodError as error:
        return str(error)
    return ""


def importable(config: RunConfig) -> RunConfig:
    """A configuration that another process can read: names that user code registered become ``package.module:Name``."""
    from tood.detectors.registry import REGISTRY
    from tood.learners.registry import LEARNERS
    from tood.streams.registry import STREAMS

    learner, mark, finetune = config.learner.partition("+")
    changes: dict[str, Any] = {"learner": _path(LEARNERS, learner) + mark + finetune}
    changes["detectors"] = tuple(_path(REGISTRY, name) for name in config.detectors)
    if isinstance(config.stream, str):
        changes["stream"] = _path(STREAMS, config.stream)
    elif isinstance(name := config.stream.get("stream"), str):
        changes["stream"] = {**config.stream, "stream": _path(STREAMS, name)}
    return dataclasses.replace(config, **changes)


def _path(registry: Registry[Any], name: str) -> str:
    """``package.module:Name`` of a name that user code registered; any other name unchanged."""
    item = registry.known(name)
    module = getattr(item, "__module__", "tood")
    if item is None or ":" in name or module.partition(".")[0] in ("tood", "functools"):
        return name
    if module == "__main__":
        raise ToodError(
            f"{registry.kind} {name!r}: is defined in the main script, which worker processes do not run; "
            "move it to a module"
        )
    return f"{module}:{item.__qualname__}"
