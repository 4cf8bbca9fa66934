"""Training length: does the gain of TOOD change its sign if learners train for longer?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from results_pages.frozen import add_lines, read_csv
from results_pages.markdown import spread_of, table
from tood import learners
from tood.evaluation.metrics_file import load_metrics
from tood.outputs import Run
from tood.outputs.identity import RunIdentity
from tood.report.appearance import label
from tood.report.summary import ACCURACY, RAW_SUFFIX, run_figures
from tood.report.tables import LEARNERS, place

__all__ = ["FILE", "SCORES", "collect_length", "length_section"]

FILE = "length.csv"
SCORES = ("tood_mean_shift", "tood_robust_anchor")
SETTING = ("preset", "stream", "network", "learner", "epochs")
COMPARED = {"digits", "cifar10"}  # the streams of `tood reproduce length`


def collect_length(runs: Iterable[Run], folder: Path) -> None:
    """Add one line per run of the paper's five learners and kind of logits; a line of the same run is replaced."""
    own = [
        run for run in runs if run.identity.finetune == "none" and run.learner in LEARNERS and run.stream in COMPARED
    ]
    add_lines(folder / FILE, [line for run in own for line in _lines(run)], (*SETTING, "seed"))


def _lines(run: Run) -> Iterator[dict[str, Any]]:
    """Accuracy, Avg AUROC of energy and of each TOOD, D_avg of energy; one more line for BiC's raw logits."""
    who = run.identity
    settings = learners.preset(who.preset, who.stream, who.learner) | dict(who.options)
    figures = run_figures(load_metrics(run.path), run.calibration)
    for suffix in ("", RAW_SUFFIX):
        scores = {name: figures.get((name + suffix, "avg_auroc")) for name in ("energy", *SCORES)}
        if None not in scores.values():
            yield {
                "preset": who.preset,
                "stream": who.stream,
                "learner": who.learner + suffix,
                "epochs": settings["epochs"],
                "seed": who.seed,
                "network": settings["network"],
                "accuracy": f"{figures['-', ACCURACY]:.2f}",
                "d_avg": f"{figures['energy' + suffix, 'd_avg']:.2f}",
                **{name: f"{value:.2f}" for name, value in scores.items()},
            }


def length_section(metrics: Path) -> Iterator[str]:
    """The section of the results page; nothing if there are no measurements."""
    settings: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in read_csv(metrics / FILE):
        settings.setdefault(tuple(row[name] for name in SETTING), []).append(row)
    if not settings:
        return
    yield from ("## Training length", "")
    yield (
        "Gain over energy, points of Avg AUROC, of the same learners trained for longer; mean ± standard deviation "
        "over seeds. The paper trains 170 epochs per task. Made by `tood reproduce length` (from scratch) and `tood "
        "reproduce length --preset frozen` (features of a frozen EfficientNet-Lite0)."
    )
    yield ""
    rows = []
    for (preset, stream, network, learner, epochs), seeds in sorted(settings.items(), key=_order):
        columns = {name: [float(row[name]) for row in seeds] for name in ("accuracy", "energy", "d_avg", *SCORES)}
        gains = ([a - b for a, b in zip(columns[name], columns["energy"], strict=True)] for name in SCORES)
        where = f"{stream}, {'frozen ' if preset == 'frozen' else ''}{network}"
        shown = [spread_of(columns[name]) for name in ("accuracy", "energy", "d_avg")]
        rows.append((where, label(learner), epochs, str(len(seeds)), *shown, *(spread_of(of, "+.1f") for of in gains)))
    head = ("stream, network", "learner", "epochs", "seeds", "accuracy", "energy", "D_avg of energy")
    yield from table((*head, *map(label, SCORES)), rows)


def _order(item: tuple[tuple[str, ...], Any]) -> tuple[Any, ...]:
    preset, stream, network, learner, epochs = item[0]
    return preset, stream, network, place(RunIdentity.from_label(learner).learner, LEARNERS), learner, int(epochs)
