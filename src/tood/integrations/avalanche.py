"""OOD metrics for Avalanche: AUROC of energy and of TOOD, and their forgetting, during training.

For class-incremental streams with one head: an OOD sample has no task label to choose a head with.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tood.arrays import label_columns, to_numpy
from tood.calibration import TOOD
from tood.energy import energy
from tood.errors import ToodError
from tood.integrations.adapter import peer
from tood.metrics import Trajectory, auroc
from tood.partition import Partition

with peer("avalanche", '"tood[avalanche]"', "tood.integrations.avalanche"):
    import torch
    from avalanche.evaluation import PluginMetric
    from avalanche.evaluation.metric_results import MetricValue

__all__ = ["OODMetrics"]

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]


class OODMetrics(PluginMetric):  # type: ignore[misc]
    """A plugin metric for Avalanche's ``EvaluationPlugin``; it reports after each ``strategy.eval(stream)``.

    After step t the classes of experiences 0..t are in-distribution; samples of later ones and columns of classes not
    seen yet are left out. Names follow Avalanche's, with ``NAME`` an OOD set and i an experience::

        AUROC_energy/eval_phase/test_stream/NAME/Exp00i        AUROC_tood/...
        Avg_AUROC_energy/eval_phase/test_stream                mean over experiences seen and sets, at this step
        D_avg_energy/eval_phase/test_stream                    AUROC lost since each experience was learned

    D_avg appears from the second step on, provided that every experience seen was evaluated after every step. Of
    ``ICaRL``, whose model answers with distances, the logits of its training classifier are read. The plugin does
    not use the random state of torch: training is the same with and without it.

    Parameters
    ----------
    tasks:
        The classes of each training experience, in order: ``[e.classes_in_this_experience for e in train_stream]``.
    ood:
        Named datasets of OOD samples, whose items are an input or begin with one.
    calibration:
        The calibration set of TOOD, with items ``(x, y, ...)``: a dataset, or a function of the strategy that returns
        one, such as a replay memory. Samples of classes not seen yet are left out. None logs energy alone.
    variant, margin:
        As in :class:`~tood.TOOD`.
    """

    def __init__(
        self,
        tasks: Any,
        ood: Mapping[str, Any],
        calibration: Any | Callable[[Any], Any] = None,
        variant: Any = "background",
        margin: float = 0.5,
    ) -> None:
        super().__init__()
        self.tasks = Partition([sorted(task) for task in tasks])
        if not ood:
            raise ToodError("ood: expected one dataset or more by name, found none")
        self.ood, self.calibration = dict(ood), calibration
        self.variant, self.margin = variant, margin
        self._step: int | None = None
        #: By stream, detector and step: AUROC ``[experience, OOD set]``, NaN if an experience was not evaluated.
        self.auroc: dict[tuple[str, str], dict[int, Floats]] = {}
        self._values: dict[str, float] = {}
        self.reset()

    def reset(self) -> None:
        """Forget the batches of the current evaluation, not the metrics of earlier ones."""
        self._batches: list[tuple[Floats, Ints]] = []

    def result(self) -> dict[str, float]:
        """The metrics of the last evaluation, by name."""
        return dict(self._values)

    def before_training_exp(self, strategy: Any) -> None:
        """A step begins: its classes count as seen."""
        self._step = int(strategy.experience.current_experience)
        if self._step >= len(self.tasks):
            raise ToodError(
                f"tasks: expected the classes of experience {self._step} too, found {len(self.tasks)} tasks"
            )
        for rows in self.auroc.values():
            rows.pop(self._step, None)
        seen = list(self.tasks)[: self._step + 1]
        self._classes = np.concatenate(seen)  # those seen, task by task
        self._partition = Partition.from_sizes([len(task) for task in seen])  # of the same, in this order

    def before_eval(self, strategy: Any) -> None:
        """An evaluation begins."""
        self.reset()

    @torch.no_grad()
    def after_eval_iteration(self, strategy: Any) -> None:
        """Keep the batch's logits and labels."""
        super().after_eval_iteration(strategy)
        if self._step is not None:  # Avalanche may evaluate before it trains
            # A growing head (IncrementalClassifier) widens while experiences are evaluated: keep what all batches have.
            answers_with_logits = not hasattr(strategy.model, "train_classifier")
            output = strategy.mb_output if answers_with_logits else _forward(strategy.model, strategy.mb_x)
            self._batches.append((self._logits(output), to_numpy(strategy.mb_y)))

    def after_eval(self, strategy: Any) -> list[Any]:
        """Score the evaluated samples against every OOD set."""
        if self._step is None or not self._batches:
            return []
        stream = strategy.experience.origin_stream.name
        values = self._evaluate(strategy, stream, self._step)
        self._values = {name.format(f"eval_phase/{stream}_stream"): value for name, value in values}
        self.reset()
        return [MetricValue(self, name, x, strategy.clock.train_iterations) for name, x in self._values.items()]

    def _evaluate(self, strategy: Any, stream: str, step: int) -> Iterator[tuple[str, float]]:
        logits, labels = self._seen(*(np.concatenate(part) for part in zip(*self._batches, strict=True)))
        tasks = self._partition.column_tasks[labels]
        if len(labels) == 0:  # only classes of later steps
            return
        oods = {name: self._outputs(strategy, dataset)[0] for name, dataset in self.ood.items()}
        for detector, score in self._detectors(strategy):
            known, values = score(logits), np.full((step + 1, len(oods)), np.nan)
            for d, (name, unknown) in enumerate((name, score(x)) for name, x in oods.items()):
                for i in np.unique(tasks):
                    values[i, d] = auroc(known[tasks == i], unknown)
                    yield f"AUROC_{detector}/{{}}/{name}/Exp{i:03d}", values[i, d]
            yield f"Avg_AUROC_{detector}/{{}}", float(np.nanmean(values))
            rows = self.auroc.setdefault((stream, detector), {})
            # Experiences may be evaluated one at a time.
            rows[step] = np.where(np.isnan(values), rows.get(step, np.nan), values)
            cube = np.full((step + 1, step + 1, len(oods)), np.nan)
            for t in range(step + 1):
                cube[t, : t + 1] = rows.get(t, np.nan)
            if step and np.isfinite(cube[np.tril_indices(step + 1)]).all():
                yield f"D_avg_{detector}/{{}}", Trajectory(cube).average_forgetting()

    def _detectors(self, strategy: Any) -> Iterator[tuple[str, Callable[[Floats], Floats]]]:
        yield "energy", energy
        if self.calibration is None:
            return
        dataset = self.calibration(strategy) if callable(self.calibration) else self.calibration
        try:
            cal = TOOD(self._partition, self.variant, self.margin).fit(*self._seen(*self._outputs(strategy, dataset)))
        except ToodError as error:  # as within an epoch, while the memory has nothing of the new classes
            warnings.warn(f"TOOD is left out of this evaluation: calibration: {error}", UserWarning, stacklevel=2)
            return
        yield "tood", cal.score

    def _logits(self, logits: torch.Tensor) -> Floats:
        """The columns of the classes seen, task by task."""
        if self._classes.max() >= logits.shape[1]:
            raise ToodError(f"tasks: class {self._classes.max()} has no column in logits of {tuple(logits.shape)}")
        return to_numpy(logits.float())[:, self._classes]

    def _seen(self, logits: Floats, labels: Ints) -> tuple[Floats, Ints]:
        """The samples of classes seen, from :meth:`_logits`, with labels as columns of these logits."""
        column = np.full(self.tasks.columns, -1)
        column[self._classes] = np.arange(len(self._classes))
        columns = column[label_columns(labels, self.tasks.columns, len(logits))]
        return logits[columns >= 0], columns[columns >= 0]

    @torch.no_grad()
    def _outputs(self, strategy: Any, dataset: Any) -> tuple[Floats, Ints]:
        """Logits of the classes seen of a dataset and, if its items have them, labels."""
        own = torch.Generator()  # the default one is the training's
        logits, labels = [], []
        for batch in torch.utils.data.DataLoader(dataset, batch_size=strategy.eval_mb_size, generator=own):
            x, *rest = batch if isinstance(batch, (list, tuple)) else (batch,)
            logits.append(self._logits(_forward(strategy.model, x.to(strategy.device))))
            labels.append(to_numpy(rest[0]) if rest else np.empty(0, np.int64))
        if not logits:
            raise ToodError("dataset: expected at least one sample, found none")
        return np.concatenate(logits), np.concatenate(labels)


def _forward(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Logits; Avalanche's ``ICaRL`` answers with distances to class means, so its training classifier is called."""
    logits = model.train_classifier(model.feature_extractor(x)) if hasattr(model, "train_classifier") else model(x)
    return cast(torch.Tensor, logits)
