"""Outputs of any torch model: logits, penultimate features and labels, in one forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tood.detectors.outputs import Outputs
from tood.errors import ToodError
from tood.models.head import Head

__all__ = ["evaluating", "extract", "logits_of"]

BATCH = 256  # rows per batch if one tensor or a data set is given
LABELS = ("labels", "label")
Progress: TypeAlias = Callable[[int, "int | None"], object]


def extract(
    model: nn.Module,
    batches: Iterable[Any],
    features: bool | str = True,
    progress: Progress | None = None,
) -> Outputs:
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
        passed to the model by name (``pixel_values``, ``input_ids``, ``attention_mask``).
    features:
        True for the input of the last linear layer, ``[n, D]``; False for none; or the name of the module whose
        input is wanted.
    progress:
        Called after each batch with the number of batches done and their total, None if unknown.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> outputs = extract(model, [(torch.zeros(5, 4), torch.tensor([0, 1, 0, 1, 1]))])
    >>> outputs.logits.shape, outputs.features.shape, outputs.labels
    ((5, 2), (5, 3), array([0, 1, 0, 1, 1]))
    """
    if not isinstance(model, nn.Module):
        raise ToodError(f"model: expected a torch.nn.Module, found {type(model).__name__}")
    batches, total = _batches(batches)
    collected: dict[str, list[np.ndarray[Any, Any]]] = {"logits": [], "features": [], "labels": []}
    with evaluating(model), torch.inference_mode(), _Recorder(model, features) as recorder:
        for done, batch in enumerate(batches, 1):
            arguments, named, labels = _split(model, batch)
            logits = logits_of(model(*arguments, **named))
            collected["logits"].append(_array(logits))
            if features is not False:
                collected["features"].append(_array(recorder.features(logits)))
            if labels is not None:
                collected["labels"].append(_labels(labels, len(logits)))
            if progress is not None:
                progress(done, total)
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


class _Recorder:
    """Forward hooks that keep the input of the last linear layer that ran, or of a named module."""

    def __init__(self, model: nn.Module, wanted: bool | str) -> None:
        self.wanted = wanted
        self._last: tuple[Any, Any] | None = None
        modules = dict(model.named_modules())
        if isinstance(wanted, str):
            if wanted not in modules:
                raise ToodError(f"features: the model has no module {wanted!r}")
            self._modules = [modules[wanted]]
        else:
            self._modules = [m for m in modules.values() if isinstance(m, (nn.Linear, Head))] if wanted else []

    def __enter__(self) -> _Recorder:
        self._hooks = [module.register_forward_hook(self._keep) for module in self._modules]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _keep(self, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self._last = inputs[0] if inputs else None, output

    def features(self, logits: Tensor) -> Tensor:
        """``[n, D]`` of the batch that gave these logits."""
        features, output = self._last or (None, None)
        self._last = None
        if isinstance(self.wanted, str):
            if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(logits):
                shape = tuple(features.shape) if isinstance(features, Tensor) else "none"
                raise ToodError(f"features: expected [{len(logits)}, D] as input of {self.wanted!r}, found {shape}")
        elif not (
            isinstance(features, Tensor)
            and isinstance(output, Tensor)
            and (output is logits or torch.equal(output.to(logits.dtype), logits))
        ):
            raise ToodError(
                "features: no linear layer returns the model's logits; name the module whose input the features are "
                '(features="fc"), or pass features=False'
            )
        return features


def _batches(batches: Any) -> tuple[Iterable[Any], int | None]:
    """An iterable of batches, and their number if it is known."""
    if isinstance(batches, Tensor):
        batches = torch.split(batches, BATCH)
    elif isinstance(batches, Dataset):
        batches = DataLoader(batches, batch_size=BATCH)
    if isinstance(batches, Mapping) or not isinstance(batches, Iterable):
        raise ToodError(f"batches: expected an iterable of batches, found {type(batches).__name__}")
    try:
        return batches, len(batches)  # type: ignore[arg-type]
    except TypeError:  # a generator, or a loader of an endless data set
        return batches, None


def _split(model: nn.Module, batch: Any) -> tuple[list[Any], dict[str, Any], Any]:
    """Positional and named arguments of the model, on its device, and the labels."""
    labels = None
    if isinstance(batch, Mapping):
        entries = dict(batch)
        for key in LABELS:
            labels = entries.pop(key, labels)
        named = {name: _tensor(model, x) for name, x in entries.items() if isinstance(x, (Tensor, np.ndarray))}
        return *_accepted(model, named), labels
    if isinstance(batch, (tuple, list)) and batch:
        labels = batch[1] if len(batch) > 1 else None
        batch = batch[0]
    if not isinstance(batch, (Tensor, np.ndarray)):
        raise ToodError(f"batches: expected tensors, (inputs, labels) or dictionaries, found {type(batch).__name__}")
    return [_tensor(model, batch)], {}, labels


def _accepted(model: nn.Module, named: dict[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The entries of a dictionary that ``forward`` names; a single other entry is passed by position."""
    parameters = inspect.signature(model.forward).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return [], named
    taken = {name: tensor for name, tensor in named.items() if name in parameters}
    if taken:
        return [], taken
    if len(named) == 1:
        return list(named.values()), {}
    raise ToodError(f"batches: expected entries named {', '.join(parameters)}, found {', '.join(named) or 'none'}")


def _tensor(model: nn.Module, x: Any) -> Tensor:
    """``x`` on the model's device; real numbers in the model's precision."""
    tensor = torch.as_tensor(x)
    parameter = next(iter(model.parameters()), None)
    if parameter is None:
        return tensor
    return tensor.to(parameter.device, parameter.dtype if tensor.is_floating_point() else None)


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A NumPy array; half precision becomes float32."""
    tensor = tensor if tensor.dtype == torch.float64 else tensor.float()
    array: np.ndarray[Any, Any] = tensor.cpu().numpy()
    return array


def _labels(labels: Any, count: int) -> np.ndarray[Any, Any]:
    array = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise ToodError(f"labels: expected {count} whole numbers, found shape {array.shape}, dtype {array.dtype}")
    return array.astype(np.int64)
