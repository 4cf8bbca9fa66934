"""CIFAR's Python batches: equal to what pickle reads, and nothing in them is run."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from tood.errors import ToodError
from tood.streams.cifar_batches import read_batch, read_cifar_batches

RNG = np.random.default_rng(0)


def batch(n=7, label=b"labels"):
    data = RNG.integers(256, size=(n, 3072), dtype=np.uint8)
    return {b"data": data, label: RNG.integers(10, size=n).tolist(), b"batch_label": b"batch 1 of 5"}


def python2(content):
    """As Python 2 wrote it, protocol 2: byte strings as text of latin-1, and an array by ``_reconstruct``."""

    def text(value):
        return (
            b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + len(value).to_bytes(4, "little") + value
        )

    def array(x):
        head = b"cnumpy.core.multiarray\n_reconstruct\nq\x01(cnumpy\nndarray\nq\x02K\x00\x85U\x01bt"
        dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        shape = b"".join(b"M" + n.to_bytes(2, "little") for n in x.shape)
        return head + b"R(K\x01(" + shape + b"t" + dtype + b"\x89" + text(x.tobytes()) + b"tb"

    parts = b"".join(
        text(key)
        + (
            array(value)
            if isinstance(value, np.ndarray)
            else text(value)
            if isinstance(value, bytes)
            else b"](" + b"".join(b"K" + bytes([v]) for v in value) + b"e"
        )
        for key, value in content.items()
    )
    return b"\x80\x02}(" + parts + b"u."


@pytest.mark.parametrize("protocol", [2, 3, 4, "python 2"])
def test_equal_to_what_pickle_reads(tmp_path, protocol):
    content = batch()
    raw = python2(content) if protocol == "python 2" else pickle.dumps(content, protocol=protocol)
    assert pickle.loads(raw, encoding="bytes").keys() == content.keys()
    (tmp_path / "b").write_bytes(raw)
    found = read_batch(tmp_path / "b")
    assert list(found) == ["data", "labels", "batch_label"]
    np.testing.assert_array_equal(found["data"], content[b"data"])
    assert found["labels"] == content[b"labels"]


@pytest.mark.parametrize("hundred", [False, True])
def test_a_folder(tmp_path, hundred):
    names = ["train"] if hundred else [f"data_batch_{i}" for i in range(1, 6)]
    label, meta, key = (
        (b"fine_labels", "meta", b"fine_label_names") if hundred else (b"labels", "batches.meta", b"label_names")
    )
    contents = [batch(label=label) for _ in names]
    for name, content in zip(names, contents, strict=True):
        (tmp_path / name).write_bytes(python2(content))
    named = [f"class {i}".encode() for i in range(10)]
    (tmp_path / meta).write_bytes(pickle.dumps({key: named}, protocol=2))
    source, classes = read_cifar_batches(tmp_path, "train")
    assert (
        classes == [name.decode() for name in named] and len(source) == 7 * len(names) and source.shape == (32, 32, 3)
    )
    image = source.take(np.array([3]))[0]
    np.testing.assert_array_equal(image[5, 6], contents[0][b"data"][3].reshape(3, 32, 32)[:, 5, 6])
    assert source.labels[:7].tolist() == contents[0][label]


class Evil:
    def __reduce__(self):
        return os.system, ("touch ran",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_program_is_refused_and_not_run(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b").write_bytes(pickle.dumps({b"data": Evil()}, protocol=protocol))
    with pytest.raises(
        ToodError, match=r"b: not a batch of CIFAR: its pickle (names posix.system|has the instruction)"
    ):
        read_batch(tmp_path / "b")
    assert not (tmp_path / "ran").exists()


def test_damage_and_other_contents_are_errors(tmp_path):
    raw = python2(batch())
    for content in (
        raw[: len(raw) // 2],
        b"",
        b"hello",
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": np.zeros((2, 3072))}),
    ):
        (tmp_path / "test_batch").write_bytes(content)
        with pytest.raises(ToodError, match="test_batch"):
            read_cifar_batches(tmp_path, "test")
    with pytest.raises(ToodError, match=r"expected data_batch_1, .* or train, found neither"):
        read_cifar_batches(tmp_path, "train")


DOUBLED = b")" + b"q\x00h\x00\x86" * 60  # a tuple whose hash and text take 2**60 steps
DEEP = b")" + b"\x85" * 300_000
SHAPE = b"K\x01\x85"


@pytest.mark.parametrize(
    "content",
    [
        b"}" + b"NESTED" + b"Ns",
        b"(" + b"NESTED" + b"Nd",
        b"NESTED" + b"U\x01x\x93",
        b"NESTED" + b")R",
        b"c_codecs\nencode\n" + b"NESTED" + b"\x85R",
        b"cnumpy\ndtype\n" + b"NESTED" + b"\x85R",
        b"NESTED" + b"Nb",
        b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01" + SHAPE + b"NESTED" + b"\x89U\x01xtb",
        b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01" + SHAPE + b"NESTED" + b"\x86\x89U\x01xtb",
    ],
)
@pytest.mark.parametrize("nested", [DOUBLED, DEEP], ids=["doubled", "deep"])
def test_nested_values_are_refused_at_once(tmp_path, nested, content):
    (tmp_path / "b").write_bytes(b"\x80\x02" + content.replace(b"NESTED", nested) + b".")
    with pytest.raises(ToodError, match="b: not a batch of CIFAR") as caught:
        read_batch(tmp_path / "b")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("labels", "meta", "message"),
    [
        ([0, 2**70], None, "test_batch: expected labels from 0 to 999, found 0 to 1180591620717411303424"),
        ([0, -1], None, "test_batch: expected labels from 0 to 999, found -1 to 0"),
        ([0, 1], 5, "batches.meta: expected a list of texts as label_names, found int"),
        ([0, 1], [5, 6], "batches.meta: expected a list of texts as label_names, found list"),
        ([0, 2], ["a", "b"], "batches.meta: expected a name for each label up to 2 in label_names, found 2 names"),
    ],
)
def test_labels_and_names_that_do_not_fit_are_refused(tmp_path, labels, meta, message):
    content = {"data": np.zeros((2, 3072), np.uint8), "labels": labels}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content, protocol=2))
    if meta is not None:
        (tmp_path / "batches.meta").write_bytes(pickle.dumps({"label_names": meta}, protocol=2))
    with pytest.raises(ToodError, match=message):
        read_cifar_batches(tmp_path, "test")


def test_prepare_takes_the_batches_and_list_says_where_a_set_comes_from(tmp_path):
    from click.testing import CliRunner

    from tood.commands.data import command

    content = batch()
    (tmp_path / "test_batch").write_bytes(python2(content))
    root = ["--root", str(tmp_path / "sets")]
    done = CliRunner().invoke(command, ["prepare", "cifar10", "test", "--from", str(tmp_path), *root])
    assert done.exit_code == 0 and "7 images" in done.output
    shown = CliRunner().invoke(command, ["list", *root]).output
    assert "https://www.cs.toronto.edu/~kriz/cifar.html  (none stated; cite Krizhevsky 2009)" in shown
    assert "MiB" in shown
