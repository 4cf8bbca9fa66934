"""The picture of the README: what the first of five tasks loses while the others are learned.

tood run --stream cifar10 --learner wa --frozen --seed 0 --out RUN0     # also seeds 1 and 2
python docs/images/ood_forgetting.py RUN0 RUN1 RUN2                     # measures: writes ood-forgetting.csv
python docs/images/ood_forgetting.py                                    # draws it: writes ood-forgetting.svg
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from tood import TOOD, energy
from tood.metrics import auroc
from tood.outputs import Run

HERE = Path(__file__).parent
TABLE = HERE / "ood-forgetting.csv"
LINES = {  # column: text at the end of the line, its offset, colour, line style
    "accuracy": ("accuracy, own classes", 0, "#6b7280", (0, (1, 1.4))),
    "tood": ("AUROC, TOOD", 0, "#2563eb", "-"),
    "energy": ("AUROC, energy", 0, "#dc2626", "-"),
}


def measure(paths: list[str]) -> None:
    """Write one row per run and step: accuracy and AUROC of the first task, in percent, (near + far) / 2."""
    rows = []
    for seed, path in enumerate(paths):
        run = Run(path)
        for step, columns in enumerate(range(2, 11, 2)):
            outputs = run.path / "steps" / f"{step:02d}" / "outputs"
            calibration, test = (np.load(outputs / f"{name}.npz") for name in ("calibration", "test"))
            own = test["labels"] < 2
            logits = test["logits"][own, :columns]
            tasks = [[c, c + 1] for c in range(0, columns, 2)]
            cal = TOOD(tasks).fit(calibration["logits"][:, :columns], calibration["labels"])
            row = {"seed": seed, "step": step}
            row["accuracy"] = 100 * float((logits[:, :2].argmax(axis=1) == test["labels"][own]).mean())
            for name, score in (("energy", energy), ("tood", cal.score)):
                sets = {
                    group: [
                        auroc(score(logits), score(np.load(outputs / "ood" / f"{n}.npz")["logits"][:, :columns]))
                        for n in names
                    ]
                    for group, names in run.manifest["ood"].items()
                }
                row[name] = 100 * float(np.mean([np.mean(values) for values in sets.values()]))
            rows.append(row)
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({k: round(v, 2) for k, v in row.items()} for row in rows)


def draw() -> Figure:
    """One line per quantity, named at its end; the band is the range over seeds."""
    rows = list(csv.DictReader(TABLE.open()))
    figure = Figure(figsize=(8.4, 3.3), layout="constrained")
    axes = figure.subplots()
    for column, (text, offset, colour, style) in LINES.items():
        values = np.array([[float(r[column]) for r in rows if int(r["step"]) == step] for step in range(5)])
        axes.fill_between(range(5), values.min(axis=1), values.max(axis=1), color=colour, alpha=0.12, lw=0)
        mean = values.mean(axis=1)
        axes.plot(mean, color=colour, ls=style, lw=2.6, marker="o", ms=5, clip_on=False, zorder=3)
        axes.annotate(text, (4, mean[-1]), (12, offset), textcoords="offset points", color=colour, va="center")
    axes.axhline(50, color="#9ca3af", lw=0.8)
    axes.annotate("50 %: chance", (0, 50), (0, 4), textcoords="offset points", color="#6b7280", fontsize=9)
    tasks = ["airplane,\nautomobile", "+ bird,\ncat", "+ deer,\ndog", "+ frog,\nhorse", "+ ship,\ntruck"]
    axes.set_xticks(range(5), tasks)
    axes.set_ylabel("first task, %")
    axes.set(xlim=(-0.15, 4.05), ylim=(20, 101))
    axes.spines[["top", "right"]].set_visible(False)
    title = "While four more tasks are learned, the first one is no longer separated from unknown inputs"
    axes.set_title(title, loc="left", fontsize=11)
    return figure


if __name__ == "__main__":
    if sys.argv[1:]:
        measure(sys.argv[1:])
    with matplotlib.rc_context({"font.size": 10, "svg.hashsalt": "tood"}):
        draw().savefig(HERE / "ood-forgetting.svg", facecolor="white", bbox_inches="tight", metadata={"Date": None})
