"""Scores of detectors that need the network (ODIN, AdaScale), computed during the run, when images are available.

They are stored with the other scores, under a hash that includes the weights; later stages read them like the others.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tood.arrays import IntArray
from tood.detectors import Outputs
from tood.evaluation.measure import WHICH
from tood.evaluation.score import Scored, Scorer, keep_scores, kept_scores, located_errors
from tood.outputs.steps import Step
from tood.runs.extract import BATCH, StepRows
from tood.streams import Source, Stream
from tood.streams.augment import prepare

if TYPE_CHECKING:
    from tood.models import Network

__all__ = ["score_with_network", "scorers_for"]


def scorers_for(names: Sequence[str], stream: Stream, logits: str) -> list[Scorer]:
    """Scorers by name; ODIN gets the standard deviation of the input normalisation."""
    return [
        Scorer(name, logits=which, from_stream={"std": stream.std} if name == "odin" else {})
        for which in WHICH[logits]
        for name in names
    ]


def score_with_network(step: Step, scorer: Scorer, network: Network, stream: Stream, rows: StepRows) -> None:
    """Score a step with a detector that needs the network, unless its scores are stored."""
    detector = scorer.create()
    if "network" not in detector.needs or kept_scores(step, scorer) is not None:
        return
    step = step.using(scorer.logits)
    if step.logits == "raw":
        network = copy.deepcopy(network)
        network.head.correct(slice(0), 1.0, 0.0)

    def score(source: Source, chosen: IntArray, outputs: Outputs) -> np.ndarray:
        return np.concatenate([np.asarray(detector.score(chunk)) for chunk in _Chunks(stream, source, chosen, outputs)])

    test_rows = np.concatenate([stream.test_rows(task) for task in range(step.index + 1)])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        use_calibration, use_fit = scorer.fit_sets(step)
        fit = _Chunks(stream, stream.train, rows.fit, step.fit) if step.fit and use_fit else None
        if use_calibration:
            source = scorer.calibration or step.run.calibration
            fit = _Chunks(stream, stream.train, rows.calibration[source], step.calibration(source))
        with located_errors(step, scorer, "fit"):
            detector.fit(fit, partition=step.partition, head=step.head, network=network)
        with located_errors(step, scorer, "score"):
            test = score(stream.test, test_rows, step.test)
            ood = {s.name: score(s.source, np.arange(len(s.source)), step.ood[s.name]) for s in stream.ood}
    keep_scores(step, scorer, Scored(test, ood, tuple(dict.fromkeys(str(w.message) for w in warned))))


@dataclass(frozen=True)
class _Chunks:
    """Stored outputs with their inputs, batch by batch; rows and outputs are in the same order."""

    stream: Stream
    source: Source
    rows: IntArray
    outputs: Outputs

    def __iter__(self) -> Iterator[Outputs]:
        for start in range(0, len(self.rows), BATCH):
            part = self.outputs[start : start + BATCH]
            images = self.source.take(self.rows[start : start + BATCH])
            inputs = prepare(images, self.stream.mean, self.stream.std).contiguous()
            yield Outputs(logits=part.logits, features=part.features, labels=part.labels, inputs=inputs)
