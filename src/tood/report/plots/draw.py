"""Draw and save every plot of a set of measured runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tood.audit.distances import nearest
from tood.errors import ToodError
from tood.outputs.directory import Run
from tood.report.gather import MeasuredRun, by_group, scores_at
from tood.report.plots.distributions import nearest_distances, ridges
from tood.report.plots.learners import drift_and_forgetting, forgetting_and_accuracy
from tood.report.plots.style import as_text, label, save
from tood.report.plots.trajectories import confidence_gap, task_trajectory
from tood.report.summary import on_its_own
from tood.report.tables import LEARNERS, TOOD_VARIANTS, place
from tood.storage.files import file_name, printable

__all__ = ["draw_all"]


def draw_all(
    runs: Iterable[Run | MeasuredRun],
    out_dir: Path,
    paper: bool = False,
    say: Callable[[str], object] = lambda line: None,
) -> list[Path]:
    """Draw every plot that the data allows, as PNG and PDF.

    Plots of a single run show the first seed of each learner. Plots over learners use all seeds and need two learners;
    plots of distances need features.

    Parameters
    ----------
    runs:
        Runs with a ``metrics.parquet``.
    out_dir:
        Parent of one folder per stream, with one folder per learner inside.
    paper:
        Show the paper's variants beside TOOD, if they were measured.
    say:
        Called with a line before the plots of a run are drawn.

    Returns
    -------
    The files written.
    """
    streams: dict[str, list[MeasuredRun]] = {}
    for measured in MeasuredRun.all_of(runs):
        if "energy" not in measured.detectors:
            file = measured.run.metrics_path
            raise ToodError(f"{file}: expected metrics of energy, which all plots need; found none")
        streams.setdefault(measured.run.stream, []).append(measured)
    if not streams:
        raise ToodError("runs: expected at least one, found none")
    paths: list[Path] = []
    for stream, members in streams.items():
        folder = Path(out_dir) / file_name(stream)
        first = {one.learner: one for one in reversed(members)}
        for one in sorted(first.values(), key=lambda one: (place(one.run.learner, LEARNERS), one.learner)):
            say(f"drawing {printable(one.name)}")
            for name, figure in _of_run(one, paper) if one.has_outputs else ():
                paths += save(figure, folder / file_name(one.learner) / name)
        compared = [one for one in members if on_its_own(one.learner)] or members  # without BER and options
        for name, figure in _over_learners(compared) if len({one.learner for one in compared}) > 1 else ():
            paths += save(figure, folder / name)
    return paths


def _over_learners(measured: Sequence[MeasuredRun]) -> Iterator[tuple[str, Figure]]:
    points = [one.point() for one in measured]
    learners = len({one.learner for one in measured})
    note = f"{len(measured)} runs of {learners} learners on {as_text(measured[0].run.stream)}, "
    note += f"{measured[0].steps} tasks. " + "Points: means over seeds; bars: one standard deviation. " * (
        learners < len(measured)
    )
    note += "AUROC: of energy, near- and far-OOD sets weighted equally, mean over old tasks. "
    if all(np.isfinite(point["drift"]) for point in points):
        drift = "Drift: between each task's own step and the last, mean over tasks. "
        yield "drift", drift_and_forgetting(points, note + drift)
    if measured[0].steps > 1:
        yield "forgetting-accuracy", forgetting_and_accuracy(points, note)


def _of_run(one: MeasuredRun, paper: bool) -> Iterator[tuple[str, Figure]]:
    """The plots of a single run, from its scores, logits and features."""
    of = f"{as_text(one.name)}, {one.steps} tasks"
    shown = [one.tood] if one.tood else []
    shown += [name for name in TOOD_VARIANTS if paper and name in one.detectors and name not in shown]
    scored = scores_at(one.run, ["energy", *shown], range(one.steps), True, one.track)
    groups = {name: [by_group(s, one.run.ood, task=0) for s in along] for name, along in scored.items()}
    counts = {group: len(np.asarray(scores)) for group, scores in groups["energy"][0].items()}
    ood = [f"{count} {label(group)}" for group, count in counts.items() if group != "id"]
    known = f"{counts['id']} ID samples of task 0"
    note = f"{of}; {', '.join([known, *ood])}."
    if one.tood:
        auroc = {name: one.trajectory(name).balanced().mean()[:, 0] for name in scored}
        both = {name: groups[name] for name in ("energy", one.tood)}
        yield "task0", task_trajectory(one.accuracy[:, 0], auroc, both, note)
    yield "ridges", ridges(groups, note)
    yield "confidence-gap", confidence_gap(one.own_energies(), f"{of}; ID test samples.")
    yield from _nearest(one, of)


def _nearest(one: MeasuredRun, of: str) -> Iterator[tuple[str, Figure]]:
    """Distances of one OOD set at every step, if the run has features."""
    name, columns = one.crowding_set, one.run.partition.first(one.steps)[0].columns
    steps = (step for step in one.steps_of() if step.has("features"))
    near = [found for step in steps if (found := nearest(step, columns, one.steps)) is not None]
    if len(near) == one.steps:
        note = f"{of}; {len(near[0].ood[name])} samples of {name} per step"
        yield "nearest", nearest_distances([found.ood[name] for found in near], f"{note}, in feature space.")
        # Euclidean distances grow with the features, so the unit here is the distance between ID samples.
        relative = [found.ood[name] / found.scale for found in near]
        note += "; distances divided by the geometric mean over ID samples."
        yield "nearest-relative", nearest_distances(relative, note, "relative distance")
