"""Claim: a trajectory's five metrics cost a small part of what scikit-learn takes for the same numbers.

    python benchmarks/metrics.py

The cube of 10 steps × tasks seen × 6 OOD sets (1,000 ID samples per task, 10,000 per set), one thread: `roc_auc_score`,
`roc_curve` for each FPR and `average_precision_score` both ways, against `evaluate` cell by cell and `evaluate_tasks`
row by row (which gives the pooled metrics as well). They take turns, and the least processor time of several
rounds counts.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from tood.metrics import evaluate, evaluate_tasks

NAMES = ("auroc", "fpr_at_id_recall", "fpr_at_ood_recall", "aupr_in", "aupr_out")
Step = tuple[np.ndarray, np.ndarray, list[np.ndarray]]  # ID scores, their tasks, scores of each OOD set


def with_sklearn(ids: np.ndarray, oods: np.ndarray) -> dict[str, float]:
    scores = np.concatenate([ids, oods])
    is_id = np.concatenate([np.ones(len(ids)), np.zeros(len(oods))])
    fpr_id, tpr_id, _ = roc_curve(is_id, scores, drop_intermediate=False)
    fpr_ood, tpr_ood, _ = roc_curve(1 - is_id, -scores, drop_intermediate=False)
    return {
        "auroc": roc_auc_score(is_id, scores),
        "fpr_at_id_recall": fpr_id[np.argmax(tpr_id >= 0.95)],
        "fpr_at_ood_recall": fpr_ood[np.argmax(tpr_ood >= 0.95)],
        "aupr_in": average_precision_score(is_id, scores),
        "aupr_out": average_precision_score(1 - is_id, -scores),
    }


def cells(metrics, steps: list[Step]) -> np.ndarray:
    """[cells, 5] in the order step, OOD set, task."""
    rows = []
    for ids, tasks, sets in steps:
        for oods in sets:
            for task in range(tasks.max() + 1):
                values = metrics(ids[tasks == task], oods)
                rows.append([values[name] for name in NAMES])
    return np.array(rows)


def rows_of_tasks(steps: list[Step]) -> np.ndarray:
    rows = []
    for ids, tasks, sets in steps:
        for oods in sets:
            by_task, _ = evaluate_tasks(ids, tasks, oods)
            rows.append(np.stack([by_task[name] for name in NAMES], axis=1))
    return np.concatenate(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--sets", type=int, default=6)
    parser.add_argument("--id-samples", type=int, default=1_000, help="of each task")
    parser.add_argument("--ood-samples", type=int, default=10_000, help="of each set")
    parser.add_argument("--decimals", type=int, default=None, help="round the scores to this many, to force ties")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)

    def normal(count: int, mean: float) -> np.ndarray:
        scores = rng.normal(mean, 1.0, count)
        return (scores if arguments.decimals is None else scores.round(arguments.decimals)).astype(np.float32)

    steps: list[Step] = []
    for t in range(arguments.steps):
        tasks = rng.permutation(np.repeat(np.arange(t + 1), arguments.id_samples))
        sets = [normal(arguments.ood_samples, -1.0) for _ in range(arguments.sets)]
        steps.append((normal(len(tasks), 0.0), tasks, sets))

    ways = {
        "scikit-learn": lambda: cells(with_sklearn, steps),
        "evaluate, a cell at a time": lambda: cells(evaluate, steps),
        "evaluate_tasks, a row at a time": lambda: rows_of_tasks(steps),
    }
    least = dict.fromkeys(ways, float("inf"))
    values = {}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            start = time.process_time()
            values[name] = way()
            least[name] = min(least[name], time.process_time() - start)

    print(f"{len(values['scikit-learn'])} cells, five metrics each, one thread, least of {arguments.rounds} rounds")
    print(f"{'':32}{'seconds':>9}{'times as fast':>15}{'largest disagreement':>22}")
    for name in ways:
        ratio = least["scikit-learn"] / least[name]
        difference = np.abs(values[name] - values["scikit-learn"]).max()
        print(f"{name:32}{least[name]:9.3f}{ratio:15.1f}{difference:22.1e}")


if __name__ == "__main__":
    main()
