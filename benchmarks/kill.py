"""Claim: a run killed at any instant goes on where it was and ends with the same bytes in metrics.parquet.

    python benchmarks/kill.py --kills 50

A run on digits is made undisturbed, then again while its whole process group is killed (SIGKILL) at random instants.
When a disturbed run finishes before its kill, its figures are compared and it starts afresh.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

# Imported once: runs are forked, so that every kill meets a run at work.
import scipy.stats  # noqa: F401
import sklearn.datasets  # noqa: F401

import tood.commands.run
import tood.runs.stages  # noqa: F401
from tood import cli

RUN = ("run", "--learner", "icarl", "--preset", "smoke", "--set", "epochs=3", "--set", "memory=80")
FORK = multiprocessing.get_context("fork")


def run(folder: Path) -> None:
    """The command in a process group of its own; what it prints goes to a file beside the folder."""
    os.setsid()
    log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["tood", *RUN, "--out", str(folder)]
    cli.main()


def start(folder: Path) -> BaseProcess:
    process = FORK.Process(target=run, args=(folder,))
    process.start()
    return process


def figures(process: BaseProcess, folder: Path) -> bytes:
    """What the run wrote, once it has ended."""
    process.join()
    if process.exitcode:
        raise SystemExit(f"the run failed:\n{Path(f'{folder}.log').read_text()}")
    return (folder / "metrics.parquet").read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    kills = finished = 0
    with tempfile.TemporaryDirectory() as parent:
        began = time.perf_counter()
        undisturbed = figures(start(Path(parent) / "undisturbed"), Path(parent) / "undisturbed")
        duration = time.perf_counter() - began
        disturbed = Path(parent) / "disturbed"
        while kills < arguments.kills or disturbed.exists() or not finished:
            process = start(disturbed)
            if kills < arguments.kills:
                process.join(timeout=chance.uniform(0.1, 1.0) * duration)
                if process.is_alive():
                    os.killpg(process.pid or 0, signal.SIGKILL)
                    process.join()
                    kills += 1
                    continue
            if figures(process, disturbed) != undisturbed:
                raise SystemExit(f"after {kills} kills the figures differ")
            finished += 1
            shutil.rmtree(disturbed)
    print(f"{kills} kills, {finished} disturbed runs finished, metrics.parquet byte-identical every time")


if __name__ == "__main__":
    main()
