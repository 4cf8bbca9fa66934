"""Detectors that run the network again. They need torch; they leave the network as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from tood.arrays import FloatArray, is_tensor
from tood.detectors.bank import Sample
from tood.detectors.base import Detector, FitData, Rows, choice, number, register, setting
from tood.detectors.shaping import LARGEST_EXPONENT
from tood.detectors.statistics import ratio
from tood.energy import logsumexp
from tood.errors import MissingDependencyError, ToodError

if TYPE_CHECKING:
    import torch

PERCENTILES = tuple(combinations((60, 65, 70, 75, 80, 85, 90, 95, 99), 2))  # AdaScale's grid
BATCH = 128  # small enough for the activations of a small network to stay in the cache


@contextmanager
def _undisturbed(network: Any) -> Iterator[None]:
    """Context with evaluation mode and gradients of inputs; each module's own mode is restored afterwards."""
    import torch

    from tood.outputs.extraction import evaluating

    with evaluating(network), torch.inference_mode(False), torch.enable_grad():
        yield


def _batches(network: Any, inputs: Any) -> Iterator[torch.Tensor]:
    """Inputs as leaf tensors on the network's device, in batches."""
    import torch

    parameter = next(iter(network.parameters()), torch.zeros(()))
    for start in range(0, len(inputs), BATCH):
        part = torch.as_tensor(inputs[start : start + BATCH]).to(parameter.device, parameter.dtype)
        yield part.detach().clone().requires_grad_(True)


def _at_least_single(values: torch.Tensor) -> torch.Tensor:
    """Half precision as float32: NumPy has no bfloat16, and sums would lose digits."""
    return values.float() if values.is_floating_point() and values.element_size() < 4 else values


def _is_deviation(value: Any) -> bool:
    each = np.atleast_1d(np.asarray(value))
    return each.ndim == 1 and len(each) > 0 and each.dtype.kind in "iuf" and bool(((each > 0) & (each < np.inf)).all())


def _is_range(value: Any) -> bool:
    pair = np.asarray(value)
    return pair.shape == (2,) and pair.dtype.kind in "iuf" and bool(0 <= pair[0] <= pair[1] <= 100)


