"""Each test runs with a stand-in of Avalanche's interface and, where avalanche-lib is installed, with the real one."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.utils.data import TensorDataset

from tood import TOOD, ToodError, energy

SEEN = [[4, 1], [0, 2], [5, 3]]  # the classes arrive in an order that is not that of the columns


@pytest.fixture
def sets(world):
    """Training, test and calibration data by experience, and two OOD sets."""

    def split(x, y):
        return [TensorDataset(x[mask], y[mask]) for mask in (torch.isin(y, torch.tensor(task)) for task in SEEN)]

    half = len(world.unknown[0]) // 2
    ood = {"near": TensorDataset(world.unknown[0][:half]), "far": [0 * x for x in world.unknown[0][half:]]}
    return split(*world.cal), split(*world.known), TensorDataset(*world.cal), ood


def new_model(world):
    torch.manual_seed(1)
    return type(world.net)()


def test_the_last_step_is_what_scikit_learn_says(world, sets, avalanche):
    train, test, calibration, ood = sets
    metric = avalanche.OODMetrics(SEEN, ood, calibration)
    figures, model = avalanche.train(metric, new_model(world), train, test)
    order = np.concatenate(SEEN)
    place = torch.tensor(np.argsort(order))
    with torch.no_grad():
        logits = {name: model.eval()(x)[:, order] for name, x in (("id", world.known[0]), ("cal", world.cal[0]))}
        near = model(world.unknown[0][:100])[:, order]
    cal = TOOD([[0, 1], [2, 3], [4, 5]]).fit(logits["cal"], place[world.cal[1]])
    for i, task in enumerate(SEEN):
        mine = torch.isin(world.known[1], torch.tensor(task))
        for name, score in (("energy", energy), ("tood", cal.score)):
            scores = torch.cat([score(logits["id"][mine]), score(near)])
            expected = roc_auc_score(np.r_[np.ones(int(mine.sum())), np.zeros(100)], scores)
            assert figures[-1][f"AUROC_{name}/eval_phase/test_stream/near/Exp{i:03d}"] == pytest.approx(
                expected, abs=1e-4
            )


def test_a_head_that_grows_with_the_stream(world, sets, avalanche):
    """Avalanche's own head widens in training and while later experiences are evaluated."""
    if not avalanche.real:
        pytest.skip("the stand-in has no growing head")
    from avalanche.models import IncrementalClassifier

    train, test, calibration, ood = sets
    model = new_model(world)
    model.fc = IncrementalClassifier(16, initial_out_features=2)
    figures, model = avalanche.train(avalanche.OODMetrics(SEEN, ood, calibration), model, train, test)
    with torch.no_grad():
        known, near = model.eval()(world.known[0]), model(world.unknown[0][:100])
    assert known.shape[1] == 6
    for i, task in enumerate(SEEN):
        mine = torch.isin(world.known[1], torch.tensor(task))
        truth = np.r_[np.ones(int(mine.sum())), np.zeros(100)]
        expected = roc_auc_score(truth, energy(torch.cat([known[mine], near])))
        assert figures[-1][f"AUROC_energy/eval_phase/test_stream/near/Exp{i:03d}"] == pytest.approx(expected, abs=1e-4)
    for step in (1, 2, 3):  # at every step the tasks seen have figures, of both scores
        names = [name for name in figures[step] if name.startswith(("AUROC_energy", "AUROC_tood"))]
        assert len(names) == 2 * len(ood) * step and np.isfinite([figures[step][name] for name in names]).all()


def test_a_model_that_answers_with_distances_is_scored_by_its_training_classifier(world, sets, avalanche):
    """As Avalanche's ICaRL: the model switches from a linear head to distances to class means in evaluation."""

    class TrainEval(torch.nn.Module):
        def __init__(self, net):
            super().__init__()
            self.feature_extractor, self.train_classifier = net.body, net.fc

        def forward(self, x):
            features = self.feature_extractor(x)
            return self.train_classifier(features) if self.training else -torch.cdist(features, torch.eye(6, 16))

    train, test, calibration, ood = sets
    metric = avalanche.OODMetrics(SEEN, ood, calibration)
    figures, model = avalanche.train(metric, TrainEval(new_model(world)), train, test)
    with torch.no_grad():
        inputs = torch.cat([world.known[0][torch.isin(world.known[1], torch.tensor(SEEN[0]))], world.unknown[0][:100]])
        logits = model.train_classifier(model.feature_extractor(inputs))
    expected = roc_auc_score(np.arange(len(inputs)) < len(inputs) - 100, energy(logits))
    assert figures[-1]["AUROC_energy/eval_phase/test_stream/near/Exp000"] == pytest.approx(expected, abs=1e-4)


