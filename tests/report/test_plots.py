"""Plots show exactly the numbers they were given, and their text never overlaps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib.colors
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy.stats import pearsonr

from tood import ToodError, detectors
from tood.outputs import Run, find_runs
from tood.report import plots
from tood.report.appearance import COLOURS, label, spread
from tood.report.gather import MeasuredRun
from tood.report.plots import draw, learners

COLUMNS = ("drift", "d_avg", "f_avg", "accuracy", "recent_accuracy", "old_accuracy", "gain")
POINTS = [
    {"learner": name, "seed": seed} | dict(zip(COLUMNS, figures_of, strict=True))
    for k, name in enumerate(["icarl", "bic", "der", "wa"])
    for seed in (0, 1)
    for figures_of in [(0.1 * k + 0.01 * seed, 5 + (k * 7) % 5 + seed, 20 - 3 * k, 50 + 4 * k, 90, 60 - k, 3 - 2 * k)]
]


def overlaps(figure: Figure, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Pairs of texts that were drawn over each other."""
    drawn: dict[int, Text] = {}
    original = Text.draw

    def draw(self: Text, renderer: object) -> None:
        if self.get_visible() and self.get_text().strip():
            drawn[id(self)] = self
        original(self, renderer)

    monkeypatch.setattr(Text, "draw", draw)
    figure.draw_without_rendering()
    monkeypatch.setattr(Text, "draw", original)
    boxes = [(text.get_text(), text.get_window_extent().padded(-0.5)) for text in drawn.values()]
    return [(name, other) for k, (name, box) in enumerate(boxes) for other, second in boxes[:k] if box.overlaps(second)]


@pytest.mark.parametrize("tasks", [5, 100])
def test_the_first_task_is_drawn_and_no_text_overlaps(tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    line = np.random.default_rng(1).uniform(0.5, 1, size=tasks)
    note = "iCaRL on CIFAR-10, 5 tasks, seed 0. " * 2
    figure = draw.task_trajectory(line, dict.fromkeys(("energy", "tood_robust_anchor"), line), note)
    assert overlaps(figure, monkeypatch) == []
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), 100 * line)
    assert "seed 0" in figure.texts[0].get_text()


def test_no_text_overlaps_over_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [
        {"learner": k, "B": b, "avg_auroc": 60 + b / 100, "d_avg": 9} for k in "abc" for b in (10, 20, 50, 200, 1000)
    ]
    margins = [{"learner": "icarl", "margin": m / 10, "avg_auroc": 60 + m, "d_avg": 9} for m in range(11)]
    drawn = [learners.scatter(POINTS), plots.buffer_size(sizes), plots.margin(margins)]
    for figure in drawn:
        assert overlaps(figure, monkeypatch) == []


def test_scatter_shows_the_means_over_seeds_and_scipy_s_r_and_p() -> None:
    figure = learners.scatter(POINTS)
    left = figure.axes[0]
    shown = np.array([container.lines[0].get_xydata()[0] for container in left.containers])
    names = ["icarl", "bic", "der", "wa"]
    expected = [
        [np.mean([p[column] for p in POINTS if p["learner"] == name]) for column in ("drift", "d_avg")]
        for name in names
    ]
    np.testing.assert_allclose(shown, expected)
    r, p = pearsonr(*np.array(expected).T)
    title = left.get_title(loc="left").replace("−", "-")
    assert title == f"r = {r:.2f}, p = {p:.3f}, n = 4"
    assert {text.get_text() for text in left.texts} == {"iCaRL", "BiC", "DER", "WA"}


def test_ablation_lines_are_means_over_seeds() -> None:
    rows = [{"learner": "icarl", "B": b, "seed": s, "avg_auroc": b + s, "d_avg": s} for b in (50, 10) for s in (0, 2)]
    figure = plots.buffer_size(rows, default=20)
    line = next(line for line in figure.axes[0].lines if line.get_label() == "iCaRL")
    assert line.get_xydata().tolist() == [[10, 11], [50, 51]]


