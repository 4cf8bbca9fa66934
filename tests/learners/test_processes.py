"""Processes that die, and processes that train together."""

import dataclasses
import json
import multiprocessing
import subprocess
import sys

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from tests.processes import python

from tood import learners, models, streams
from tood.learners.processes import start
from tood.storage.files import read_tensors

SETTINGS = {"network": "convnet", "epochs": 4, "batch_size": 16, "schedule": "one_cycle", "memory": 24}


def train(stream, directory):
    learner = learners.create("icarl", stream, **SETTINGS)
    for task in range(3):
        learner.learn(task, directory)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_killed_at_any_moment_and_resumed(images, tmp_path):
    """SIGKILL again and again, each time a little later; then everything equals an undisturbed run, bit for bit."""
    train(images, tmp_path / "undisturbed")
    fork, rng, kills = multiprocessing.get_context("fork"), np.random.default_rng(0), 0
    while True:
        process = fork.Process(target=train, args=(images, tmp_path / "killed"))
        process.start()
        process.join(timeout=rng.uniform(0.5, 1.5) * 0.1 * 1.25**kills)
        if not process.is_alive():
            break
        process.kill()
        process.join()
        kills += 1
    assert process.exitcode == 0 and kills >= 2
    for task in range(3):
        name = f"task-{task:02d}.safetensors"
        (expected, _), (found, _) = (
            read_tensors(tmp_path / d / name, "tood-learner") for d in ("undisturbed", "killed")
        )
        assert expected.keys() == found.keys()
        for key, array in expected.items():
            np.testing.assert_array_equal(found[key], array, err_msg=key)
    left = {path.name for path in (tmp_path / "killed").iterdir()} - {f"task-{t:02d}.safetensors" for t in range(3)}
    assert all(name.endswith(".tmp") for name in left)  # a write that was cut short never has the checkpoint's name


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_freed_memory_is_kept():
    """A step that frees 160 MB and asks for it again costs no page faults; the system's pages would be 40,000."""
    code = """
import resource, torch
from tood.learners.processes import start
start("cpu")
faults = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(2_000_000) for _ in range(20)]
    del blocks
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults[1:]))
"""  # in a process of its own; the least of three, since the system may reclaim pages meanwhile
    done = python(code)
    assert int(done.stdout.split()[-1]) < 2_000


PARALLEL = """
import json, sys
import numpy as np, torch
from tood import learners, streams
from tood.streams.augment import prepare

torch.set_num_threads(1)
stream = streams.load("digits")
results = {}
for name in sys.argv[1:]:
    options = {"epochs": 12, "batch_size": 32, "lr": 0.1, "schedule": "one_cycle", "momentum": 0.9}
    learner = learners.create(name, stream, memory=80, **options)
    for task in range(2):
        learner.learn(task)
    hits = []
    for task in range(2):
        rows = stream.test_rows(task)
        with torch.no_grad():
            features = learner.network.features(prepare(stream.test.take(rows), stream.mean, stream.std))
            logits = learner.network.head(features)
        hits.append(learner.predict(features, logits) == stream.columns(stream.test.labels[rows]))
    flat = torch.cat([t.flatten().double() for t in learner.network.state_dict().values()])
    memory = torch.zeros(len(stream.train)).index_fill(0, torch.from_numpy(learner.memory_rows()), 1.0)
    both = learner.fabric.all_gather(torch.cat([flat, memory.double()])).reshape(learner.fabric.world_size, -1)
    results[name] = [float(np.concatenate(hits).mean()), float((both - both[0]).abs().max()), learner.fabric.world_size]
if learner.fabric.is_global_zero:
    print(json.dumps(results))
"""


def test_two_processes_learn_as_well_as_one(tmp_path):
    """Data parallel over gloo: the same accuracy within noise, and the same weights and memories in both processes."""
    script = tmp_path / "train.py"
    script.write_text(PARALLEL)
    names = ["derpp"]  # a reservoir with logits, and three forward passes a step
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    together = subprocess.Popen([sys.executable, *launch, str(script), *names], stdout=subprocess.PIPE, text=True)
    alone = python(PARALLEL, *names)
    output, _ = together.communicate(timeout=300)
    assert together.returncode == 0
    one, two = (json.loads(text.strip().splitlines()[-1]) for text in (alone.stdout, output))
    for name in names:
        assert one[name][2] == 1 and two[name][2] == 2
        assert two[name][1] == 0  # both processes hold the same network and the same memory
        assert one[name][0] > 0.9 and abs(one[name][0] - two[name][0]) < 0.05


