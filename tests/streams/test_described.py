"""Streams of one's own: by mapping, by factory, from torch data sets."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from tood import ToodError, streams
from tood.errors import UnknownNameError
from tood.streams import ArraySource, DatasetSource, FolderSource, Stream

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (24, 6, 6, 3), dtype=np.uint8), np.arange(24) % 4


@pytest.fixture
def npz(tmp_path):
    path = tmp_path / "birds.npz"
    np.savez(path, train=X, train_labels=Y, test=X[:8], test_labels=Y[:8], ood_near_owls=X[:5], ood_far_big_cats=X[5:9])
    return path


def test_a_file_of_arrays_is_a_stream(npz):
    stream = streams.load({"npz": str(npz), "tasks": 2})
    assert (stream.name, stream.sizes) == ("birds", (2, 2))
    assert [(s.name, s.group, len(s.source)) for s in stream.ood] == [("owls", "near", 5), ("big_cats", "far", 4)]
    np.testing.assert_array_equal(stream.train.take(stream.train_rows(1)), X[Y >= 2])
    four = streams.load({"npz": str(npz), "tasks": 2, "name": "mine"}, tasks=4, ood=["owls"], seed=3, reserve=1)
    assert (len(four), four.name, four.seed, four.reserve, len(four.ood)) == (4, "mine", 3, 1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_labels": None}, r"birds\.npz: expected the arrays train, train_labels, test, test_labels, found"),
        ({"ood_close_owls": X}, r"unknown array of .*birds\.npz 'ood_close_owls'"),
        ({"train": X.transpose(0, 3, 1, 2)}, r"birds\.npz: samples: expected uint8 images \[N, H, W, C\], found"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(npz, change, message):
    arrays = {name: array for name, array in (dict(np.load(npz)) | change).items() if array is not None}
    np.savez(npz, **arrays)
    with pytest.raises(ToodError, match=message):
        streams.load({"npz": str(npz), "tasks": 2})


def test_options_that_a_stream_does_not_take_are_errors(npz):
    with pytest.raises(UnknownNameError, match="unknown option of the stream birds 'taks'; did you mean 'tasks'"):
        streams.load({"npz": str(npz), "taks": 2})


@pytest.mark.parametrize("shape", [(5, 3, 8, 8), (5, 1, 28, 28)])
def test_channels_first_images_are_refused(shape):
    with pytest.raises(ToodError, match=r"which has its channels first; give array.transpose\(0, 2, 3, 1\)"):
        ArraySource(np.zeros(shape, np.uint8))
    assert ArraySource(np.zeros(shape, np.uint8).transpose(0, 2, 3, 1)).shape == (*shape[2:], shape[1])


def test_images_are_squashed_or_cropped(tmp_path):
    """A black image, twice as wide as high, with a white right margin, which only a crop of the centre loses."""
    wide = np.zeros((8, 16, 3), np.uint8)
    wide[:, 14:] = 255
    for split in ("train", "test"):
        for name in "ab":
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(wide).save(tmp_path / split / name / "0.png")
    cropped, squashed = (
        FolderSource(tmp_path / "train", size=8, resize=r).take(np.arange(2)) for r in (None, "squash")
    )
    assert cropped.max() == 0
    np.testing.assert_array_equal(squashed[0], np.asarray(Image.fromarray(wide).resize((8, 8), Image.BILINEAR)))
    stream = streams.load({"folder": str(tmp_path), "size": 8, "tasks": 2, "resize": "squash"})
    np.testing.assert_array_equal(stream.train.take(np.arange(2)), squashed)
    with pytest.raises(ToodError, match="resize: expected 'squash' or pixels of the shorter side, found 'stretch'"):
        FolderSource(tmp_path / "train", size=8, resize="stretch")
    with pytest.raises(ToodError, match="expected a whole size"):
        streams.load({"folder": str(tmp_path), "tasks": 2})


def test_ood_sets_of_a_mapping_are_folders_and_files(npz, tmp_path):
    (tmp_path / "cats").mkdir()
    Image.fromarray(X[0]).save(tmp_path / "cats" / "0.png")
    np.savez(tmp_path / "dogs.npz", images=X[:3])
    places = {"near": {"cats": str(tmp_path / "cats")}, "far": {"dogs": str(tmp_path / "dogs.npz")}}
    stream = streams.load({"npz": str(npz), "tasks": 2, "ood": places}, ood=["dogs", "cats"])
    assert {s.name: (s.group, len(s.source)) for s in stream.ood} == {"cats": ("near", 1), "dogs": ("far", 3)}
    with pytest.raises(ToodError, match=r"ood: expected \{near"):
        streams.load({"npz": str(npz), "tasks": 2, "ood": {"close": places["near"]}})


class Pictures(Dataset):
    """Pillow images, labels in the samples only."""

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return Image.fromarray(X[i]), int(Y[i])


def test_torch_data_sets_are_sources():
    tensors = torch.from_numpy(X).permute(0, 3, 1, 2)
    for dataset in (
        Pictures(),
        TensorDataset(tensors, torch.from_numpy(Y)),
        TensorDataset(tensors / 255, torch.tensor(Y)),
    ):
        source = DatasetSource(dataset)
        assert source.shape == (6, 6, 3)
        np.testing.assert_array_equal(source.labels, Y)
        np.testing.assert_array_equal(source.take(np.array([3, 1])), X[[3, 1]])
    stream = Stream.from_sources(Pictures(), Pictures(), tasks=2, ood={"far": {"same": Pictures()}})
    np.testing.assert_array_equal(stream.train.take(stream.train_rows(0)), X[Y < 2])
    vectors = DatasetSource(TensorDataset(torch.randn(4, 5), torch.arange(4)))
    assert vectors.shape == (5,) and vectors.take(np.arange(2)).dtype == np.float32
    half = DatasetSource(TensorDataset((tensors > 99).bfloat16(), torch.tensor(Y)))
    np.testing.assert_array_equal(half.take(np.arange(len(X))), 255 * (X > 99))


def test_normalised_tensors_are_refused():
    with pytest.raises(ToodError, match="leave Normalize out of the transform"):
        DatasetSource(TensorDataset(torch.randn(4, 3, 8, 8), torch.arange(4)))


def test_a_registered_factory_is_a_named_stream(tmp_path):
    npz_of_images = tmp_path / "owls.npz"
    np.savez(npz_of_images, images=X[:5])

    @streams.register("tiny-birds")
    def factory(tasks=2, order="label"):
        ood = {"far": {"same": X}}
        return Stream.from_arrays(X, Y, X, Y, tasks=tasks, order=order, ood=ood, reserve=1, seed=7)

    try:
        assert "tiny-birds" in streams.names()
        stream = streams.load("tiny-birds", tasks=4, seed=2)
        assert (len(stream), stream.name, stream.seed) == (4, "tiny-birds", 2)
        assert len(streams.load({"stream": "tiny-birds", "tasks": 4})) == 4
        assert [streams.load("tiny-birds", **given).reserve for given in ({}, {"reserve": 0})] == [1, 0]
        assert streams.load("tiny-birds").seed == 7
        more = streams.load({"stream": "tiny-birds", "ood": {"near": {"owls": str(npz_of_images)}}}, ood=["owls"])
        assert [(s.name, s.group, len(s.source)) for s in more.ood] == [("owls", "near", 5)]
        with pytest.raises(UnknownNameError, match="unknown option of the stream tiny-birds 'size'"):
            streams.load("tiny-birds", size=8)
        with pytest.raises(UnknownNameError, match="unknown OOD set of custom 'sam'; did you mean 'same'"):
            streams.load("tiny-birds", ood=["sam"])
    finally:
        del streams.registry.STREAMS._items["tiny-birds"]
