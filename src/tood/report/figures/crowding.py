"""Manifold crowding: positions of OOD samples among ID features as tasks are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tood.errors import MissingDependencyError
from tood.report.figures.distributions import density
from tood.report.figures.style import COLOURS, caption, grid, label, spread, step_axis, styled, task_bar, task_colours

__all__ = ["Embedding", "embed", "nearest_distances", "tsne"]


MOST_ID, MOST_OOD = 300, 150  # samples in a t-SNE


class Embedding(NamedTuple):
    """The samples of one step as points in the plane."""

    points: npt.NDArray[np.float64]  # [n, 2]: the ID samples, then the OOD samples
    tasks: npt.NDArray[np.int64]  # [m]: the task of each ID sample


def embed(id_features: Any, tasks: Any, ood_features: Any) -> Embedding:
    """t-SNE of the ID and OOD features of one step, of samples chosen at random; always the same for the same features.

    Parameters
    ----------
    id_features, ood_features:
        ``[n, D]`` and ``[m, D]``.
    tasks:
        ``[n]``, the task of each ID sample.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise MissingDependencyError("scikit-learn", "report", "t-SNE") from error
    rng = np.random.default_rng(0)
    known, unknown = (np.asarray(f, dtype=np.float64) for f in (id_features, ood_features))
    chosen = rng.permutation(len(known))[:MOST_ID]
    features = np.concatenate([known[chosen], unknown[rng.permutation(len(unknown))[:MOST_OOD]]])
    perplexity = min(30.0, (len(features) - 1) / 3)
    points = TSNE(perplexity=perplexity, init="pca", random_state=0, max_iter=500).fit_transform(features)
    return Embedding(np.asarray(points, dtype=np.float64), np.asarray(tasks)[chosen])


@styled
def tsne(embeddings: Mapping[int, Embedding], group: str = "far", note: str = "") -> Figure:
    """t-SNE of features at several steps, with OOD samples as crosses (paper, Fig. tsne_crowding).

    Parameters
    ----------
    embeddings:
        Results of :func:`embed` by step; use six or fewer for a readable figure.
    group:
        The group of the OOD samples, which sets their colour.
    note:
        Caption below the panels.
    """
    tasks = max(embeddings) + 1
    figure, panels = grid(1, len(embeddings), 0.6 + 7.0 / max(3, len(embeddings)))
    colours = np.array(task_colours(tasks))
    for axes, (step, (points, of_task)) in zip(panels[0], embeddings.items(), strict=True):
        known = points[: len(of_task)]
        unknown = points[len(of_task) :]
        axes.scatter(*known.T, s=4, c=colours[of_task], linewidths=0)
        axes.scatter(*unknown.T, s=7, c=COLOURS[group], marker="x", linewidths=0.6)
        axes.set(title=f"step {step}", xticks=[], yticks=[], aspect="equal", adjustable="datalim")
        axes.grid(False)
        for side in axes.spines.values():
            side.set_visible(True)
            side.set_color("#B0B0B0")
    handles = [Line2D([], [], marker="x", linestyle="", color=COLOURS[group], label=label(group))]
    if tasks <= 10:
        dots = [Line2D([], [], marker="o", linestyle="", color=c, label=f"task {t}") for t, c in enumerate(colours)]
        handles = dots + handles
    else:
        task_bar(figure, panels[0].tolist(), tasks)
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), handletextpad=0.1, columnspacing=1)
    caption(figure, note)
    return figure


@styled
def nearest_distances(distances: Sequence[npt.ArrayLike], note: str = "") -> Figure:
    """Distances of OOD samples to the nearest ID sample, relative to those between ID samples (Fig. nn_distance).

    Parameters
    ----------
    distances:
        ``[n]`` per step. On long streams, densities of evenly spaced steps are shown, and all medians.
    note:
        Caption below the panels.
    """
    steps = [np.asarray(step, dtype=np.float64) for step in distances]
    shown = spread(len(steps), 6)
    colours = task_colours(len(steps))
    figure, ((left, right),) = grid(1, 2, 2.4, width_ratios=(3, 2))
    low = min(float(np.percentile(steps[step], 0.5)) for step in shown)
    high = max(float(np.percentile(steps[step], 99.5)) for step in shown)
    margin = 0.1 * (high - low) or 1.0
    where = np.linspace(max(0.0, low - margin), high + margin, 400)
    for step in shown:
        left.plot(where, density(steps[step], where), color=colours[step], label=f"step {step}")
        left.axvline(float(np.median(steps[step])), color=colours[step], linewidth=0.9, linestyle="--")
    left.set(xlabel="distance to the nearest ID sample (ID's own = 1)", ylabel="density", xlim=(where[0], where[-1]))
    left.set_ylim(bottom=0)
    left.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=6, handlelength=1, columnspacing=1, borderaxespad=0.2)
    medians = [float(np.median(step)) for step in steps]
    right.plot(medians, color=COLOURS["muted"], linewidth=1, zorder=1)
    right.scatter(range(len(steps)), medians, c=colours, s=16 if len(steps) <= 20 else 5, zorder=2)
    change = 100 * (medians[-1] / medians[0] - 1) if medians[0] else 0.0
    title = f"{medians[0]:.2f} to {medians[-1]:.2f} ({change:+.0f} %)".replace("-", "−")
    right.set(ylabel="median distance (ID's own = 1)", title=title, ylim=(0, 1.15 * max(medians) or 1.0))
    step_axis(right, len(steps))
    caption(figure, note)
    return figure
