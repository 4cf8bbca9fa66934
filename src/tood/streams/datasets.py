"""Torch and Hugging Face data sets as sources. Nothing is downloaded before :func:`from_huggingface` is called."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from tood.arrays import FloatArray, IntArray, indices, is_tensor, to_numpy
from tood.errors import MissingDependencyError, ToodError
from tood.storage.files import sha256
from tood.storage.npz import npz_member, write_npz
from tood.streams.images import Resize, check_size, fit, pixels
from tood.streams.sources import CHANNELS, ArraySource, Labelled, Samples, Source, user_cache

__all__ = ["DatasetSource", "as_source", "from_huggingface", "from_texts"]

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
        Pixels per side, and how PIL images of another size are resized (see :class:`FolderSource`).

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
        self.dataset, self.size, self.resize = dataset, size, resize
        self.labels = self._labels()
        self.classes: tuple[str, ...] = ()
        self.shape: tuple[int, ...] = self._sample(0).shape

    def take(self, rows: IntArray) -> Samples:
        """The samples of these rows: uint8 ``[k, H, W, C]`` or float32 ``[k, D]``."""
        samples = [self._sample(row) for row in rows]
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

    def _sample(self, row: int) -> Samples:
        item = self.dataset[int(row)]
        sample = item[0] if isinstance(item, (tuple, list)) else item
        if hasattr(sample, "convert"):  # PIL
            image = sample.convert("RGB")
            return pixels(image if self.size is None else fit(image, self.size, self.resize))
        return _array(sample, row)


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
    """A source as it is; an array as an :class:`ArraySource`; a torch data set as a :class:`DatasetSource`."""
    if isinstance(data, np.ndarray) or is_tensor(data):
        return ArraySource(data)
    return data if hasattr(data, "take") and hasattr(data, "labels") else DatasetSource(data)


class _Rows:
    """Images and labels of two columns of a ``datasets.Dataset``; without a column, all labels are 0."""

    def __init__(self, dataset: Any, image: str, label: str | None) -> None:
        self.images, self.image = dataset.select_columns([image]), image
        self.labels = dataset[label][:] if label else [0] * len(dataset)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return self.images[row][self.image], self.labels[row]


def from_huggingface(
    dataset: Any,
    split: str = "train",
    image_column: str = "image",
    label_column: str | None = "label",
    *,
    size: int | None = None,
    resize: Resize = None,
    revision: str | None = None,
) -> DatasetSource:
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
    rows = _open(dataset, split, revision, [image_column, label_column])
    source = DatasetSource(_Rows(rows, image_column, label_column), size=size, resize=resize)
    source.classes = _class_names(rows, label_column, source.labels)
    return source


def from_texts(
    dataset: Any, split: str, text_column: str, label_column: str | None, encoder: str, revision: str | None = None
) -> ArraySource:
    """A source of sentence embeddings of a text column of a Hugging Face dataset.

    ``encoder`` is a folder or name of sentence-transformers. Embeddings are kept in the cache folder.
    """
    rows = _open(dataset, split, revision, [text_column, label_column])
    labels = indices(rows[label_column][:] if label_column else [0] * len(rows), f"column {label_column}")
    vectors = _embeddings([str(text) for text in rows[text_column][:]], encoder)
    return ArraySource(vectors, labels, _class_names(rows, label_column, labels))


def _embeddings(texts: list[str], encoder: str) -> FloatArray:
    """Embeddings ``[n, D]``, from a file whose name is a hash of the texts and of the encoder's files."""
    files = [sha256(file) for file in sorted(Path(encoder).rglob("*")) if file.is_file()]
    key = hashlib.sha256(json.dumps([texts, files or encoder]).encode()).hexdigest()
    kept = user_cache() / "texts" / f"{key}.npz"
    if not kept.is_file():
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ToodError(f"encoder: {encoder} needs `pip install sentence-transformers`") from error
        write_npz(kept, {"vectors": np.asarray(SentenceTransformer(encoder).encode(texts), np.float32)})
    return npz_member(kept, "vectors")


def _class_names(rows: Any, label: str | None, labels: IntArray) -> tuple[str, ...]:
    """The names of a column of labels, or its numbers."""
    names = getattr(rows.features[label], "names", None) if label else None
    return tuple(names or map(str, range(min(int(labels.max()), LABELS) + 1)))


def _open(dataset: Any, split: str, revision: str | None, columns: list[str | None]) -> Any:
    """The rows of a split; raises if they lack a column."""
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
    for column in filter(None, columns):
        if column not in dataset.column_names:
            raise ToodError(f"dataset: no column {column!r}; it has {', '.join(dataset.column_names)}")
    return dataset
