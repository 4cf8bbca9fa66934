"""Torch and Hugging Face data sets as sources. Nothing is downloaded before :func:`from_huggingface` is called."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tood.arrays import IntArray, indices, is_tensor, to_numpy
from tood.errors import MissingDependencyError, ToodError
from tood.streams.images import Resize, check_size, fit, pixels
from tood.streams.sources import CHANNELS, Labelled, Samples, Source

__all__ = ["DatasetSource", "HuggingFaceSource", "as_source", "from_huggingface"]

LABELS = 100_000  # a larger label without a name is refused later, not counted up to


class DatasetSource(Labelled):
    """A map-style torch ``Dataset`` of ``(image, label)``, read per batch.

    Images are PIL images, uint8 arrays ``[H, W, C]`` or ``[H, W]``, or tensors ``[C, H, W]`` as torchvision makes them:
    uint8, or real numbers in [0, 1]. A sample may also be a real vector ``[D]``. Leave normalisation out of the
    transform: the stream normalises.

    Parameters
    ----------
    dataset:
        Anything with ``len(dataset)`` and ``dataset[i]``. Labels come from its ``targets`` or ``labels`` if it has
        them, else every sample is read once.
    size, resize:
        Pixels per side, and how images of another size are resized (see :class:`FolderSource`).

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> source = DatasetSource(TensorDataset(torch.rand(4, 3, 8, 8), torch.tensor([0, 0, 1, 1])))
    >>> len(source), source.shape, source.labels.tolist()
    (4, (8, 8, 3), [0, 0, 1, 1])
    """

    lazy = True  # tood.streams.batches reads the next batches in advance

    def __init__(self, dataset: Any, *, size: int | None = None, resize: Resize = None) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ToodError(f"dataset: expected len(dataset) and dataset[i], found {type(dataset).__name__}")
        if not len(dataset):
            raise ToodError("dataset: expected at least one sample, found none")
        if size is not None:
            check_size(size, resize)
        self.dataset = dataset
        self.size, self.resize = size, resize
        self.labels = self._labels()
        self.shape: tuple[int, ...] = self._sample(0, *self._items([0])).shape

    def take(self, rows: IntArray) -> Samples:
        """The samples of these rows: uint8 ``[k, H, W, C]`` or float32 ``[k, D]``."""
        samples = [self._sample(row, item) for row, item in zip(rows, self._items(rows), strict=True)]
        stray = next((sample.shape for sample in samples if sample.shape != self.shape), None)
        if stray is not None:
            raise ToodError(f"dataset: expected samples of shape {self.shape}, found {stray}; give a size")
        return np.stack(samples) if samples else np.empty((0, *self.shape), np.uint8)

    def _labels(self) -> IntArray:
        for name in ("targets", "labels"):
            stored = getattr(self.dataset, name, None)
            if stored is not None and len(stored) == len(self.dataset):
                return indices(stored, f"dataset.{name}")
        items = (self.dataset[i] for i in range(len(self.dataset)))
        labels = [item[1] if isinstance(item, (tuple, list)) and len(item) > 1 else 0 for item in items]
        return indices([int(label) for label in labels], "dataset, labels")

    def _items(self, rows: Iterable[int]) -> list[Any]:
        return [self.dataset[int(row)] for row in rows]

    def _sample(self, row: int, item: Any) -> Samples:
        sample = item[0] if isinstance(item, (tuple, list)) else item
        if hasattr(sample, "convert"):  # PIL
            image = sample.convert("RGB")
            return pixels(image if self.size is None else fit(image, self.size, self.resize))
        array = _array(sample, row)
        if array.ndim == 3 and self.size is not None and array.shape[:2] != (self.size, self.size):
            from PIL import Image

            image = fit(Image.fromarray(np.squeeze(array)), self.size, self.resize)
            return pixels(image).reshape(self.size, self.size, array.shape[2])
        return array


def _array(sample: Any, row: int) -> Samples:
    """A tensor or array as uint8 ``[H, W, C]`` or float32 ``[D]``."""
    tensor = is_tensor(sample)
    array = np.asarray(to_numpy(sample) if tensor else sample)
    real = array.dtype.kind == "f"
    if real and array.ndim == 1:
        return array.astype(np.float32)
    if array.ndim == 2:
        array = array[..., None]
    elif array.ndim == 3 and tensor and array.shape[0] in CHANNELS:
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or not (real or array.dtype == np.uint8) or array.shape[2] not in CHANNELS:
        raise ToodError(
            f"dataset, sample {row}: expected an image (PIL, uint8 [H, W, C], or a tensor [C, H, W]) or a real vector, "
            f"found shape {np.shape(sample)}, dtype {array.dtype}"
        )
    if real:
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
            raise ToodError(
                f"dataset, sample {row}: expected pixels in [0, 1], found {array.min():.3g} to {array.max():.3g}; "
                "leave Normalize out of the transform, the stream normalises"
            )
        array = np.rint(array * 255).astype(np.uint8)
    return np.ascontiguousarray(array)


def as_source(data: Any) -> Source:
    """A source as it is; a torch data set as a :class:`DatasetSource`."""
    return data if hasattr(data, "take") and hasattr(data, "labels") else DatasetSource(data)


class HuggingFaceSource(DatasetSource):
    """Rows of a ``datasets.Dataset``, decoded when they are needed; see :func:`from_huggingface`."""

    def __init__(
        self, dataset: Any, image_column: str, label_column: str | None, size: int | None, resize: Resize
    ) -> None:
        for column in filter(None, (image_column, label_column)):
            if column not in dataset.column_names:
                raise ToodError(f"dataset: no column {column!r}; it has {', '.join(dataset.column_names)}")
        self.images = dataset.select_columns([image_column])
        self.image_column, self.label_column = image_column, label_column
        super().__init__(dataset, size=size, resize=resize)
        feature = dataset.features[label_column] if label_column else None
        numbers = range(min(int(self.labels.max()), LABELS) + 1)
        self.classes: tuple[str, ...] = tuple(getattr(feature, "names", None) or map(str, numbers))

    def _labels(self) -> IntArray:
        labels = self.dataset[self.label_column][:] if self.label_column else np.zeros(len(self.dataset), np.int64)
        return indices(labels, f"dataset, column {self.label_column}")

    def _items(self, rows: Iterable[int]) -> list[Any]:
        images: list[Any] = self.images[[int(row) for row in rows]][self.image_column]
        for image in images:
            if not hasattr(image, "convert"):
                raise ToodError(f"dataset: column {self.image_column!r} holds {type(image).__name__}, expected images")
        return images


def from_huggingface(
    dataset: Any,
    split: str = "train",
    image_column: str = "image",
    label_column: str | None = "label",
    *,
    size: int | None = None,
    resize: Resize = None,
    revision: str | None = None,
) -> HuggingFaceSource:
    """A source from a Hugging Face dataset.

    Parameters
    ----------
    dataset:
        A folder written by ``save_to_disk``, a ``datasets.Dataset`` that is loaded already, or a name on the Hub, which
        is downloaded.
    split:
        Which split, if there are several.
    image_column, label_column:
        Names of the columns; None for no labels, as for an OOD set.
    size, resize:
        Pixels per side, needed if images differ in size, and how they are resized (see :class:`FolderSource`).
    revision:
        The commit, tag or branch of a data set on the Hub; by default its newest. A commit always gives the same data.

    Examples
    --------
    ``train = from_huggingface("uoft-cs/cifar10", "train", "img", revision="COMMIT")``
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError("datasets", "huggingface", "Hugging Face datasets") from error
    if isinstance(dataset, (str, Path)):
        local = Path(dataset).is_dir()
        if local and revision is not None:
            raise ToodError(f"revision: expected none for the folder {dataset}, found {revision!r}")
        try:
            if local:
                dataset = datasets.load_from_disk(dataset)
            else:
                dataset = datasets.load_dataset(str(dataset), split=split, revision=revision)
        except (OSError, ValueError) as error:
            raise ToodError(f"dataset: {dataset} cannot be loaded ({error})") from error
    if isinstance(dataset, datasets.DatasetDict):
        if split not in dataset:
            raise ToodError(f"split: no {split!r}; the dataset has {', '.join(dataset)}")
        dataset = dataset[split]
    return HuggingFaceSource(dataset, image_column, label_column, size, resize)
