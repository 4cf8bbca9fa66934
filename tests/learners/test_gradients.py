"""Gradients and importances: projections against a QP solver, Fisher information against vectorised autograd."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from tood import learners, models
from tood.learners import gem
from tood.learners.penalties import penalty

SHORT = {"network": "mlp", "epochs": 2, "batch_size": 8, "lr": 0.05, "schedule": "none"}


@given(st.integers(0, 10**6), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_agem_projection(seed, size):
    g, r = torch.randn(2, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    projected = gem.project(g, r)
    assert float(projected @ r) >= -1e-12 * float(r @ r)
    if g @ r >= 0:
        assert torch.equal(projected, g)
    else:  # what was taken away points along r: no vector in the half-space is nearer
        removed = g - projected
        torch.testing.assert_close(removed, (removed @ r) / (r @ r) * r)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tasks", [1, 3, 6])
def test_gem_projection_solves_its_quadratic_programme(seed, tasks):
    rng = np.random.default_rng([seed, tasks])
    g, references = rng.normal(size=12), rng.normal(size=(tasks, 12)) - 0.3
    found = gem.project_all(torch.from_numpy(g), torch.from_numpy(references), margin=0.0).numpy()
    constraint = {"type": "ineq", "fun": lambda x: references @ x, "jac": lambda x: references}
    best = minimize(
        lambda x: ((x - g) ** 2).sum() / 2,
        g,
        jac=lambda x: x - g,
        constraints=[constraint],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert (references @ found).min() > -1e-9
    np.testing.assert_allclose(found, best.x, atol=1e-5)


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_gem_dual_with_a_margin(margin):
    rng = np.random.default_rng(1)
    references, g = rng.normal(size=(4, 9)), rng.normal(size=9)
    gram, products = references @ references.T, references @ g
    found = gem.solve_dual(gram, products, margin)
    best = minimize(
        lambda v: v @ gram @ v / 2 + products @ v,
        np.full(4, margin + 1.0),
        jac=lambda v: gram @ v + products,
        bounds=[(margin, None)] * 4,
        options={"ftol": 1e-15, "gtol": 1e-10},
    )
    np.testing.assert_allclose(found, best.x, atol=1e-5)


def test_gem_with_one_reference_is_agem():
    g, r = torch.randn(2, 20, dtype=torch.float64)
    r = -r if g @ r > 0 else r
    torch.testing.assert_close(gem.project_all(g, r[None], 0.0), gem.project(g, r))


def test_gem_leaves_a_harmless_gradient_and_survives_equal_references():
    g = torch.ones(5, dtype=torch.float64)
    assert gem.project_all(g, torch.eye(5, dtype=torch.float64), 0.5) is g
    twice = -torch.ones(3, 5, dtype=torch.float64)
    torch.testing.assert_close(gem.project_all(g, twice, 0.0), torch.zeros(5, dtype=torch.float64))


def many_tasks(rng):
    """99 references in hardly more than 50 dimensions, of lengths that differ a thousandfold, and a gradient."""
    references = rng.normal(size=(99, 50)) @ rng.normal(size=(50, 500)) + 0.01 * rng.normal(size=(99, 500))
    references *= 10 ** rng.uniform(-2, 1, size=(99, 1))
    return 0.3 * rng.normal(size=500) - references.mean(axis=0), references


def opposite(rng):
    """Five references; two have nearly opposite directions."""
    references = rng.normal(size=(5, 500))
    references[1] = -3 * (references[0] + 1e-5 * rng.normal(size=500))
    return rng.normal(size=500), references


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("problem", [many_tasks, opposite])
def test_gem_with_nearly_dependent_references(problem, seed):
    g, references = (torch.from_numpy(x).float() for x in problem(np.random.default_rng(seed)))
    found = gem.project_all(g, references, margin=0.0).double() / g.norm()
    unit = references.double() / references.double().norm(dim=1, keepdim=True)
    assert (unit @ found).min() > -1e-4
    assert found.norm() < 1.0001  # a projection on a cone is no longer than what is projected
    assert abs(float((g / g.norm() - found) @ found)) < 1e-4  # and is orthogonal to what is taken away


@pytest.mark.parametrize("name", ["agem", "gem"])
def test_steps_do_not_harm_the_exemplars(vectors, name):
    """With the whole memory as reference, the used gradient has no negative product with any past task's."""
    more = {"margin": 0.0} if name == "gem" else {}
    learner = learners.create(name, vectors, **SHORT, memory=60, clip=0.0, **more)
    learner.learn(0)
    learner.learn(1)
    learner._open(2)
    batch = next(learner.batches(learner.training_rows(2)))
    learner.network.zero_grad()
    cross_entropy(learner.network(batch.inputs), batch.columns).backward()
    before = gem.get_gradient(learner.network)
    learner.after_backward(batch)
    used = gem.get_gradient(learner.network)
    tasks = learner.columns[learner.memory.rows] // 2
    groups = [tasks == 0, tasks == 1] if name == "gem" else [tasks < 2]
    references = [learner.reference(learner.memory.rows[group]) for group in groups]
    assert min(before @ r for r in references) < 0  # else the test tests nothing
    assert min(float(used @ r / r.norm()) for r in references) > -1e-4


