"""Figure of the toy experiment: geometry, confidence gap before and after TOOD, and AUROC by margin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tood.errors import MissingDependencyError
from tood.metrics import Trajectory
from tood.paper.toy import MARGINS, REGIMES, Settings, ToyRun, sample
from tood.paper.toy_results import FIRST, by_regime
from tood.report.appearance import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["toy_figure"]

# Lines also differ in dash and marker, for readers who cannot distinguish the colours.
ID, OOD, TOOD, PLAIN = (COLOURS[name] for name in ("id", "far", "tood", "energy"))
TEXT = "#404040"
STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,  # text stays text
}


def toy_figure(results: Sequence[ToyRun], settings: Settings | None = None) -> Figure:
    """Draw the three panels.

    Parameters
    ----------
    results:
        Runs of every regime, from :func:`tood.paper.toy.runs`.
    settings:
        Settings of these runs; the paper's by default.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("matplotlib", "report", "drawing the figure") from error
    s = settings or Settings()
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.9), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=(0.92, 1, 1))
        _geometry(left, results[0].seed, s)
        _gap(middle, by_regime(results)["separated"])
        _margins(right, by_regime(results))
        seeds = len({r.seed for r in results})
        caption = (
            "(a) one seed; each class is drawn in its own plane through the origin, which keeps its distance from the "
            f"OOD samples; circles: class centres.  (b, c) mean and range over {seeds} seed{'s' * (seeds > 1)};\n"
            f"{s.test * s.classes_per_task:,} test samples per task, {s.ood:,} OOD samples, "
            f"{s.exemplars * s.classes_per_task} exemplars per task for calibration."
        )
        figure.supxlabel(caption, fontsize=8, color=TEXT)
    return figure


def _geometry(axes: Axes, seed: int, s: Settings, shown: int = 40) -> None:
    """Draw each class in its own plane through the origin, which preserves its distance from the OOD samples."""
    samples = sample("separated", seed, s)
    angles = np.pi / 2 - 2 * np.pi * (np.arange(s.classes) + 0.5) / s.classes
    for c, angle in enumerate(angles):
        plane = _plane(samples.centres[c], samples.centres[c - 1])
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        x, y = (samples.test[c, :shown] @ plane.T @ turn).T
        axes.scatter(x, y, s=5, color=ID, alpha=0.55, linewidths=0, label="ID" if c == 0 else None)
    x, y = (samples.ood[: 5 * shown] @ _plane(samples.centres[0], samples.centres[-1]).T).T
    axes.scatter(x, y, s=7, marker="D", color=OOD, alpha=0.7, linewidths=0, label="OOD")
    around = np.linspace(0, 2 * np.pi, 200)
    for regime, dash in (("separated", "--"), ("crowded", ":")):
        radius = REGIMES[regime].radius
        axes.plot(radius * np.cos(around), radius * np.sin(around), dash, color="black", lw=1.1, label=regime)
    edge = REGIMES["separated"].radius + 5.5
    for task in range(s.tasks):
        angle = angles[task * s.classes_per_task : (task + 1) * s.classes_per_task].mean()
        x, y = 0.91 * edge * np.cos(angle), 0.91 * edge * np.sin(angle)
        axes.text(x, y, f"task {task}", ha="center", va="center", color=ID)
    ticks = np.arange(-8, 9, 4)
    axes.set(aspect="equal", anchor="N", xlim=(-edge, edge), ylim=(-edge, edge), xticks=ticks, yticks=ticks)
    axes.set(title="(a) Classes around OOD samples", xlabel="distance from the origin (standard deviations)")
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4, markerscale=2, columnspacing=1, handlelength=1.6
    )


def _plane(first: Any, second: Any) -> Any:
    """Orthonormal basis ``[2, D]`` of the plane of two vectors; the first row has the direction of the first vector."""
    u = first / np.linalg.norm(first)
    v = second - (second @ u) * u
    return np.stack([u, v / np.linalg.norm(v)])


def _gap(axes: Axes, separated: Sequence[ToyRun]) -> None:
    steps = np.arange(len(separated[0].accuracy))
    for name, label, style in (
        ("before", "before: energy", {"color": PLAIN, "marker": "s", "ls": "-"}),
        ("robust_anchor", "after: TOOD, robust anchor", {"color": TOOD, "marker": "o", "ls": "-"}),
        ("mean_shift", "after: TOOD, mean shift", {"color": TOOD, "marker": "^", "ls": "--", "mfc": "white"}),
    ):
        _line(axes, steps, [r.gap[name] for r in separated], label, style)
    axes.axhline(0, color="black", lw=0.6)
    axes.set(
        title="(b) The confidence gap, separated",
        xlabel="step (the newest task)",
        ylabel="mean own-channel energy,\nnewest minus first task (energy units)",
        xticks=steps,
    )
    axes.legend(loc="upper left")


def _margins(axes: Axes, regimes: dict[str, list[ToyRun]]) -> None:
    for (name, own), marker in zip(regimes.items(), "ovX", strict=True):
        curves = [[100 * Trajectory(v[:FIRST, :FIRST]).average() for v in r.margins] for r in own]
        _line(axes, np.array(MARGINS), curves, None, {"color": TOOD, "marker": marker, "ls": "-"})
        level = float(np.mean([100 * r.trajectory("energy", FIRST).average() for r in own]))
        axes.axhline(level, color=PLAIN, ls="--", lw=1.2)
        best = float(np.mean(curves, axis=0)[0])
        gain = f"{best - level:+.1f}".replace("-", "−")
        axes.text(1.05, (level + best) / 2, f"{name.replace('_', ' ')}\n{gain} at λ = 0", va="center")
    axes.plot([], [], color=TOOD, marker="o", ms=4, label="TOOD, robust anchor")
    axes.plot([], [], color=PLAIN, ls="--", label="energy")
    axes.set(
        title="(c) When it helps, and when it hurts",
        xlabel="margin weight λ",
        ylabel=f"Avg AUROC, first {FIRST} steps (%)",
        xlim=(-0.03, 1.03),
        ylim=(45, 100),
    )
    axes.legend(loc="upper left", ncols=2, columnspacing=1)


def _line(axes: Axes, x: Any, curves: Sequence[Any], label: str | None, style: dict[str, Any]) -> None:
    """Draw the mean over seeds as a line and their range as a band."""
    values = np.array(curves)
    axes.plot(x, values.mean(axis=0), ms=4, lw=1.5, label=label, **style)
    axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.15, lw=0)
