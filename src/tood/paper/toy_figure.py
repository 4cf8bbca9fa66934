"""Figure of the toy experiment: geometry, confidence gap before and after TOOD, and AUROC by margin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tood.paper.toy import MARGINS, REGIMES, STANDARD, Settings, ToyRun, sample
from tood.paper.toy_results import FIRST, by_regime, margin_averages
from tood.report.plots.style import COLOURS, caption, grid, styled

__all__ = ["toy_figure"]

# Lines also differ in dash and marker, for readers who cannot distinguish the colours.
ID, OOD, TOOD, PLAIN = (COLOURS[name] for name in ("id", "far", "tood", "energy"))


@styled
def toy_figure(results: Sequence[ToyRun], settings: Settings | None = None) -> Figure:
    """Draw the three panels.

    Parameters
    ----------
    results:
        Runs of every regime, from :func:`tood.paper.toy.runs`.
    settings:
        Settings of these runs; the paper's by default.
    """
    s = settings or Settings()
    figure, ((left, middle, right),) = grid(1, 3, 3.9, width=11, width_ratios=(0.92, 1, 1))
    _geometry(left, results[0].seed, s)
    _gap(middle, by_regime(results)["separated"])
    _margins(right, by_regime(results))
    seeds = len({r.seed for r in results})
    text = (
        "(a) one seed; each class is drawn in its own plane through the origin, which keeps its distance from the OOD "
        f"samples; circles: class centres. (b, c) mean and range over {seeds} seed{'s' * (seeds > 1)}; "
        f"{s.test * s.classes_per_task:,} test samples per task, {s.ood:,} OOD samples, "
        f"{s.exemplars * s.classes_per_task} exemplars per task for calibration."
    )
    caption(figure, text)
    return figure


def _geometry(axes: Any, seed: int, s: Settings, shown: int = 40) -> None:
    """Draw each class in its own plane through the origin, which preserves its distance from the OOD samples."""
    samples = sample("separated", seed, s)
    angles = np.pi / 2 - 2 * np.pi * (np.arange(s.classes) + 0.5) / s.classes
    for c, angle in enumerate(angles):
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        x, y = (samples.test[c, :shown] @ _plane(samples.centres[[c, c - 1]]) @ turn).T
        axes.scatter(x, y, s=5, color=ID, alpha=0.55, linewidths=0, label="ID" if c == 0 else None)
    x, y = (samples.ood[: 5 * shown] @ _plane(samples.centres[[0, -1]])).T
    axes.scatter(x, y, s=7, marker="D", color=OOD, alpha=0.7, linewidths=0, label="OOD")
    around = np.linspace(0, 2 * np.pi, 200)
    for regime, dash in (("separated", "--"), ("crowded", ":")):
        radius = REGIMES[regime].radius
        axes.plot(radius * np.cos(around), radius * np.sin(around), dash, color="black", lw=1.1, label=regime)
    axes.set(aspect="equal", title="(a) Classes around OOD samples", xlabel="standard deviations from the origin")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4, markerscale=2)


def _plane(pair: Any) -> Any:
    """Orthonormal basis ``[D, 2]`` of the plane of two vectors; the first column has the first one's direction."""
    basis, triangle = np.linalg.qr(pair.T)
    return basis * np.sign(np.diag(triangle))


def _gap(axes: Any, separated: Sequence[ToyRun]) -> None:
    steps = np.arange(len(separated[0].accuracy))
    for name, label, style in (
        ("before", "before: energy", {"color": PLAIN, "marker": "s", "ls": "-"}),
        ("robust_anchor", "after: TOOD, robust anchor", {"color": TOOD, "marker": "o", "ls": "-"}),
        ("mean_shift", "after: TOOD, mean shift", {"color": TOOD, "marker": "^", "ls": "--", "mfc": "white"}),
    ):
        _line(axes, steps, [r.gap[name] for r in separated], label, style)
    ylabel = "mean own-channel energy,\nnewest minus first task (energy units)"
    axes.set(title="(b) The confidence gap, separated", xlabel="step (the newest task)", ylabel=ylabel, xticks=steps)
    axes.legend(loc="upper left")


def _margins(axes: Any, regimes: dict[str, list[ToyRun]]) -> None:
    for name, marker in zip(STANDARD, "ovX", strict=True):
        own = regimes[name]
        curves = 100 * np.array([margin_averages(r) for r in own])
        _line(axes, np.array(MARGINS), curves, None, {"color": TOOD, "marker": marker, "ls": "-"})
        level = float(np.mean([100 * r.trajectory("energy", FIRST).average() for r in own]))
        axes.axhline(level, color=PLAIN, ls="--", lw=1.2)
        best = float(curves[:, 0].mean())
        gain = f"{best - level:+.1f}".replace("-", "−")
        axes.text(1.05, (level + best) / 2, f"{name.replace('_', ' ')}\n{gain} at λ = 0", va="center")
    axes.plot([], [], color=TOOD, marker="o", label="TOOD, robust anchor")
    axes.plot([], [], color=PLAIN, ls="--", label="energy")
    ylabel = f"Avg AUROC, first {FIRST} steps (%)"
    axes.set(title="(c) When it helps, and when it hurts", xlabel="margin weight λ", ylabel=ylabel, xlim=(-0.03, 1.03))
    axes.legend(loc="upper left", ncols=2)


def _line(axes: Any, x: Any, curves: Any, label: str | None, style: dict[str, Any]) -> None:
    """Draw the mean over seeds as a line and their range as a band."""
    values = np.array(curves)
    axes.plot(x, values.mean(axis=0), label=label, **style)
    axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.15, lw=0)
