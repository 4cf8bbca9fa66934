"""Experiment trackers: a run's loss, accuracy and AUROC in TensorBoard, MLflow or Weights & Biases.

Each tracker gets the same two events: :class:`~tood.learners.Progress` during training, and the metrics of a step once
it is measured. They are written through the tracker's own library, so its settings apply:
``MLFLOW_TRACKING_URI``, ``WANDB_MODE=offline``, ``WANDB_PROJECT``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from tood.errors import ToodError, UnknownNameError
from tood.files import write_text
from tood.integrations.adapter import peer
from tood.learners.progress import Progress
from tood.metrics.trajectory import near_far_mean
from tood.runs.metrics_file import Row

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "Tracker", "Tracking", "WandB", "prepare", "tracking"]

Axis = Literal["iteration", "step"]


class Tracker(Protocol):
    """Interface of a tracker."""

    def log(self, figures: Mapping[str, float], axis: Axis, place: int) -> None:
        """Record metrics by name at a training iteration or at a step of the stream."""

    def artifact(self, path: Path) -> None:
        """Keep a file."""

    def close(self, failed: bool) -> None:
        """Write buffered metrics and close."""


class TensorBoard:
    """Event files in ``RUN/tensorboard``; look at them with ``tensorboard --logdir runs``."""

    def __init__(self, name: str, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder / "tensorboard"
        self.writer = self.prepare()(str(self.folder))

    @staticmethod
    def prepare() -> Any:
        """TensorBoard's writer."""
        with peer("tensorboard", '"tood[tensorboard]"', "--track tensorboard"):
            from tensorboard.summary import Writer
        return Writer

    def log(self, figures: Mapping[str, float], axis: Axis, place: int) -> None:
        """Add scalars."""
        for name, value in figures.items():
            self.writer.add_scalar(name, value, place)
        self.writer.flush()

    def artifact(self, path: Path) -> None:
        """Copy the file next to the events, because TensorBoard has no artifacts."""
        (self.folder / path.name).write_bytes(path.read_bytes())

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
        with peer("mlflow", '"tood[mlflow]"', "--track mlflow"):
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "tood")
        try:
            client = MlflowClient()
            known = client.get_experiment_by_name(name)
            return client, known.experiment_id if known else client.create_experiment(name)
        except MlflowException as error:  # such as a store that it cannot open, or a server that does not answer
            raise ToodError(f"--track mlflow: MLflow cannot start: {str(error).splitlines()[0]}") from error

    def log(self, figures: Mapping[str, float], axis: Axis, place: int) -> None:
        """Log metrics; MLflow allows fewer characters in names than detectors may have."""
        for name, value in figures.items():
            allowed = "".join(c if c.isalnum() or c in "_-./ " else "_" for c in name)
            self.client.log_metric(self.run, allowed, value, step=place)

    def artifact(self, path: Path) -> None:
        """Log the file as an artifact."""
        self.client.log_artifact(self.run, str(path))

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
            raise ToodError(f"--track wandb: {reason} (or set WANDB_MODE=offline to write local files)") from error
        self.run.define_metric("train/*", step_metric="iteration")
        for pattern in ("accuracy/*", "auroc/*"):
            self.run.define_metric(pattern, step_metric="step")

    @staticmethod
    def prepare() -> Any:
        """The library of W&B."""
        with peer("wandb", '"tood[wandb]"', "--track wandb"):
            import wandb
        return wandb

    def log(self, figures: Mapping[str, float], axis: Axis, place: int) -> None:
        """Log metrics with their own x axis: the iteration, or the step of the stream."""
        self.run.log({**figures, axis: place})

    def artifact(self, path: Path) -> None:
        """Log the file as an artifact."""
        artifact = self.prepare().Artifact(f"{self.run.id}-{path.stem}", type="report")
        artifact.add_file(str(path))
        self.run.log_artifact(artifact)

    def close(self, failed: bool) -> None:
        """Finish the run."""
        self.run.finish(exit_code=int(failed))


