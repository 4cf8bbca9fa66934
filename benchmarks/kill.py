"""Claim: a run killed at any instant goes on where it was and ends with the same bytes in metrics.parquet.

    python benchmarks/kill.py --kills 50

A run on digits is made undisturbed, then again while its whole process group is killed (SIGKILL) at random instants.
When a disturbed run finishes before its kill, its figures are compared and it starts afresh.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN = ("run", "--learner", "icarl", "--preset", "smoke", "--set", "epochs=3", "--set", "memory=80")


def start(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "tood.cli", *RUN, "--out", str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def finish(folder: Path) -> tuple[bytes, float]:
    """Let the run end; its figures, and how long that took."""
    began = time.perf_counter()
    process = start(folder)
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the run failed:\n{output.decode()}")
    return (folder / "metrics.parquet").read_bytes(), time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    kills = finished = 0
    with tempfile.TemporaryDirectory() as parent:
        undisturbed, duration = finish(Path(parent) / "undisturbed")
        disturbed = Path(parent) / "disturbed"
        while kills < arguments.kills:
            process = start(disturbed)
            try:
                process.wait(timeout=chance.uniform(0.25, 1.0) * duration)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                kills += 1
                continue
            if finish(disturbed)[0] != undisturbed:
                raise SystemExit(f"after {kills} kills the figures differ")
            finished += 1
            shutil.rmtree(disturbed)
        if finish(disturbed)[0] != undisturbed:
            raise SystemExit(f"after {kills} kills the figures differ")
    print(f"{kills} kills, {finished + 1} disturbed runs finished, metrics.parquet byte-identical every time")


if __name__ == "__main__":
    main()
