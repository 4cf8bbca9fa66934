"""Claim: `tood audit` and `tood report` take seconds on long streams: `python benchmarks/long_streams.py [--all]`.

Runs of 10, 30 and 100 tasks with ten classes each are made up, with logits in float64, or in float32 with --dtype
float32. Both commands run on each as a user runs them, with two detectors; with --all also an audit with every detector
that needs no network, on the longest. Printed: processor seconds, which depend less on other work of the machine,
wall-clock seconds, the peak of memory, and how processor seconds grow with the number of tasks T: the exponent p of T^p
between two lines.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tood.outputs import write_manifest, write_step

CLASSES, DIM = 10, 64  # per task; of the features
TEST, CALIBRATION, FIT, OOD = 5, 2, 4, 500  # samples per class; per OOD set


def make(folder: Path, tasks: int, dtype: str = "float64") -> Path:
    """A run whose logits sink with the age of their task."""
    rng = np.random.default_rng(0)
    columns = tasks * CLASSES
    partition = np.arange(columns).reshape(tasks, CLASSES)
    write_manifest(folder, partition.tolist(), near=["near"], far=["far"], stream="long", learner="made", seed=0)
    weight = (rng.normal(size=(columns, DIM)).astype(np.float32) / np.sqrt(DIM)).astype(dtype)
    for step in range(tasks):
        seen = (step + 1) * CLASSES
        bias = -0.05 * (step - np.arange(seen) // CLASSES).astype(np.float32)

        def outputs(labels: np.ndarray, strength: float, seen: int = seen, bias: np.ndarray = bias) -> dict:
            features = (strength * weight[labels] + rng.normal(size=(len(labels), DIM)) * 0.5).astype(np.float32)
            return {"logits": features @ weight[:seen].T * 4 + bias, "features": features, "labels": labels}

        known = {
            name: outputs(np.repeat(np.arange(seen), count), 3.0)
            for name, count in (("test", TEST), ("calibration", CALIBRATION), ("fit", FIT))
        }
        ood = {name: outputs(rng.integers(seen, size=OOD), strength) for name, strength in (("near", 1), ("far", 0))}
        for arrays in ood.values():
            del arrays["labels"]
        write_step(folder, step, **known, ood=ood, head={"weight": weight[:seen] * 4, "bias": bias})
    return folder


def cost(*arguments: str) -> tuple[float, float, float]:
    """Processor seconds, seconds and megabytes of a command, in a process whose only child it is."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "tood.cli", *arguments], stdout=subprocess.DEVNULL)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = (used.ru_utime + used.ru_stime, time.perf_counter() - started, used.ru_maxrss / 1024)
        os.write(write, " ".join(map(str, found)).encode())
        os._exit(done.returncode)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"tood {' '.join(arguments)} failed")
    processor, seconds, memory = map(float, os.read(read, 1000).split())
    return processor, seconds, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="+", default=[10, 30, 100])
    parser.add_argument("--all", action="store_true", help="also audit the longest with every detector")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64", help="of the logits and the head")
    arguments = parser.parse_args()
    print(f"{'command':28} {'tasks':>5} {'processor s':>12} {'wall s':>8} {'MB':>6} {'growth':>7}")
    before: dict[str, tuple[int, float]] = {}
    with tempfile.TemporaryDirectory() as parent:
        for tasks in arguments.tasks:
            run = str(make(Path(parent) / f"run-{tasks}", tasks, arguments.dtype))
            commands = {
                "audit, two detectors": ("audit", run, "--detectors", "energy,tood_mean_shift"),
                "report": ("report", run, "--out", f"{parent}/report"),
            }
            if arguments.all and tasks == max(arguments.tasks):
                commands["audit, all detectors"] = ("audit", run)
            for name, command in commands.items():
                processor, seconds, memory = cost(*command)
                last = before.get(name)
                growth = f"T^{math.log(processor / last[1]) / math.log(tasks / last[0]):.1f}" if last else ""
                before[name] = (tasks, processor)
                print(f"{name:28} {tasks:5} {processor:12.1f} {seconds:8.1f} {memory:6.0f} {growth:>7}", flush=True)


if __name__ == "__main__":
    main()
