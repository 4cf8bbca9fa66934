"""Claim: `tood score` streams a file in constant memory at half the speed of `cal.score` in memory or better.

    python benchmarks/score_stream.py                     # 10^6 rows
    python benchmarks/score_stream.py --rows 1000000 10000000

Float32 logits in a temporary `.npy` file (`--columns`, 5 tasks), one thread of BLAS. A round runs both ways in new
processes, one after the other, and the least time of each counts: `score_file` from the file to a finished Parquet file
on disk, with p-values, against `cal.score` on the same rows already in memory. `score_file` writes in a second thread,
so other load slows it more: "processor" is the same ratio in processor time, with all threads added up. Resident size
is the peak (VmHWM) of the first.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TASKS = 5


def make_calibrator(path: Path, columns: int) -> None:
    from tood import TOOD
    from tood.decision import Conformal

    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(columns), 2_000 // columns)
    logits = rng.normal(size=(2, len(labels), columns)) + 4 * np.eye(columns)[labels]
    cal = TOOD(np.array_split(np.arange(columns), TASKS)).fit(logits[0], labels)
    Conformal(cal).fit(logits[1], labels).save(path)


def make_logits(path: Path, rows: int, columns: int) -> None:
    rng = np.random.default_rng(1)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, columns))
    for start in range(0, rows, 100_000):
        block = out[start : start + 100_000]
        block[:] = 2 * rng.standard_normal(size=block.shape, dtype=np.float32)
    out.flush()


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def spent(start: tuple[float, float]) -> dict[str, float]:
    seconds, processor = (now - then for now, then in zip(clocks(), start, strict=True))
    return {"seconds": seconds, "processor": processor}


def stream(folder: Path, logits: Path, alpha: float | None) -> dict[str, float]:
    from tood.deploy.score_file import score_file

    import pyarrow.parquet  # noqa: F401  isort:skip: not part of what is timed

    start = clocks()
    score_file(folder / "cal.safetensors", logits, folder / "scores.parquet", alpha=alpha)
    times = spent(start)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {**times, "megabytes": int(peak.split()[1]) / 1024}


def memory(folder: Path, logits: Path) -> dict[str, float]:
    from tood.decision import Conformal

    cal = Conformal.load(folder / "cal.safetensors").cal
    rows = np.load(logits)
    start = clocks()
    cal.score(rows)
    return spent(start)


def in_new_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, *arguments]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--alpha", type=float, default=0.05, help="0: scores and tasks only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", nargs=3, metavar=("WAY", "FOLDER", "LOGITS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    alpha = arguments.alpha or None
    if arguments.worker:
        way, folder, logits = arguments.worker
        paths = Path(folder), Path(logits)
        print(json.dumps(stream(*paths, alpha) if way == "stream" else memory(*paths)))
        return
    print(f"{'rows':>12}{'cal.score':>12}{'score_file':>12}{'speed':>9}{'processor':>11}", end="")
    print(f"{'resident':>12}{'of the first':>14}")
    first = 0.0
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory() as name:
            folder, logits = Path(name), Path(name, "logits.npy")
            make_calibrator(folder / "cal.safetensors", arguments.columns)
            make_logits(logits, rows, arguments.columns)
            given = ("--alpha", str(arguments.alpha), "--worker")
            rounds = [
                [in_new_process(*given, way, name, str(logits)) for way in ("memory", "stream")]
                for _ in range(arguments.rounds)
            ]
        in_memory, streamed = (min(r[way]["seconds"] for r in rounds) for way in (0, 1))
        processor = [min(r[way]["processor"] for r in rounds) for way in (0, 1)]
        peak = max(other["megabytes"] for _, other in rounds)
        first = first or peak
        print(
            f"{rows:>12,}{in_memory:>10.3f} s{streamed:>10.3f} s{in_memory / streamed:>7.2f} x"
            f"{processor[0] / processor[1]:>9.2f} x{peak:>9.0f} MB{peak / first:>12.3f} x"
        )


if __name__ == "__main__":
    main()
