"""Experiment trackers: a run's loss, accuracy and AUROC in TensorBoard, MLflow or Weights & Biases.

Each tracker gets the same two events: :class:`~tood.learners.Progress` at the end of an epoch, and the metrics of a
step once it is measured. They are written through the tracker's own library, so its settings apply:
``MLFLOW_TRACKING_URI``, ``WANDB_MODE=offline``, ``WANDB_PROJECT``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tood.errors import ToodError, UnknownNameError
from tood.evaluation.metrics_file import Row
from tood.integrations.adapter import peer
from tood.learners.progress import Progress
from tood.metrics.trajectory import near_far_mean

__all__ = ["TRACKERS", "Tracking", "prepare"]

Axis = Literal["epoch", "step"]


class TensorBoard:
    """Event files in ``RUN/tensorboard``; look at them with ``tensorboard --logdir runs``."""

    def __init__(self, name: str, folder: Path, settings: Mapping[str, Any]) -> None:
        self.writer = self.prepare()(str(folder / "tensorboard"))

    @staticmethod
    def prepare() -> Any:
        """TensorBoard's writer."""
        with peer("tensorboard", '"tood[tensorboard]"', "--log-to tensorboard"):
            from tensorboard.summary import Writer
        return Writer

    def log(self, values: Mapping[str, float], axis: Axis, place: int) -> None:
        """Add scalars."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, place)
        self.writer.flush()

    def close(self, failed: bool) -> None:
        """Close the event file."""
        self.writer.close()


class MLflow:
    """A run of MLflow, in the experiment ``tood`` unless ``MLFLOW_EXPERIMENT_NAME`` says otherwise."""

    def __init__(self, name: str, folder: Path, settings: Mapping[str, Any]) -> None:
        self.client, experiment = self.prepare()
        self.run = self.client.create_run(experiment, run_name=name).info.run_id
        for key, value in settings.items():
            self.client.log_param(self.run, key, value)

    @staticmethod
    def prepare() -> tuple[Any, str]:
        """A client and the experiment's number; creates store and experiment, which two processes cannot do at once."""
        with peer("mlflow", '"tood[mlflow]"', "--log-to mlflow"):
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "tood")
        try:
            client = MlflowClient()
            known = client.get_experiment_by_name(name)
            return client, known.experiment_id if known else client.create_experiment(name)
        except MlflowException as error:  # such as a store that it cannot open, or a server that does not answer
            raise ToodError(f"--log-to mlflow: MLflow cannot start: {str(error).splitlines()[0]}") from error

    def log(self, values: Mapping[str, float], axis: Axis, place: int) -> None:
        """Log metrics; MLflow allows fewer characters in names than detectors may have."""
        for name, value in values.items():
            self.client.log_metric(self.run, re.sub(r"[^\w\-./ ]", "_", name), value, step=place)

    def close(self, failed: bool) -> None:
        """End the run."""
        self.client.set_terminated(self.run, "FAILED" if failed else "FINISHED")


class WandB:
    """A run of Weights & Biases, in the project ``tood`` unless ``WANDB_PROJECT`` says otherwise."""

    def __init__(self, name: str, folder: Path, settings: Mapping[str, Any]) -> None:
        wandb = self.prepare()
        project = os.environ.get("WANDB_PROJECT", "tood")
        try:
            self.run = wandb.init(project=project, name=name, config=dict(settings), dir=str(folder))
        except wandb.Error as error:  # such as no API key, or no connection
            reason = str(error).splitlines()[0]
            raise ToodError(f"--log-to wandb: {reason} (or set WANDB_MODE=offline to write local files)") from error
        for pattern, axis in {"train/*": "epoch", "accuracy/*": "step", "auroc/*": "step"}.items():
            self.run.define_metric(pattern, step_metric=axis)

    @staticmethod
    def prepare() -> Any:
        """The library of W&B."""
        with peer("wandb", '"tood[wandb]"', "--log-to wandb"):
            import wandb
        return wandb

    def log(self, values: Mapping[str, float], axis: Axis, place: int) -> None:
        """Log metrics with their own x axis: the epoch, or the step of the stream."""
        self.run.log({**values, axis: place})

    def close(self, failed: bool) -> None:
        """Finish the run."""
        self.run.finish(exit_code=int(failed))


# Each is made from the run's name, its directory and its settings; ``log(values, axis, place)`` records metrics at an
# epoch of training or at a step of the stream, and ``close(failed)`` ends. ``prepare()`` is called before.
TRACKERS: dict[str, Any] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


class Tracking(contextlib.AbstractContextManager["Tracking"]):
    """Context that turns a run's events into metrics by name and hands them to all trackers.

    The trackers are opened at the first event, so that a run that is refused leaves nothing in them, and closed on
    errors too.

    Parameters
    ----------
    names:
        Names in :data:`TRACKERS`.
    arguments:
        The run's name, its directory and its settings.
    """

    def __init__(self, names: Sequence[str], *arguments: Any) -> None:
        prepare(names)
        self.names, self.arguments = dict.fromkeys(names), arguments
        self.opened: list[Any] = []

    def __exit__(self, error: Any, *_: Any) -> None:
        for tracker in self.opened:
            tracker.close(failed=error is not None)

    def progress(self, event: Progress) -> None:
        """At the end of an epoch: ``train/loss``, ``train/accuracy`` and ``train/lr`` by epoch since the run began."""
        if event.step == event.steps:
            values = {"train/loss": event.loss, "train/accuracy": event.accuracy, "train/lr": event.lr}
            self._log(values, "epoch", event.task * event.epochs + event.epoch + 1)

    def step(self, step: int, rows: Sequence[Row]) -> None:
        """Record ``accuracy/all``, ``accuracy/task I`` and ``auroc/DETECTOR``, (near + far) / 2, of a step."""
        values: dict[str, float] = {}
        cells: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            if row.metric == "accuracy":
                values["accuracy/all" if row.task is None else f"accuracy/task {row.task}"] = row.value
            elif row.metric == "auroc" and row.task is not None and not row.settings:
                cells[str(row.detector)].append(row)
        for detector, found in cells.items():
            mean = near_far_mean([row.value for row in found], [str(row.group) for row in found])
            values[f"auroc/{detector}"] = float(mean)
        self._log(values, "step", step)

    def _log(self, values: Mapping[str, float], axis: Axis, place: int) -> None:
        for name in list(self.names)[len(self.opened) :]:
            self.opened.append(TRACKERS[name](*self.arguments))
        for tracker in self.opened:
            tracker.log(values, axis, place)


def prepare(names: Sequence[str]) -> None:
    """Check trackers by name, and that their libraries import, before several runs use them at once."""
    for name in names:
        if name not in TRACKERS:
            raise UnknownNameError("tracker", name, TRACKERS)
        TRACKERS[name].prepare()
