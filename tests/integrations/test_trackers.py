"""Trackers, through their own libraries, on local files."""

from __future__ import annotations

import os
import sys
import warnings

import pytest
from tests import processes

from tood.errors import ToodError
from tood.evaluation.metrics_file import Row, load_metrics
from tood.integrations.trackers import TRACKERS, Tracking, prepare
from tood.learners.progress import Progress

RUN = ["run", "--stream", "digits", "--preset", "smoke", "--seed", "0", "--detectors", "energy,msp", "--quiet"]
MLFLOW = "MLflow is not installed; `make integrations` installs and tests it"
WANDB = "W&B is not installed; `make integrations` installs and tests it"


def tood(*arguments, folder, **environment):
    return processes.tood(*arguments, cwd=folder, env={**os.environ, **environment})


@pytest.fixture
def opened(monkeypatch):
    """Recorders in place of TensorBoard: the list of those that are opened."""
    recorders = []

    class Recorder:
        def __init__(self, *arguments):
            self.logged, self.closed = [], None
            recorders.append(self)

        prepare = staticmethod(lambda: None)

        def log(self, values, axis, place):
            self.logged.append((dict(values), axis, place))

        def close(self, failed):
            self.closed = failed

    monkeypatch.setitem(TRACKERS, "tensorboard", Recorder)
    return recorders


def event(task, epoch, step):
    return Progress(task, epoch, 2, step, 10, 1.0, 0.5, 0.1, 100.0, 0.0)


def test_epochs_are_counted_across_tasks(opened):
    tracked = Tracking(["tensorboard"])
    for place in [(0, 0, 5), (0, 0, 10), (0, 1, 10), (1, 0, 1), (1, 1, 10), (2, 0, 10)]:
        tracked.progress(event(*place))
    assert [place for _, _, place in opened[0].logged] == [1, 2, 4, 5]
    assert opened[0].logged[0][0] == {"train/loss": 1.0, "train/accuracy": 0.5, "train/lr": 0.1}


def test_metrics_of_a_step(opened):
    def row(task, ood_set, group, detector, metric, value, settings=""):
        return Row(1, task, ood_set, group, detector, metric, value, "train", settings)

    rows = [row(None, None, None, None, "accuracy", 0.8), row(0, None, None, None, "accuracy", 0.7)]
    rows += [row(0, "a", "near", "energy", "auroc", 0.6), row(0, "b", "far", "energy", "auroc", 0.8)]
    rows += [row(0, "c", "far", "energy", "auroc", 1.0), row(None, "a", "near", "energy", "auroc", 0.1)]
    rows += [row(0, "a", "near", "energy", "auroc", 0.0, settings='{"raw": true}')]
    rows += [row(0, "a", "near", "msp", "aupr_in", 0)]
    Tracking(["tensorboard"]).step(1, rows)
    ((values, axis, place),) = opened[0].logged
    assert (axis, place) == ("step", 1)
    assert values == pytest.approx({"accuracy/all": 0.8, "accuracy/task 0": 0.7, "auroc/energy": (0.6 + 0.9) / 2})


def test_a_run_that_is_refused_opens_no_tracker(tmp_path, opened):
    from click.testing import CliRunner

    from tood.cli import cli
    from tood.runs.config import RunConfig
    from tood.storage.yaml_files import write_yaml

    write_yaml(tmp_path / "config.yaml", {**RunConfig().to_mapping(), "seed": 5})
    result = CliRunner().invoke(cli, [*RUN, "--out", str(tmp_path), "--log-to", "tensorboard"])
    assert result.exit_code == 1 and "was made with" in str(result.exception)
    assert opened == []


