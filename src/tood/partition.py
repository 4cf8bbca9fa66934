"""Partition of the logit columns into tasks."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tood.arrays import IntArray, indices
from tood.errors import ToodError

__all__ = ["Partition"]


class Layout(NamedTuple):
    """Order of the columns in which every reduction per task is a plain reshape.

    ``order`` sorts the columns by (task size, task); ``groups`` then holds, for each distinct size, where its columns
    start, that size, and which tasks they belong to.
    """

    order: IntArray
    in_order: bool
    groups: tuple[tuple[int, int, IntArray], ...]

    @property
    def segments(self) -> list[tuple[int, int, int]]:
        """Of each group: where its columns start, the columns per task, and the number of tasks."""
        return [(start, size, len(members)) for start, size, members in self.groups]

    @property
    def places(self) -> IntArray:
        """``[N]``: the position of each task if tasks are taken group by group."""
        return np.argsort(np.concatenate([members for _, _, members in self.groups]))


class Partition:
    """The columns of each task: any order, any sizes, every column exactly once.

    Parameters
    ----------
    tasks:
        One sequence of column indices per task, oldest task first. Together they hold 0 to C-1, each once.

    Examples
    --------
    >>> p = Partition([[0, 1], [2, 3]])
    >>> len(p), p.columns
    (2, 4)
    >>> p.grow([4, 5]).tasks
    ((0, 1), (2, 3), (4, 5))
    """

    def __init__(self, tasks: Partition | Iterable[Iterable[int]]) -> None:
        self.tasks: tuple[tuple[int, ...], ...]
        if isinstance(tasks, Partition):
            self.__dict__.update(tasks.__dict__)  # cached properties too
            return
        try:
            self.tasks = tuple(tuple(operator.index(c) for c in task) for task in tasks)
        except (NotImplementedError, TypeError) as error:
            raise ToodError(f"tasks: expected one list of column indices per task, found {tasks!r}") from error
        if not self.tasks:
            raise ToodError("tasks: expected at least one task, found none")
        owner: dict[int, int] = {}
        for t, task in enumerate(self.tasks):
            if not task:
                raise ToodError(f"tasks: task {t} has no columns")
            for column in task:
                if column in owner:
                    raise ToodError(f"tasks: column {column} is in task {owner[column]} and in task {t}")
                owner[column] = t
        missing = set(range(len(owner))) - owner.keys()
        if missing:
            raise ToodError(
                f"tasks: column {min(missing)} is in no task; expected the columns 0 to {len(owner) - 1}, each once"
            )

    @classmethod
    def from_sizes(cls, sizes: Iterable[int]) -> Partition:
        """Consecutive columns: the first task has the first ``sizes[0]`` of them, and so on.

        >>> Partition.from_sizes([2, 3]).tasks
        ((0, 1), (2, 3, 4))
        """
        sizes = indices(list(sizes), "sizes")
        if (sizes < 1).any():
            raise ToodError(f"sizes: expected at least one column per task, found {sizes.tolist()}")
        ends = np.cumsum([0, *sizes])
        return cls(range(start, end) for start, end in pairwise(ends))

    @classmethod
    def from_class_tasks(cls, class_tasks: Sequence[int]) -> Partition:
        """From the task of each column.

        >>> Partition.from_class_tasks([0, 1, 0, 1]).tasks
        ((0, 2), (1, 3))
        """
        owners = indices(class_tasks, "class_tasks")
        if len(owners) == 0 or owners.min() < 0:
            raise ToodError("class_tasks: expected a task number, 0 or more, for every column")
        empty = np.setdiff1d(np.arange(min(owners.max(), len(owners)) + 1), owners)
        if len(empty):
            raise ToodError(f"class_tasks: task {empty[0]} has no columns")
        return cls(np.flatnonzero(owners == t) for t in range(int(owners.max()) + 1))

    @classmethod
    def from_json(cls, text: str) -> Partition:
        """The inverse of :meth:`to_json`."""
        try:
            tasks = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            tasks = None
        if not (isinstance(tasks, list) and all(isinstance(task, list) for task in tasks)):
            raise ToodError(f"tasks: expected JSON such as [[0, 1], [2, 3]], found {str(text)[:60]!r}")
        return cls(tasks)

    def to_json(self) -> str:
        """A JSON list of lists.

        >>> Partition.from_sizes([1, 2]).to_json()
        '[[0], [1, 2]]'
        """
        return json.dumps([list(task) for task in self.tasks])

    @property
    def columns(self) -> int:
        """The number of logit columns, C."""
        return len(self.column_tasks)

    @cached_property
    def column_tasks(self) -> IntArray:
        """The task of each column, ``[C]``."""
        owners = np.empty(sum(map(len, self.tasks)), dtype=np.int64)
        for t, task in enumerate(self.tasks):
            owners[list(task)] = t
        return owners

    def grow(self, columns: Iterable[int]) -> Partition:
        """The same partition with one more task."""
        return Partition([*self.tasks, columns])

    def split(self, factor: int) -> Partition:
        """Each task cut into at most ``factor`` balanced pseudo-tasks (paper, "What TOOD assumes").

        Groups that would be empty are dropped, so a task with fewer classes than ``factor`` becomes singletons.

        >>> Partition.from_sizes([2, 5]).split(3).tasks
        ((0,), (1,), (2, 5), (3, 6), (4,))
        """
        if not isinstance(factor, int | np.integer) or factor < 1:
            raise ToodError(f"factor: expected a whole number, 1 or more, found {factor!r}")
        return Partition(task[i::factor] for task in self.tasks for i in range(min(factor, len(task))))

    def first(self, count: int) -> tuple[Partition, IntArray]:
        """The first ``count`` tasks as a partition of their own, and the columns it selects, ascending.

        >>> part, columns = Partition([[3, 0], [1, 2]]).first(1)
        >>> part.tasks, columns.tolist()
        (((1, 0),), [0, 3])
        """
        return self.keep(range(count))

    def keep(self, tasks: Iterable[int]) -> tuple[Partition, IntArray]:
        """Some tasks as a partition of their own, and the columns it selects, ascending.

        >>> part, columns = Partition([[3, 0], [1, 2]]).keep([1])
        >>> part.tasks, columns.tolist()
        (((0, 1),), [1, 2])
        """
        tasks = list(tasks)
        if not tasks or not all(isinstance(t, int | np.integer) and 0 <= t < len(self) for t in tasks):
            raise ToodError(f"tasks: expected some of 0 to {len(self) - 1}, found {tasks}")
        kept = [self.tasks[t] for t in tasks]
        columns = np.sort(np.concatenate([np.asarray(task, dtype=np.int64) for task in kept]))
        return Partition(np.searchsorted(columns, task).tolist() for task in kept), columns

    @cached_property
    def layout(self) -> Layout:
        """Column order for computing energies; computed once."""
        sizes = np.array([len(task) for task in self.tasks])
        ranked = np.argsort(sizes, kind="stable")
        order = np.concatenate([np.asarray(self.tasks[t], dtype=np.int64) for t in ranked])
        groups = []
        start = 0
        for size in sorted(set(sizes.tolist())):
            members = ranked[sizes[ranked] == size]
            groups.append((start, size, members))
            start += size * len(members)
        return Layout(order, bool((order == np.arange(len(order))).all()), tuple(groups))

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self.tasks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and self.tasks == other.tasks

    def __hash__(self) -> int:
        return hash(self.tasks)

    def __repr__(self) -> str:
        if self.columns > 20:
            return f"<Partition of {self.columns} columns into {len(self)} tasks>"
        return f"Partition({[list(task) for task in self.tasks]})"
