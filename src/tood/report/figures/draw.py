"""Draw and save every figure of a set of measured runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tood.audit.distances import nearest
from tood.errors import ToodError
from tood.files import file_name
from tood.metrics import accuracy_forgetting
from tood.report.figures.crowding import embed, nearest_distances, tsne
from tood.report.figures.distributions import ridges, whiskers
from tood.report.figures.matrices import forgetting_by_task, heat_maps
from tood.report.figures.scatter import accuracy_balance, drift_and_forgetting, forgetting_and_accuracy
from tood.report.figures.style import Groups, as_text, label, save, spread
from tood.report.figures.trajectories import confidence_gap, fixed_threshold, task_trajectory
from tood.report.gather import Measured, StepScores, by_group, score_steps
from tood.report.gather import fixed_threshold as threshold_shares
from tood.report.summary import on_its_own
from tood.report.tables import LEARNERS, place
from tood.runs.directory import Run
from tood.runs.steps import Step

__all__ = ["draw_all"]

HEAT_MAPS = 6  # at most so many detectors
WHISKERS = 6  # at most so many learners


def draw_all(runs: Iterable[Run], out_dir: Path) -> list[Path]:
    """Draw every figure that the data allows, as PNG and PDF.

    Figures of a single run show the first seed of each learner. Figures over learners use all seeds and need two
    learners; figures of distances need features.

    Parameters
    ----------
    runs:
        Runs with a ``metrics.parquet``.
    out_dir:
        Parent of one folder per stream, with one folder per learner inside.

    Returns
    -------
    The files written.
    """
    streams: dict[str, list[Measured]] = {}
    for measured in Measured.all_of(runs):
        run = measured.run
        if "energy" not in measured.detectors:
            raise ToodError(f"{run.metrics_path}: expected metrics of energy, which all figures need; found none")
        streams.setdefault(run.stream, []).append(measured)
    if not streams:
        raise ToodError("runs: expected at least one, found none")
    paths: list[Path] = []
    for stream, members in streams.items():
        first = {one.learner: one for one in reversed(members)}
        chosen = sorted(first.values(), key=lambda one: (place(one.run.learner, LEARNERS), one.learner))
        for name, figure in _of_stream(members, chosen):
            paths += save(figure, Path(out_dir) / file_name(stream) / name)
    return paths


def _of_stream(measured: Sequence[Measured], chosen: Sequence[Measured]) -> Iterator[tuple[str, Figure]]:
    """The figures of each learner's run, then those over learners (without BER and options)."""
    pairs: dict[str, tuple[Sequence[Groups], Sequence[Groups]]] = {}
    compared = [one for one in chosen if on_its_own(one.learner)] or chosen
    for one in chosen:
        for name, figure in _from_metrics(one):
            yield f"{file_name(one.learner)}/{name}", figure
        if not one.has_outputs:
            continue
        scored = score_steps(one.run, _compared(one), one.steps)
        groups = {name: [by_group(s, one.run.ood, task=0) for s in along] for name, along in scored.items()}
        for name, figure in _from_outputs(one, scored, groups):
            yield f"{file_name(one.learner)}/{name}", figure
        if one.tood and len(pairs) < WHISKERS and one in compared:
            pairs[one.learner] = (groups["energy"], groups[one.tood])
    if pairs:
        counts = _counts(next(iter(pairs.values()))[0][0])
        note = f"{as_text(chosen[0].run.stream)}: {counts}. Boxes: quartiles; whiskers: 5th to 95th percentile."
        note += f" The first {len(pairs)} of {len(compared)} learners." * (len(pairs) < len(compared))
        note += " Some of the steps, evenly spaced." * (chosen[0].steps > 5)
        yield "whiskers", whiskers(pairs, note=note)
    if len(compared) > 1:
        names = {one.learner for one in compared}
        yield from _over_learners([one for one in measured if one.learner in names])


def _over_learners(measured: Sequence[Measured]) -> Iterator[tuple[str, Figure]]:
    points = [one.point() for one in measured]
    learners = len({one.learner for one in measured})
    stream = as_text(measured[0].run.stream)
    runs = f"{len(measured)} runs of {learners} learners on {stream}, {measured[0].steps} tasks. "
    several = learners < len(measured)
    note = runs + "Points: means over seeds; bars: one standard deviation. " * several
    note += r"$D_{\mathrm{avg}}$: of energy, near- and far-OOD sets weighted equally. "
    if all(np.isfinite(point["drift"]) for point in points):
        drift = "Drift: between each task's own step and the last, mean over tasks."
        yield "drift", drift_and_forgetting(points, note + drift)
    if measured[0].steps > 1:
        yield "forgetting-accuracy", forgetting_and_accuracy(points, note)
    if all(np.isfinite(point["gain"]) for point in points):
        note = runs + "Bars: means over seeds; lines: one standard deviation. " * several
        yield "balance", accuracy_balance(points, f"{note}Gain of {label(measured[0].tood or '')}.")


