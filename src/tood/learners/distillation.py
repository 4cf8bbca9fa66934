"""Knowledge distillation."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """``-mean_batch Σ_c softmax(teacher / T)_c · log softmax(logits / T)_c``, without the factor T².

    Parameters
    ----------
    logits, teacher:
        ``[n, C]`` of the same columns; both softmaxes run over the columns.
    temperature:
        T.

    References
    ----------
    Hinton et al., "Distilling the Knowledge in a Neural Network", 2015.
    """
    return cross_entropy(logits / temperature, (teacher / temperature).softmax(1))
