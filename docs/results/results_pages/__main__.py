"""Fills the tables of docs/results and README from the committed measurements, and writes the CSV files behind them.

``python -m results_pages docs/results/metrics docs/results README.md`` works with any subset of the runs. The prose of
the pages is written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

from results_pages.collect import read_collected
from results_pages.evidence import of_runs
from results_pages.markdown import fill
from results_pages.paper import mechanism_rows, paper_blocks
from results_pages.pretrained import pretrained_blocks, readme_table
from results_pages.tracks import track_blocks

__all__ = ["write_results"]


def write_results(metrics: Path, out: Path, readme: Path) -> list[Path]:
    """Fill the tables of ``index.md``, ``paper.md`` and the README.

    Parameters
    ----------
    metrics:
        Folder of collected runs.
    out:
        Folder of the pages.
    readme:
        The README.
    """
    blocks = {
        out / "index.md": {**pretrained_blocks(metrics), **track_blocks(metrics)},
        out / "paper.md": paper_blocks(metrics),
        readme: {"pretrained": readme_table(metrics)},
    }
    return [fill(page, of) for page, of in blocks.items()]


def draw(metrics: Path) -> None:
    """Draw the plots that need only collected values, of preset ``cpu`` on CIFAR-10: drift and mechanism."""
    from tood.report.plots.learners import drift_and_forgetting, mechanism
    from tood.report.plots.style import save

    own = [one for one in read_collected(metrics) if one.preset == "cpu" and one.run.stream == "cifar10"]
    points = [one.point for one in own if one.run.identity.plain and one.point.get("drift") is not None]
    rows = mechanism_rows(of_runs(own, raw=True).values)
    note = "cifar10, preset cpu, means over seeds; BiC scored on raw logits, as the authors did."
    drawn = {"drift": drift_and_forgetting(points, "cifar10, preset cpu."), "mechanism": mechanism(rows, note)}
    for name, figure in drawn.items():
        for file in save(figure, metrics / "plots" / "cifar10" / name):
            if file.suffix == ".pdf":
                file.unlink()


def main() -> int:
    """``python -m results_pages METRICS OUT README``."""
    try:
        metrics, out, readme = map(Path, sys.argv[1:])
        draw(metrics)
        print(*write_results(metrics, out, readme), sep="\n")
    except ValueError as error:  # a ToodError, or other arguments
        print(f"tood: METRICS OUT README: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
