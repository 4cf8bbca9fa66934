"""Each test runs with a stand-in of OpenOOD 1.5's interface and, where OpenOOD is installed, with the real one."""

import sys

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from tood import TOOD, ToodError
from tood.detectors import Head, Outputs, create


def batches(x, y, size=64):
    """As OpenOOD's loaders: dictionaries, with more in them than is read."""
    return [
        {"data": x[i : i + size], "label": y[i : i + size], "image_name": ["a"] * len(y[i : i + size])}
        for i in range(0, len(x), size)
    ]


def evaluate(postprocessor, net, loaders):
    """What OpenOOD's Evaluator does with a postprocessor, in its order; gives the AUROC and the confidences."""
    assert isinstance(postprocessor, sys.modules["openood.postprocessors"].BasePostprocessor)
    postprocessor.setup(net, loaders["id"], loaders["ood"])
    assert not (postprocessor.APS_mode and not postprocessor.hyperparam_search_done)
    net.eval()
    id_pred, id_conf, id_gt = postprocessor.inference(net, loaders["id"]["test"], False)
    _, ood_conf, ood_gt = postprocessor.inference(net, loaders["ood"]["far"]["blobs"], False)
    label = np.concatenate([id_gt, -1 * np.ones_like(ood_gt)])
    conf = np.concatenate([id_conf, ood_conf])
    return roc_auc_score(label != -1, conf), conf, (id_pred == id_gt).mean()


@pytest.fixture
def loaders(world):
    return {
        "id": {"train": batches(*world.known), "val": batches(*world.cal), "test": batches(*world.known)},
        "ood": {"val": None, "near": {}, "far": {"blobs": batches(*world.unknown)}},
    }


def test_the_confidence_is_the_calibrators_score(world, loaders, openood):
    value, conf, accuracy = evaluate(openood.Postprocessor(TOOD(world.tasks), fit_on="val"), world.net, loaders)
    with torch.no_grad():
        cal = TOOD(world.tasks).fit(world.net(world.cal[0]), world.cal[1])
        expected = cal.score(world.net(world.test[0]))
        predicted = world.net(world.known[0]).argmax(1)
    np.testing.assert_allclose(conf, expected, rtol=1e-5)
    assert value == pytest.approx(roc_auc_score(world.test[1] >= 0, expected), abs=1e-9)
    assert value > 0.8  # higher is ID there
    assert accuracy == float((predicted == world.known[1]).double().mean())


@pytest.mark.filterwarnings("ignore:vim. dim 256 leaves no residual")
@pytest.mark.parametrize("name", ["energy", "vim", "ash", "knn", "tood_mean_shift", "tood_joint"])
def test_detectors_score_as_they_do_alone(world, loaders, openood, name):
    _, conf, _ = evaluate(openood.Postprocessor(name, world.tasks, fit_on="val"), world.net, loaders)

    def outputs(x, labels=None):
        with torch.no_grad():
            return Outputs(*world.net(x, return_feature=True), labels)

    alone = create(name).fit(outputs(*world.cal), partition=world.tasks, head=Head(*world.net.get_fc()))
    np.testing.assert_allclose(conf, alone.score(outputs(world.test[0])), rtol=1e-4, atol=1e-5)


def test_setup_fits_once_and_on_the_loader_named(world, loaders, openood):
    postprocessor = openood.Postprocessor("tood_robust_anchor", world.tasks)
    postprocessor.setup(world.net, loaders["id"], loaders["ood"])
    first = postprocessor.postprocess(world.net, world.test[0])[1]
    postprocessor.setup(world.net, {"train": loaders["id"]["val"]}, None)
    assert torch.equal(postprocessor.postprocess(world.net, world.test[0])[1], first)
    with pytest.raises(ToodError, match=r"fit_on: expected one of train, val, test, found 'valid'"):
        openood.Postprocessor("knn", fit_on="valid").setup(world.net, loaders["id"], None)


def test_labels_and_outputs_may_be_bfloat16(openood):
    values = torch.tensor([0.1, 3.0], dtype=torch.bfloat16)
    assert openood._array(values).tolist() == values.float().tolist()
