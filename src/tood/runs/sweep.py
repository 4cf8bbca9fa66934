"""Sweep: a grid of runs, each in a process of its own with one thread.

A sweep has no state besides its run directories; started again, it resumes every cell. Sweeps of several machines that
see one folder share its cells.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from filelock import FileLock, Timeout

from tood.errors import ToodError, UnknownNameError
from tood.evaluation.versions import Outdated, describe, outdated
from tood.outputs.directory import is_locked
from tood.runs.config import SWEEP, RunConfig, measured_as
from tood.storage.yaml_files import read_yaml, write_yaml

__all__ = ["Cell", "read_sweep", "run_cells"]

POLL = 0.5  # seconds between checks of a cell that another process is running
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}


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
        """``done``, ``running``, ``failed: …``, ``outdated metrics: …``, ``2 steps`` (interrupted) or ``waiting``."""
        stale = self.outdated()
        if stale == []:
            return "done"
        if is_locked(self.path):
            return "running"
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        if lines and lines[-1].startswith("tood: ") and not lines[-1].startswith("tood: interrupted"):
            return f"failed: {lines[-1].removeprefix('tood: ')}"
        if stale:
            return describe(stale)
        steps = len(list(self.path.glob("steps/*/outputs")))
        return f"{steps} steps" if steps else "waiting"

    def outdated(self) -> list[Outdated] | None:
        """The outdated metrics of a measured run; None if it lacks metrics of a step or detector."""
        table = measured_as(self.config, self.path)
        return None if table is None else outdated(table, self.config.detectors)


def read_sweep(path: str | Path, parent: str | Path) -> list[Cell]:
    """The cells of a sweep file.

    The file has ``base`` (settings of all cells), ``grid`` (lists of values; each combination is a cell) and ``also``
    (further cells, one mapping each); see the page "Run and sweep".
    """
    sections: dict[str, Any] = {"base": {}, "grid": {}, "also": []}
    for key, section in read_yaml(path).items():
        if key not in sections:
            raise UnknownNameError(f"section of {path}", str(key), sections)
        if section is not None and type(section) is not type(sections[key]):
            raise ToodError(f"{path}: {key}: expected a {type(sections[key]).__name__}, found {section!r}")
        sections[key] = section or sections[key]
    base, grid, also = sections.values()
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ToodError(f"{path}: grid: {key}: expected a list of values, found {values!r}")
    combined = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())] if grid else []
    cells: dict[str, Cell] = {}
    for values in [*combined, *also]:
        if not isinstance(values, dict):
            raise ToodError(f"{path}: also: expected one mapping per cell, found {values!r}")
        config = RunConfig.from_mapping({**base, **values}, where=str(path))
        cell = Cell(config, Path(parent))
        if cells.setdefault(config.name, cell) != cell:
            raise ToodError(
                f"{path}: two cells belong to the folder {config.name} and differ only in settings that its name does "
                "not show, such as detectors; put them into one cell"
            )
    if not cells:
        raise ToodError(f"{path}: no cells; give a grid, such as 'grid: {{learner: [icarl, der], seed: [0, 1]}}'")
    return list(cells.values())


def run_cells(
    cells: list[Cell],
    workers: int = 2,
    say: Callable[[str], object] = print,
    where: str = "sweep",
    gpus_per_run: float = 1,
) -> dict[str, str]:
    """Run every cell that is not done. A failure does not stop the others; returns the errors by name of the cell.

    Names and settings of all these cells are checked before the first one starts; ``where`` names the file in messages.

    ``gpus_per_run``, 0 to 1, is the share of a GPU that a run gets if there are GPUs: with 0.5, two runs share one. A
    run never waits for a GPU if there is none.

    Each run is a process that imports ``package.module:Class`` from installed packages and the current directory.
    """
    if not 0 <= gpus_per_run <= 1:
        raise ToodError(f"gpus_per_run: expected 0 to 1, found {gpus_per_run}")
    waiting = [cell for cell in cells if cell.outdated() != []]
    _check(waiting, where)
    failed: dict[str, str] = {}
    outcomes = _Processes(say, gpus_per_run).run(waiting, workers)
    for finished, (cell, error) in enumerate(outcomes, len(cells) - len(waiting) + 1):
        if error:
            failed[cell.config.name] = error
        say(f"[{finished}/{len(cells)}] {cell.config.name}: {f'failed: {error}' if error else 'done'}")
    return failed


def _check(cells: list[Cell], where: str) -> None:
    """Raise if a cell has an unknown name or a wrong setting."""
    from tood.runs.build import check_config

    for cell in cells:
        try:
            check_config(cell.config)
        except ToodError as error:
            raise ToodError(f"{where}: cell {cell.config.name}: {error}") from error


def gpu_slots(gpus_per_run: float) -> list[str]:
    """``CUDA_VISIBLE_DEVICES`` of the runs that fit at a time, on different GPUs first; none without a GPU."""
    if not gpus_per_run:
        return []
    import torch

    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [*map(str, range(torch.cuda.device_count()))] if listed is None else [g for g in listed.split(",") if g]
    return gpus * int(1 / gpus_per_run)


class _Processes:
    """Runs each cell in a process of its own, each on a free slot of a GPU if there are GPUs."""

    def __init__(self, say: Callable[[str], object], gpus_per_run: float = 1) -> None:
        self.say, self.gpus_per_run = say, gpus_per_run
        self.slots: SimpleQueue[str] = SimpleQueue()
        for gpu in (gpus := gpu_slots(gpus_per_run)):
            self.slots.put(gpu)
        self.has_gpus = bool(gpus)
        self.running: set[subprocess.Popen[str]] = set()
        self.stop = threading.Event()

    def run(self, cells: list[Cell], workers: int) -> Iterator[tuple[Cell, str]]:
        """Yield cells with their errors; a cell that another process is running is waited for at the end."""
        with ThreadPoolExecutor(max(1, workers)) as pool:
            try:
                for wait in (False, True):
                    jobs = {pool.submit(self._run_if_free, cell, wait): cell for cell in cells}
                    cells = []
                    for job in as_completed(jobs):
                        if (error := job.result()) is not None:
                            yield jobs[job], error
                        else:
                            cells.append(jobs[job])
                            self.say(f"{jobs[job].config.name}: another process is running it")
            except BaseException:  # such as Ctrl-C: stop the child processes too; their checkpoints stay
                self.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(self.running):
                    process.terminate()
                raise

    def _run_if_free(self, cell: Cell, wait: bool) -> str | None:
        """Run a cell and return its error, empty if there was none; None if another process is running it."""
        cell.log.parent.mkdir(parents=True, exist_ok=True)
        mine = FileLock(cell.log.with_suffix(".lock"))
        while not self.stop.is_set():
            try:
                with mine.acquire(timeout=0):
                    if not is_locked(cell.path):
                        return "" if cell.outdated() == [] else self._run(cell)
            except Timeout:
                pass
            if not wait:
                return None
            self.stop.wait(POLL)
        return "interrupted"

    def _run(self, cell: Cell) -> str:
        """Run a cell in a child process, and return its error."""
        if not self.has_gpus:
            return self._run_on(cell, {} if self.gpus_per_run else {"CUDA_VISIBLE_DEVICES": ""})
        gpu = self.slots.get()
        try:
            return self._run_on(cell, {"CUDA_VISIBLE_DEVICES": gpu})
        finally:
            self.slots.put(gpu)

    def _run_on(self, cell: Cell, visible: Mapping[str, str]) -> str:
        config = cell.log.with_suffix(".yaml")
        write_yaml(config, cell.config.to_mapping())
        safe = ["-P"] if sys.version_info >= (3, 11) else []  # the current folder replaces no installed module
        arguments = [sys.executable, *safe, "-m", "tood", "run", str(config), "--out", str(cell.path)]
        environment = {**os.environ, **ONE_THREAD, **visible, SWEEP: str(os.getpid())}
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        last = ""
        try:
            with cell.log.open("w") as log, subprocess.Popen(arguments, env=environment, **options) as process:
                self.running.add(process)
                if self.stop.is_set():  # meanwhile: this process was not among those that were terminated
                    process.terminate()
                for line in process.stdout or ():
                    last = line.rstrip() or last
                    log.write(line)
                    log.flush()
                    if line.startswith(("step ", "note: ")):
                        self.say(f"{cell.config.name}: {line.rstrip()}")
        except OSError as error:
            return f"{cell.log}: cannot be written ({error.strerror})"
        self.running.discard(process)
        if process.returncode < 0:
            return f"stopped by signal {-process.returncode}"
        return (last.removeprefix("tood: ") or f"exit code {process.returncode}") if process.returncode else ""
