"""Stored outputs of runs as compact arrays for regimes.py, and the toy written as run directories."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tood.detectors import Outputs
from tood.detectors.joint import _nearest_by_task
from tood.detectors.rowwise import unit
from tood.detectors.statistics import Moments
from tood.detectors.typicality import Classes, held_out
from tood.energy import task_energies
from tood.paper import toy
from tood.partition import Partition
from tood.runs import Step
from tood.runs.directory import Run, write_manifest
from tood.runs.steps import write_step
from tood.statistics import energy_statistics

MOST_TEST, MOST_OOD = 5000, 2000


@dataclass
class Sets:
    """One step: task energies ``[n, N]`` and squared distances ``[n, N]`` of all sets, and how to cut them apart."""

    calibration: Any  # [B, N]
    tasks: Any  # [B]
    test_tasks: Any  # [n]
    energies: Any  # [n + OOD, N]: test first, then each OOD set
    ends: Any  # where each set ends
    groups: list[str]  # near or far, of each OOD set
    held_out: Any  # [B, N], squared distance of each calibration sample to each task's nearest class, without itself
    squared: Any  # [n + OOD], to the nearest class of all; zeros if there are no features

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """As ``TOOD.statistics_``."""
        return energy_statistics(self.calibration, self.tasks)

    @property
    def has_features(self) -> bool:
        """Whether distances are known."""
        return bool(self.squared.any())

    def averages(self, scores: Any) -> tuple[float, float, float]:
        """AUROC in percent, mean over tasks: (near + far) / 2, near, far."""
        known, *unknown = np.split(scores, self.ends[:-1])
        count = self.energies.shape[1]
        by_set = []
        for values in map(np.sort, unknown):
            below = (np.searchsorted(values, known, "left") + np.searchsorted(values, known, "right")) / 2 / len(values)
            by_set.append(
                (np.bincount(self.test_tasks, below, count) / np.bincount(self.test_tasks, None, count)).mean()
            )
        groups = np.array(self.groups)
        near, far = (
            float(100 * np.mean(np.array(by_set)[groups == g])) if (groups == g).any() else np.nan
            for g in ("near", "far")
        )
        return float(np.nanmean([near, far])), near, far


def steps_of(run: Run, every: int) -> list[int]:
    """The steps that count."""
    return [i for i in run.steps() if len(run.partition) <= 20 or i % every == every - 1]


def cache_file(run: Run, cache: Path, every: int) -> Path:
    """Where the arrays of these steps of a run are kept."""
    name = str(run.path.resolve()).strip("/").replace("/", "__")
    return cache / f"{name}@{len(steps_of(run, every))}.npz"


def load(run: Run, cache: Path, every: int) -> list[Sets]:
    """The steps of a run, from the cache if it holds this many of them."""
    steps, file = steps_of(run, every), cache_file(run, cache, every)
    if not file.exists():
        arrays: dict[str, Any] = {}
        for index in steps:
            arrays |= {f"{index}/{name}": values for name, values in _read(Step(run, index)).items()}
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(file, **arrays)
    with np.load(file) as stored:
        arrays = {name: stored[name] for name in stored.files}
    groups = list(run.ood.values())
    return [
        Sets(
            **{name: _wide(arrays[f"{i}/{name}"]) for name in Sets.__dataclass_fields__ if name != "groups"},
            groups=groups,
        )
        for i in steps
    ]


def _wide(values: Any) -> Any:
    return values.astype(np.float64) if values.dtype.kind == "f" else values.astype(np.int64)


def _read(step: Step) -> dict[str, Any]:
    known = step.calibration()
    keep = _thin(len(step.test.logits), MOST_TEST)
    sets = [_rows(step.test, keep), *(_rows(o, _thin(len(o.logits), MOST_OOD)) for o in step.ood.values())]
    logits = np.concatenate([logits for logits, _ in sets])
    result = {
        "calibration": task_energies(np.asarray(known.logits), step.partition).astype(np.float32),
        "tasks": step.partition.column_tasks[known.labels].astype(np.int16),
        "test_tasks": step.test_tasks()[keep].astype(np.int16),
        "energies": task_energies(logits, step.partition).astype(np.float32),
        "ends": np.cumsum([len(logits) for logits, _ in sets]),
        "held_out": np.zeros((len(known.logits), len(step.partition)), dtype=np.float32),
        "squared": np.zeros(len(logits), dtype=np.float32),
    }
    if known.features is not None:
        result |= _distances(known, np.concatenate([features for _, features in sets]), step.partition)
    return result


def _rows(outputs: Outputs, keep: Any) -> tuple[Any, Any]:
    features = None if outputs.features is None else np.asarray(outputs.features)[keep]
    return np.asarray(outputs.logits)[keep], features


def _thin(count: int, most: int) -> Any:
    return np.arange(count) if count <= most else np.random.default_rng(0).permutation(count)[:most]


def _distances(known: Outputs, features: Any, partition: Partition) -> dict[str, Any]:
    """Squared distances to the nearest class mean as ``typicality`` measures them."""
    z, labels = unit(np.asarray(known.features, dtype=np.float64)), np.asarray(known.labels)
    moments = Moments(z.mean(axis=0), partition.columns, scatter=True)
    moments.add(z, labels)
    order = np.flatnonzero(moments.seen)
    classes = Classes.of(moments, order)
    whitening, weight = classes.shrunk("oas")
    points = (classes.means - moments.origin) @ whitening
    squared = held_out(
        (z - moments.origin) @ whitening, points, np.searchsorted(order, labels), moments.counts[order], weight
    )
    found = []
    for part in np.array_split(features, max(1, len(features) // 2000)):
        y = (unit(part.astype(np.float64)) - moments.origin) @ whitening
        found.append(((y**2).sum(axis=1)[:, None] - 2 * y @ points.T + (points**2).sum(axis=1)).min(axis=1))
    return {
        "held_out": _nearest_by_task(squared, partition.column_tasks[order], len(partition)).astype(np.float32),
        "squared": np.maximum(np.concatenate(found), 0).astype(np.float32),
    }


def write_toy(folder: Path, regime: str, seed: int) -> None:
    """A run directory of the toy, with the features of its last hidden layer."""
    s = toy.Settings()
    samples, (_, _, weights, batches) = toy.sample(regime, seed, s), toy._generators(seed)
    body = toy.linear(weights, s.dimensions, s.hidden) + toy.linear(weights, s.hidden, s.hidden)
    head = [np.empty((s.hidden, 0), dtype=np.float32), np.empty(0, dtype=np.float32)]
    columns = np.arange(s.classes).reshape(s.tasks, -1).tolist()
    source = {"source": "memory", "size": s.exemplars * s.classes}
    write_manifest(folder, columns, near=["origin"], stream="toy", learner=regime, seed=seed, calibration=source)
    for step in range(s.tasks):
        grown = toy.linear(weights, s.hidden, s.classes_per_task)
        head = [np.concatenate([old, new], axis=-1) for old, new in zip(head, grown, strict=True)]
        seen, parameters = head[1].size, [*body, *head]
        old = seen - s.classes_per_task
        inputs, labels = toy._flat(samples.train[old:seen], first=old)
        if toy.REGIMES[regime].replay:
            exemplars, of = toy._flat(samples.train[:old, : s.exemplars])
            inputs, labels = np.concatenate([inputs, exemplars]), np.concatenate([labels, of])
        toy.train(parameters, inputs, labels, s, batches)

        def outputs(inputs: Any, labels: Any = None, parameters: Any = parameters) -> Outputs:
            *_, features, logits = toy.activations(parameters, inputs)
            return Outputs(logits, features, labels)

        write_step(
            folder,
            step,
            test=outputs(*toy._flat(samples.test[:seen])),
            calibration=outputs(*toy._flat(samples.train[:seen, : s.exemplars])),
            ood={"origin": outputs(samples.ood)},
            fit=outputs(inputs, labels),
            head={"weight": head[0].T, "bias": head[1]},
        )
