"""Draw the README's picture from the committed figures of two iCaRL runs: ``python docs/images/ood_forgetting.py``.

The first task of CIFAR-10 (five tasks, preset cpu, seeds 0 and 1): accuracy on it and AUROC against all OOD sets, as
further tasks are learned.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import matplotlib
import numpy as np
import pyarrow.parquet as pq
from matplotlib.figure import Figure

HERE = Path(__file__).parent
RUNS = [HERE.parent / "results" / "metrics" / "cifar10" / f"cifar10-icarl-cpu-s{seed}" for seed in (0, 1)]
LINES = [  # detector (None: accuracy), text at the end of the line, its offset, colour, line style
    (None, "accuracy", 4, "#6b7280", (0, (1, 1.4))),
    ("typicality", "AUROC, features (typicality)", 3, "#0f766e", "-"),
    ("tood_auto", "AUROC, TOOD (an older default)", 0, "#2563eb", "-"),
    ("energy", "AUROC, energy score", -2, "#dc2626", "-"),
]


def series(run: Path, detector: str | None) -> list[float]:
    """The first task's accuracy or AUROC in percent at every step; of AUROC, (mean of near + mean of far) / 2."""
    steps: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in pq.read_table(run / "metrics.parquet").to_pylist():
        metric = "auroc" if detector else "accuracy"
        if (row["metric"], row["detector"], row["task"]) == (metric, detector, 0) and not row["settings"]:
            steps[row["step"]][row["group"]].append(row["value"])
    return [100 * float(np.mean([np.mean(values) for values in steps[t].values()])) for t in sorted(steps)]


def draw() -> Figure:
    """The figure: one line per quantity, named at its end."""
    figure = Figure(figsize=(8.6, 3.5), layout="constrained")
    axes = figure.subplots()
    for detector, text, offset, colour, style in LINES:
        values = np.mean([series(run, detector) for run in RUNS], axis=0)
        axes.plot(values, color=colour, ls=style, lw=2.6, marker="o", ms=5, clip_on=False, zorder=3)
        end = (len(values) - 1, values[-1])
        axes.annotate(text, end, (12, offset), textcoords="offset points", color=colour, va="center")
    axes.axhline(50, color="#9ca3af", lw=0.8)
    axes.annotate("50 %: chance", (0, 50), (0, 4), textcoords="offset points", color="#6b7280", fontsize=9)
    axes.set_xticks(
        range(5), ["airplane,\nautomobile", "+ bird,\ncat", "+ deer,\ndog", "+ frog,\nhorse", "+ ship,\ntruck"]
    )
    axes.set_xlabel("classes learned, task by task (iCaRL on CIFAR-10)")
    axes.set_ylabel("first task, %")
    axes.set(xlim=(-0.15, 4.05), ylim=(40, 101))
    axes.spines[["top", "right"]].set_visible(False)
    title = "OOD forgetting: the first task is still recognised, but no longer separated from unknown inputs"
    axes.set_title(title, loc="left", fontsize=11)
    return figure


if __name__ == "__main__":
    with matplotlib.rc_context({"font.size": 10, "svg.hashsalt": "tood"}):
        draw().savefig(HERE / "ood-forgetting.svg", facecolor="white", bbox_inches="tight", metadata={"Date": None})
