"""Fills the tables of docs/results and README from the committed measurements, and writes the CSV files behind them.

``python -m results_pages docs/results/metrics docs/results README.md`` works with any subset of the runs. The prose of
the pages is written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

from results_pages.benchmark import Benchmark
from results_pages.collect import read_collected
from results_pages.markdown import fill
from results_pages.paper import paper_blocks
from results_pages.tables import readme_blocks, result_blocks
from tood.report.plots import learners as plots
from tood.report.plots import save

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
        out / "index.md": result_blocks(metrics),
        out / "paper.md": paper_blocks(metrics),
        readme: readme_blocks(metrics),
    }
    return [fill(page, of) for page, of in blocks.items()]


def draw(metrics: Path) -> None:
    """Draw the plots over learners: drift and forgetting from scratch; drift and gap on frozen images and on text."""
    scratch = [one for one in read_collected(metrics) if one.preset == "cpu" and one.run.stream == "cifar10"]
    points = [one.point for one in scratch if one.run.identity.plain and one.point.get("drift") is not None]
    drawn = {"cifar10/drift": plots.scatter(points, "CIFAR-10, preset cpu.")}
    for stream, track, note in (("cifar10", "train", "CIFAR-10"), ("clinc", "calibration", "CLINC150")):
        points = [of for of in Benchmark(metrics).points(stream, track) if of["drift"]]
        pairs = [("drift", "d_avg"), ("gap", "gain")]
        if points:
            drawn[f"{stream}-frozen/causes"] = plots.scatter(points, f"{note}, frozen features.", pairs)
    for name, figure in drawn.items():
        for file in save(figure, metrics / "plots" / name):
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
