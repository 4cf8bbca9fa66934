"""Hugging Face data sets as sources. Nothing is downloaded before :func:`from_huggingface` is called."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tood.arrays import IntArray, indices
from tood.errors import MissingDependencyError, ToodError
from tood.streams.datasets import DatasetSource
from tood.streams.images import Resize

LABELS = 100_000  # a larger label without a name is refused later, not counted up to
__all__ = ["HuggingFaceSource", "from_huggingface"]


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
