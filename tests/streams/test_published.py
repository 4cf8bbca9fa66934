"""Sets as published: CIFAR's binary version, its Python version as pickle reads it with nothing run, IDX, .mat."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from tood import streams
from tood.errors import ToodError
from tood.streams.published import read_published

RNG = np.random.default_rng(0)


def batch(n=7, label=b"labels"):
    data = RNG.integers(256, size=(n, 3072), dtype=np.uint8)
    names = [f"{i}.png".encode() for i in range(n)]
    return {b"batch_label": b"batch 1 of 5", label: RNG.integers(10, size=n).tolist(), b"data": data, b"names": names}


def python2(content):
    """As Python 2 wrote it, protocol 2: byte strings, and an array by ``_reconstruct``; lists in two parts."""

    def text(value):
        return (
            b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + len(value).to_bytes(4, "little") + value
        )

    def array(x):
        head = b"cnumpy.core.multiarray\n_reconstruct\nq\x01(cnumpy\nndarray\nq\x02K\x00\x85U\x01bt"
        dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        shape = b"".join(b"M" + n.to_bytes(2, "little") for n in x.shape)
        return head + b"R(K\x01(" + shape + b"t" + dtype + b"\x89" + text(x.tobytes()) + b"tb"

    def listed(values):
        if isinstance(values[0], bytes):
            return b"](" + b"".join(map(text, values)) + b"e"
        return b"](" + b"e(".join(b"K" + bytes([v]) for v in values) + b"e"

    kinds = {np.ndarray: array, bytes: text, list: listed}
    parts = b"".join(text(key) + kinds[type(value)](value) for key, value in content.items())
    return b"\x80\x02}(" + parts + b"u."


@pytest.mark.parametrize("protocol", [3, 4, "python 2"])
@pytest.mark.parametrize("fortran", [False, True])
def test_python_batches_are_what_pickle_reads(tmp_path, protocol, fortran):
    content = batch()
    if protocol == "python 2":
        raw = python2(content)
    else:
        raw = pickle.dumps(content | {b"data": np.asarray(content[b"data"], order="FC"[not fortran])}, protocol)
    assert pickle.loads(raw, encoding="bytes").keys() == content.keys()
    (tmp_path / "test_batch").write_bytes(raw)
    images, labels, classes = read_published(tmp_path / "test_batch")
    planes = content[b"data"].reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(images, planes.transpose(0, 2, 3, 1))
    assert labels.tolist() == content[b"labels"] and len(classes) == max(content[b"labels"]) + 1


@pytest.mark.parametrize("hundred", [False, True])
def test_a_folder_of_python_batches(tmp_path, hundred):
    names = ["train"] if hundred else [f"data_batch_{i}" for i in range(1, 6)]
    label, meta, key = (
        (b"fine_labels", "meta", b"fine_label_names") if hundred else (b"labels", "batches.meta", b"label_names")
    )
    contents = [batch(label=label) for _ in names]
    for name, content in zip(names, contents, strict=True):
        (tmp_path / name).write_bytes(python2(content))
    named = [f"class {i}".encode() for i in range(10)]
    (tmp_path / meta).write_bytes(python2({b"num_vis": [1], key: named, b"coarse_label_names": [b"a", b"b"]}))
    images, labels, classes = read_published(tmp_path / names[0])
    assert classes == [name.decode() for name in named] and len(images) == 7 * len(names)
    assert labels[:7].tolist() == contents[0][label]


class Evil:
    def __reduce__(self):
        return os.system, ("touch ran",)


DEEP = b"\x80\x02)" + b"\x85" * 300_000 + b"."
RAW = python2(batch())


@pytest.mark.parametrize(
    "content",
    [RAW[: len(RAW) // 2], b"", b"hello", pickle.dumps([1, 2]), pickle.dumps({b"data": Evil()}), DEEP],
)
def test_damage_programs_and_other_contents_are_errors(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(ToodError, match="test_batch: ") as caught:
        read_published(tmp_path / "test_batch")
    assert len(str(caught.value)) < 1000 and not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("labels", "meta", "message"),
    [
        ([0, 2**70], None, "test_batch: expected labels from 0 to 999"),
        ([0, -1], None, "test_batch: expected labels from 0 to 999"),
        ([0, 1], 5, "batches.meta: expected a name for each label up to 1, found None"),
        ([0, 1], [5, 6], "batches.meta: expected a name for each label up to 1"),
        ([0, 2], ["a", "b"], "batches.meta: expected a name for each label up to 2"),
    ],
)
def test_labels_and_names_that_do_not_fit_are_refused(tmp_path, labels, meta, message):
    content = {"data": np.zeros((2, 3072), np.uint8), "labels": labels}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content, protocol=2))
    if meta is not None:
        (tmp_path / "batches.meta").write_bytes(pickle.dumps({"label_names": meta}, protocol=2))
    with pytest.raises(ToodError, match=message):
        read_published(tmp_path / "test_batch")


def cifar_records(n, marks, seed):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, 32, 32, 3)).astype(np.uint8)
    labels = rng.integers(0, 10, (n, marks)).astype(np.uint8)
    planes = images.transpose(0, 3, 1, 2).reshape(n, -1)  # red, then green, then blue
    return np.concatenate([labels, planes], 1).tobytes(), images, labels[:, -1]


def test_cifar_10_binary_files(tmp_path):
    parts = [cifar_records(4, 1, seed) for seed in range(6)]
    for i, part in enumerate(parts[:5], 1):
        (tmp_path / f"data_batch_{i}.bin").write_bytes(part[0])
    (tmp_path / "test_batch.bin").write_bytes(parts[5][0])
    (tmp_path / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    images, labels, classes = read_published(tmp_path / "data_batch_1.bin")
    assert classes == list("abcdefghij")
    np.testing.assert_array_equal(images, np.concatenate([part[1] for part in parts[:5]]))
    np.testing.assert_array_equal(labels, np.concatenate([part[2] for part in parts[:5]]))
    np.testing.assert_array_equal(read_published(tmp_path / "test_batch.bin")[0], parts[5][1])


def test_cifar_100_binary_files_have_a_coarse_label_first(tmp_path):
    data, images, fine = cifar_records(6, 2, 0)
    (tmp_path / "test.bin").write_bytes(data)
    (tmp_path / "fine_label_names.txt").write_text(" ".join("abcdefghij"))
    found, labels, classes = read_published(tmp_path / "test.bin")
    np.testing.assert_array_equal(found, images)
    np.testing.assert_array_equal(labels, fine)
    assert classes == list("abcdefghij")


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write_torchvision(root, images, labels):
    """CIFAR-10, CIFAR-100, MNIST, SVHN and DTD where torchvision puts them."""
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    batch = {b"labels": labels.tolist(), b"fine_labels": labels.tolist(), b"data": planes}
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        write(root / "cifar-10-batches-py" / name, python2(batch))
    write(root / "cifar-100-python" / "test", python2(batch))
    write(root / "MNIST/raw/t10k-images-idx3-ubyte", idx(images[:, :28, :28, 0]))
    write(root / "MNIST/raw/t10k-labels-idx1-ubyte", idx(labels.astype(np.uint8)))
    savemat(root / "test_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": np.where(labels, labels, 10)[:, None]})
    (root / "dtd/dtd/images/banded").mkdir(parents=True)
    Image.fromarray(images[0]).resize((40, 50)).save(root / "dtd/dtd/images/banded/banded_0001.jpg")


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.filterwarnings("ignore:cifar10. OOD sets left out. tinyimagenet, places")
def test_torchvisions_folder_is_read_as_it_is(tmp_path):
    images, labels = RNG.integers(256, size=(6, 32, 32, 3), dtype=np.uint8), np.arange(6) % 4
    write_torchvision(tmp_path, images, labels)
    stream = streams.load("cifar10", root=tmp_path, tasks=2)
    np.testing.assert_array_equal(stream.train.take(np.arange(30)), np.concatenate([images] * 5))
    np.testing.assert_array_equal(stream.test.take(np.arange(6)), images)
    ood = {ood_set.name: ood_set.source for ood_set in stream.ood}
    assert list(ood) == ["cifar100", "mnist", "svhn", "textures"] and ood["textures"].shape == (32, 32, 3)
    np.testing.assert_array_equal(ood["svhn"].take(np.arange(6)), images)
    assert ood["svhn"].labels.tolist() == labels.tolist()
    digit = Image.fromarray(images[5, :28, :28, 0]).resize((32, 32), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(ood["mnist"].take(np.array([5]))[0], np.stack([digit] * 3, axis=-1))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test_batch.bin", b"x" * 3074, r"test_batch\.bin: 3074 bytes are not whole records of 3073"),
        ("data_batch_1", RAW, r"data_batch_2: no such file"),
        ("t10k-images-idx3-ubyte", idx(np.zeros((3, 28, 28), np.uint8)), "labels-idx1-ubyte: no such file"),
        ("t10k-labels-idx1-ubyte", b"\0\0\x09\x01", "labels-idx1-ubyte: not an IDX file"),
        ("t10k-labels-idx1-ubyte", idx(np.zeros(9, np.uint8))[:-1], "labels-idx1-ubyte: not an IDX file"),
        ("test_32x32.mat", b"MATLAB 5.0", r"test_32x32\.mat: not SVHN"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    write(tmp_path / name, content)
    with pytest.raises(ToodError, match=message):
        read_published(tmp_path / name.replace("labels-idx1", "images-idx3"))
