"""tood sweep: a grid of runs, what is done with a cell that fails, and a node that dies."""

import json
import shutil
import threading
from types import SimpleNamespace

import pytest
from tests.processes import Process, tood

from tood import ToodError
from tood.audit import audit
from tood.evaluation import Scorer, load_metrics, measure
from tood.outputs import Run
from tood.outputs.directory import is_locked, lock
from tood.paper.reproduce import TARGETS, cells, presets_of
from tood.runs.build import check_config
from tood.runs.config import RunConfig
from tood.runs.sweep import Cell, _Processes, read_sweep, run_cells
from tood.storage.yaml_files import write_yaml

NAMES = (("energy",), ("energy", "maxlogit"), ("tood.detectors.logits:MaxLogit",), ("nowhere:Mine",), ())
BASE = "base: {preset: smoke, learner: er, settings: {epochs: 2, memory: 80}, detectors: [energy, tood_mean_shift]}\n"


def test_a_grid_is_every_combination_and_further_cells_once(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "base: {preset: smoke}\ngrid: {learner: [er, icarl], seed: [0, 1]}\nalso: [{learner: wa}, {learner: er}]"
    )
    cells = read_sweep(file, tmp_path)
    names = ["er-smoke-s0", "er-smoke-s1", "icarl-smoke-s0", "icarl-smoke-s1", "wa-smoke-s0"]
    assert [c.config.name for c in cells] == [f"digits-{name}" for name in names]
    assert {c.status() for c in cells} == {"waiting"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grids: {seed: [0]}", "did you mean 'grid'"),
        ("grid: {seed: 0}", "seed: expected a list of values, found 0"),
        ("grid: {sede: [0]}", "did you mean 'seed'"),
        ("base: {seed: 0}", "no cells"),
        ("also: [er]", "expected one mapping per cell"),
        ("grid: {seed: [0]}\nalso: [{detectors: [odin]}]", "two cells belong to the folder digits-icarl-cpu-s0"),
        ("[1, 2]", "expected a mapping"),
        ("a: [", "cannot be read as YAML"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ToodError, match=message):
        read_sweep(tmp_path / "s.yaml", tmp_path)


def test_an_audit_of_an_unfinished_run_does_not_finish_it(gap_run):
    run = Run(gap_run)
    cell = Cell(SimpleNamespace(name=gap_run.name, detectors=()), gap_run.parent)
    shutil.rmtree(run.folder(len(run.partition) - 1))
    audit(run)
    assert run.metrics_path.exists() and cell.status() == f"{len(run.partition) - 1} steps"


def test_other_detectors_are_measured_in_the_same_folder(gap_run):
    asked = [RunConfig(preset="smoke", detectors=names) for names in NAMES]
    (name,) = {config.name for config in asked}
    run = Run(gap_run.rename(gap_run.parent / name))
    measure(run, [Scorer("energy"), Scorer("msp")])
    write_yaml(run.path / "config.yaml", asked[0].to_mapping())
    status = [Cell(config, gap_run.parent).status() for config in asked]
    assert status == ["done", *[f"{len(run.partition)} steps"] * (len(asked) - 1)]


def test_a_failing_cell_leaves_the_others_alone(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(BASE + "grid: {seed: [0]}\nalso: [{learner: icarl, settings: {memory: 3}}]")
    command = ["sweep", file, "--out", tmp_path / "runs"]
    done = tood(*command)
    assert done.returncode == 1
    assert "1 of 2 runs failed" in done.stderr and "memory" in done.stderr and "Traceback" not in done.stderr
    good, bad = read_sweep(file, tmp_path / "runs")
    assert good.status() == "done" and bad.status().startswith("failed: ")
    assert good.log.read_text().count("processor time: ") == 1  # core-hours of a sweep are their sum
    assert {r["detector"] for r in load_metrics(good.path).to_pylist()} == {None, "energy", "tood_mean_shift"}
    shown = tood(*command, "--status", "--json")
    assert json.loads(shown.stdout) == {c.config.name: c.status() for c in (good, bad)}


@pytest.mark.parametrize(
    ("typo", "message"),
    [
        ("learner: icral", "unknown learner 'icral'; did you mean 'icarl'?"),
        ("learner: 'nowhere:Mine'", "No module named 'nowhere'"),
        ("stream: digitz", "unknown stream 'digitz'; did you mean 'digits'?"),
        ("stream: {stream: cifar10, sise: 32}", "unknown option of the stream cifar10 'sise'; did you mean 'size'?"),
        ("stream: cifar10, ood: [svnh]", "unknown OOD set of cifar10 'svnh'; did you mean 'svhn'?"),
        ("network: resnet23", "unknown network 'resnet23'; did you mean 'resnet"),
        ("device: cudo", "unknown device 'cudo'; did you mean 'cuda'?"),
        ("learner: slda, preset: frozen, adapter: 8, settings: {}", "adapter: slda takes no gradient steps"),
        ("learner: finetune, track: memory, settings: {}", "track: finetune keeps no memory"),
    ],
)
def test_a_typo_in_the_last_cell_is_found_before_the_first_one_starts(tmp_path, monkeypatch, typo, message):
    monkeypatch.setattr(_Processes, "_run", lambda *_: pytest.fail("a cell was started"))
    file = tmp_path / "sweep.yaml"
    file.write_text(BASE + f"grid: {{seed: [0]}}\nalso: [{{seed: 1, {typo}}}]")
    with pytest.raises(ToodError) as caught:
        run_cells(read_sweep(file, tmp_path / "runs"), where="sweep.yaml", say=str)
    name = read_sweep(file, tmp_path)[-1].config.name
    assert str(caught.value).startswith(f"sweep.yaml: cell {name}: ") and message in str(caught.value)
    assert "\n" not in str(caught.value) and not (tmp_path / "runs").exists()


def test_the_check_calls_no_factory_and_takes_networks_of_timm(tmp_path, monkeypatch, registries):
    (tmp_path / "mine_to_check.py").write_text(
        "def never(tasks=2, order=0) -> 'Stream':\n    raise RuntimeError('was called')"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    check_config(RunConfig(stream="mine_to_check:never", tasks=3, order=7, network="timm:resnet18"))
    check_config(RunConfig(stream={"stream": "mine_to_check:never", "ood": {"far": {"x": "x.npz"}}}, ood=("x",)))
    with pytest.raises(ToodError, match="unknown option of the stream never 'sise'"):
        check_config(RunConfig(stream={"stream": "mine_to_check:never", "sise": 3}))


def test_every_cell_of_the_paper_passes_the_check(tmp_path):
    for target in TARGETS:
        for preset in presets_of(target):
            for cell in cells(target, tmp_path, preset, seeds=1):
                check_config(cell.config)


def test_a_cell_that_starts_while_the_sweep_is_stopped_is_stopped_too(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(BASE + "grid: {seed: [0]}")
    (cell,) = read_sweep(file, tmp_path)
    cell.log.parent.mkdir()
    processes = _Processes(str)
    processes.stop.set()
    assert processes._run(cell) in ("stopped by signal 15", "interrupted")
    assert not (cell.path / "metrics.parquet").exists()


def test_two_sweeps_on_one_folder_share_the_work(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(BASE + "grid: {seed: [0, 1]}")
    both = [Process(["sweep", file, "--out", tmp_path / "runs", "--workers", "1"]) for _ in range(2)]
    done = [process.wait(timeout=900) for process in both]
    assert [one.returncode for one in done] == [0, 0], done
    assert [one.stderr for one in done] == ["", ""]
    assert all(one.stdout.endswith(f"2 runs in {tmp_path / 'runs'}\n") for one in done)
    steps = [line for one in done for line in one.stdout.splitlines() if "step 1/" in line]
    assert len(steps) == 2  # nothing was done twice
    assert {cell.status() for cell in read_sweep(file, tmp_path / "runs")} == {"done"}


def test_a_cell_of_another_process_is_waited_for_and_then_resumed(tmp_path, monkeypatch):
    file = tmp_path / "sweep.yaml"
    file.write_text(BASE + "grid: {seed: [0]}")
    (cell,) = read_sweep(file, tmp_path)
    cell.path.mkdir()
    monkeypatch.setattr(_Processes, "_run", lambda self, cell: "" if not is_locked(cell.path) else "locked")
    held, lines = lock(cell.path), []

    def say(line):
        lines.append(line)
        if "another process" in line:
            held.__exit__(None, None, None)  # the other one is killed

    held.__enter__()
    assert run_cells([cell], say=say) == {}
    assert lines == [f"{cell.config.name}: another process is running it", f"[1/1] {cell.config.name}: done"]


@pytest.mark.parametrize(("share", "expected"), [(1, ["0", "1"]), (0.5, ["0", "0", "1", "1"]), (0, ["", "", "", ""])])
def test_every_run_gets_a_free_gpu(tmp_path, monkeypatch, share, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    together, taken = threading.Barrier(len(expected)), []

    def process(self, cell, visible):
        taken.append(visible["CUDA_VISIBLE_DEVICES"])
        together.wait(30)  # so that all of them run at the same time
        return ""

    monkeypatch.setattr("tood.runs.sweep._Processes._run_on", process)
    cells = [Cell(RunConfig(preset="smoke", seed=seed), tmp_path) for seed in range(4)]
    assert run_cells(cells[: len(expected)], workers=4, say=str, gpus_per_run=share) == {}
    assert sorted(taken) == expected