def test_colours_differ_for_every_kind_of_eye() -> None:
    """Machado et al. (2009): protanopia, deuteranopia and tritanopia at full strength; CIE76 difference over 10."""
    eyes = {
        "normal": np.eye(3),
        "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    }
    names = ("id", "near", "far", "tood", "energy", "accuracy")
    rgb = np.array([matplotlib.colors.to_rgb(COLOURS[name]) for name in names])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    for eye in eyes.values():
        xyz = np.clip(linear @ np.array(eye).T, 0, 1) @ to_xyz.T / [0.9505, 1.0, 1.089]
        f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        lab = np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)
        apart = np.linalg.norm(lab[:, None] - lab[None], axis=2)[np.triu_indices(len(names), 1)]
        assert apart.min() > 10


def test_saved_files_are_reproducible(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        paths = plots.save(learners.scatter(POINTS), tmp_path / folder / "drift")
        assert [path.name for path in paths] == ["drift.png", "drift.pdf"]
    for name in ("drift.png", "drift.pdf"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_labels_and_spread() -> None:
    assert [label(name) for name in ("icarl", "icarl+ber", "ash (variant=s)", "mine")] == [
        "iCaRL", "iCaRL+BER", "ASH (variant=s)", "mine"]  # fmt: skip
    assert all(label(name) != name for name in detectors.names())
    assert spread(3, 8) == [0, 1, 2] and spread(100, 5) == [0, 25, 50, 74, 99] and spread(1, 5) == [0]


def test_points_of_a_run_are_its_figures(five: Path) -> None:
    one = MeasuredRun(Run(five))
    point = one.point()
    energy, tood = (one.trajectory(name) for name in ("energy", "tood_robust_anchor"))
    assert point["gain"] == pytest.approx(100 * (tood.balanced().average() - energy.balanced().average()))
    assert point["d_avg"] == pytest.approx(100 * energy.balanced().average_forgetting())
    assert point["old_accuracy"] == pytest.approx(100 * one.accuracy[-1, :-1].mean())
    features = {}
    for step in (0, 4):
        with np.load(five / f"steps/{step:02d}/outputs/test.npz") as file:
            features[step] = file["features"][file["labels"] < 2].astype(np.float64)
    a, b = (f - f.mean(axis=0) for f in features.values())
    cka = np.linalg.norm(a.T @ b) ** 2 / (np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b))
    only = one.drift()
    assert 0 < 1 - cka < 0.5 and 0 < only < 0.5


def test_every_figure_of_a_sweep_is_drawn(sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, Figure] = {}

    def keep(figure: Figure, stem: Path) -> list[Path]:
        kept[stem.relative_to(tmp_path).as_posix()] = figure
        return [stem]

    monkeypatch.setattr("tood.report.plots.draw.save", keep)
    paths = plots.draw_all(find_runs([sweep]), tmp_path)
    assert len(paths) == len(kept)
    assert set(kept) == {"digits/drift", *(f"digits/{learner}/task0" for learner in ("icarl", "der", "wa"))}
    one = MeasuredRun(Run(sweep / "icarl-s0"))
    line = kept["digits/icarl/task0"].axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), 100 * one.accuracy[:, 0])


def test_what_a_run_cannot_give_is_left_out(
    build: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tood.report.plots.draw.save", lambda figure, stem: [stem])
    run = build(tmp_path / "one", tasks=1, detectors=("energy",), seed=5)
    assert [path.name for path in plots.draw_all([Run(run)], tmp_path / "plots")] == ["task0"]
    run = build(tmp_path / "two", tasks=2, detectors=("msp",))
    with pytest.raises(ToodError, match="expected metrics of energy"):
        plots.draw_all([Run(run)], tmp_path)
    with pytest.raises(ToodError, match="at least one"):
        plots.draw_all([], tmp_path)
