"""Training length: does the gain of TOOD change its sign if learners train for longer?

``python -m results_pages.length RUN_OR_PARENT … METRICS`` adds finished runs of ``tood reproduce length`` to
``METRICS/length.csv``; :func:`length_section` makes the section of the results page from that file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from results_pages.markdown import table
from results_pages.pretrained_data import read_csv, write_csv
from tood import learners
from tood.report.appearance import label
from tood.report.summary import ACCURACY, RAW_LOGITS, run_figures
from tood.report.tables import LEARNERS
from tood.runs import Run, find_runs
from tood.runs.measure import is_measured
from tood.runs.metrics_file import load_metrics

__all__ = ["FILE", "collect", "length_section"]

FILE = "length.csv"
SCORES = ("tood_mean_shift", "tood_robust_anchor", "tood_shrinkage")


def collect(paths: Iterable[str], folder: Path) -> int:
    """Add one line per finished run and kind of logits; a line of the same run is replaced. Returns how many.

    Only runs of the paper's five learners without BER.
    """
    rows = {_identity(row): row for row in read_csv(folder / FILE)}
    runs = [run for run in find_runs([Path(path) for path in paths]) if run.identity.finetune == "none"]
    runs = [run for run in runs if run.learner in LEARNERS and is_measured(run.path)]
    new = [row for run in runs for row in _lines(run)]
    rows |= {_identity(row): row for row in new}
    write_csv(folder / FILE, [rows[key] for key in sorted(rows)])
    return len(new)


def _identity(row: dict[str, Any]) -> tuple[str, str, str, str, int, int]:
    return row["preset"], row["stream"], row["network"], row["learner"], int(row["epochs"]), int(row["seed"])


def _lines(run: Run) -> Iterator[dict[str, Any]]:
    """Accuracy, Avg AUROC of energy and of each TOOD, D_avg of energy; one more line for BiC's raw logits."""
    who = run.identity
    settings = learners.preset(who.preset, who.stream, who.learner) | dict(who.options)
    figures = run_figures(load_metrics(run.path), run.calibration)
    for suffix in ("", f" ({RAW_LOGITS})"):
        if ("energy" + suffix, "avg_auroc") not in figures:
            continue
        yield {
            "preset": who.preset,
            "stream": who.stream,
            "learner": who.learner + suffix,
            "epochs": settings["epochs"],
            "seed": who.seed,
            "network": settings["network"],
            "accuracy": f"{figures['-', ACCURACY]:.2f}",
            "d_avg": f"{figures['energy' + suffix, 'd_avg']:.2f}",
            **{name: f"{figures[name + suffix, 'avg_auroc']:.2f}" for name in ("energy", *SCORES)},
        }


def length_section(metrics: Path) -> Iterator[str]:
    """The section of the results page; nothing if there are no measurements."""
    by_setting: dict[tuple[str, str, str, str, str], list[dict[str, str]]] = {}
    for row in read_csv(metrics / FILE):
        key = row["preset"], row["stream"], row["learner"], row["network"], row["epochs"]
        by_setting.setdefault(key, []).append(row)
    if not by_setting:
        return
    yield from ("## Training length", "")
    yield (
        "Gain over energy, points of Avg AUROC, of the same learners trained for longer; mean ± standard deviation "
        "over seeds. The paper trains 170 epochs per task. Made by `tood reproduce length` (from scratch) and `tood "
        "reproduce length --preset frozen` (features of a frozen EfficientNet-Lite0)."
    )
    yield ""
    head = ("stream, network", "learner", "epochs", "seeds", "accuracy", "energy", "D_avg of energy")
    yield from table(
        (*head, *map(label, SCORES)),
        [_row(*key, rows) for key, rows in sorted(by_setting.items(), key=lambda i: _order(i[0]))],
    )


def _order(key: Sequence[str]) -> tuple[Any, ...]:
    preset, stream, learner, network, epochs = key
    plain = learner.split(" (")[0]
    return preset, stream, network, LEARNERS.index(plain), learner, int(epochs)


def _row(preset: str, stream: str, learner: str, network: str, epochs: str, rows: list[dict[str, str]]) -> list[str]:
    columns = {name: np.array([float(row[name]) for row in rows]) for name in ("accuracy", "energy", "d_avg", *SCORES)}
    where = f"{stream}, {'frozen ' if preset == 'frozen' else ''}{network}"
    gains = [_spread(columns[name] - columns["energy"], "+.1f") for name in SCORES]
    shown = [_spread(columns[name], ".1f") for name in ("accuracy", "energy", "d_avg")]
    return [where, label(learner), epochs, str(len(rows)), *shown, *gains]


def _spread(values: np.ndarray, form: str) -> str:
    deviation = f" ± {values.std(ddof=1):.1f}" if len(values) > 1 else ""
    return f"{values.mean():{form}}{deviation}"


if __name__ == "__main__":
    *runs, target = sys.argv[1:]
    print(f"{collect(runs, Path(target))} lines")
