"""A stream: an ordered list of tasks over one dataset, plus its near- and far-OOD sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from tood.arrays import IntArray, indices
from tood.errors import ToodError, UnknownNameError
from tood.outputs.sampling import draw_by_class
from tood.partition import Partition
from tood.storage.files import NAME
from tood.streams.datasets import as_source
from tood.streams.images import FolderSource, Resize
from tood.streams.sources import ArraySource, Source, measure

__all__ = ["AUGMENTATIONS", "OODSet", "Stream", "Tasks", "arrange"]

Group: TypeAlias = Literal["near", "far"]
Tasks: TypeAlias = "int | Sequence[int] | Sequence[Sequence[int]]"
AUGMENTATIONS = ("crop_flip", "resized_crop", "shift", "none")


@dataclass(frozen=True, eq=False)
class OODSet:
    """An OOD set: samples that belong to no class of the stream."""

    name: str
    group: Group
    source: Source


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks in order of arrival, the OOD sets they are tested against, and how samples become network input.

    Parameters
    ----------
    name:
        The stream's name in files and reports.
    train, test:
        The sources of samples; their labels are class ids.
    order:
        Class ids in order of arrival: logit column c is class ``order[c]``. Samples of other classes are not used.
    sizes:
        Number of classes per task.
    classes:
        Class names by logit column.
    ood:
        The OOD sets.
    mean, std:
        Mean and standard deviation per channel of pixels in [0, 1]; (0,) and (1,) for vectors.
    augmentation:
        ``"crop_flip"``, ``"resized_crop"``, ``"shift"`` (crops without flips, for digits) or ``"none"``; or a function
        of a batch of network inputs ``[n, C, H, W]`` and a ``torch.Generator`` that returns the batch changed.
    reserve:
        Samples per class that are set aside when the class arrives and never trained on.
    seed:
        Seed of the choice of reserved samples.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(60, 5)), np.arange(60) % 6
    >>> stream = Stream.from_arrays(x, y, x, y, tasks=3, ood={"far": {"noise": rng.normal(size=(9, 5))}})
    >>> len(stream), stream.partition.tasks, len(stream.train_rows(0))
    (3, ((0, 1), (2, 3), (4, 5)), 20)
    """

    name: str
    train: Source
    test: Source
    order: tuple[int, ...]
    sizes: tuple[int, ...]
    classes: tuple[str, ...]
    ood: tuple[OODSet, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: str | Callable[[Any, Any], Any]
    reserve: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.order, default=-1) < 0 or self.seed < 0:
            raise ToodError(f"{self.name}: expected class ids and a seed of 0 or more, found {self.order}, {self.seed}")
        if len(set(self.order)) != len(self.order):
            twice = next(c for c in self.order if self.order.count(c) > 1)
            raise ToodError(f"{self.name}: class {twice} is in two tasks or twice in one")
        if sum(self.sizes) != len(self.order):
            raise ToodError(f"tasks: sizes {list(self.sizes)} do not add up to the {len(self.order)} classes")
        if not callable(self.augmentation) and self.augmentation not in AUGMENTATIONS:
            raise UnknownNameError("augmentation", self.augmentation, AUGMENTATIONS)
        _ = self.partition  # refuses tasks without classes
        for c, name in zip(self.order, self.classes, strict=True):
            for split, rows in (("training", self._train_rows), ("test", self._test_rows)):
                if c not in rows:
                    raise ToodError(f"{self.name}: class {c} ({name}) has no {split} samples")
            count = len(self._train_rows[c])
            if not 0 <= self.reserve < count:
                raise ToodError(
                    f"reserve: expected 0 or more, and fewer than the {count} training samples of class {c} ({name}), "
                    f"found {self.reserve}"
                )
        self._check_sets()

    def _check_sets(self) -> None:
        shape = tuple(self.train.shape)
        for name, source in [("test", self.test), *((s.name, s.source) for s in self.ood)]:
            if tuple(source.shape) != shape:
                raise ToodError(f"{name}: samples have shape {source.shape}, the training samples {shape}")
        if len(shape) == 1 and isinstance(self.augmentation, str) and self.augmentation != "none":
            raise ToodError(f"augmentation: {self.augmentation} needs images, found vectors of shape {shape}")
        names = [s.name for s in self.ood]
        if len(set(names)) != len(names):
            raise ToodError(f"{self.name}: two OOD sets have the same name: {', '.join(names)}")
        for s in self.ood:
            if s.group not in ("near", "far") or not NAME.fullmatch(s.name):  # the name becomes that of a file
                raise ToodError(
                    "ood: expected the group near or far and names of letters, digits and . _ + -, "
                    f"found {s.group!r} and {s.name!r}"
                )
        channels = shape[-1] if len(shape) == 3 else 1
        if not len(self.mean) == len(self.std) == channels or min(self.std) <= 0:
            raise ToodError(
                f"{self.name}: expected mean and positive std of {channels} channels, found {self.mean} and {self.std}"
            )

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def partition(self) -> Partition:
        """The columns of each task: consecutive, as classes arrive."""
        return Partition.from_sizes(self.sizes)

    @property
    def black(self) -> tuple[float, ...]:
        """The value of a black pixel after normalisation, per channel."""
        return tuple(-m / s for m, s in zip(self.mean, self.std, strict=True))

    @cached_property
    def _train_rows(self) -> dict[int, IntArray]:
        return _rows_by_class(self.train.labels)

    @cached_property
    def _test_rows(self) -> dict[int, IntArray]:
        return _rows_by_class(self.test.labels)

    def task_classes(self, task: int) -> tuple[int, ...]:
        """The class ids of one task, in order of their columns."""
        if not 0 <= task < len(self):
            raise ToodError(f"task: expected 0 to {len(self) - 1}, found {task}")
        return tuple(self.order[c] for c in self.partition.tasks[task])

    def train_rows(self, task: int) -> IntArray:
        """Rows of :attr:`train` of one task's classes, without the reserved ones, ascending."""
        rows = np.concatenate([self._train_rows[c] for c in self.task_classes(task)])
        return np.sort(np.setdiff1d(rows, self.reserved_rows(task), assume_unique=True))

    def reserved_rows(self, task: int) -> IntArray:
        """Rows of :attr:`train` set aside for calibration, ``reserve`` of each class of the task, ascending.

        Which rows depends on the class and the seed alone, not on the order of classes or the size of tasks.
        """
        rows = np.concatenate([self._train_rows[c] for c in self.task_classes(task)])
        return np.sort(draw_by_class(rows, self.train.labels[rows], self.reserve, (self.seed,)))

    def test_rows(self, task: int) -> IntArray:
        """Rows of :attr:`test` of one task's classes, ascending."""
        return np.sort(np.concatenate([self._test_rows[c] for c in self.task_classes(task)]))

    def columns(self, labels: Any) -> IntArray:
        """The logit column of each class id, ``[n]``."""
        labels = indices(labels, "labels")
        present, places = np.unique(labels, return_inverse=True)
        for stray in set(present.tolist()) - set(self.order):
            raise ToodError(f"labels: class {stray} is not in the stream {self.name}")
        columns = np.array([self.order.index(c) for c in present], np.int64)
        return columns[places]

    def with_ood(self, names: Sequence[str]) -> Stream:
        """This stream with the named OOD sets only; with all of them if no names are given."""
        known = [ood_set.name for ood_set in self.ood]
        for name in set(names) - set(known):
            raise UnknownNameError(f"OOD set of {self.name}", name, known)
        chosen = tuple(ood_set for ood_set in self.ood if ood_set.name in names)
        return dataclasses.replace(self, ood=chosen) if names else self

    @classmethod
    def from_sources(
        cls,
        train: Source | Any,
        test: Source | Any,
        *,
        tasks: Tasks = 5,
        ood: Mapping[str, Mapping[str, Source | Any]] | None = None,
        order: int | str = "label",
        classes: Sequence[str] | None = None,
        name: str = "custom",
        augmentation: str | Callable[[Any, Any], Any] = "none",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        reserve: int = 0,
        seed: int = 0,
    ) -> Stream:
        """A stream of your own.

        Parameters
        ----------
        train, test:
            Sources, or torch data sets of ``(image, label)`` (see :class:`~tood.streams.DatasetSource`).
        tasks:
            The number of equal tasks, the number of classes of each task, or the class ids of each task.
        ood:
            ``{"near": {"name": source}, "far": {...}}``; a source, a torch data set or an array.
        order:
            ``"label"`` for ascending class ids, or the seed of a permutation of them (1993 gives the order that
            much of the literature uses for CIFAR-100).
        classes:
            Names by class id; by default the ids.
        mean, std:
            By default measured on evenly spaced training images.
        name, augmentation, reserve, seed:
            As for the stream itself.
        """
        train, test = as_source(train), as_source(test)
        ids, sizes = arrange(np.unique(train.labels), tasks, order)
        if classes is not None and max(ids) >= len(classes):
            raise ToodError(f"classes: expected a name for class {max(ids)}, found {len(classes)} names")
        if mean is None or std is None:
            mean, std = measure(train)
        return cls(
            name=name,
            train=train,
            test=test,
            order=ids,
            sizes=sizes,
            classes=tuple(str(c) if classes is None else str(classes[c]) for c in ids),
            ood=tuple(OODSet(n, g, as_source(s)) for g, sets in (ood or {}).items() for n, s in sets.items()),  # type: ignore[arg-type]
            mean=tuple(map(float, mean)),
            std=tuple(map(float, std)),
            augmentation=augmentation,
            reserve=reserve,
            seed=seed,
        )

    @classmethod
    def from_arrays(cls, train: Any, train_labels: Any, test: Any, test_labels: Any, **options: Any) -> Stream:
        """A stream from arrays: uint8 images ``[N, H, W, C]`` or vectors ``[N, D]``, and whole-number labels ``[N]``.

        In ``ood``, sets are arrays too; see :meth:`from_sources` for this and the other options.
        """
        return cls.from_sources(ArraySource(train, train_labels), ArraySource(test, test_labels), **options)

    @classmethod
    def from_folder(cls, root: str | Path, *, size: int | None = None, resize: Resize = None, **options: Any) -> Stream:
        """A stream from image files: ``ROOT/{train,test}/CLASS/*``, and OOD sets ``ROOT/ood/{near,far}/NAME/*``.

        Images are decoded when they are needed, ``size`` pixels per side, cropped or (``resize="squash"``) squashed.
        See :meth:`from_sources` for other options.
        """
        root, read = Path(root), partial(FolderSource, size=size, resize=resize)
        train = read(root / "train")
        test = read(root / "test", classes=train.classes)
        ood: dict[str, dict[str, Source]] = {"near": {}, "far": {}}
        for group, sets in ood.items():
            folders = [folder for folder in sorted((root / "ood" / group).glob("*")) if folder.is_dir()]
            sets |= {folder.name: read(folder, flat=True) for folder in folders}
        defaults = {"name": root.name, "classes": train.classes, "augmentation": "crop_flip"}
        return cls.from_sources(train, test, ood=ood, **(defaults | options))


