"""The losses and corrections, against SciPy and closed forms."""

import types

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.linear_model import LogisticRegression
from tests.learners.conftest import blobs
from torch.nn.functional import cross_entropy

from tood import ToodError, learners
from tood.learners.base import Batch
from tood.learners.bic import fit_correction
from tood.learners.distillation import align, distillation
from tood.learners.replay import ReservoirLearner
from tood.models import GrowingHead
from tood.streams import Stream
from tood.testing import check_learner

RNG = np.random.default_rng(0)
SHORT = {"network": "mlp", "epochs": 2, "batch_size": 8, "lr": 0.05, "schedule": "none"}


def kd(z, teacher, temperature):
    """Hinton et al., over the class axis, mean over the batch, no T²."""
    return -(softmax(teacher / temperature, axis=1) * log_softmax(z / temperature, axis=1)).sum(1).mean()


def ce(z, y):
    return -log_softmax(z, axis=1)[np.arange(len(y)), y].mean()


def second_task(name, stream, **settings):
    """A learner in its second task, a batch of it, and its logits."""
    learner = learners.create(name, stream, **{**SHORT, **settings})
    learner.learn(0)
    learner._open(1)
    batch = next(learner.batches(learner.training_rows(1)))
    with torch.no_grad():
        logits = learner.network(batch.inputs) * 3
    return learner, batch, logits


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_distillation_is_over_classes_at_a_temperature(temperature):
    """Over the batch axis (a public bug) another sample's logits would change this one's target."""
    z, teacher = RNG.normal(size=(2, 7, 4)) * 3
    found = distillation(torch.from_numpy(z), torch.from_numpy(teacher), temperature)
    assert float(found) == pytest.approx(kd(z, teacher, temperature), rel=1e-12)


def test_lwf_refuses_a_cross_entropy_that_teaches_nothing():
    x, y = blobs(each=6)
    stream = Stream.from_arrays(x, y, x, y, tasks=[[0, 1], [2], [3, 4, 5]], name="blobs")
    with pytest.raises(ToodError, match="teaches nothing if a task has one class; use 'all'"):
        learners.create("lwf", stream, **SHORT, ce="new")
    assert learners.create("lwf", stream, **SHORT, ce="all").settings.ce == "all"


@pytest.mark.parametrize("over", ["all", "new"])
@pytest.mark.parametrize("weight", ["one", "inverse_tasks"])
def test_lwf(vectors, over, weight):
    learner, batch, logits = second_task("lwf", vectors, ce=over, ce_weight=weight, alpha=3.0, temperature=2.0)
    z, y = logits.numpy(), batch.columns.numpy()
    new = ce(z, y) if over == "all" else ce(z[:, 2:], y - 2)
    kept = 3 * kd(z[:, :2], learner.teacher.eval()(batch.inputs).detach().numpy(), 2.0)
    expected = (new if weight == "one" else new / 2) + kept
    assert learner.loss(batch, logits).item() == pytest.approx(expected, rel=1e-5)


def test_icarl_sigmoids(vectors):
    learner, batch, logits = second_task("icarl", vectors, memory=12)
    z, y = logits.numpy(), batch.columns.numpy()
    target = np.eye(4)[y]
    target[:, :2] = expit(learner.teacher.eval()(batch.inputs).detach().numpy())
    expected = -(target * log_expit(z) + (1 - target) * log_expit(-z)).mean()
    assert learner.loss(batch, logits).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["bic", "wa"])
def test_share_of_old_classes_weighs_distillation(vectors, name):
    learner, batch, logits = second_task(name, vectors, memory=24)
    z, teacher = logits.numpy(), learner.teacher.eval()(batch.inputs).detach().numpy()
    expected = 0.5 * ce(z, batch.columns.numpy()) + 0.5 * kd(z[:, :2], teacher, 2.0)  # 2 old of 4 classes
    assert learner.loss(batch, logits).item() == pytest.approx(expected, rel=1e-5)