def test_set_gradient_inverts_get(images):
    learner = learners.create("agem", images, network="convnet", epochs=1, memory=12)
    learner.network.grow(2)
    for parameter in learner.network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    flat = torch.randn(sum(p.numel() for p in learner.network.parameters()))
    gem.set_gradient(learner.network, flat)
    assert torch.equal(gem.get_gradient(learner.network), flat)


@pytest.mark.parametrize("name", ["agem", "gem", "ewc", "si", "derpp"])
def test_frozen_layers_stay_as_they_are(vectors, name):
    network = models.create("mlp", (8,), widths=[6, 5])
    first = next(network.parameters()).requires_grad_(False)
    before = first.clone()
    more = {} if name in ("ewc", "si") else {"memory": 12}
    learner = learners.create(name, vectors, **{**SHORT, "network": network, "weight_decay": 0.1}, **more)
    learner.learn(0)
    learner.learn(1)
    assert torch.equal(next(learner.network.parameters()), before)


@pytest.mark.parametrize("which", ["vectors", "images"])
def test_fisher_equals_per_sample_autograd(which, request):
    stream = request.getfixturevalue(which)
    network = "mlp" if which == "vectors" else "convnet"
    learner = learners.create("ewc", stream, **{**SHORT, "network": network, "epochs": 1})
    learner.learn(0)
    rows = stream.train_rows(0)[:12]
    found = learner.fisher(rows)

    net = learner.network.eval()
    weights = {name: p.detach() for name, p in net.named_parameters()}
    buffers = dict(net.named_buffers())

    def loss(weights, x, y):
        return cross_entropy(functional_call(net, (weights, buffers), (x[None],)), y[None])

    x, y = learner.prepare(stream.train.take(rows)), torch.from_numpy(learner.columns[rows])
    gradients = vmap(grad(loss), (None, 0, 0))(weights, x, y)
    for name, expected in gradients.items():
        torch.testing.assert_close(found[name], expected.square().mean(0), rtol=1e-4, atol=1e-9)


def test_ewc_separate_penalties_are_one(vectors):
    """The kept importance and anchor have the gradient of the sum of one penalty a task."""
    learner = learners.create("ewc", vectors, **SHORT, strength=5.0, fisher_samples=0)
    parts = []
    for task in range(3):
        learner.learn(task)
        weights = {name: p.detach().clone() for name, p in learner.network.named_parameters()}
        parts.append((learner.fisher(vectors.train_rows(task)), weights))
    for p in learner.network.parameters():
        p.data += 0.1 * torch.randn_like(p)
    learner.network.zero_grad()
    penalty(learner.network, learner.importance, learner.anchor).backward()
    for name, p in learner.network.named_parameters():
        expected = torch.zeros_like(p)
        for fisher, weights in parts:
            n = len(weights[name])
            expected[:n] += 2 * fisher[name] * (p.detach()[:n] - weights[name])
        torch.testing.assert_close(p.grad, expected, rtol=1e-3, atol=1e-6)


def test_si_path_is_the_fall_of_the_loss(vectors):
    """Zenke et al., Eq. 3: for small full-batch steps the path integrals add up to the loss that was lost."""
    rows = vectors.train_rows(0)
    learner = learners.create(
        "si", vectors, network="mlp", epochs=60, batch_size=len(rows), lr=0.002, schedule="none", weight_decay=0.0,
        clip=0.0, momentum=0.0,
    )  # fmt: skip
    losses = []
    learner.learn(0, progress=lambda p: losses.append(p.loss))
    total = sum(float(path.sum()) for path in learner.path.values())
    final = float(cross_entropy(learner.outputs(rows)[1], torch.from_numpy(learner.columns[rows])))
    assert total == pytest.approx(losses[0] - final, rel=0.02)


def test_si_adds_the_gradient_of_its_penalty(vectors):
    learner = learners.create("si", vectors, **SHORT, strength=0.7)
    learner.learn(0)
    learner._open(1)
    for p in learner.network.parameters():
        p.data += 0.05 * torch.randn_like(p)
    batch = next(learner.batches(learner.training_rows(1)))
    loss = cross_entropy(learner.network(batch.inputs), batch.columns)
    whole = loss + 0.7 * penalty(learner.network, learner.importance, learner.anchor)
    expected = torch.autograd.grad(whole, list(learner.network.parameters()), retain_graph=True)
    learner.network.zero_grad()
    loss.backward()
    learner.after_backward(batch)
    for p, e in zip(learner.network.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, e)
    assert all((value >= 0).all() for value in learner.importance.values())
    assert not learner.importance["head.weight"][2:].any()  # the new columns are free


@pytest.mark.parametrize("name", ["ewc", "si"])
def test_scalar_parameters_are_held_too(vectors, name):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.gain * x

    learner = learners.create(name, vectors, **SHORT | {"network": models.Network(Scaled(), models.GrowingHead(8))})
    for task in range(2):
        learner.learn(task)
    found = penalty(learner.network, {"backbone.gain": torch.tensor(3.0)}, {"backbone.gain": torch.tensor(1.0)})
    gain = learner.network.backbone.gain.item()
    assert found.item() == pytest.approx(3 * (gain - 1) ** 2, rel=1e-6)
    assert learner.importance["backbone.gain"].shape == () and float(learner.importance["backbone.gain"]) > 0
