import numpy as np
import pytest

from tood.errors import ToodError
from tood.paper import toy

SMALL = toy.Settings(tasks=3, train=40, exemplars=10, test=30, ood=50, hidden=16, epochs=2, batch=32)


@pytest.fixture(scope="module")
def results():
    """The experiment itself on two seeds."""
    return {(r.regime, r.seed): r for r in toy.runs([0, 1])}


def network(rng, classes=5):
    return toy.linear(rng, 16, 8) + toy.linear(rng, 8, 8) + toy.linear(rng, 8, classes)


def torch_network(parameters):
    torch = pytest.importorskip("torch")
    layers = []
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        layer = torch.nn.Linear(*weight.shape)
        layer.weight.data, layer.bias.data = torch.tensor(weight.T.copy()), torch.tensor(bias)
        layers += [layer, torch.nn.ReLU()]
    return torch, torch.nn.Sequential(*layers[:-1])


def test_gradients_are_those_of_autograd():
    rng = np.random.default_rng(0)
    parameters = [p.astype(np.float64) for p in network(rng)]
    inputs, labels = rng.normal(size=(20, 16)), rng.integers(5, size=20)
    torch, model = torch_network(parameters)
    torch.nn.functional.cross_entropy(model(torch.tensor(inputs)), torch.tensor(labels)).backward()
    expected = [p.grad.numpy().T for p in model.parameters()]
    for ours, theirs in zip(toy.gradients(parameters, inputs, labels), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_training_takes_the_steps_of_torch_sgd():
    rng = np.random.default_rng(1)
    parameters = network(rng)
    inputs, labels = rng.normal(size=(50, 16)).astype(np.float32), rng.integers(5, size=50)
    torch, model = torch_network(parameters)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    toy.train(parameters, inputs, labels, toy.Settings(epochs=3, batch=32), np.random.default_rng(2))
    order = np.random.default_rng(2)
    for _ in range(3):
        for batch in np.split(order.permutation(50), [32]):
            optimizer.zero_grad()
            logits = model(torch.tensor(inputs[batch]))
            torch.nn.functional.cross_entropy(logits, torch.tensor(labels[batch])).backward()
            optimizer.step()
    for ours, theirs in zip(parameters, model.parameters(), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy().T, atol=1e-5)


def test_the_geometry_is_the_stated_one():
    separated, crowded = toy.sample("separated", 3), toy.sample("crowded", 3)
    assert separated.train.shape == (16, 400, 16) and separated.ood.shape == (2000, 16)
    for samples, radius in ((separated, 4.0), (crowded, 1.0)):
        np.testing.assert_allclose(np.linalg.norm(samples.centres, axis=1), radius, rtol=1e-6)
        for points in (samples.train, samples.test):
            noise = points - samples.centres[:, None]
            assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02
    assert abs(separated.ood.mean()) < 0.02 and abs(separated.ood.std() - 1) < 0.02
    np.testing.assert_allclose(crowded.centres * 4, separated.centres, rtol=1e-6)
    assert not np.allclose(separated.centres, toy.sample("separated", 4).centres)
    authors = toy.sample("crowded_authors", 3)
    np.testing.assert_allclose(np.linalg.norm(authors.centres, axis=1), 1.4, rtol=1e-6)
    np.testing.assert_allclose(authors.ood, 0.35 * separated.ood, rtol=1e-6)
    assert [r.regime for r in toy.runs([0], SMALL, regimes=["crowded_authors"])] == ["crowded_authors"]


def assert_same(one, other):
    assert (one.regime, one.seed) == (other.regime, other.seed)
    np.testing.assert_equal(vars(one), vars(other))


def test_a_run_depends_on_its_seed_alone():
    alone = toy.run("no_replay", 1, SMALL)
    together = {(r.regime, r.seed): r for r in toy.runs([0, 1], SMALL)}
    assert_same(alone, together["no_replay", 1])
    assert not np.array_equal(alone.auroc["energy"], together["no_replay", 0].auroc["energy"])


def test_replay_cannot_matter_before_the_second_task(results):
    for seed in (0, 1):
        replayed, not_replayed = results["separated", seed], results["no_replay", seed]
        assert replayed.accuracy[0] == not_replayed.accuracy[0] > 0.95
        assert replayed.accuracy[-1] > 0.75 and not_replayed.accuracy[-1] < 0.25  # forgotten all but the last task


def test_one_task_leaves_nothing_to_calibrate(results):
    for r in results.values():
        first = {values[0, 0] for values in r.auroc.values()} | {r.own_channel[0, 0]}
        np.testing.assert_allclose(list(first), r.auroc["energy"][0, 0], atol=1e-6)
        assert all(gap[0] == 0 for gap in r.gap.values())


def average(r, method, steps=5):
    return 100 * r.trajectory(method, steps).average()


def test_separated_classes_the_gap_opens_and_re_centring_repairs_it(results):
    for seed in (0, 1):
        r = results["separated", seed]
        for method in ("robust anchor, λ=0", "robust anchor, λ=0.5"):
            assert average(r, method) > average(r, "energy") + 1
        assert r.gap["before"][1:].min() > 5
        for variant in ("mean_shift", "robust_anchor"):
            assert abs(r.gap[variant][1:].mean()) < r.gap["before"][1:].mean() / 3
        assert r.trajectory("robust anchor, λ=0").average_forgetting() < r.trajectory("energy").average_forgetting()


def test_crowded_classes_are_near_chance_and_stay_there(results):
    for seed in (0, 1):
        r = results["crowded", seed]
        energy = average(r, "energy")
        assert abs(energy - 50) < 4
        assert all(abs(average(r, method) - energy) < 1.5 for method in toy.METHODS)


def test_without_replay_re_centring_hurts(results):
    for seed in (0, 1):
        r = results["no_replay", seed]
        energy, tood = (r.trajectory(method).by_step() for method in ("energy", "robust anchor, λ=0"))
        assert energy[1] - tood[1] > 0.15
        assert average(r, "robust anchor, λ=0") < average(r, "energy")
        # Why: the old task's own channel ranks its samples below the OOD ones, so there is nothing to re-centre.
        assert r.own_channel[1, 0] < 0.5 < 0.85 < results["separated", seed].own_channel[1, 0]


@pytest.mark.parametrize("seeds", [[], [0, 0], [-1]])
def test_seeds_are_checked(seeds):
    with pytest.raises(ToodError, match="seeds"):
        next(toy.runs(seeds))