class _Networked(Detector):
    def _check_network(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingDependencyError("torch", "torch", f"the {self.name} detector") from error
        if not isinstance(self.network, torch.nn.Module):
            raise ToodError(f"network: expected a torch.nn.Module, found {type(self.network).__name__}")


@register
class ODIN(_Networked):
    """Softmax at a high temperature after a small step of the input towards its predicted class.

    ``x' = x - ε · s / std`` with s the sign of the gradient of the cross-entropy at temperature T (0 counts as +1); the
    score is the largest softmax probability of ``x'`` at T. Parameters collect no gradients.

    Parameters
    ----------
    temperature:
        T > 0.
    epsilon:
        ε ≥ 0, the step in pixel units, 0 to 1.
    std:
        The standard deviation that normalisation divided inputs by: one number, or one per channel.
    """

    name = "odin"
    title = "ODIN"
    needs = frozenset({"network", "inputs"})
    fits_on = "none"
    citation = (
        "Liang et al., Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks, ICLR 2018"
    )
    temperature: float = number(1000.0, 1e-6, 1e9, grid=(1.0, 10.0, 100.0, 1000.0))
    epsilon: float = number(0.0014, 0, 1e3, grid=(0.0014, 0.0028))
    std: float | tuple[float, ...] = setting(0.5, _is_deviation, "a positive number, or one per channel")

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        import torch

        self._check_network()
        scores = []
        with _undisturbed(self.network):
            for x in _batches(self.network, rows.inputs):
                logits = self.network(x) / self.temperature
                # Summed, not averaged: a sample's gradient must not depend on how many are scored with it.
                loss = torch.nn.functional.cross_entropy(logits, logits.argmax(dim=1), reduction="sum")
                (gradient,) = torch.autograd.grad(loss, x)
                with torch.no_grad():
                    step = gradient.ge(0).to(x.dtype).mul_(-2).add_(1)  # minus the sign of the gradient
                    moved = self.network(step.mul_(self.epsilon / self._std(x)).add_(x)) / self.temperature
                    scores.append(moved.cpu().double().softmax(dim=1).amax(dim=1).numpy())
        return np.concatenate(scores)

    def _std(self, x: torch.Tensor) -> torch.Tensor:
        std = np.atleast_1d(np.asarray(self.std))
        if len(std) not in (1, x.shape[1]):
            raise ToodError(f"std: expected one number, or {x.shape[1]}, one per channel, found {len(std)}")
        import torch

        return torch.as_tensor(std, dtype=x.dtype, device=x.device).reshape(-1, *[1] * (x.ndim - 2))


@register
class AdaScale(_Networked):
    """SCALE whose percentile follows from how strongly a sample's features react to a small change of its input.

    The change is 0.5, by sign of the gradient of the predicted logit, on the input elements that matter least to it.
    ``Q' = Σ_{top k1 of z} relu(z') + λ Σ_{top k2 of z} |z - z'|`` places the sample in the distribution of Q' on fit
    samples; the more it resembles them the lower the percentile p between the two given. With
    ``r = Σ relu(z) / Σ_{top D - round(D·p/100)} relu(z)``, variant ``a`` scores the energy of ``head(z · e^r)``, ``l``
    that of ``head(z) · r²``. A feature without a positive part has r = 1, its lower bound.

    If k1, k2 or the number of input elements rounds down to zero, one is used, with a warning. The TOOD authors' code
    uses none: in their 64 dimensions k2 = 1 % drops the second term. ``k2=0`` does the same.

    Parameters
    ----------
    variant:
        ``"a"`` (activations) or ``"l"`` (logits).
    percentiles:
        The lowest and the highest percentile, 0 to 100.
    k1, k2:
        Numbers of dimensions, in percent of D.
    weight:
        λ ≥ 0.
    share:
        Share of the input's elements that are changed, 0 to 1.
    samples:
        Largest number of fit samples that are run; a seeded sample.
    seed:
        Seed of that sample.
    """

    name = "adascale"
    title = "AdaScale"
    needs = frozenset({"head", "network", "inputs"})
    citation = "Regmi, AdaSCALE: Adaptive Scaling for OOD Detection, 2025 (arXiv 2503.08023)"
    variant: str = choice("a", "l", searched=False)
    percentiles: tuple[float, float] = setting((75, 85), _is_range, "a low and a high one, 0 to 100", PERCENTILES)
    k1: float = number(5, 0, 100, refit=True)
    k2: float = number(1, 0, 100, refit=True)
    weight: float = number(10, 0, 1e9, refit=True)
    share: float = number(0.05, 0, 1, refit=True)
    samples: int = number(5000, 1, whole=True, refit=True)
    seed: int = number(0, 0, 1 << 63, whole=True, refit=True)

    def _fit(self, data: FitData) -> None:
        sample = Sample(self.samples, self.seed)
        for rows in data:
            inputs = rows.inputs
            inputs = _at_least_single(inputs).detach().cpu().numpy() if is_tensor(inputs) else np.asarray(inputs)
            sample.add(inputs, np.zeros(len(inputs), dtype=np.int64), inputs)
        self.reactions_ = np.sort(self._run(sample.parts[2], warn=True)[1])  # of at most `samples`

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        features, reactions = self._run(rows.inputs)
        rank = np.searchsorted(self.reactions_, reactions, side="right") / len(self.reactions_)
        low, high = self.percentiles
        percentile = low + (1 - rank) * (high - low)
        dimensions = features.shape[1]
        kept = np.maximum(1, dimensions - np.round(dimensions * percentile / 100).astype(np.int64))
        sums = np.cumsum(-np.sort(-np.maximum(features, 0), axis=1), axis=1)  # of the 1, 2, ... D largest
        r = ratio(sums[:, -1], sums[np.arange(len(sums)), kept - 1], otherwise=1)
        logits = features @ self.weight_.T.astype(features.dtype)
        if self.variant == "a":
            return logsumexp(logits * np.exp(np.minimum(r, LARGEST_EXPONENT))[:, None] + self.bias_)
        return logsumexp((logits + self.bias_) * (r * r)[:, None])

    def _run(self, inputs: Any, warn: bool = False) -> tuple[FloatArray, FloatArray]:
        """Features ``[n, D]`` and reactions Q' ``[n]``."""
        import torch

        self._check_network()
        if not hasattr(self.network, "features"):
            raise ToodError("network: expected a method features; tood.models.Network.wrap(module) gives it one")
        features, reactions = [], []
        with _undisturbed(self.network):
            for x in _batches(self.network, inputs):
                z = _at_least_single(self.network.features(x))
                weight, bias = (torch.as_tensor(a).to(z) for a in (self.weight_, self.bias_))
                (gradient,) = torch.autograd.grad((z @ weight.T + bias).amax(dim=1).sum(), x)
                with torch.no_grad():
                    changed = _nudged(x, gradient, self._count(self.share, x[0].numel(), "share", warn))
                    moved = _at_least_single(self.network.features(changed))
                    z = z.detach()
                    k1, k2 = (self._count(getattr(self, k) / 100, z.shape[1], k, warn) for k in ("k1", "k2"))
                    top = z.topk(max(k1, k2), dim=1).indices
                    reaction = moved.relu().gather(1, top[:, :k1]).sum(dim=1)
                    reaction += self.weight * (z - moved).abs().gather(1, top[:, :k2]).sum(dim=1)
                features.append(z.cpu().numpy())
                reactions.append(reaction.cpu().numpy())
                warn = False
        return np.concatenate(features), np.concatenate(reactions)

    def _count(self, share: float, total: int, name: str, warn: bool) -> int:
        if share > 0 and warn and int(share * total) == 0:
            self._warn(f"{name} = {getattr(self, name)!r} of {total} rounds down to none; one is used")
        return max(int(share * total), int(share > 0))


def _nudged(x: torch.Tensor, gradient: torch.Tensor, count: int) -> torch.Tensor:
    """``x`` with 0.5 added, by sign of the gradient, to the ``count`` elements of each sample where it is smallest."""
    import torch

    flat = gradient.flatten(1)
    least = flat.abs().topk(count, dim=1, largest=False).indices
    step = torch.zeros_like(flat).scatter_(1, least, flat.gather(1, least).sign() * 0.5)
    return x + step.reshape(x.shape)
