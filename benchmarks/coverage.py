"""Claim: conformal decisions reject alpha of in-distribution inputs if the samples were held out, and more otherwise.

    tood run --stream digits --learner er --reserve 20 --calibration-size 160 --out runs/er
    python benchmarks/coverage.py runs/er
    python benchmarks/coverage.py --kept runs/er runs/icarl     # what becomes of a decision that is kept

Of each run directory's last step: samples of each source (held out: half of the test split; the tracks)
are cut in two at random, one half for TOOD, one for the p-values, and the test samples that are left are judged. The
table shows the share of them rejected, over all and in the task where it is largest, and the share of the near-OOD
sets rejected: means over `--splits` random splits. Held out must come to alpha or less; the others show what it costs
to calibrate on what the network was trained on.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

from kept_decisions import coverage
from tood import TOOD, Partition, ToodError
from tood.decision import Conformal
from tood.outputs import Run

SOURCES = ("calibration", "memory", "train")
Sample = tuple[np.ndarray, np.ndarray]  # logits, labels


def read(path: Path) -> Sample | None:
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as file:
        return file["logits"], file["labels"] if "labels" in file else np.empty(0)


def halves(sample: Sample, rng: np.random.Generator) -> tuple[Sample, Sample]:
    first, second = np.array_split(rng.permutation(len(sample[1])), 2)
    return tuple((sample[0][rows], sample[1][rows]) for rows in (first, second))  # type: ignore[return-value]


def rejected(sample: Sample, judged: Sample, near: np.ndarray, partition: Partition, mode, alpha, rng) -> np.ndarray:
    """[1 + N + 1]: shares rejected of all judged samples, of each task's, and of the near-OOD ones."""
    for_tood, for_p_values = halves(sample, rng)
    conformal = Conformal(TOOD(partition).fit(*for_tood), per_task=mode).fit(*for_p_values)
    reject = ~conformal.decide(judged[0], alpha).accept
    tasks = partition.column_tasks[judged[1]]
    return np.array(
        [
            reject.mean(),
            *(reject[tasks == t].mean() for t in range(len(partition))),
            (~conformal.decide(near, alpha).accept).mean() if len(near) else np.nan,
        ]
    )


def kept(runs: list[Path], alpha: float) -> None:
    """Coverage of a task at its own step and at the last, mean over tasks but the last; near-OOD sets rejected."""
    print("| run | kept | accuracy | coverage | near-OOD rejected | coverage falls, times accuracy |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for path in runs:
        for keep in ("decision", "threshold", "nothing"):
            found = coverage(Run(path), keep, alpha)
            rows = [found.accuracy, found.coverage, found.rejection.group("near")]
            means = [values.mean() for values in rows]
            ends = [(np.diagonal(m)[:-1].mean(), m[-1, :-1].mean()) for m in means]
            cells = " | ".join(f"{first:.3f} → {last:.3f}" for first, last in ends)
            (a, b), (c, d) = ends[:2]
            print(f"| {path.name} | {keep} | {cells} | {(c - d) / (a - b) if a - b > 0.005 else np.nan:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--kept", action="store_true", help="decisions kept from the step of each task to the last")
    arguments = parser.parse_args()
    if arguments.kept:
        kept(arguments.runs, arguments.alpha)
        return
    warnings.simplefilter("ignore", UserWarning)  # small halves
    print(f"alpha {arguments.alpha}, {arguments.splits} random splits\n")
    print("| run | samples from | n | p-values | ID rejected | worst task | near-OOD rejected |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: |")
    for run in arguments.runs:
        manifest = json.loads((run / "manifest.json").read_text())
        partition = Partition(manifest["tasks"])
        outputs = sorted((run / "steps").iterdir())[-1] / "outputs"
        test = read(outputs / "test.npz")
        near = [read(outputs / "ood" / f"{name}.npz")[0] for name in manifest["ood"]["near"]]
        found = {name: read(outputs / f"calibration_{name}.npz") for name in SOURCES}
        used = manifest.get("calibration")
        if isinstance(used, dict) and used.get("source") in SOURCES:  # the set in use has no name of its own
            found[used["source"]] = read(outputs / "calibration.npz")
        for name, sample in {"held out": test, **found}.items():
            for mode in (None, "winning", "true") if sample is not None else ():
                rng = np.random.default_rng(0)
                rows = []
                for _ in range(arguments.splits):
                    taken, judged = halves(test, rng) if sample is test else (sample, test)
                    try:
                        rows.append(
                            rejected(taken, judged, np.concatenate(near), partition, mode, arguments.alpha, rng)
                        )
                    except ToodError:  # a split without a sample of some task
                        continue
                everywhere, *tasks, unknown = np.mean(rows, axis=0)
                print(
                    f"| {run.name} | {name} | {len(taken[1])} | {mode or 'overall'} | {everywhere:.3f} "
                    f"| {max(tasks):.3f} | {unknown:.3f} |"
                )


if __name__ == "__main__":
    main()
