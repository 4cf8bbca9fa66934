"""Learners in closed form: each equals an independent computation on all data seen, whatever the order of tasks."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import cosine_similarity

from tood import ToodError, learners
from tood.errors import UnknownNameError
from tood.learners.class_means import ClassMoments, shrink
from tood.models import Network
from tood.streams import Stream

NAMES = ["fecam", "ncm", "ranpac", "slda"]
SETTINGS = {"ranpac": {"width": 40, "ridge": 0.5}}


def learned(name, stream, folder=None, network=None, tasks=None, **settings):
    """A learner after all tasks; vectors go straight to the head."""
    from tood import models

    network = network or models.create("mlp", stream.train.shape, widths=[])
    learner = learners.create(name, stream, network, **{**SETTINGS.get(name, {}), **settings})
    for task in range(len(stream) if tasks is None else tasks):
        learner.learn(task, folder)
    return learner


def data(stream):
    rows = np.concatenate([stream.train_rows(task) for task in range(len(stream))])
    return stream.train.take(rows).astype(np.float64), stream.columns(stream.train.labels[rows])


def answers(learner, x):
    with torch.no_grad():
        return learner.network(torch.from_numpy(np.asarray(x, np.float32))).double().numpy()


@pytest.fixture
def test_set(vectors):
    return vectors.test.take(np.arange(len(vectors.test)))


def assert_same_up_to_a_term_shared_by_classes(found, expected, **tolerance):
    """Softmax, and so every choice between classes, does not change with such a term."""
    np.testing.assert_allclose(
        found - found.mean(1, keepdims=True), expected - expected.mean(1, keepdims=True), **tolerance
    )


def test_ncm_is_the_cosine_to_class_means(vectors, test_set):
    x, y = data(vectors)
    means = np.stack([x[y == c].mean(0) for c in range(6)])
    expected = 16 * cosine_similarity(test_set, means)
    np.testing.assert_allclose(answers(learned("ncm", vectors), test_set), expected, rtol=1e-4, atol=1e-5)


def test_slda_is_linear_discriminant_analysis(vectors, test_set):
    x, y = data(vectors)
    reference = LinearDiscriminantAnalysis(solver="lsqr", priors=np.full(6, 1 / 6)).fit(x, y)
    found = answers(learned("slda", vectors, shrinkage=0.0), test_set)
    assert_same_up_to_a_term_shared_by_classes(found, reference.decision_function(test_set), rtol=1e-3, atol=1e-3)


def test_slda_logits_are_log_likelihoods_with_shrinkage(vectors, test_set):
    from scipy.stats import multivariate_normal

    x, y = data(vectors)
    means = np.stack([x[y == c].mean(0) for c in range(6)])
    covariance = 0.7 * np.cov((x - means[y]).T, bias=True) + 0.3 * np.eye(8)
    expected = np.stack([multivariate_normal(m, covariance).logpdf(test_set) for m in means], 1)
    found = answers(learned("slda", vectors, shrinkage=0.3), test_set)
    assert_same_up_to_a_term_shared_by_classes(found, expected, rtol=1e-3, atol=1e-4)


def test_fecam_is_the_mahalanobis_distance_of_its_paper(test_set):
    rng = np.random.default_rng(2)
    y = np.arange(240) % 6
    centres = rng.uniform(0.5, 3, (6, 8))
    x = np.maximum(centres[y] + rng.normal(size=(240, 8)) * 0.4, 0).astype(np.float32)
    stream = Stream.from_arrays(x, y, x, y, tasks=3, name="positive")
    g = np.sqrt(x.astype(np.float64))
    means = np.stack([g[y == c].mean(0) for c in range(6)])
    cov = np.cov((g - means[y]).T, bias=True)
    off = ~np.eye(8, dtype=bool)
    cov = cov + np.where(off, cov[off].mean(), np.diag(cov).mean())
    inverse = np.linalg.inv(cov / np.sqrt(np.outer(np.diag(cov), np.diag(cov))))
    unit, centre = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (g, means))
    away = unit[:, None] - centre
    distance = np.einsum("ncd,de,nce->nc", away, inverse, away)
    scale = 8 / distance[np.arange(240), y].mean()
    found = answers(learned("fecam", stream), x)
    assert_same_up_to_a_term_shared_by_classes(found, -0.5 * scale * distance, rtol=1e-3, atol=1e-3)
    assert (found.argmax(1) == distance.argmin(1)).all()


def test_ranpac_is_ridge_regression_on_random_features(vectors, test_set):
    x, y = data(vectors)
    learner = learned("ranpac", vectors)
    matrix = torch.randn(8, 40, generator=torch.Generator().manual_seed(0)).numpy().astype(np.float64)
    reference = Ridge(alpha=0.5, fit_intercept=False).fit(np.maximum(x @ matrix, 0), np.eye(6)[y])
    expected = 10 * reference.predict(np.maximum(test_set @ matrix, 0))
    np.testing.assert_allclose(answers(learner, test_set), expected, rtol=1e-3, atol=1e-3)


def test_ranpac_chooses_the_ridge_with_the_least_error_on_a_held_out_fifth(vectors):
    learner = learned("ranpac", vectors, ridge=0.0, tasks=1)
    rng = np.random.default_rng(5)
    lifted, targets = np.abs(rng.normal(size=(60, 40))), np.eye(2)[rng.integers(0, 2, 60)]
    learner.random = np.random.default_rng(3)
    found = learner._choose(torch.from_numpy(lifted), torch.from_numpy(targets))
    order = np.random.default_rng(3).permutation(60)
    # Ridge regression on everything absorbed before and four fifths of what is new, by the normal equations.
    errors = {}
    for ridge in (10.0**power for power in range(-8, 10)):
        x, y = lifted[order[12:]], targets[order[12:]]
        gram = learner.gram.numpy() + x.T @ x + ridge * np.eye(40)
        weight = np.linalg.solve(gram, learner.sums.numpy() + x.T @ y)
        errors[ridge] = np.square(lifted[order[:12]] @ weight - targets[order[:12]]).mean()
    assert found == min(errors, key=errors.get)


@pytest.mark.parametrize("name", NAMES)
def test_tasks_one_by_one_give_the_same_head_as_all_at_once(vectors, test_set, name):
    import dataclasses

    together = dataclasses.replace(vectors, sizes=(6,))
    np.testing.assert_allclose(
        answers(learned(name, vectors), test_set), answers(learned(name, together), test_set), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_linear_in_features_and_survive_saving(vectors, test_set, tmp_path, name):
    learner = learned(name, vectors)
    x = torch.from_numpy(test_set)
    weight, bias = learner.network.effective_head()
    with torch.no_grad():
        features = learner.network.features(x)
        assert torch.equal(learner.network(x), torch.nn.functional.linear(features, weight, bias))
        learner.network.save(tmp_path / "net.safetensors")
        assert torch.equal(Network.load(tmp_path / "net.safetensors")(x), learner.network(x))


@pytest.mark.parametrize("name", ["fecam", "ranpac"])
def test_on_images_the_backbone_stays_as_it_was(images, name):
    from tood import models

    network = models.create("convnet", (8, 8, 3), seed=1).eval()
    before = {key: value.clone() for key, value in network.backbone.state_dict().items()}
    learner = learned(name, images, network=network)
    after = network.backbone.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    rows = np.arange(96)
    found = learner.predict(*learner.outputs(rows))
    assert (found == images.columns(images.train.labels)).mean() > 0.8  # the classes differ in brightness


def test_ber_trains_a_second_head_and_leaves_the_solved_one(vectors):
    plain = learned("slda", vectors, tasks=1)
    learner = learned("slda", vectors, tasks=1, finetune="ber", ber_epochs=1)
    assert torch.equal(learner.network.head.weight, plain.network.head.weight)
    assert not torch.equal(learner.scoring_head.weight, plain.network.head.weight)


def test_moments_of_a_class_that_arrives_in_pieces_are_those_of_the_whole():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 4)) + 3, np.arange(50) % 3
    moments = ClassMoments(4)
    for part in np.array_split(np.arange(50), 4):
        moments.add(torch.from_numpy(x[part]), torch.from_numpy(y[part]))
    means = np.stack([x[y == c].mean(0) for c in range(3)])
    np.testing.assert_allclose(moments.mean, means)
    np.testing.assert_allclose(moments.covariance(), np.cov((x - means[y]).T, bias=True))


def test_settings_of_gradient_descent_are_unknown_here(vectors):
    with pytest.raises(UnknownNameError, match="unknown setting 'epochs'"):
        learners.create("slda", vectors, epochs=3)
    with pytest.raises(ToodError, match="scale: expected"):
        learners.create("ncm", vectors, scale="large")


def of_features(x):
    """A stream of two classes, one task."""
    x, y = np.asarray(x, np.float32), np.arange(len(x)) % 2
    return Stream.from_arrays(x, y, x, y, tasks=1, mean=(0.0,), std=(1.0,), name="made")


def test_a_constant_feature_needs_shrinkage():
    x = np.random.default_rng(0).uniform(1, 2, (40, 3))
    x[:, 1] = 1
    for name, setting in (("slda", "shrinkage"), ("fecam", "shrink_diagonal")):
        with pytest.raises(ToodError, match=f"{setting}: leaves the covariance of the features singular; raise it"):
            learned(name, of_features(x), **{setting: 0.0})
        assert np.isfinite(answers(learned(name, of_features(x), **{setting: 0.01}), x)).all()


def test_fecam_shrinks_a_single_variance():
    """One feature has no covariances, so only its variance is shrunk."""
    found = shrink(torch.tensor([[2.0]]), 0.5, 3.0)
    np.testing.assert_allclose(found, [[3.0]])
    x = np.random.default_rng(0).normal(size=(40, 1)) + np.tile([-1.0, 1.0], 20)[:, None]
    assert np.isfinite(answers(learned("fecam", of_features(x)), x)).all()


@pytest.mark.parametrize("x", [np.linspace(1, 2, 40)[:, None], np.ones((40, 3))])
def test_fecam_refuses_features_that_differ_in_length_only(x):
    with pytest.raises(ToodError, match="features: FeCAM compares directions; expected some that vary within a class"):
        learned("fecam", of_features(x))
