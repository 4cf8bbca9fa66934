"""Exemplar memories: row numbers of training samples to replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tood.arrays import IntArray
from tood.outputs.sampling import class_share, draw_by_class, herding

__all__ = ["Exemplars", "Reservoir"]

State = dict[str, npt.NDArray[Any]]


class Reservoir:
    """A uniform sample of all rows offered so far (Vitter's Algorithm R).

    Parameters
    ----------
    capacity:
        Largest number of rows.
    seed:
        Seed of the choices, which depend only on it and on the number of rows offered before, so that a checkpoint
        needs no random state.

    Examples
    --------
    >>> memory = Reservoir(3, seed=0)
    >>> memory.offer(np.array([10, 11])).tolist(), memory.rows.tolist()
    ([0, 1], [10, 11])
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self.capacity = capacity
        self.seed = seed
        self.seen = 0
        self._rows = np.empty(capacity, np.int64)

    @property
    def rows(self) -> IntArray:
        """The rows held now, by slot, ``[min(seen, capacity)]``."""
        return self._rows[: len(self)]

    def __len__(self) -> int:
        return min(self.seen, self.capacity)

    def offer(self, rows: IntArray) -> IntArray:
        """Offer rows in turn; returns the slot of each row at the end, -1 if it was not kept, ``[k]``.

        A slot occurs at most once, so other data per slot can be written in one assignment.
        """
        rng = np.random.default_rng([self.seed, self.seen])
        seen_before = np.arange(self.seen, self.seen + len(rows))
        slots = np.where(seen_before < self.capacity, seen_before, rng.integers(0, seen_before + 1))
        # A slot keeps the last row offered to it.
        last_offer = {slot: offer for offer, slot in enumerate(slots.tolist()) if slot < self.capacity}
        kept = np.full(len(rows), -1)
        kept[list(last_offer.values())] = list(last_offer)
        self._rows[kept[kept >= 0]] = rows[kept >= 0]
        self.seen += len(rows)
        return kept

    def state_dict(self) -> State:
        """Everything a checkpoint needs, as arrays."""
        return {"rows": self.rows.copy(), "seen": np.array(self.seen)}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.seen = int(state["seen"])
        self.rows[:] = state["rows"]


class Exemplars:
    """Exemplars of every class, best first, so that a class shrinks by cutting its tail.

    Parameters
    ----------
    size:
        The number of rows: of the whole memory, shared equally by all classes seen so far, or per class.
    per_class:
        Whether ``size`` is per class.
    selection:
        ``"random"`` or ``"herding"``.
    seed:
        Seed of the random selection; the draw of a class depends only on this seed and the class.

    Examples
    --------
    >>> memory = Exemplars(4)
    >>> memory.add(np.arange(10), np.zeros(10, int))
    >>> memory.add(np.arange(10, 20), np.ones(10, int))
    >>> memory.labels.tolist()
    [0, 0, 1, 1]
    """

    def __init__(self, size: int, per_class: bool = False, selection: str = "random", seed: int = 0) -> None:
        self.size = size
        self.per_class = per_class
        self.selection = selection
        self.seed = seed
        #: All rows held, class by class in order of arrival, best first within a class; and the class of each.
        self.rows = self.labels = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, rows: IntArray, labels: IntArray, features: Any = None) -> None:
        """Add the classes of a new task and cut the others to their new share.

        Parameters
        ----------
        rows:
            Rows of the new classes, ``[n]``.
        labels:
            The class of each row, ``[n]``: class ids or logit columns, always the same kind.
        features:
            Penultimate features of those rows, ``[n, D]``; needed by herding only.
        """
        old, new = dict.fromkeys(self.labels.tolist()), np.unique(labels).tolist()
        share = self.size if self.per_class else class_share(self.size, len({*old, *new}))
        by_class = {c: self.rows[self.labels == c][:share] for c in old}
        for c in new:
            members = np.flatnonzero(labels == c)
            if self.selection == "herding":
                by_class[c] = rows[members[herding(features[members], share)]]
            else:
                by_class[c] = draw_by_class(rows[members], labels[members], share, (self.seed,))
        self.rows = np.concatenate(list(by_class.values()))
        self.labels = np.repeat(list(by_class), [len(kept) for kept in by_class.values()])

    def state_dict(self) -> State:
        """Everything a checkpoint needs, as arrays."""
        return {"rows": self.rows, "labels": self.labels}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.rows, self.labels = state["rows"], state["labels"]
