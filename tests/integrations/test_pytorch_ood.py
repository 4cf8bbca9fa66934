"""Against the real pytorch-ood 0.4: its sign, its exceptions, its metrics, its benchmark and its grid search."""

import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from tood import TOOD, ToodError


@pytest.fixture
def loaders(world):
    return DataLoader(TensorDataset(*world.cal), batch_size=50), DataLoader(TensorDataset(*world.test), batch_size=70)


def logits_of(world, x):
    with torch.no_grad():
        return world.net(x)


def test_the_ranking_is_that_of_the_calibrator_reversed(world, loaders, pytorch_ood):
    cal = TOOD(world.tasks).fit(logits_of(world, world.cal[0]), world.cal[1])
    expected = cal.score(logits_of(world, world.test[0]))
    by_loader = pytorch_ood.LogitsDetector(world.net, TOOD(world.tasks)).fit(loaders[0])
    by_name = pytorch_ood.LogitsDetector(world.net, "tood", world.tasks).fit(loaders[0])
    for detector in (by_loader, by_name, pytorch_ood.LogitsDetector(world.net, cal)):
        scores = torch.cat([detector(x) for x, _ in loaders[1]])
        np.testing.assert_array_equal(rankdata(scores), rankdata(-expected))
        np.testing.assert_allclose(scores, -expected, rtol=1e-5)


def test_their_metrics_agree_with_scikit_learn(world, loaders, pytorch_ood):
    from pytorch_ood.metrics import OODMetrics

    detector = pytorch_ood.LogitsDetector(world.net, TOOD(world.tasks)).fit(loaders[0])
    metrics, scores = OODMetrics(), []
    for x, y in loaders[1]:
        scores.append(detector(x))
        metrics.update(scores[-1], y)
    expected = roc_auc_score(world.test[1] < 0, torch.cat(scores))
    assert metrics.compute()["AUROC"] == pytest.approx(expected, abs=1e-6)
    assert expected > 0.8  # higher is OOD there


def test_energy_is_their_energy(world, pytorch_ood):
    from pytorch_ood.detector import EnergyBased

    ours = pytorch_ood.LogitsDetector(world.net, "energy")
    assert not ours.requires_fit
    with torch.no_grad():
        np.testing.assert_allclose(ours(world.test[0]), EnergyBased(world.net)(world.test[0]), rtol=1e-6, atol=1e-6)


def test_their_benchmark_takes_it(world, loaders, pytorch_ood):
    from pytorch_ood.benchmark import Benchmark

    class Small(Benchmark):
        ood_names = ("blobs",)

        def train_set(self):
            return TensorDataset(*world.cal)

        def test_sets(self, known=True, unknown=True):
            return [ConcatDataset([TensorDataset(*world.known)] * known + [TensorDataset(*world.unknown)] * unknown)]

    detector = pytorch_ood.LogitsDetector(world.net, TOOD(world.tasks)).fit(loaders[0])
    (row,) = Small().evaluate([detector], loader_kwargs={"batch_size": 64})
    assert row["AUROC"] == pytest.approx(roc_auc_score(world.test[1] < 0, detector(world.test[0])), abs=1e-6)


def test_ood_samples_are_left_out_of_fit(world, pytorch_ood):
    logits, test = logits_of(world, world.test[0]), logits_of(world, world.cal[0])
    mixed = pytorch_ood.LogitsDetector(None, TOOD(world.tasks)).fit_logits(logits, world.test[1])
    pure = pytorch_ood.LogitsDetector(None, TOOD(world.tasks)).fit_logits(logits[:200], world.test[1][:200])
    assert torch.equal(mixed.predict_logits(test), pure.predict_logits(test))


def test_their_grid_search_finds_the_best_margin(world, loaders, pytorch_ood):
    from pytorch_ood.utils import GridSearch

    detector = pytorch_ood.LogitsDetector(world.net, "tood_robust_anchor", world.tasks)
    search = GridSearch(detector, fit_loader=loaders[0], val_loader=loaders[1])
    search.run()

    def value(margin):
        cal = TOOD(world.tasks, "robust_anchor", margin=margin).fit(logits_of(world, world.cal[0]), world.cal[1])
        return roc_auc_score(world.test[1] >= 0, cal.score(logits_of(world, world.test[0])))

    assert detector.get_hyperparameters()["margin"] == max((0.0, 0.5, 1.0), key=value)


def test_their_exceptions_and_ours(world, pytorch_ood):
    from pytorch_ood.api import ModelNotSetException, RequiresFittingException

    with pytest.raises(RequiresFittingException):
        pytorch_ood.LogitsDetector(world.net, TOOD(world.tasks))(world.test[0])
    with pytest.raises(ModelNotSetException):
        pytorch_ood.LogitsDetector(None, "energy").predict(world.test[0])
    with pytest.raises(ToodError, match="knn reads features or the head"):
        pytorch_ood.LogitsDetector(world.net, "knn")
    with pytest.raises(ToodError, match="odin runs the network again"):
        pytorch_ood.LogitsDetector(world.net, "odin")
    with pytest.raises(ToodError, match="expected a name, a Detector or a TOOD, found list"):
        pytorch_ood.LogitsDetector(world.net, [0, 1])
    with pytest.raises(ToodError, match="unknown hyper-parameter"):
        pytorch_ood.LogitsDetector(world.net, "gen").set_hyperparameters(k=3)
