"""Order of the classes of a stream, and the number of classes per task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from tood.arrays import IntArray, indices
from tood.errors import ToodError

__all__ = ["Tasks", "arrange"]

Tasks: TypeAlias = "int | Sequence[int] | Sequence[Sequence[int]]"


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
    sizes = tuple(indices(tasks, "tasks").tolist())
    if sum(sizes) != len(ids):
        raise ToodError(f"tasks: sizes {list(sizes)} do not add up to the {len(ids)} classes")
    return tuple(ids), sizes
