"""The loop: schedules against torch's own, randomness, progress, checkpoints, bad input."""

import dataclasses
import importlib
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn

from tood import ToodError, learners, models
from tood.errors import UnknownNameError
from tood.learners.settings import Settings, learning_rate
from tood.streams import Stream
from tood.testing import check_learner

SHORT = {"network": "mlp", "epochs": 3, "batch_size": 8, "lr": 0.05, "schedule": "none"}
MEMORY = {"memory": 24}


def more(name):
    return MEMORY if "memory" in learners.settings_of(name) else {}


def weights(learner):
    return {name: tensor.clone() for name, tensor in learner.network.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def torch_rates(schedule, epochs, steps, **options):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    scheduler = getattr(torch.optim.lr_scheduler, schedule)(optimizer, **options)
    rates = []
    for _ in range(epochs * steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def rates(settings, steps):
    return [learning_rate(settings, e, s / steps) for e in range(settings.epochs) for s in range(steps)]


def test_schedules_agree_with_torch():
    step = Settings(epochs=9, lr=0.1, schedule="multistep", milestones=(3, 6), gamma=0.2)
    np.testing.assert_allclose(rates(step, 1), torch_rates("MultiStepLR", 9, 1, milestones=[3, 6], gamma=0.2))
    cosine = Settings(epochs=5, lr=0.1, schedule="cosine")
    np.testing.assert_allclose(rates(cosine, 4), torch_rates("CosineAnnealingLR", 5, 4, T_max=20))
    assert rates(Settings(epochs=2, lr=0.1, schedule="none"), 2) == [0.1] * 4
    cycle = np.array(rates(Settings(epochs=10, lr=0.1, schedule="one_cycle"), 100))
    peer = np.array(torch_rates("OneCycleLR", 10, 100, max_lr=0.1, total_steps=1000, cycle_momentum=False))
    np.testing.assert_allclose(cycle, peer, atol=1e-3)  # torch counts its two phases in whole steps


def test_an_epoch_goes_through_every_row_once(images):
    learner = learners.create("finetune", images, network="convnet", epochs=1, batch_size=10)
    rows = images.train_rows(1)
    batches = list(learner.batches(rows))
    np.testing.assert_array_equal(np.sort(np.concatenate([b.rows for b in batches])), rows)
    sizes = {len(b.rows) for b in batches}
    assert max(sizes) <= 10 and max(sizes) - min(sizes) <= 1
    for b in batches:
        np.testing.assert_array_equal(b.columns, images.columns(images.train.labels[b.rows]))
        assert b.inputs.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["icarl", "derpp", "si", "expandable"])  # every other one by its contract
def test_resuming_in_a_task_gives_the_same_bits(images, name, tmp_path):
    """Stopped in the third epoch of the second task; then a new learner goes on from the file."""
    settings = {"network": "convnet", "epochs": 3, "batch_size": 16, "schedule": "one_cycle", **more(name)}
    undisturbed = learners.create(name, images, **settings)
    for task in range(3):
        undisturbed.learn(task)

    class Stop(Exception):
        pass

    def stop(progress):
        if (progress.task, progress.epoch) == (1, 2):
            raise Stop

    with pytest.raises(Stop):  # noqa: PT012
        first = learners.create(name, images, **settings)
        for task in range(3):
            first.learn(task, tmp_path, progress=stop if task == 1 else None)
            assert task == 0
    with pytest.raises(ToodError, match="was interrupted"):
        first.learn(1)
    second = learners.create(name, images, **settings)
    for task in range(3):
        second.learn(task, tmp_path)
    assert second.learned == 3
    assert same(weights(undisturbed), weights(second))
    np.testing.assert_array_equal(undisturbed.memory_rows(), second.memory_rows())
    third = learners.create(name, images, **settings)
    third.learn(2, tmp_path)  # a finished task is loaded
    assert third.learned == 3 and same(weights(second), weights(third))
    f, z = (t.numpy() for t in second.outputs(images.train_rows(0)))
    np.testing.assert_array_equal(third.predict(f, z), undisturbed.predict(f, z))
    if second.scoring_head is not None:
        assert same(third.scoring_head.state_dict(), undisturbed.scoring_head.state_dict())


def test_what_is_remembered_keeps_its_kind(vectors, tmp_path):
    def create():
        learner = learners.create("finetune", vectors, **SHORT)
        learner.remembers = ("counts", "both", "half")
        learner.counts = np.arange(3)
        learner.both = {"tensor": torch.ones(2), "more": {"scalar": torch.tensor(1.5)}}
        learner.half = torch.ones(2, dtype=torch.bfloat16)
        return learner

    first, second = create(), create()
    first.counts = first.counts + 1
    first.learn(0, tmp_path)
    second.learn(0, tmp_path)
    second.counts += 1  # in place
    assert isinstance(second.counts, np.ndarray) and second.counts.tolist() == [2, 3, 4]
    assert torch.equal(second.both["tensor"], torch.ones(2))
    assert torch.equal(second.both["more"]["scalar"], torch.tensor(1.5))
    assert torch.equal(second.half, first.half)


def test_checkpoint_of_another_configuration(vectors, tmp_path):
    learners.create("er", vectors, **SHORT, memory=20).learn(0, tmp_path)
    path = tmp_path / "task-00.safetensors"
    before = path.read_bytes()
    cases = [
        (("er", {"memory": 21}), r"settings\.memory = 20, not 21"),
        (("er", {"memory": 20, "seed": 1}), "seed = 0, not 1"),
        (("finetune", {}), "learner = er, not finetune"),
    ]
    for (name, extra), message in cases:
        with pytest.raises(ToodError, match=rf"task-00\.safetensors: made with .*{message}"):
            learners.create(name, vectors, **SHORT, **extra).learn(0, tmp_path)
    assert path.read_bytes() == before


def test_progress_tells_loss_accuracy_and_time(vectors):
    seen = []
    learner = learners.create("finetune", vectors, **{**SHORT, "epochs": 20})
    learner.learn(0, progress=seen.append)
    last = seen[-1]
    assert (last.task, last.epoch, last.epochs, last.step, last.steps) == (0, 19, 20, 6, 6)
    assert last.accuracy > 0.95 and last.loss < 0.2 and last.seconds_left == 0 and last.samples_per_second > 0
    assert seen[0].loss > last.loss and seen[0].seconds_left > 0


def test_gradients_are_clipped(vectors):
    learner = learners.create("finetune", vectors, **{**SHORT, "momentum": 0.0, "weight_decay": 0.0}, clip=1e-3)
    before = None
    lengths = []

    def note(batch, logits):
        nonlocal before
        now = torch.cat([p.detach().flatten() for p in learner.network.parameters()])
        if before is not None:
            lengths.append(float((now - before).norm()))
        before = now

    learner.after_step = note
    learner.learn(0)
    assert max(lengths) <= 0.05 * 1e-3 * 1.01  # lr × clip


def test_bad_input(vectors):
    cases = [
        (("icral", {}), UnknownNameError, "unknown learner 'icral'; did you mean 'icarl'"),
        (("lwf", {"ce": "nwe"}), UnknownNameError, "unknown ce 'nwe'; did you mean 'new'"),
        (("er", {"network": "resnet33"}), UnknownNameError, "did you mean 'resnet32'"),
        (("er", {"epochs": "ten"}), ToodError, "epochs: expected"),
        (("er", {"lr": float("nan")}), ToodError, "lr: expected"),
        (("er", {"milestones": 3}), ToodError, "milestones: expected a list"),
        (("er", {"seed": -1}), ToodError, "seed: expected a whole number"),
        (("er", {"memory": 5}), ToodError, "memory: expected room for one sample of each of 6 classes, found 5"),
        (("bic", {"memory": 11}), ToodError, "memory: expected room for one sample of each of 6 classes, found 5"),
        (("er", {"device": "gpu"}), UnknownNameError, "unknown device 'gpu'"),
        (("er", {"device": "cpu", "precision": "bf16-mixed"}), ToodError, "bf16-mixed is for GPUs"),
        (("er", {"device": "cpu", "precision": "16-mixed"}), ToodError, "16-mixed is for GPUs"),
    ]
    for (name, settings), kind, message in cases:
        with pytest.raises(kind, match=message):
            learners.create(name, vectors, **settings)


ABOVE_0, AT_LEAST_0, AT_LEAST_1 = "a number above 0", "0 or more", "1 or more"
RANGES = [
    *[
        ("finetune", "weight_decay", -1, AT_LEAST_0),
        ("finetune", "batch_size", 0, AT_LEAST_1),
        ("der", "lr", 0, ABOVE_0),
    ],
    *[("er", "replay_size", -3, AT_LEAST_0), ("er", "memory", 0, AT_LEAST_1), ("derpp", "beta", -1, AT_LEAST_0)],
    *[("ewc", "strength", -1, AT_LEAST_0), ("si", "damping", -1, ABOVE_0), ("lwf", "temperature", 0, ABOVE_0)],
    *[("bic", "validation", 1, "0 or more and below 1"), ("gem", "reference_size", 0, AT_LEAST_1)],
    *[("ssil", "temperature", 0, ABOVE_0), ("slda", "shrinkage", 1.5, "a number from 0 to 1")],
    *[("fecam", "power", 0, ABOVE_0), ("ranpac", "ridge", -1, AT_LEAST_0), ("expandable", "auxiliary", -1, AT_LEAST_0)],
]


@pytest.mark.parametrize(("name", "setting", "value", "expected"), RANGES)
def test_settings_out_of_range_are_refused(vectors, name, setting, value, expected):
    with pytest.raises(ToodError, match=f"^{setting}: expected {expected}"):
        learners.create(name, vectors, **{setting: value})


def test_tasks_are_learned_in_order(vectors):
    learner = learners.create("finetune", vectors, **SHORT)
    with pytest.raises(ToodError, match="expected 0 of 3, the next one, found 1"):
        learner.learn(1)
    for task in range(3):
        learner.learn(task)
    with pytest.raises(ToodError, match="expected 3 of 3"):
        learner.learn(3)


def test_a_loss_that_is_no_number(vectors):
    with pytest.raises(ToodError, match="task 0, epoch 0: the loss is not finite"):
        learners.create("finetune", vectors, **{**SHORT, "lr": 1e30}, clip=0.0).learn(0)


def test_images_are_not_copied():
    """What an epoch allocates on the way from the source to the network is a fraction of the images."""
    images = np.random.default_rng(0).integers(0, 256, (3000, 32, 32, 3), dtype=np.uint8)
    stream = Stream.from_arrays(images, np.arange(3000) % 4, images[:40], np.arange(40) % 4, tasks=2)
    network = models.create("mlp", (32, 32, 3), widths=(8,))
    learner = learners.create("icarl", stream, network, epochs=1, batch_size=64, memory=400)
    tracemalloc.start()
    learner.learn(0)
    learner.learn(1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert learner.stream.train.samples is images and peak < images.nbytes / 5


def test_without_torch_the_message_is_the_command(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("tood.learners", "tood.models"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(ToodError, match=r'training needs .*: pip install "tood\[train\]"'):
        importlib.import_module("tood.learners")


class Wider(learners.Learner):
    """A network that gets one more layer with every task, and a teacher with the structure before."""

    name, title, citation = "wider", "Wider", "-"
    distils = True

    def expand(self, task):
        layer = nn.Linear(64, 64)
        with torch.no_grad():
            layer.weight.copy_(torch.eye(64) / (task + 1))
            layer.bias.zero_()
        self.network.backbone.append(layer)

    def loss(self, batch, logits):
        loss = super().loss(batch, logits)
        return loss + (logits[:, : self.old] - self.teach(batch.inputs)).square().mean() if self.old else loss


def test_networks_that_grow_resume_with_their_teacher():
    check_learner(Wider)


def test_a_checkpoint_of_another_network_of_ones_own_is_refused(vectors, tmp_path):
    def learner(activation):
        backbone = nn.Sequential(nn.Linear(vectors.train.shape[0], 8), activation())
        return learners.create("finetune", vectors, network=models.Network(backbone, models.GrowingHead(8)), epochs=1)

    learner(nn.ReLU).learn(0, tmp_path)
    learner(nn.ReLU).learn(0, tmp_path)
    with pytest.raises(ToodError, match=r"made with network\.own"):
        learner(nn.Tanh).learn(0, tmp_path)


def noise(batch, generator):
    return batch + torch.randn(batch.shape, generator=generator)


def test_an_augmentation_of_ones_own(images, tmp_path):
    own = dataclasses.replace(images, augmentation=noise)
    learner = learners.create("finetune", own, network="convnet", epochs=1)
    rows, begin = images.train_rows(0)[:5], learner.generator.get_state()
    plain, generator = learner.prepare(images.train.take(rows)), torch.Generator()
    generator.set_state(begin)
    inputs = learner.batch(rows, images.train.take(rows)).inputs
    assert torch.equal(inputs, plain + torch.randn(plain.shape, generator=generator))
    learner.learn(0, tmp_path)
    other = dataclasses.replace(images, augmentation="none")
    with pytest.raises(ToodError, match=r"stream\.augmentation = tests.*noise, not none"):
        learners.create("finetune", other, network="convnet", epochs=1).learn(0, tmp_path)
