import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tood.errors import ToodError, UnknownNameError
from tood.streams import Stream
from tood.streams.stream import arrange

RNG = np.random.default_rng(0)
CLASSES = 6
X = RNG.normal(size=(120, 3))
Y = RNG.permutation(np.arange(120) % CLASSES)
X_TEST, Y_TEST = X[:60], np.arange(60) % CLASSES


def stream(**options):
    return Stream.from_arrays(X, Y, X_TEST, Y_TEST, **{"tasks": 3, **options})


def test_a_stream_of_ones_own_in_a_few_lines():
    far = RNG.normal(size=(7, 3))
    s = Stream.from_arrays(X, Y, X_TEST, Y_TEST, tasks=3, ood={"far": {"noise": far}})
    assert (len(s), s.order, s.sizes, s.classes) == (3, tuple(range(6)), (2, 2, 2), tuple("012345"))
    assert [(o.name, o.group, len(o.source)) for o in s.ood] == [("noise", "far", 7)]
    assert (s.mean, s.std, s.augmentation) == ((0.0,), (1.0,), "none")
    for task in range(3):
        members = (2 * task, 2 * task + 1)
        np.testing.assert_array_equal(s.train_rows(task), np.flatnonzero(np.isin(Y, members)))
        np.testing.assert_array_equal(s.test_rows(task), np.flatnonzero(np.isin(Y_TEST, members)))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), tasks=st.sampled_from([1, 2, 3, 6, (1, 5), (4, 1, 1)]))
def test_permuted_classes_keep_columns_and_tasks_together(seed, tasks):
    s = stream(order=seed, tasks=tasks, classes=[f"name{c}" for c in range(CLASSES)])
    assert sorted(s.order) == list(range(CLASSES))
    np.testing.assert_array_equal(s.columns(np.array(s.order)), np.arange(CLASSES))
    np.testing.assert_array_equal(np.array(s.order)[s.columns(Y)], Y)
    assert all(s.classes[c] == f"name{s.order[c]}" for c in range(CLASSES))
    assert [len(task) for task in s.partition.tasks] == list(s.sizes)
    for task, columns in enumerate(s.partition.tasks):
        assert set(s.columns(Y[s.train_rows(task)]).tolist()) == set(columns)
        assert set(s.columns(Y_TEST[s.test_rows(task)]).tolist()) == set(columns)
    together = np.concatenate([s.train_rows(task) for task in range(len(s))])
    np.testing.assert_array_equal(np.sort(together), np.arange(len(Y)))


def test_the_order_of_seed_1993_is_that_of_the_literature():
    """The class order that PyCIL prints for CIFAR-100 with its seed."""
    order, sizes = arrange(np.arange(100), 10, 1993)
    assert order[:10] == (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
    assert order[-10:] == (51, 48, 73, 93, 39, 67, 29, 49, 57, 33)
    assert sizes == (10,) * 10
    assert arrange(np.arange(100), np.int64(10), 1993) == (order, sizes)


def test_tasks_may_be_given_class_by_class():
    s = stream(tasks=[[5, 0], [3]])
    assert (s.order, s.sizes) == ((5, 0, 3), (2, 1))
    np.testing.assert_array_equal(s.train_rows(1), np.flatnonzero(Y == 3))
    with pytest.raises(ToodError, match="class 4 is not in the stream"):
        s.columns([0, 4])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), reserve=st.integers(0, 19), order=st.integers(0, 1000))
def test_reserved_rows_are_apart_balanced_and_depend_on_the_seed_alone(seed, reserve, order):
    plain, other = stream(reserve=reserve, seed=seed), stream(reserve=reserve, seed=seed, order=order, tasks=2)
    everything = []
    for task in range(3):
        reserved, trained = plain.reserved_rows(task), plain.train_rows(task)
        assert not set(reserved.tolist()) & set(trained.tolist())
        assert (np.diff(reserved) > 0).all()
        classes = plain.task_classes(task)
        assert [np.sum(Y[reserved] == c) for c in classes] == [reserve] * 2
        assert len(reserved) + len(trained) == 40
        everything.append(reserved)
    again = np.concatenate([other.reserved_rows(task) for task in range(2)])
    np.testing.assert_array_equal(np.sort(np.concatenate(everything)), np.sort(again))


def test_black_is_what_a_black_pixel_becomes():
    grey = RNG.integers(0, 256, (12, 8, 8, 3)).astype(np.uint8)
    s = Stream.from_arrays(
        grey, np.arange(12) % 2, grey, np.arange(12) % 2, tasks=2, mean=(0.5, 0.2, 0), std=(0.5, 0.4, 1)
    )
    assert s.black == (-1.0, -0.5, 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 4}, "6 classes cannot be split into 4 equal tasks"),
        ({"tasks": [3, 4]}, "do not add up to the 6 classes"),
        ({"tasks": [6, 0]}, "at least one column"),
        ({"tasks": [[0, 1], [1, 2]]}, "class 1 is in two tasks"),
        ({"tasks": [[0, 1], [2, 9]]}, r"class 9 \(9\) has no training samples"),
        ({"tasks": [[0, 1]], "order": 3}, "order: expected 'label' if tasks gives class ids, found"),
        ({"order": "random"}, "order: expected 'label' or the seed"),
        ({"reserve": -1}, "reserve: expected 0 or more"),
        ({"reserve": 20}, "fewer than the 20 training samples of class 0"),
        ({"seed": -1}, "a seed of 0 or more"),
        ({"classes": ["a", "b"]}, "a name for class 5, found 2 names"),
        ({"ood": {"far": {"x": np.zeros((2, 4))}}}, r"x: samples have shape \(4,\)"),
        ({"ood": {"middle": {"x": np.zeros((2, 3))}}}, "near or far .* found 'middle'"),
        ({"ood": {"far": {"../x": np.zeros((2, 3))}}}, "letters, digits and . _ [+] -, found 'far' and '../x'"),
        ({"ood": {g: {"x": np.zeros((2, 3))} for g in ("near", "far")}}, "two OOD sets have the same name"),
        ({"mean": (0.0,), "std": (0.0,)}, "positive std"),
        ({"augmentation": "shift"}, "shift needs images, found vectors"),
    ],
)
def test_bad_streams_are_refused(options, message):
    with pytest.raises(ToodError, match=message):
        stream(**options)


def test_a_class_without_test_samples_and_an_unknown_augmentation():
    with pytest.raises(ToodError, match=r"class 5 \(5\) has no test samples"):
        Stream.from_arrays(X, Y, X_TEST[:5], Y_TEST[:5], tasks=3)
    with pytest.raises(UnknownNameError, match="did you mean 'crop_flip'"):
        stream(augmentation="crop-flip")
    with pytest.raises(ToodError, match="task: expected 0 to 2, found 3"):
        stream().train_rows(3)


def test_a_stream_from_a_folder(tmp_path, images, write_folder):
    samples, labels = images
    for split in ("train", "test", "ood/near/moths", "ood/far/noise"):
        write_folder(tmp_path / split, samples, labels)
    s = Stream.from_folder(tmp_path, size=16, tasks=2)
    assert (s.name, s.classes, s.sizes) == (tmp_path.name, ("a", "b", "c", "d"), (2, 2))
    assert [(o.name, o.group, len(o.source)) for o in s.ood] == [("moths", "near", 20), ("noise", "far", 20)]
    np.testing.assert_allclose(s.mean, (samples / 255).mean((0, 1, 2)))
    rows = s.train_rows(1)
    assert set(s.train.labels[rows].tolist()) == {2, 3}
    assert s.train.take(rows).shape == (10, 16, 16, 3)