def test_icarl_answers_with_the_nearest_mean_of_exemplars(images):
    learner = learners.create("icarl", images, network="convnet", epochs=1, batch_size=16, memory=18)
    learner.learn(0)
    learner.learn(1)
    features = learner.network.eval().features
    means = []
    for column in range(4):
        rows = learner.memory.rows[learner.memory.labels == column]
        x = learner.prepare(images.train.take(rows))
        with torch.no_grad():
            both = [features(x).double().numpy(), features(x.flip(3)).double().numpy()]
        unit = [f / np.linalg.norm(f, axis=1, keepdims=True) for f in both]
        mean = np.concatenate(unit).mean(0)
        means.append(mean / np.linalg.norm(mean))
    f = RNG.uniform(size=(50, 64))
    distance = ((f / np.linalg.norm(f, axis=1, keepdims=True))[:, None] - np.array(means)) ** 2
    np.testing.assert_array_equal(learner.predict(f, None), distance.sum(2).argmin(1))


@pytest.mark.parametrize("seed", range(4))
def test_bic_correction_is_the_optimum(seed):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(6), 10)
    z = rng.normal(size=(60, 6)) * 2 + 2 * np.eye(6)[y]
    z[:, 4:] = 1.5 * z[:, 4:] + 2  # the newest task shouts
    y = y.astype(np.int64)

    def loss(theta):
        corrected = z.copy()
        corrected[:, 4:] = theta[0] * z[:, 4:] + theta[1]
        return ce(corrected, y) + 0.1 * theta[1] ** 2 / 2

    best = minimize(loss, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14})
    np.testing.assert_allclose(fit_correction(z, y, 4), best.x, atol=1e-6)


def test_bic_correction_stays_finite_where_classes_separate():
    y = np.arange(8) % 4
    scale, offset = fit_correction(8 * np.eye(4)[y], y, 2)
    assert 0 < scale < 10 and abs(offset) < 1


def test_bic_corrects_the_newest_task_only_and_from_held_out_logits(vectors):
    learner = learners.create("bic", vectors, **SHORT, memory=60, validation=0.5)
    trained = []
    for task in range(3):
        learner.learn(task)
        trained.append(learner.memory.rows)
    head = learner.network.head
    assert (head.scale[:4] == 1).all() and (head.offset[:4] == 0).all()
    rows = learner.held_out.rows
    assert len(rows) == 30 and (np.bincount(learner.columns[rows]) == 5).all()
    assert not set(rows) & set(np.concatenate(trained))
    scale, offset = float(head.scale[5]), float(head.offset[5])
    assert {name: float(value) for name, value in learner.facts.items()} == pytest.approx(
        {"scale": scale, "offset": offset}
    )
    head.correct(slice(0), 1.0, 0.0)
    z = learner.outputs(rows)[1].double().numpy()
    np.testing.assert_allclose((scale, offset), fit_correction(z, learner.columns[rows], 4), rtol=1e-6)


