"""Figure of the toy experiment: confidence gap before and after TOOD, and AUROC by margin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tood.paper.toy import MARGINS, STANDARD, Settings, ToyRun
from tood.paper.toy_results import FIRST, by_regime, margin_averages
from tood.report.plots.style import COLOURS, caption, grid, styled

__all__ = ["toy_figure"]

# Lines also differ in dash and marker, for readers who cannot distinguish the colours.
TOOD, PLAIN = (COLOURS[name] for name in ("tood", "energy"))


@styled
def toy_figure(results: Sequence[ToyRun], settings: Settings | None = None) -> Figure:
    """Draw both panels.

    Parameters
    ----------
    results:
        Runs of every regime, from :func:`tood.paper.toy.runs`.
    settings:
        Settings of these runs; the paper's by default.
    """
    s = settings or Settings()
    figure, ((left, right),) = grid(1, 2, 3.5, width=9)
    _gap(left, by_regime(results)["separated"])
    _margins(right, by_regime(results))
    seeds = len({r.seed for r in results})
    text = (
        f"Mean and range over {seeds} seed{'s' * (seeds > 1)}; {s.test * s.classes_per_task:,} test samples per task, "
        f"{s.ood:,} OOD samples, {s.exemplars * s.classes_per_task} exemplars per task for calibration."
    )
    caption(figure, text)
    return figure


def _gap(axes: Any, separated: Sequence[ToyRun]) -> None:
    steps = np.arange(len(separated[0].accuracy))
    for name, label, style in (
        ("before", "before: energy", {"color": PLAIN, "marker": "s", "ls": "-"}),
        ("robust_anchor", "after: robust anchor (paper)", {"color": TOOD, "marker": "o", "ls": "-"}),
        ("mean_shift", "after: mean shift (paper)", {"color": TOOD, "marker": "^", "ls": "--", "mfc": "white"}),
    ):
        _line(axes, steps, [r.gap[name] for r in separated], label, style)
    ylabel = "mean own-channel energy,\nnewest minus first task (energy units)"
    axes.set(title="(a) The confidence gap, separated", xlabel="step (the newest task)", ylabel=ylabel, xticks=steps)
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
    axes.plot([], [], color=TOOD, marker="o", label="robust anchor (paper)")
    axes.plot([], [], color=PLAIN, ls="--", label="energy")
    ylabel = f"Avg AUROC, first {FIRST} steps (%)"
    axes.set(title="(b) When it helps, and when it hurts", xlabel="margin weight λ", ylabel=ylabel, xlim=(-0.03, 1.03))
    axes.legend(loc="upper left", ncols=2)


def _line(axes: Any, x: Any, curves: Any, label: str | None, style: dict[str, Any]) -> None:
    """Draw the mean over seeds as a line and their range as a band."""
    values = np.array(curves)
    axes.plot(x, values.mean(axis=0), label=label, **style)
    axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.15, lw=0)
