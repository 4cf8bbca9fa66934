"""Other people's libraries, where they are installed, and stand-ins with their interface where they are not."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest
import torch

TASKS = [[0, 1], [2, 3], [4, 5]]
SIDE = 12


class Net(torch.nn.Module):
    """A rectified layer and a linear head, with the methods that OpenOOD asks of a network."""

    def __init__(self, classes=6, width=16):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIDE, width), torch.nn.ReLU())
        self.fc = torch.nn.Linear(width, classes)

    def forward(self, x, return_feature=False):
        features = self.body(x)
        logits = self.fc(features)
        return (logits, features) if return_feature else logits

    def get_fc(self):
        return self.fc.weight.detach().cpu().numpy(), self.fc.bias.detach().cpu().numpy()


def draw(rng, count, known=True):
    """Blobs around six centres, or, for OOD, nearer the origin; inputs ``[count, 1, SIDE]`` and labels (-1 for OOD)."""
    y = rng.integers(6, size=count)
    centres = 3 * np.eye(6, SIDE)[y]
    x = (centres if known else 0.3 * centres) + rng.normal(size=(count, SIDE)) * 0.7
    return torch.tensor(x[:, None], dtype=torch.float32), torch.tensor(y if known else np.full(count, -1))


@pytest.fixture(scope="session")
def world():
    """A small trained network, its calibration data, and test data of which the last half is OOD."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    net, (x, y) = Net(), draw(rng, 600)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    with torch.no_grad():
        net.fc.bias[:2] -= 3  # the oldest task has shrunk
    (cal_x, cal_y), known, unknown = draw(rng, 300), draw(rng, 200), draw(rng, 200, known=False)
    test = torch.cat([known[0], unknown[0]]), torch.cat([known[1], unknown[1]])
    return SimpleNamespace(net=net.eval(), tasks=TASKS, cal=(cal_x, cal_y), test=test, known=known, unknown=unknown)


@pytest.fixture(scope="session")
def pytorch_ood(peers):
    """The adapter to the real pytorch-ood."""
    return importlib.import_module("tood.integrations.pytorch_ood")


@pytest.fixture(params=["real", "stand-in"])
def openood(request, monkeypatch):
    """The adapter over OpenOOD's own ``BasePostprocessor``, or over a stand-in of it: OpenOOD is not on PyPI.

    In OpenOOD 1.5 the base class keeps the configuration and has setup, postprocess and inference; the evaluator
    refuses what does not inherit from it.
    """
    if request.param == "real":
        if importlib.util.find_spec("openood") is None:
            pytest.skip("OpenOOD is not installed")
        request.getfixturevalue("torchvision")  # which OpenOOD imports
    else:

        class BasePostprocessor:
            def __init__(self, config):
                self.config = config

        package, module = types.ModuleType("openood"), types.ModuleType("openood.postprocessors")
        package.postprocessors, module.BasePostprocessor = module, BasePostprocessor
        monkeypatch.setitem(sys.modules, "openood", package)
        monkeypatch.setitem(sys.modules, "openood.postprocessors", module)
    monkeypatch.delitem(sys.modules, "tood.integrations.openood", raising=False)
    yield importlib.import_module("tood.integrations.openood")
    sys.modules.pop("tood.integrations.openood", None)


@pytest.fixture(params=["real", "stand-in"])
def avalanche(request, monkeypatch):
    """The adapter and a function that trains: with Avalanche itself, or with a stand-in of what the adapter uses of it.

    The stand-in has its classes ``PluginMetric`` and ``MetricValue`` and a strategy that calls back as ``Naive`` does.
    """
    if request.param == "real":
        if importlib.util.find_spec("avalanche") is None:
            pytest.skip("avalanche-lib is not installed")
        request.getfixturevalue("torchvision")  # which Avalanche imports
        train = _train_with_avalanche
    else:
        _pretend_avalanche(monkeypatch)
        train = _train_with_stand_in
    monkeypatch.delitem(sys.modules, "tood.integrations.avalanche", raising=False)
    module = importlib.import_module("tood.integrations.avalanche")
    yield SimpleNamespace(OODMetrics=module.OODMetrics, train=train, real=request.param == "real")
    sys.modules.pop("tood.integrations.avalanche", None)


def _train_with_avalanche(metric, model, train_sets, test_sets, evaluate=lambda step, sets: sets):
    """``(figures after each step, model)``; ``evaluate`` picks what is evaluated after a step."""
    from avalanche.benchmarks import benchmark_from_datasets, with_classes_timeline
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.training.plugins import EvaluationPlugin
    from avalanche.training.supervised import Naive

    def stream(sets):
        for dataset in sets:
            dataset.targets = dataset.tensors[1].tolist()
        return [as_classification_dataset(dataset) for dataset in sets]

    benchmark = with_classes_timeline(benchmark_from_datasets(train=stream(train_sets), test=stream(test_sets)))
    evaluator = EvaluationPlugin(*([metric] if metric else []), loggers=[])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = Naive(
        model=model, optimizer=optimizer, train_mb_size=50, train_epochs=2, eval_mb_size=64, evaluator=evaluator
    )
    figures = [strategy.eval(benchmark.test_stream)]
    for step, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        figures.append(strategy.eval(evaluate(step, benchmark.test_stream)))
    return figures, model


def _pretend_avalanche(monkeypatch):
    class PluginMetric:
        def after_eval_iteration(self, strategy):
            pass

    class MetricValue:
        def __init__(self, origin, name, value, x_plot):
            self.origin, self.name, self.value, self.x_plot = origin, name, value, x_plot

    names = ("avalanche", "avalanche.evaluation", "avalanche.evaluation.metric_results")
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[names[1]].PluginMetric = PluginMetric
    sys.modules[names[2]].MetricValue = MetricValue


def _train_with_stand_in(metric, model, train_sets, test_sets, evaluate=lambda step, sets: sets):
    stream = SimpleNamespace(name="test")
    strategy = SimpleNamespace(model=model, device="cpu", eval_mb_size=64, clock=SimpleNamespace(train_iterations=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    last = {}

    def call(callback):
        results = getattr(metric, callback)(strategy) if metric else None
        last.update({value.name: value.value for value in results or []})

    @torch.no_grad()
    def evaluated(sets):
        model.eval()
        call("before_eval")
        for number, dataset in enumerate(sets):
            strategy.experience = SimpleNamespace(current_experience=number, origin_stream=stream)
            for x, y in torch.utils.data.DataLoader(dataset, batch_size=64):
                strategy.mb_x, strategy.mb_y, strategy.mb_output = x, y, model(x)
                call("after_eval_iteration")
        call("after_eval")
        return dict(last)

    figures = [evaluated(test_sets)]
    for step, dataset in enumerate(train_sets):
        strategy.experience = SimpleNamespace(current_experience=step, origin_stream=SimpleNamespace(name="train"))
        call("before_training_exp")
        model.train()
        for _ in range(2):
            for x, y in torch.utils.data.DataLoader(dataset, batch_size=50, shuffle=True):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                strategy.clock.train_iterations += 1
        figures.append(evaluated(evaluate(step, test_sets)))
    return figures, model
