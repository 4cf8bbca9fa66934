import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tood import Partition, ToodError


@st.composite
def partitions(draw, max_columns=30):
    columns = draw(st.integers(1, max_columns))
    order = draw(st.permutations(range(columns)))
    cuts = sorted(draw(st.sets(st.integers(1, columns - 1)))) if columns > 1 else []
    return Partition([order[a:b] for a, b in zip([0, *cuts], [*cuts, columns], strict=True)])


@given(partitions())
def test_json_round_trip(partition):
    assert Partition.from_json(partition.to_json()) == partition
    assert json.loads(partition.to_json()) == [list(task) for task in partition.tasks]


@given(partitions())
def test_column_tasks_name_the_owner_of_every_column(partition):
    for t, task in enumerate(partition):
        assert all(partition.column_tasks[c] == t for c in task)
    assert Partition.from_class_tasks(partition.column_tasks).column_tasks.tolist() == partition.column_tasks.tolist()


@given(partitions(), st.integers(1, 6))
def test_split_keeps_every_column_once_in_balanced_groups_of_its_task(partition, factor):
    split = partition.split(factor)
    assert sorted(c for task in split for c in task) == list(range(partition.columns))
    assert len(split) == sum(min(factor, len(task)) for task in partition)
    for t, task in enumerate(partition):
        groups = [g for g in split if partition.column_tasks[g[0]] == t]
        assert {c for g in groups for c in g} == set(task)
        assert max(map(len, groups)) - min(map(len, groups)) <= 1


def test_split_by_three_as_in_the_paper():
    assert [len(t) for t in Partition.from_sizes([10]).split(3)] == [4, 3, 3]  # three pseudo-groups a 10-class task
    assert [len(t) for t in Partition.from_sizes([2, 2]).split(3)] == [1, 1, 1, 1]  # singletons for 2-class tasks


@given(partitions())
def test_layout_lists_each_tasks_columns_in_one_run(partition):
    order, in_order, groups = partition.layout
    assert sorted(order) == list(range(partition.columns))
    assert in_order == (order.tolist() == sorted(order))
    found = {}
    for start, size, members in groups:
        for k, t in enumerate(members):
            found[int(t)] = tuple(order[start + k * size : start + (k + 1) * size].tolist())
    assert tuple(found[t] for t in range(len(partition))) == partition.tasks


@given(partitions(), st.data())
def test_first_selects_the_columns_of_the_first_tasks(partition, data):
    count = data.draw(st.integers(1, len(partition)))
    part, columns = partition.first(count)
    assert len(part) == count
    for new, old in zip(part, partition.tasks[:count], strict=True):
        assert tuple(columns[list(new)]) == old


def test_construction_from_sizes_class_tasks_and_growth():
    p = Partition.from_sizes([2, 2])
    assert p == Partition([[0, 1], [2, 3]]) == Partition.from_class_tasks([0, 0, 1, 1])
    assert Partition.from_sizes([1, 2, 1]).tasks == ((0,), (1, 2), (3,))
    assert p.grow([4, 5]) == Partition.from_sizes([2, 2, 2])
    assert len(p) == 2  # growing leaves the original alone
    assert Partition(np.array([[0, 1], [2, 3]])) == p
    assert p != Partition([[0, 1, 2, 3]]) and p != [[0, 1], [2, 3]]
    assert repr(p) == "Partition([[0, 1], [2, 3]])"
    assert repr(Partition.from_sizes([20])).startswith("Partition([[0, 1,")
    assert repr(Partition.from_sizes([20, 1])) == "<Partition of 21 columns into 2 tasks>"
    assert Partition(p) == p and hash(Partition(p)) == hash(p)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "at least one task"),
        ([[0], []], "task 1 has no columns"),
        ([[0, 1], [1, 2]], "column 1 is in task 0 and in task 1"),
        ([[0, 0]], "column 0 is in task 0 and in task 0"),
        ([[0, 1], [3, 4]], "column 2 is in no task"),
        ([[0, -1]], "column 1 is in no task"),
        ([[0, 0.5]], "expected one list of column indices"),
        ([0, 1], "expected one list of column indices"),
        (3, "expected one list of column indices"),
    ],
)
def test_bad_tasks_are_named(tasks, message):
    with pytest.raises(ToodError, match=message):
        Partition(tasks)


@pytest.mark.parametrize("text", ["", "{", "3", '{"tasks": [[0]]}', "[0, 1]", "[[0], 1]"])
def test_bad_json_is_named(text):
    with pytest.raises(ToodError, match="expected JSON such as"):
        Partition.from_json(text)


def test_other_bad_arguments():
    with pytest.raises(ToodError, match="sizes"):
        Partition.from_sizes([2, 0])
    with pytest.raises(ToodError, match="sizes: expected one axis of whole numbers"):
        Partition.from_sizes([2.5])
    with pytest.raises(ToodError, match="factor: expected a whole number"):
        Partition.from_sizes([2]).split(1.5)
    with pytest.raises(ToodError, match="class_tasks"):
        Partition.from_class_tasks([0, -1])
    with pytest.raises(ToodError, match=r"^class_tasks: task 1 has no columns"):
        Partition.from_class_tasks([0, 2])
    with pytest.raises(ToodError, match="expected some of 0 to 0"):
        Partition.from_sizes([2]).first(2)


@pytest.mark.parametrize("tasks", [[], [7], [-1], [0.0], ["a"]])
def test_tasks_to_keep_must_exist(tasks):
    with pytest.raises(ToodError, match="tasks: expected some of 0 to 1"):
        Partition([[0], [1]]).keep(tasks)