def test_forgetting_and_averages_follow_from_the_logged_figures(world, sets, avalanche):
    train, test, calibration, ood = sets
    figures, _ = avalanche.train(avalanche.OODMetrics(SEEN, ood, calibration), new_model(world), train, test)
    assert not any("AUROC" in name for name in figures[0])  # before training nothing is in-distribution
    for name in ("energy", "tood"):
        value = lambda t, i: np.mean(  # noqa: E731
            [figures[t + 1][f"AUROC_{name}/eval_phase/test_stream/{s}/Exp{i:03d}"] for s in ood]  # noqa: B023
        )
        assert f"D_avg_{name}/eval_phase/test_stream" not in figures[1]
        assert not any(key.endswith("Exp001") for key in figures[1] if name in key)  # not seen yet
        for t in (1, 2):
            lost = np.mean([value(i, i) - value(t, i) for i in range(t)])
            assert figures[t + 1][f"D_avg_{name}/eval_phase/test_stream"] == pytest.approx(lost, abs=1e-12)
            average = np.mean([value(t, i) for i in range(t + 1)])
            assert figures[t + 1][f"Avg_AUROC_{name}/eval_phase/test_stream"] == pytest.approx(average, abs=1e-12)


def test_training_goes_the_same_with_and_without_it(world, sets, avalanche):
    train, test, calibration, ood = sets
    start = new_model(world)
    trained = []
    for metric in (None, avalanche.OODMetrics(SEEN, ood, calibration)):
        torch.manual_seed(2)
        trained.append(avalanche.train(metric, copy.deepcopy(start), train, test)[1].state_dict())
    for name, weight in trained[0].items():
        assert torch.equal(weight, trained[1][name])
        assert not torch.equal(weight, start.state_dict()[name])


def test_experiences_evaluated_one_at_a_time_add_up(world, sets, avalanche):
    train, test, _, ood = sets
    together, apart = (avalanche.OODMetrics(SEEN, ood) for _ in range(2))
    _, model = avalanche.train(together, new_model(world), train, test)
    stream = SimpleNamespace(name="test")
    strategy = SimpleNamespace(model=model, device=torch.device("cpu"), eval_mb_size=64, clock=None)
    strategy.clock = SimpleNamespace(train_iterations=0)
    strategy.experience = SimpleNamespace(current_experience=2, origin_stream=stream)
    apart.before_training_exp(strategy)
    logged = []
    for dataset in test:
        apart.before_eval(strategy)
        strategy.mb_output, strategy.mb_y = model(dataset.tensors[0]).detach(), dataset.tensors[1]
        apart.after_eval_iteration(strategy)
        logged += apart.after_eval(strategy)
    np.testing.assert_allclose(apart.auroc["test", "energy"][2], together.auroc["test", "energy"][2], atol=1e-12)
    assert np.isfinite([value.value for value in logged]).all()
    apart.before_training_exp(strategy)
    assert apart.auroc["test", "energy"] == {}


def test_a_memory_without_the_new_classes_costs_only_toods_figures(world, sets, avalanche):
    train, test, _, ood = sets
    metric = avalanche.OODMetrics(SEEN, ood, calibration=lambda strategy: train[0])
    with pytest.warns(UserWarning, match="no calibration sample for task 1"):
        avalanche.train(metric, new_model(world), train, test)
    assert set(metric.auroc["test", "tood"]) == {0} and set(metric.auroc["test", "energy"]) == {0, 1, 2}


def test_bad_arguments_are_named(world, sets, avalanche):
    train, test, _, ood = sets
    with pytest.raises(ToodError, match="ood: expected one dataset"):
        avalanche.OODMetrics(SEEN, {})
    with pytest.raises(ToodError, match="tasks: expected the classes of experience 2"):
        avalanche.train(avalanche.OODMetrics([[0, 1, 2], [3, 4, 5]], ood), new_model(world), train, test)
