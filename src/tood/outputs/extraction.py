"""Outputs of any torch model: logits, penultimate features and labels, in one forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tood.errors import ToodError
from tood.outputs.outputs import Outputs

__all__ = ["evaluating", "extract", "logits_of"]

BATCH = 256  # rows per batch if one tensor or a data set is given
LABELS = ("labels", "label")


def extract(model: nn.Module, batches: Iterable[Any], features: bool | str = True) -> Outputs:
    """Run a model over batches and return its outputs as NumPy arrays.

    The model is used in evaluation mode, without gradients, on its own device; its mode is restored.

    Parameters
    ----------
    model:
        Any ``nn.Module``: a plain module, a :class:`tood.models.Network`, a timm model, a Hugging Face model. It
        returns logits ``[n, C]``, or an object or dictionary with ``logits``, or a tuple that begins with them.
    batches:
        A ``DataLoader``, a torch ``Dataset``, one tensor, or any iterable of batches. A batch is a tensor, a pair
        ``(inputs, labels)``, or a dictionary: its entry ``labels`` (or ``label``) holds the labels, the others are
        passed to the model by name (``pixel_values``, ``input_ids``, ``attention_mask``). Wrap them in ``tqdm`` for a
        progress bar.
    features:
        True for the input of the last linear layer, ``[n, D]``; False for none; or the name of the module whose
        input is wanted.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> outputs = extract(model, [(torch.zeros(5, 4), torch.tensor([0, 1, 0, 1, 1]))])
    >>> outputs.logits.shape, outputs.features.shape, outputs.labels
    ((5, 2), (5, 3), array([0, 1, 0, 1, 1]))
    """
    if not isinstance(model, nn.Module):
        raise ToodError(f"model: expected a torch.nn.Module, found {type(model).__name__}")
    collected: dict[str, list[np.ndarray[Any, Any]]] = {"logits": [], "features": [], "labels": []}
    with evaluating(model), torch.inference_mode(), _recording(model, features) as last:
        for batch in _batches(batches):
            arguments, named, labels = _split(model, batch)
            logits = logits_of(model(*arguments, **named))
            collected["logits"].append(_array(logits))
            if features is not False:
                collected["features"].append(_array(_features(last, logits, features)))
            if labels is not None:
                collected["labels"].append(_labels(labels, len(logits)))
    if not collected["logits"]:
        raise ToodError("batches: expected at least one batch, found none")
    if len(collected["labels"]) not in (0, len(collected["logits"])):
        raise ToodError(
            f"batches: expected labels in all batches or in none, found them in {len(collected['labels'])} "
            f"of {len(collected['logits'])}"
        )
    return Outputs(*(np.concatenate(chunks) if chunks else None for chunks in collected.values()))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Context in evaluation mode; each module's own mode is restored afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def logits_of(output: Any) -> Tensor:
    """The logits ``[n, C]`` in a model's output: a tensor, ``output.logits``, ``output["logits"]`` or a tuple."""
    logits = output
    if not isinstance(logits, Tensor):
        logits = logits.get("logits") if isinstance(logits, Mapping) else getattr(logits, "logits", logits)
    if isinstance(logits, (tuple, list)) and logits:
        logits = logits[0]
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        returned = f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(output).__name__
        raise ToodError(f"model: expected it to return logits [n, C], or an object with them, found {returned}")
    return logits


@contextmanager
def _recording(model: nn.Module, wanted: bool | str) -> Iterator[list[Any]]:
    """Context in which a list holds input and output of the last linear layer that ran, or of a named module."""
    modules = dict(model.named_modules())
    if isinstance(wanted, str) and wanted not in modules:
        raise ToodError(f"features: the model has no module {wanted!r}")
    last: list[Any] = [None, None]

    def keep(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        last[:] = inputs[0] if inputs else None, output

    hooks = [
        module.register_forward_hook(keep)
        for name, module in modules.items()
        if name == wanted or (wanted is True and (isinstance(module, nn.Linear) or hasattr(module, "effective")))
    ]
    try:
        yield last
    finally:
        for hook in hooks:
            hook.remove()


def _features(last: list[Any], logits: Tensor, wanted: bool | str) -> Tensor:
    """``[n, D]`` of the batch that gave these logits."""
    features, output = last
    last[:] = None, None
    problem = f"the input of {wanted!r} is not [{len(logits)}, D]"
    found = isinstance(features, Tensor) and features.ndim == 2 and len(features) == len(logits)
    if wanted is True:
        problem = "no linear layer returns the model's logits"
        found = isinstance(features, Tensor) and isinstance(output, Tensor)
        if found and output.ndim == 3 and output.shape[::2] == logits.shape:
            # The head of a text decoder reads every token, and the model returns the logits of one of them.
            token = (output.to(logits.dtype) == logits[:, None]).all(dim=2).int().argmax(dim=1)
            rows = torch.arange(len(logits), device=token.device)
            features, output = features[rows, token], output[rows, token]
        found = found and (output is logits or torch.equal(output.to(logits.dtype), logits))
    if not found:
        raise ToodError(
            f'features: {problem}; name the module whose input the features are (features="fc"), or pass features=False'
        )
    return cast(Tensor, features)


def _batches(batches: Any) -> Iterable[Any]:
    if isinstance(batches, Tensor):
        batches = torch.split(batches, BATCH)
    elif isinstance(batches, Dataset):
        batches = DataLoader(batches, batch_size=BATCH)
    if isinstance(batches, Mapping) or not isinstance(batches, Iterable):
        raise ToodError(f"batches: expected an iterable of batches, found {type(batches).__name__}")
    return batches


def _split(model: nn.Module, batch: Any) -> tuple[list[Any], dict[str, Any], Any]:
    """Positional and named arguments of the model, on its device, and the labels."""
    if isinstance(batch, Mapping):
        labels = batch.get("label", batch.get("labels"))
        named = {name: x for name, x in batch.items() if name not in LABELS and isinstance(x, (Tensor, np.ndarray))}
        named = {name: _tensor(model, x) for name, x in named.items()}
        parameters = inspect.signature(model.forward).parameters
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return [], named, labels
        if taken := {name: tensor for name, tensor in named.items() if name in parameters}:
            return [], taken, labels
        if len(named) == 1:  # one entry of another name is passed by position
            return [*named.values()], {}, labels
        raise ToodError(f"batches: expected entries named {', '.join(parameters)}, found {', '.join(named) or 'none'}")
    labels = None
    if isinstance(batch, (tuple, list)) and batch:
        labels = batch[1] if len(batch) > 1 else None
        batch = batch[0]
    if not isinstance(batch, (Tensor, np.ndarray)):
        raise ToodError(f"batches: expected tensors, (inputs, labels) or dictionaries, found {type(batch).__name__}")
    return [_tensor(model, batch)], {}, labels


def _tensor(model: nn.Module, x: Any) -> Tensor:
    """``x`` on the model's device; real numbers in the model's precision."""
    tensor = torch.as_tensor(x)
    parameter = next(iter(model.parameters()), None)
    if parameter is None:
        return tensor
    return tensor.to(parameter.device, parameter.dtype if tensor.is_floating_point() else None)


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A NumPy array; half precision becomes float32."""
    return (tensor if tensor.dtype == torch.float64 else tensor.float()).cpu().numpy()


def _labels(labels: Any, count: int) -> np.ndarray[Any, Any]:
    array = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise ToodError(f"labels: expected {count} whole numbers, found shape {array.shape}, dtype {array.dtype}")
    return array.astype(np.int64)