def unequal(sizes):
    """Blobs with so many samples per class, in tasks of two classes."""
    y = np.repeat(np.arange(len(sizes)), sizes)
    x = RNG.normal(size=(len(y), 4)).astype(np.float32)
    return Stream.from_arrays(x, y, x, y, tasks=len(sizes) // 2, name="unequal")


def test_bic_fits_its_correction_to_as_many_samples_of_each_class(monkeypatch):
    learner = learners.create("bic", unequal([100, 100, 10, 10]), **SHORT, memory=200)
    seen = []
    monkeypatch.setattr(
        "tood.learners.bic.fit_correction", lambda z, y, *rest: (seen.append(np.bincount(y)), (1, 0))[1]
    )
    learner.learn(0)
    learner.learn(1)
    assert np.bincount(learner.held_out.labels).tolist() == [5, 5, 1, 1]
    assert [counts.tolist() for counts in seen] == [[1, 1, 1, 1]]


def test_bic_teacher_is_corrected_and_student_is_not(vectors):
    learner = learners.create("bic", vectors, **SHORT, memory=60)
    learner.learn(0)
    learner.learn(1)
    head = learner.network.head
    answer = head.scale.clone(), head.offset.clone()
    assert (answer[0][2:] != 1).all()
    learner._open(2)
    teacher = learner.teacher.head
    assert torch.equal(teacher.scale, answer[0]) and torch.equal(teacher.offset, answer[1])
    assert (learner.network.head.scale == 1).all() and (learner.network.head.offset == 0).all()


def test_bic_joins_each_batch_by_as_many_exemplars(vectors):
    learner, batch, _ = second_task("bic", vectors, memory=60, batches="halves")
    assert len(batch.rows) == 8 and len(batch.inputs) == 16
    assert (batch.columns[:8] >= 2).all() and (batch.columns[8:] < 2).all()
    assert set(learner.training_rows(1)) == set(vectors.train_rows(1)) - set(learner.held_out.rows)


def test_wa_makes_mean_lengths_equal(vectors):
    head = GrowingHead(16, 9)
    with torch.no_grad():
        head.weight[5:] *= 3
        head.bias.uniform_()
    bias, old = head.bias.clone(), head.weight[:5].clone()
    align(head, 5)
    lengths = head.weight.detach().norm(dim=1)
    assert float(lengths[:5].mean() / lengths[5:].mean()) == pytest.approx(1, rel=1e-6)
    assert torch.equal(head.bias, bias) and torch.equal(head.weight[:5], old)
    assert align(head, 5) == pytest.approx(1, rel=1e-6)

    learner = learners.create("wa", vectors, **SHORT, memory=24)
    learner.learn(0)
    learner.learn(1)
    lengths = learner.network.head.weight.detach().norm(dim=1)
    assert float(lengths[:2].mean() / lengths[2:].mean()) == pytest.approx(1, rel=1e-6)
    assert 0 < float(learner.facts["alignment"]) < 10


def test_wa_can_keep_weights_nonnegative(vectors):
    learner = learners.create("wa", vectors, **SHORT, memory=24, nonnegative=True)
    learner.learn(0)
    assert (learner.network.head.weight >= 0).all()


class Bare(ReservoirLearner):
    """A learner with a reservoir and nothing else."""

    name = "bare"

    def loss(self, batch, logits):
        return cross_entropy(logits, batch.columns)


def test_a_reservoir_is_replayed_by_itself(vectors, registries):
    learners.register(Bare)
    learner = learners.create("bare", vectors, **SHORT, memory=12, replay_size=5)
    learner.learn(0)
    learner._open(1)
    batch = next(learner.batches(learner.training_rows(1)))
    assert len(batch.rows) == 8 and len(batch.inputs) == 13
    assert (batch.columns[:8] >= 2).all() and (batch.columns[8:] < 2).all()
    check_learner(Bare)


def test_er_ace_separates_new_samples_from_absent_classes(vectors):
    learner, batch, logits = second_task("er_ace", vectors, memory=12, replay_size=6)
    z, y = logits.double().numpy(), batch.columns.numpy()
    present = np.unique(y[:8])
    new = ce(z[:8][:, present], np.searchsorted(present, y[:8]))  # a softmax over these columns alone
    assert learner.loss(batch, logits).item() == pytest.approx(new + ce(z[8:], y[8:]), rel=1e-5)
    one_class = learner.batch(batch.rows, learner.stream.train.take(batch.rows))
    one_class.columns[:] = 3
    free = logits[:8].clone().requires_grad_()
    learner.loss(one_class, free).backward()
    assert not free.grad.any()  # nothing to tell apart


def test_ssil_separates_softmax_and_distils_task_by_task(vectors):
    learner = learners.create("ssil", vectors, **SHORT, memory=24, replay_size=6)
    learner.learn(0)
    learner.learn(1)
    learner._open(2)
    batch = next(learner.batches(learner.training_rows(2)))
    assert len(batch.rows) == 8 and len(batch.inputs) == 14 and (batch.columns[8:] < 4).all()
    with torch.no_grad():
        logits = learner.network(batch.inputs) * 3
    z, y, teacher = logits.double().numpy(), batch.columns.numpy(), learner.teach(batch.inputs).double().numpy()
    separated = (8 * ce(z[:8, 4:], y[:8] - 4) + 6 * ce(z[8:, :4], y[8:])) / 14
    kept = sum(kd(z[:, i : i + 2], teacher[:, i : i + 2], 2.0) for i in (0, 2))
    assert learner.loss(batch, logits).item() == pytest.approx(separated + 4 * kept, rel=1e-5)


def test_lwf_warms_up_the_new_columns_alone(vectors):
    plain, warm = (learners.create("lwf", vectors, **SHORT, warm_up=epochs) for epochs in (0, 200))
    for learner in (plain, warm):
        learner.learn(0)
        learner._open(1)
    for (name, a), b in zip(plain.network.state_dict().items(), warm.network.state_dict().values(), strict=True):
        old = slice(2) if name.startswith("head") else slice(None)
        assert torch.equal(a[old], b[old]), name
    rows = vectors.train_rows(1)
    features, logits = warm.outputs(rows)
    x, y = features.double().numpy(), warm.columns[rows] - 2
    best = LogisticRegression(C=1 / (2e-4 * len(y)), max_iter=10_000).fit(x, y)  # of the same penalised loss, about
    agree = best.predict(x) == logits[:, 2:].argmax(1).numpy()
    assert agree.mean() > 0.95


def test_der_loss(vectors):
    learner, batch, logits = second_task("der", vectors, memory=9, replay_size=9, alpha=0.3)
    z = learner.network(torch.from_numpy(vectors.train.take(learner.memory.rows))).detach().numpy()
    target = np.zeros((9, 4))
    target[:, :2] = learner.stored[:, :2].numpy()
    distance = ((z - target) ** 2).mean()  # the whole memory is replayed; new columns have the target 0
    expected = ce(logits.numpy(), batch.columns.numpy()) + 0.3 * distance
    assert learner.loss(batch, logits).item() == pytest.approx(expected, rel=1e-5)


def test_derpp_adds_cross_entropy_of_a_second_draw(vectors):
    learner, batch, logits = second_task("derpp", vectors, memory=9, replay_size=9, alpha=0.0, beta=0.5)
    rows = learner.memory.rows
    z = learner.network(torch.from_numpy(vectors.train.take(rows))).detach().numpy()
    expected = ce(logits.numpy(), batch.columns.numpy()) + 0.5 * ce(z, learner.columns[rows])
    assert learner.loss(batch, logits).item() == pytest.approx(expected, rel=1e-5)


def test_der_stores_the_logits_at_insertion(vectors):
    learner = learners.create("derpp", vectors, **SHORT, memory=20)
    given: dict[int, list[np.ndarray]] = {}
    loss = learner.loss

    def noting(batch: Batch, logits):
        with torch.no_grad():  # a forward pass of our own, before the step
            for row, z in zip(batch.rows, learner.network(batch.inputs).numpy(), strict=True):
                given.setdefault(int(row), []).append(z)
        return loss(batch, logits)

    learner.loss = noting
    for task in range(3):
        learner.learn(task)
    for slot, row in enumerate(learner.memory.rows):
        candidates = [np.pad(z, (0, 6 - len(z))) for z in given[int(row)]]
        assert min(np.abs(learner.stored[slot].numpy() - z).max() for z in candidates) < 1e-5


def test_der_after_the_task_as_the_authors_ran_it(vectors):
    settings = {"memory": 12, "replay_size": 12, "alpha": 0.3, "beta": 0.5, "targets": "after_task"}
    learner = learners.create("der", vectors, **{**SHORT, **settings})
    learner.learn(0)
    first = {int(row): z[:2] for row, z in zip(learner.memory.rows, learner.stored.clone(), strict=True)}
    torch.testing.assert_close(learner.stored[:, :2], learner.outputs(learner.memory.rows)[1])  # evaluation mode
    learner.learn(1)
    rows = learner.memory.rows
    assert (np.bincount(learner.columns[rows]) == 3).all()
    for slot, row in enumerate(rows):
        if learner.columns[row] < 2:  # what stays keeps its targets
            torch.testing.assert_close(learner.stored[slot, :2], first[int(row)])
            assert not learner.stored[slot, 2:].any()
    learner._open(2)
    batch = next(learner.batches(learner.training_rows(2)))
    assert len(batch.rows) == 8 and len(batch.inputs) == 20
    z = learner.network(batch.inputs).detach()
    distance = (z[8:, :4] - learner.stored[learner.slots[0], :4]).square().mean()  # the columns of old tasks
    new, old = ce(z[:8].numpy(), batch.columns[:8].numpy()), ce(z[8:].numpy(), batch.columns[8:].numpy())
    assert learner.loss(batch, z).item() == pytest.approx(new + 0.3 * float(distance) + 0.5 * old, rel=1e-5)


def test_joint_sees_everything_and_starts_anew(vectors):
    learner = learners.create("joint", vectors, **SHORT)
    start = [p.detach().clone() for p in learner.network.backbone.parameters()]
    learner.learn(0)
    learner._open(1)
    np.testing.assert_array_equal(
        np.sort(learner.training_rows(1)), np.sort(np.concatenate([vectors.train_rows(0), vectors.train_rows(1)]))
    )
    assert all(torch.equal(a, b) for a, b in zip(start, learner.network.backbone.parameters(), strict=True))


@pytest.mark.parametrize("name", ["icarl", "bic", "wa", "gem", "agem"])
@pytest.mark.parametrize("unit", ["total", "class"])
def test_memories_keep_their_size_and_their_classes(vectors, name, unit):
    learner = learners.create(name, vectors, **SHORT, memory=18 if unit == "total" else 4, memory_unit=unit)
    assert len(learner.memory_rows()) == 0
    for task in range(2):
        learner.learn(task)
        rows = learner.memory_rows()
        count = np.bincount(learner.columns[rows])
        assert len(count) == 2 * (task + 1) and len(set(count)) == 1
        assert len(rows) <= (18 if unit == "total" else 4 * len(count))


def test_expandable_adds_a_branch_per_task(vectors):
    """Beside plain NumPy: old branches never change, old logits not at first, and the loss has an auxiliary part."""
    learner = learners.create("expandable", vectors, **{**SHORT, "weight_decay": 0.1}, memory=24, auxiliary=0.5)
    learner.learn(0)
    x = torch.from_numpy(vectors.test.take(np.arange(20)))
    first, before = learner.network.features(x).detach(), learner.network(x).detach()
    learner._open(1)
    torch.testing.assert_close(learner.network(x)[:, :2], before)
    for weight in learner.network.backbone.branches[1].parameters():
        weight.data += 0.1
    learner.network.backbone.auxiliary.weight.data.normal_()
    learner.network.train()
    batch = next(learner.batches(learner.training_rows(1)))
    logits = learner.network(batch.inputs)
    branches = learner.network.backbone.branches
    features = np.concatenate([branch(batch.inputs).detach().numpy() for branch in branches], 1)
    weight, bias = (part.numpy() for part in learner.network.effective_head())
    np.testing.assert_allclose(logits.detach().numpy(), features @ weight.T + bias, rtol=1e-4, atol=1e-5)
    y, half = batch.columns.numpy(), features.shape[1] // 2
    auxiliary = features[:, half:] @ learner.network.backbone.auxiliary.weight.detach().numpy().T
    expected = ce(logits.detach().numpy(), y) + 0.5 * ce(auxiliary, np.where(y < 2, 0, y - 1))
    assert learner.loss(batch, logits).item() == pytest.approx(expected, rel=1e-5)

    learner = learners.create("expandable", vectors, **{**SHORT, "weight_decay": 0.1}, memory=24)
    for task in range(3):
        learner.learn(task)
    assert learner.network.head.dim == 3 * first.shape[1]
    torch.testing.assert_close(learner.network.features(x)[:, : first.shape[1]], first)


@pytest.mark.parametrize("name", ["er", "er_ace", "der", "derpp"])
def test_a_step_with_replay_does_not_wait_for_the_device(images, name):
    """On the device meta, which has no values, whatever would read one raises."""
    learner = learners.create(name, images, network="convnet", epochs=1, batch_size=8, memory=12)
    learner.learn(0)
    learner._open(1)
    meta = torch.device("meta")
    learner.network.to(meta)
    learner.stored = getattr(learner, "stored", torch.zeros(0)).to(meta)
    learner.fabric = types.SimpleNamespace(device=meta, world_size=1, global_rank=0, all_gather=lambda x: x)
    batch = next(learner.batches(learner.training_rows(1)))
    logits = learner.network(batch.inputs)
    learner.loss(batch, logits).backward()
    learner.after_step(batch, logits)
