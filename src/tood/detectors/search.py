"""Choosing hyper-parameters on an OOD validation set: an explicit call, never a default."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tood.detectors.base import Detector
from tood.detectors.outputs import Head, Outputs
from tood.errors import ToodError, UnknownNameError

__all__ = ["Search", "search"]


@dataclass(frozen=True)
class Search:
    """Result of a search: the fitted detector, its AUROC, and every trial in order."""

    detector: Detector
    auroc: float
    trials: tuple[tuple[dict[str, Any], float], ...]


def search(
    detector: Detector,
    id_validation: Outputs,
    ood_validation: Outputs,
    *,
    fit: Outputs | Iterable[Outputs] | None = None,
    partition: Any = None,
    head: Head | None = None,
    network: Any = None,
    grid: Mapping[str, Iterable[Any]] | None = None,
) -> Search:
    """Fit a detector with each combination of a grid and keep the one with the best AUROC on validation data.

    This looks at OOD samples. Whatever is reported afterwards must say so, and must use other OOD sets.

    Parameters
    ----------
    detector:
        Its hyper-parameters outside the grid stay as they are. The detector is not changed.
    id_validation, ood_validation:
        Outputs of in-distribution and of OOD samples.
    fit, partition, head, network:
        As for :meth:`Detector.fit`; ``fit`` must not be an iterator: it is read several times.
    grid:
        Values by hyper-parameter; the detector's own declared grid unless given. Of equal results the first wins.

    Examples
    --------
    >>> import numpy as np
    >>> from tood import detectors
    >>> rng = np.random.default_rng(0)
    >>> inside, outside = (detectors.Outputs(logits=rng.normal(size=(50, 4)) * s) for s in (4, 1))
    >>> found = detectors.search(detectors.create("gen"), inside, outside, grid={"gamma": [0.1, 1.0]})
    >>> [trial for trial, _ in found.trials]
    [{'gamma': 0.1}, {'gamma': 1.0}]
    """
    from tood.metrics import auroc

    chosen = {name: p.grid for name, p in detector.parameters.items() if p.grid} if grid is None else dict(grid)
    for name in chosen:
        if name not in detector.parameters:
            raise UnknownNameError(f"hyper-parameter of {detector.name}", name, detector.parameters)
    # Hyper-parameters that fit reads vary slowest, so that the detector is fitted as rarely as possible.
    order = sorted(chosen, key=lambda name: name not in detector.refit)
    trials: list[tuple[dict[str, Any], float]] = []
    best: tuple[float, dict[str, Any]] | None = None
    trial = type(detector)(**detector.get_params())
    fitted: list[Any] | None = None
    for values in itertools.product(*(list(chosen[name]) for name in order)):
        settings = dict(zip(order, values, strict=True))
        trial.set_params(**settings)
        reread = [settings[name] for name in order if name in detector.refit]
        if reread != fitted:
            trial.fit(fit, partition=partition, head=head, network=network)
            fitted = reread
        value = float(auroc(trial.score(id_validation), trial.score(ood_validation)))
        trials.append((settings, value))
        if best is None or value > best[0]:
            best = value, settings
    if best is None:
        raise ToodError("grid: expected at least one value for each hyper-parameter, found none")
    trial.set_params(**best[1]).fit(fit, partition=partition, head=head, network=network)
    return Search(trial, best[0], tuple(trials))