def test_lazy_sources_are_read_ahead(images):
    """Decoding on demand changes nothing but where samples come from."""

    class Lazy(streams.Subset):
        lazy = True

    everything = np.arange(len(images.train))
    lazy = dataclasses.replace(images, train=Lazy(images.train, everything))
    weights = []
    for stream in (images, lazy):
        learner = learners.create("er", stream, **SETTINGS)
        learner.learn(0)
        weights.append(learner.network.state_dict())
    for name, tensor in weights[0].items():
        assert tensor.equal(weights[1][name])


def test_a_slurm_job_with_several_tasks_is_one_process_each(monkeypatch):
    for name, value in {
        "SLURM_NTASKS": "4",
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_ID": "1",
        "SLURM_PROCID": "2",
    }.items():
        monkeypatch.setenv(name, value)
    fabric = start("cpu")
    assert fabric.world_size == 1 and fabric.is_global_zero


@pytest.mark.parametrize(
    ("asked", "bfloat16", "given"),
    [("auto", True, "bf16-mixed"), ("auto", False, "32-true"), ("16-mixed", False, "16-mixed")],
)
def test_precision_on_a_gpu(monkeypatch, asked, bfloat16, given):
    """With a fake GPU: mixed by default only where bfloat16 is not emulated."""
    made = {}

    class Fake:
        def __init__(self, **options):
            made.update(options)

        def launch(self):
            pass

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: bfloat16 or including_emulation)
    monkeypatch.setattr("tood.learners.processes.Fabric", Fake)
    start("auto", asked)
    assert (made["accelerator"], made["precision"]) == ("cuda", given)


def half_precision(monkeypatch):
    """16-mixed as on a GPU, on the CPU: the loss is scaled, and the scale grows at every third step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    monkeypatch.setattr("tood.learners.start", lambda *_: fabric)
    return scaler


@pytest.mark.parametrize("name", ["finetune", "gem", "si"])
def test_half_precision_ends_near_full_precision(images, monkeypatch, name):
    """Were gradients clipped or projected before they are scaled back, weights would be elsewhere."""
    settings = {"network": "convnet", "epochs": 2, "batch_size": 16, "lr": 0.01, "schedule": "none", "clip": 0.1}
    settings |= {"memory": 24} if name == "gem" else {}
    ends = []
    for half in (False, True):
        scaler = half_precision(monkeypatch) if half else None
        learner = learners.create(name, images, **settings)
        learner.learn(0)
        learner.learn(1)
        ends.append(torch.cat([p.detach().flatten() for p in learner.network.parameters()]))
    start = models.create("convnet", images.train.shape)
    begin = torch.cat([p.detach().flatten() for p in start.backbone.parameters()])
    moved = (ends[0][: len(begin)] - begin).norm()
    assert scaler.get_scale() > 2.0**10 and (ends[1] - ends[0]).norm() < 0.05 * moved


def test_half_precision_resumes_with_its_loss_scale(images, tmp_path, monkeypatch):
    settings = {"network": "convnet", "epochs": 3, "batch_size": 16, "schedule": "none"}

    def learn(folder, until=None):
        half_precision(monkeypatch)
        learner = learners.create("finetune", images, **settings)

        def stop(progress):
            if (progress.task, progress.epoch) == until:
                raise InterruptedError

        for task in range(2):
            learner.learn(task, folder, progress=stop)
        return learner.network.state_dict()

    undisturbed = learn(tmp_path / "one")
    with pytest.raises(InterruptedError):
        learn(tmp_path / "two", until=(1, 1))
    resumed = learn(tmp_path / "two")
    assert all(torch.equal(resumed[name], weight) for name, weight in undisturbed.items())
