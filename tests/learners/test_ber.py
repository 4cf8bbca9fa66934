"""BER: its losses in closed form, and that it touches nothing but its own head."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp

from tood import ToodError, learners
from tood.learners.ber import BER, BERSettings, energy_losses

SHORT = {"network": "mlp", "epochs": 2, "batch_size": 8, "lr": 0.05, "schedule": "none"}


def test_energy_losses():
    z = np.random.default_rng(0).normal(size=(9, 5)) * 4
    energy = -logsumexp(z, axis=1)
    inside = energy_losses(torch.from_numpy(z), -6.0, inside=True)
    outside = energy_losses(torch.from_numpy(z), -6.0, inside=False)
    assert float(inside) == pytest.approx((np.maximum(energy + 6, 0) ** 2).mean())
    assert float(outside) == pytest.approx((np.maximum(-6 - energy, 0) ** 2).mean())


def test_total_loss():
    rng = np.random.default_rng(1)
    z, new, old = rng.normal(size=(13, 4)) * 3, rng.integers(0, 4, 5), rng.integers(0, 2, 3)
    ber = BER(BERSettings(m_in=-4.0, m_out=-2.0, weight=0.1))
    found = ber._loss(torch.from_numpy(z), [torch.from_numpy(new), torch.from_numpy(old)])

    def parts(z, y):
        ce = -log_softmax(z, axis=1)[np.arange(len(y)), y].mean()
        return ce + 0.1 * (np.maximum(-logsumexp(z, axis=1) + 4, 0) ** 2).mean()

    mixed = 0.1 * (np.maximum(-2 + logsumexp(z[8:], axis=1), 0) ** 2).mean()
    assert float(found) == pytest.approx(parts(z[:5], new) + parts(z[5:8], old) + mixed)


@pytest.mark.parametrize("base", ["icarl", "bic", "lwf", "er"])
def test_base_chain_is_bit_identical_with_and_without(vectors, base):
    plain = learners.create(base, vectors, **SHORT)
    with_ber = learners.create(base, vectors, finetune="ber", **SHORT, ber_epochs=2, ber_lr=1e-3)
    for task in range(3):
        plain.learn(task)
        with_ber.learn(task)
        for (name, a), b in zip(
            plain.network.state_dict().items(), with_ber.network.state_dict().values(), strict=True
        ):
            assert torch.equal(a, b), name
        np.testing.assert_array_equal(plain.memory_rows(), with_ber.memory_rows())
        head, base_head = with_ber.scoring_head, with_ber.network.head
        assert head.columns == base_head.columns == 2 * (task + 1)
        assert not torch.equal(head.weight, base_head.weight)
        assert torch.equal(head.scale, base_head.scale) and torch.equal(head.offset, base_head.offset)
    assert plain.scoring_head is None


def test_a_head_that_diverges_is_an_error(vectors):
    learner = learners.create("er", vectors, finetune="ber", **SHORT, ber_epochs=3, ber_lr=1e4)
    with pytest.raises(ToodError, match=r"BER diverged after task 0: .* set ber_lr below 10000"):
        learner.learn(0)


def interrupt_in_second_epoch(progress):
    if progress.epoch == 1:
        raise KeyboardInterrupt


@pytest.mark.parametrize("finished", [True, False])
def test_it_goes_on_from_the_checkpoints_of_the_learner_without_it(vectors, tmp_path, finished):
    base, seen = learners.create("bic", vectors, **SHORT), []
    base.learn(0, tmp_path / "base")
    if finished:
        base.learn(1, tmp_path / "base")
    else:
        with pytest.raises(KeyboardInterrupt):
            base.learn(1, tmp_path / "base", progress=interrupt_in_second_epoch)
    alone, after = (
        learners.create("bic", vectors, finetune="ber", **SHORT, ber_epochs=2, ber_lr=1e-3) for _ in range(2)
    )
    for task in range(2):
        alone.learn(task)
        after.learn(task, tmp_path / "own", progress=seen.append, base_dir=tmp_path / "base")
        for a, b in zip(
            alone.scoring_head.state_dict().values(), after.scoring_head.state_dict().values(), strict=True
        ):
            assert torch.equal(a, b)
    assert not seen if finished else {(p.task, p.epoch) for p in seen} == {(1, e) for e in range(1, SHORT["epochs"])}
    again = learners.create("bic", vectors, finetune="ber", **SHORT, ber_epochs=2, ber_lr=1e-3)
    again.learn(1, tmp_path / "own", base_dir=tmp_path / "none")
    assert torch.equal(again.scoring_head.weight, alone.scoring_head.weight)


def test_a_base_with_other_settings_is_refused(vectors, tmp_path):
    learners.create("er", vectors, **{**SHORT, "lr": 0.01}).learn(0, tmp_path)
    with pytest.raises(ToodError, match=r"made with settings\.lr = 0\.01, not"):
        learners.create("er", vectors, finetune="ber", **SHORT, ber_epochs=1, ber_lr=1e-3).learn(0, base_dir=tmp_path)


def test_ber_raises_the_energy_score_of_known_samples(vectors):
    learner = learners.create("icarl", vectors, finetune="ber", **SHORT, ber_epochs=5, ber_lr=1e-3)
    learner.learn(0)
    features, logits = learner.outputs(vectors.train_rows(0))
    before = logits.logsumexp(1).mean()
    after = learner.scoring_head(features).logsumexp(1).mean()
    assert after > before + 3  # towards 27


@pytest.mark.parametrize("pool", ["new", "all"])
def test_the_pool_can_hold_the_memory_too(vectors, monkeypatch, pool):
    learner = learners.create(
        "icarl", vectors, finetune="ber", **SHORT, memory=12, ber_epochs=1, ber_lr=1e-3, ber_pool=pool
    )
    learner.learn(0)
    mixed, mix = [], BER._mix
    monkeypatch.setattr(BER, "_mix", lambda ber, who, inputs: mixed.append(len(inputs)) or mix(ber, who, inputs))
    learner.learn(1)
    old = sum(learner.columns[learner.memory_rows()] < 2)
    assert old == 6 and sum(mixed) == 48 + (old if pool == "all" else 0)