TRACKERS: dict[str, type[TensorBoard] | type[MLflow] | type[WandB]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


class Deferred:
    """A tracker that is opened at its first event, so that a run that is refused leaves nothing in it.

    Parameters
    ----------
    start:
        Opens the tracker.
    """

    def __init__(self, start: Callable[[], Tracker]) -> None:
        self._start = start
        self._tracker: Tracker | None = None

    def _opened(self) -> Tracker:
        if self._tracker is None:
            self._tracker = self._start()
        return self._tracker

    def log(self, figures: Mapping[str, float], axis: Axis, place: int) -> None:
        """Record metrics."""
        self._opened().log(figures, axis, place)

    def artifact(self, path: Path) -> None:
        """Keep a file."""
        self._opened().artifact(path)

    def close(self, failed: bool) -> None:
        """Close the tracker if it is open."""
        if self._tracker is not None:
            self._tracker.close(failed)


class Tracking:
    """Turns a run's events into metrics by name and hands them to all trackers.

    Parameters
    ----------
    trackers:
        The trackers.
    file:
        Where the iterations of each task are kept, so that a resumed run continues the count.
    """

    def __init__(self, trackers: Sequence[Tracker], file: Path) -> None:
        self.trackers, self.file = list(trackers), file
        self._iterations: dict[str, int] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    def progress(self, event: Progress) -> None:
        """Record ``train/loss``, ``train/accuracy`` and ``train/lr`` at the iteration since the run began."""
        task, here = str(event.task), event.epochs * event.steps
        if self._iterations.get(task) != here:
            self._iterations[task] = here
            write_text(self.file, json.dumps(self._iterations))
        before = sum(count for name, count in self._iterations.items() if int(name) < event.task)
        place = before + event.epoch * event.steps + event.step
        figures = {"train/loss": event.loss, "train/accuracy": event.accuracy, "train/lr": event.lr}
        self._log(figures, "iteration", place)

    def step(self, step: int, rows: Sequence[Row]) -> None:
        """Record ``accuracy/all``, ``accuracy/task I`` and ``auroc/DETECTOR``, (near + far) / 2, of a step."""
        figures: dict[str, float] = {}
        cells: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            if row.metric == "accuracy":
                figures["accuracy/all" if row.task is None else f"accuracy/task {row.task}"] = row.value
            elif row.metric == "auroc" and row.task is not None and not row.settings:
                cells[str(row.detector)].append(row)
        for detector, found in cells.items():
            mean = near_far_mean([row.value for row in found], [str(row.group) for row in found])
            figures[f"auroc/{detector}"] = float(mean)
        self._log(figures, "step", step)

    def artifact(self, path: Path) -> None:
        """Keep a file in all trackers."""
        for tracker in self.trackers:
            tracker.artifact(path)

    def _log(self, figures: Mapping[str, float], axis: Axis, place: int) -> None:
        for tracker in self.trackers:
            tracker.log(figures, axis, place)


def prepare(names: Sequence[str]) -> None:
    """Check trackers by name, and that their libraries import, before several runs use them at once."""
    for name in names:
        if name not in TRACKERS:
            raise UnknownNameError("tracker", name, TRACKERS)
        TRACKERS[name].prepare()


@contextlib.contextmanager
def tracking(names: Sequence[str], name: str, folder: Path, settings: Mapping[str, Any]) -> Iterator[Tracking]:
    """Context with trackers by name, opened at the first event; they are closed on errors too.

    Parameters
    ----------
    names:
        Names in :data:`TRACKERS`; an empty sequence records nothing.
    name:
        The run's name.
    folder:
        The run directory.
    settings:
        The run's settings, recorded once.
    """
    prepare(names)

    def start(wanted: str) -> Tracker:
        folder.mkdir(parents=True, exist_ok=True)
        return TRACKERS[wanted](name, folder, settings)

    trackers = [Deferred(functools.partial(start, wanted)) for wanted in dict.fromkeys(names)]
    failed = True
    try:
        yield Tracking(trackers, folder / "iterations.json")
        failed = False
    finally:
        for tracker in trackers:
            tracker.close(failed)
