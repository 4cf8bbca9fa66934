"""CIFAR as published: the binary version, and the Python version equal to what pickle reads, with nothing run."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from tood.errors import ToodError
from tood.streams.cifar import read_cifar

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
    source, classes = read_cifar(tmp_path, "test")
    planes = content[b"data"].reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(source.samples, planes.transpose(0, 2, 3, 1))
    assert source.labels.tolist() == content[b"labels"] and len(classes) == max(content[b"labels"]) + 1


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
    source, classes = read_cifar(tmp_path, "train")
    assert classes == [name.decode() for name in named] and len(source) == 7 * len(names)
    assert source.labels[:7].tolist() == contents[0][label]


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
        read_cifar(tmp_path, "test")
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
        read_cifar(tmp_path, "test")


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
    train, classes = read_cifar(tmp_path, "train")
    assert classes == list("abcdefghij")
    np.testing.assert_array_equal(train.samples, np.concatenate([part[1] for part in parts[:5]]))
    np.testing.assert_array_equal(train.labels, np.concatenate([part[2] for part in parts[:5]]))
    np.testing.assert_array_equal(read_cifar(tmp_path, "test")[0].samples, parts[5][1])


def test_cifar_100_binary_files_have_a_coarse_label_first(tmp_path):
    data, images, fine = cifar_records(6, 2, 0)
    (tmp_path / "test.bin").write_bytes(data)
    (tmp_path / "fine_label_names.txt").write_text(" ".join("abcdefghij"))
    source, classes = read_cifar(tmp_path, "test")
    np.testing.assert_array_equal(source.samples, images)
    np.testing.assert_array_equal(source.labels, fine)
    assert classes == list("abcdefghij")


def test_bad_cifar_files_are_named(tmp_path):
    with pytest.raises(ToodError, match=r"expected data_batch_1\.bin or train\.bin or .* found none"):
        read_cifar(tmp_path, "train")
    (tmp_path / "test_batch.bin").write_bytes(b"x" * 3074)
    with pytest.raises(ToodError, match=r"test_batch\.bin: 3074 bytes are not whole records of 3073"):
        read_cifar(tmp_path, "test")
    with pytest.raises(ToodError, match="train and test, found 'val'"):
        read_cifar(tmp_path, "val")
