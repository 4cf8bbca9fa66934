"""Hugging Face data sets as sources. Nothing is downloaded unless this is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tood.arrays import IntArray, indices
from tood.errors import MissingDependencyError, ToodError
from tood.streams.images import Resize, fit, pixels
from tood.streams.sources import Samples

__all__ = ["HuggingFaceSource", "from_huggingface"]


class HuggingFaceSource:
    """Rows of a ``datasets.Dataset``, decoded when they are needed; see :func:`from_huggingface`."""

    lazy = True

    def __init__(
        self, dataset: Any, image_column: str, label_column: str | None, size: int | None, resize: Resize
    ) -> None:
        for column in filter(None, (image_column, label_column)):
            if column not in dataset.column_names:
                raise ToodError(f"dataset: no column {column!r}; it has {', '.join(dataset.column_names)}")
        if not len(dataset):
            raise ToodError("dataset: no rows")
        self.dataset = dataset.select_columns([image_column])
        self.column = image_column
        labels = np.zeros(len(dataset), np.int64) if label_column is None else dataset[label_column][:]
        self.labels: IntArray = indices(labels, f"dataset, column {label_column}")
        feature = dataset.features[label_column] if label_column else None
        found = range(int(self.labels.max()) + 1)
        self.classes: tuple[str, ...] = tuple(getattr(feature, "names", None) or map(str, found))
        self.size = size
        self.resize = resize
        self.shape: tuple[int, ...] = self._read(self.dataset[0][image_column]).shape

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: IntArray) -> Samples:
        """The images of these rows, uint8 ``[k, H, W, 3]``."""
        images = [self._read(image) for image in self.dataset[[int(row) for row in rows]][self.column]]
        stray = next((image.shape for image in images if image.shape != self.shape), None)
        if stray is not None:
            raise ToodError(f"dataset: images of shape {self.shape} and of {stray}; give a size")
        return np.stack(images) if images else np.empty((0, *self.shape), np.uint8)

    def _read(self, image: Any) -> Samples:
        if not hasattr(image, "convert"):
            raise ToodError(f"dataset: column {self.column!r} holds {type(image).__name__}, expected images")
        image = image.convert("RGB")
        return pixels(image if self.size is None else fit(image, self.size, self.resize))


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
        try:
            if Path(dataset).is_dir():
                if revision is not None:
                    raise ToodError(f"revision: expected none for the folder {dataset}, found {revision!r}")
                dataset = datasets.load_from_disk(dataset)
            else:
                dataset = datasets.load_dataset(str(dataset), split=split, revision=revision)
        except ToodError:
            raise
        except (OSError, ValueError) as error:
            raise ToodError(f"dataset: {dataset} cannot be loaded ({error})") from error
    if isinstance(dataset, datasets.DatasetDict):
        if split not in dataset:
            raise ToodError(f"split: no {split!r}; the dataset has {', '.join(dataset)}")
        dataset = dataset[split]
    return HuggingFaceSource(dataset, image_column, label_column, size, resize)
