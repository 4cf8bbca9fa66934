"""Conversion of arrays: NumPy, torch, lists or data frames in; results of the same kind on the same device out.

Computation is done on NumPy arrays unless a module says otherwise. A CPU tensor is converted without a copy.
"""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar, Union, cast

import numpy as np
import numpy.typing as npt

from tood.errors import ToodError

if TYPE_CHECKING:
    import torch

Array: TypeAlias = Union["npt.NDArray[Any]", "torch.Tensor"]
ArrayT = TypeVar("ArrayT", bound="npt.NDArray[Any] | torch.Tensor")
FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
Float64Array: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
FEW = 64  # numbers that Python checks faster than NumPy is called


def is_tensor(x: object) -> TypeGuard[torch.Tensor]:
    """Whether ``x`` is a torch tensor; never imports torch."""
    if type(x) is np.ndarray:
        return False
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def to_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor as a NumPy array, without a copy if possible; bfloat16, which NumPy does not have, becomes float32."""
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype.is_floating_point and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.float()
    array: npt.NDArray[Any] = tensor.numpy()
    return array


def floats(x: Any, name: str, ndim: int) -> FloatArray:
    """A NumPy view (a copy if necessary) of ``x`` as float32 or float64 with ``ndim`` axes.

    Half precision becomes float32, integers float64. Values are not checked: see :func:`finite`.
    """
    array = as_array(x, name)
    if is_tensor(array):
        array = to_numpy(array)
    if array.dtype.kind not in "iuf":
        raise ToodError(f"{name}: expected real numbers, found dtype {array.dtype}")
    if array.ndim != ndim:
        raise ToodError(f"{name}: expected {ndim} axes, found shape {array.shape}")
    single = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    return cast(FloatArray, array.astype(np.float32 if single else np.float64, copy=False))


def is_finite(array: FloatArray) -> bool:
    """Whether an array has neither NaN nor infinity.

    One BLAS pass, several times faster than ``isfinite`` (``benchmarks/scoring.py``); only a sum of squares that
    overflows needs the second test.
    """
    flat = array.reshape(-1)
    if flat.size <= FEW:
        return all(map(math.isfinite, flat.tolist()))
    with np.errstate(over="ignore"):
        return math.isfinite(flat.dot(flat)) or bool(np.isfinite(array).all())


def finite(array: FloatArray, name: str) -> FloatArray:
    """Return ``array`` if it has neither NaN nor infinity, else raise."""
    if not is_finite(array):
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ToodError(f"{name}: expected finite numbers, found {array[place]} at {place}")
    return array


def indices(x: Any, name: str, length: int | None = None) -> IntArray:
    """A one-dimensional int64 NumPy array of whole numbers, optionally of a given length."""
    array = as_array(x, name)
    if is_tensor(array):
        array = to_numpy(array)
    if array.ndim == 1 and array.dtype.kind == "f" and np.isfinite(array).all() and (array == np.trunc(array)).all():
        array = array.astype(np.int64)  # whole numbers that a data frame or CSV reader made floats
    if name == "labels" and array.ndim == 2:
        raise ToodError(
            f"labels: expected one class per sample, found shape {array.shape}; several labels per sample are not "
            "supported, and of one-hot rows take argmax(axis=1)"
        )
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ToodError(f"{name}: expected one axis of whole numbers, found shape {array.shape}, dtype {array.dtype}")
    if length is not None and len(array) != length:
        raise ToodError(f"{name}: expected {length} entries, one per row, found {len(array)}")
    return cast(IntArray, array.astype(np.int64, copy=False))


def as_array(x: Any, name: str = "logits") -> Any:
    """Arrays and tensors as they are; lists and data frames (pandas, polars, Arrow) as NumPy arrays.

    Columns named ``logit_0``, ``logit_1`` and so on are read in the order of these numbers.
    """
    if is_tensor(x):
        if x.is_nested or x.is_quantized or x.is_meta or str(x.layout) != "torch.strided":
            raise ToodError(f"{name}: expected a dense tensor, found {x.layout} on {x.device}")
        return x
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise ToodError(f"{name}: expected numbers, found a masked array; fill or remove what is masked")
    try:
        array = np.asarray(x)
    except (RuntimeError, TypeError, ValueError) as error:  # lists of unequal lengths, tensors in a list
        raise ToodError(f"{name}: expected rows of one length, found ragged lists ({error})") from error
    names = list(getattr(x, "column_names", getattr(x, "columns", ())))
    if names and all(re.fullmatch(r"logit_\d+", str(column)) for column in names):
        array = array[:, np.argsort([int(str(column)[6:]) for column in names])]
    return array


def label_columns(labels: Any, columns: int, length: int) -> IntArray:
    """Labels as logit columns; raise if one is not a column."""
    checked = indices(labels, "labels", length=length)
    outside = (checked < 0) | (checked >= columns)
    if outside.any():
        row = int(outside.argmax())
        raise ToodError(f"labels: expected logit columns 0 to {columns - 1}, found {checked[row]} at row {row}")
    return checked


def back(result: npt.NDArray[Any], like: ArrayT) -> ArrayT:
    """``result`` as the kind of array, and on the device, of ``like``."""
    if is_tensor(like):
        import torch

        return cast(ArrayT, torch.from_numpy(np.ascontiguousarray(result)).to(like.device))
    return cast(ArrayT, result)