def _from_metrics(one: Measured) -> Iterator[tuple[str, Figure]]:
    """The figures of a single run that need only its metrics."""
    of = f"{as_text(one.name)}, {one.steps} tasks"
    yield "heat-maps", _heat_maps(one, of)
    if one.steps > 1:
        lost = {name: one.trajectory(name).balanced().forgetting() for name in _compared(one)}
        note = f"{of}; near- and far-OOD sets weighted equally."
        yield "forgetting", forgetting_by_task(lost, accuracy_forgetting(one.accuracy), note)


def _from_outputs(
    one: Measured, scored: Mapping[str, list[StepScores]], groups: Mapping[str, Sequence[Groups]]
) -> Iterator[tuple[str, Figure]]:
    """The figures of a single run that need scores, logits or features."""
    of = f"{as_text(one.name)}, {one.steps} tasks"
    note = f"{of}; {_counts(groups['energy'][0])}."
    if one.tood:
        auroc = {name: one.trajectory(name).balanced().mean()[:, 0] for name in scored}
        yield "task0", task_trajectory(one.accuracy[:, 0], auroc, groups["energy"], groups[one.tood], note=note)
    yield "ridges", ridges(groups, note)
    yield "confidence-gap", confidence_gap(one.own_energies(), f"{of}; ID test samples.")
    yield "threshold", _threshold(one, scored, of)
    yield from _crowding(one, of)


def _compared(one: Measured) -> list[str]:
    """Energy and, if one was measured, a TOOD variant."""
    return ["energy", one.tood] if one.tood else ["energy"]


def _threshold(one: Measured, scored: Mapping[str, list[StepScores]], of: str) -> Figure:
    recall, caught = {}, {}
    for name, along in scored.items():
        _, recall[name], caught[name] = threshold_shares(along)
    count = len(scored["energy"][0].id)
    note = f"{of}. The threshold is set to accept 95 % of the {count} ID samples of step 0, then kept."
    return fixed_threshold(recall, caught, one.run.ood, note)


def _heat_maps(one: Measured, of: str) -> Figure:
    """Heat maps of energy, TOOD and the best other detectors."""
    values = {name: one.trajectory(name).balanced() for name in one.detectors}
    order = sorted(values, key=lambda name: (name not in ("energy", one.tood), -values[name].average()))
    shown = [name for name in one.detectors if name in order[:HEAT_MAPS]]
    left = len(values) - len(shown)
    note = f"{of}; near- and far-OOD sets weighted equally" + (f"; {left} more not shown." if left else ".")
    return heat_maps({name: values[name].mean() for name in shown}, note)


def _crowding(one: Measured, of: str) -> Iterator[tuple[str, Figure]]:
    """t-SNE and nearest distances of one OOD set, if the run has features."""
    if not Step(one.run, 0).has("features"):
        return
    name = one.crowding_set
    embeddings = {}
    for index in spread(one.steps, 5):
        step = Step(one.run, index)
        embeddings[index] = embed(step.test.features, step.test_tasks(), step.ood[name].features)
    last = embeddings[one.steps - 1]
    chosen = f"at most {len(last.tasks)} ID and {len(last.points) - len(last.tasks)} OOD samples per panel"
    yield "tsne", tsne(embeddings, one.run.ood[name], f"{of}; OOD: {name}; t-SNE of features, {chosen}.")
    columns = one.run.partition.first(one.steps)[0].columns
    near = [found for step in one.steps_of() if (found := nearest(step, columns, one.steps)) is not None]
    if len(near) == one.steps:  # raw distances grow with the features, so the unit is the distance between ID samples
        relative = [found.ood[name] / np.exp(found.mean_logs()[1]) for found in near]
        note = f"{of}; Euclidean distance in feature space of {len(relative[0])} samples of {name} per step, "
        yield "nearest", nearest_distances(relative, note + "divided by the geometric mean over ID samples.")


def _counts(groups: Groups) -> str:
    """Numbers of samples in a panel about task 0."""
    known = {group: len(np.asarray(scores)) for group, scores in groups.items()}
    ood = (f"{count} {label(group)}" for group, count in known.items() if group != "id")
    return ", ".join([f"{known['id']} ID samples of task 0", *ood])
