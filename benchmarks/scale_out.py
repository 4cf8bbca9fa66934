"""Claim: `tood score --engine ray` scales with nodes, and the loss of a node costs its unfinished files only.

    pip install "tood[ray]"
    python benchmarks/scale_out.py                  # three minutes; local nodes share this machine's cores

Local Ray nodes with one core each. The same files (hard links to one `.npy` of `--rows` x 100 float32 logits) are
scored with p-values by one node, by two, and by two of which one is killed after half of the files. Then arithmetic: a
thousand files of 10^7 rows on 100 nodes, from the measured time per row and the overhead per file of one node.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import argparse
import tempfile
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from score_stream import make_calibrator, make_logits
from tood.deploy.score_file import score_file
from tood.deploy.score_files import score_files

COLUMNS = 100


def run(folder: Path, name: str, nodes: int, kill_after: int | None = None) -> float:
    """Seconds from the first task to the last output."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    others = [cluster.add_node(num_cpus=1) for _ in range(nodes - 1)]
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        warm = ray.remote(num_cpus=1)(lambda: __import__("tood.deploy.score_files") and time.sleep(1))
        ray.get([warm.remote() for _ in range(nodes)])
        done: list[Path] = []

        def progress(target: Path, scored: object) -> None:
            done.append(target)
            if len(done) == kill_after:
                cluster.remove_node(others[0], allow_graceful=False)

        start = time.perf_counter()
        score_files(folder / "cal", [folder / "in"], folder / name, "ray", progress=progress, alpha=0.05)
        return time.perf_counter() - start
    finally:
        ray.shutdown()
        cluster.shutdown()


def score_alone(folder: Path) -> float:
    """Seconds to score one file in this process."""
    start = time.perf_counter()
    score_file(folder / "cal", folder / "in" / "0.npy", folder / "alone.parquet", alpha=0.05)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--files", type=int, default=8)
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        make_calibrator(folder / "cal", COLUMNS)
        make_logits(folder / "in" / "0.npy", arguments.rows, COLUMNS)
        for number in range(1, arguments.files):
            (folder / "in" / f"{number}.npy").hardlink_to(folder / "in" / "0.npy")
        alone = min(score_alone(folder) for _ in range(3))
        one = run(folder, "one", 1)
        two = run(folder, "two", 2)
        killed = run(folder, "killed", 2, kill_after=arguments.files // 2)
        whole = (folder / "alone.parquet").read_bytes()
        for way in ("one", "two", "killed"):
            assert all(path.read_bytes() == whole for path in (folder / way).glob("*.parquet"))
    print(f"{arguments.files} files of {arguments.rows:,} x {COLUMNS}; every output has the same bytes as without Ray")
    after = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores for all nodes together; load average before {before:.1f}, after {after:.1f}\n")
    print("| nodes | seconds | speed |\n| --- | ---: | ---: |")
    for title, seconds in (("1", one), ("2", two), ("2, one killed half way", killed)):
        print(f"| {title} | {seconds:.1f} | {one / seconds:.2f} |")
    per_row = alone / arguments.rows
    overhead = max(0.0, one / arguments.files - alone)
    hours = 1000 / 100 * (1e7 * per_row + overhead) / 3600
    print(
        f"\nOne file without Ray: {alone:.1f} s, {1e6 * per_row:.2f} µs per row; Ray adds {overhead:.2f} s per file."
        f"\n1,000 files of 10^7 rows on 100 nodes of one core, 10 files each: {60 * hours:.1f} min."
    )


if __name__ == "__main__":
    main()