def test_trackers_are_closed_when_a_run_fails(tmp_path, opened):

    def failing_run():
        with Tracking(["tensorboard"], "run", tmp_path, {}) as tracked:
            tracked.progress(event(0, 0, 10))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing_run()
    (recorder,) = opened
    assert recorder.closed is True
    with (
        pytest.raises(ToodError, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"),
        Tracking(["tensorbord"], "run", tmp_path, {}),
    ):
        pass


def expected(folder):
    """Accuracy and AUROC of energy by step, from metrics.parquet."""
    rows = load_metrics(folder).to_pylist()
    accuracy = {r["step"]: r["value"] for r in rows if r["metric"] == "accuracy" and r["task"] is None}
    cells = {}
    for r in rows:
        if r["detector"] == "energy" and r["metric"] == "auroc" and r["task"] is not None:
            cells.setdefault(r["step"], {}).setdefault(r["group"], []).append(r["value"])
    auroc = {s: sum(sum(v) / len(v) for v in groups.values()) / len(groups) for s, groups in cells.items()}
    return accuracy, auroc


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    done = tood(*RUN, "--out", "r", "--log-to", "tensorboard", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path / "r" / "tensorboard"), size_guidance={"tensors": 0})
        events.Reload()
    found = {
        tag: {e.step: e.tensor_proto.float_val[0] for e in events.Tensors(tag)} for tag in events.Tags()["tensors"]
    }
    accuracy, auroc = expected(tmp_path / "r")
    assert found["accuracy/all"] == pytest.approx(accuracy)
    assert found["auroc/energy"] == pytest.approx(auroc)
    assert {"train/loss", "train/accuracy", "auroc/msp", "accuracy/task 0"} <= set(found)


def test_mlflow(tmp_path, monkeypatch):
    """In MLflow's default store: nothing is set, as after ``pip install "tood[mlflow]"``."""
    pytest.importorskip("mlflow", reason=MLFLOW)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    done = tood(*RUN, "--out", "r", "--log-to", "mlflow", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("tood").experiment_id])
    accuracy, auroc = expected(tmp_path / "r")
    for name, values in (("accuracy/all", accuracy), ("auroc/energy", auroc)):
        assert {m.step: m.value for m in client.get_metric_history(run.info.run_id, name)} == pytest.approx(values)
    assert run.info.status == "FINISHED" and run.data.params["stream"] == "digits"


def test_runs_of_a_sweep_start_in_a_new_mlflow_store_at_once(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason=MLFLOW)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    grid = "base: {stream: digits, preset: smoke, detectors: energy}\ngrid: {seed: [0, 1]}"
    (tmp_path / "sweep.yaml").write_text(grid)
    done = tood("sweep", "sweep.yaml", "--workers", "2", "--log-to", "mlflow", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("tood").experiment_id])
    assert sorted((run.data.params["seed"], run.info.status) for run in runs) == [("0", "FINISHED"), ("1", "FINISHED")]


def test_a_store_that_mlflow_cannot_open_is_one_line(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason=MLFLOW)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://nowhere")
    with pytest.raises(ToodError, match="--log-to mlflow: MLflow cannot start: ") as caught:
        TRACKERS["mlflow"]("run", tmp_path, {})
    assert "\n" not in str(caught.value)


def test_wandb(tmp_path):
    pytest.importorskip("wandb", reason=WANDB)
    done = tood(*RUN, "--out", "r", "--log-to", "wandb", folder=tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "r" / "wandb").glob("offline-run-*/run-*.wandb")
    assert file.stat().st_size > 0


def test_wandb_without_a_login_is_one_line(tmp_path):
    pytest.importorskip("wandb", reason=WANDB)
    home = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "WANDB_MODE": "online", "WANDB_API_KEY": ""}
    done = tood(*RUN, "--out", "r", "--log-to", "wandb", folder=tmp_path, **home)
    assert done.returncode == 1 and "a bug" not in done.stderr
    assert "tood: --log-to wandb: " in done.stderr and "set WANDB_MODE=offline" in done.stderr


@pytest.mark.parametrize("name", ["mlflow", "wandb", "tensorboard"])
def test_a_tracker_that_is_not_installed_says_how_to_install_it(name, tmp_path, monkeypatch):
    for module in [module for module in sys.modules if module.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    message = rf'--log-to {name} needs {name}: pip install "tood\[{name}\]"'
    with pytest.raises(ToodError, match=message), Tracking([name], "run", tmp_path, {}):
        pass
    with pytest.raises(ToodError, match=message):  # once, before a sweep starts its runs
        prepare([name])