def _rows_by_class(labels: IntArray) -> dict[int, IntArray]:
    """The rows of each class, ascending."""
    order = np.argsort(labels, kind="stable")
    classes, starts = np.unique(labels[order], return_index=True)
    return {int(c): rows for c, rows in zip(classes, np.split(order, starts[1:]), strict=True)}


def arrange(classes: IntArray, tasks: Tasks, order: int | str = "label") -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Class ids in order of arrival, and the number of classes per task; parameters as :meth:`Stream.from_sources`.

    >>> arrange(np.arange(4), 2)
    ((0, 1, 2, 3), (2, 2))
    >>> arrange(np.arange(4), [[3, 0], [1]])
    ((3, 0, 1), (2, 1))
    """
    if not isinstance(tasks, (int, np.integer)) and len(tasks) and all(np.ndim(task) == 1 for task in tasks):
        if order != "label":
            raise ToodError(f"order: expected 'label' if tasks gives class ids, found {order!r}")
        groups = [indices(task, "tasks").tolist() for task in tasks]
        return tuple(c for group in groups for c in group), tuple(map(len, groups))
    ids = [int(c) for c in classes]
    if not isinstance(order, str) and order >= 0:
        # The generator whose draws NumPy has promised never to change.
        ids = [ids[i] for i in np.random.RandomState(order).permutation(len(ids))]
    elif order != "label":
        raise ToodError(f"order: expected 'label' or the seed of a permutation, found {order!r}")
    if isinstance(tasks, (int, np.integer)):
        if tasks < 1 or len(ids) % tasks:
            raise ToodError(f"tasks: {len(ids)} classes cannot be split into {tasks} equal tasks; give a divisor")
        tasks = [len(ids) // tasks] * int(tasks)
    return tuple(ids), tuple(indices(tasks, "tasks").tolist())
