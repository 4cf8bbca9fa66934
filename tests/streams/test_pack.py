import hashlib
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tood.errors import ToodError
from tood.streams import ArraySource, FolderSource, PackedSource, pack
from tood.streams.pack import read_cifar, write_packed
from tood.streams.packed import checksums


@pytest.mark.parametrize(("n", "size"), [(1, 5), (20, 16), (1100, 4), (3, 1500)])
def test_what_is_packed_comes_back_pixel_by_pixel(tmp_path, n, size):
    rng = np.random.default_rng(0)
    samples = rng.integers(0, 256, (n, size, size, 3)).astype(np.uint8)
    samples[:, : size // 2] = samples[:, :1]  # easier to compress, and with black and transparent-looking corners
    samples[0, 0] = 0
    labels = rng.integers(0, 3, n)
    path = write_packed(tmp_path / "new", "x-train", ArraySource(samples, labels), ["a", "b", "c"])
    source = PackedSource(path)
    assert (path.name, source.layout, source.classes) == ("x-train.npz", "sheets", ("a", "b", "c"))
    np.testing.assert_array_equal(source.labels, labels)
    np.testing.assert_array_equal(source.images, samples)


def test_checksums_are_kept_in_the_form_of_sha256sum(tmp_path, images):
    (tmp_path / "SHA256SUMS").write_text(f"{'a' * 64}  other.npz\n{'b' * 64}  x-train.npz\n")
    path = write_packed(tmp_path, "x-train", ArraySource(*images), list("abcd"))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (tmp_path / "SHA256SUMS").read_text() == f"{'a' * 64}  other.npz\n{digest}  x-train.npz\n"


def test_sets_packed_at_the_same_time_all_get_their_checksum(tmp_path, images, monkeypatch):
    def slow(root):
        found = checksums(root)
        time.sleep(0.02)  # so that others would read the same list meanwhile
        return found

    monkeypatch.setattr(pack, "checksums", slow)
    names = [f"x{i}-train" for i in range(6)]
    with ThreadPoolExecutor(len(names)) as pool:
        paths = list(pool.map(lambda name: write_packed(tmp_path, name, ArraySource(*images), list("abcd")), names))
    expected = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    assert checksums(tmp_path) == expected


def test_a_lock_that_cannot_be_made_is_one_line(tmp_path, images):
    (tmp_path / ".SHA256SUMS.lock").mkdir()
    with pytest.raises(ToodError, match=r"SHA256SUMS: cannot be written \(.+\)"):
        write_packed(tmp_path, "x-train", ArraySource(*images), list("abcd"))


def test_a_failure_leaves_the_old_set_alone(tmp_path, images, write_folder):
    path = write_packed(tmp_path, "x-train", ArraySource(*images), list("abcd"))
    before = path.read_bytes()
    folder = write_folder(tmp_path / "images", *images)
    (folder / "b" / "001.png").write_bytes(b"broken")
    with pytest.raises(ToodError, match=r"001\.png: damaged"):
        write_packed(tmp_path, "x-train", FolderSource(folder, size=16), list("abcd"))
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [".SHA256SUMS.lock", "SHA256SUMS", "images", "x-train.npz"]


def test_only_colour_images_are_packed(tmp_path):
    with pytest.raises(ToodError, match=r"expected images \[H, W, 3\]"):
        write_packed(tmp_path, "x-train", ArraySource(np.zeros((2, 5)), [0, 1]), ["a", "b"])


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
    (tmp_path / "batches.meta.txt").write_text("airplane\nautomobile\n\n")
    train, classes = read_cifar(tmp_path, "train")
    assert classes == ["airplane", "automobile"]
    np.testing.assert_array_equal(train.samples, np.concatenate([part[1] for part in parts[:5]]))
    np.testing.assert_array_equal(train.labels, np.concatenate([part[2] for part in parts[:5]]))
    np.testing.assert_array_equal(read_cifar(tmp_path, "test")[0].samples, parts[5][1])


def test_cifar_100_binary_files_have_a_coarse_label_first(tmp_path):
    data, images, fine = cifar_records(6, 2, 0)
    (tmp_path / "test.bin").write_bytes(data)
    with pytest.raises(ToodError, match=r"fine_label_names\.txt: no such file"):
        read_cifar(tmp_path, "test")
    (tmp_path / "fine_label_names.txt").write_text("apple\naquarium_fish\n")
    source, classes = read_cifar(tmp_path, "test")
    np.testing.assert_array_equal(source.samples, images)
    np.testing.assert_array_equal(source.labels, fine)
    assert classes == ["apple", "aquarium_fish"]


def test_bad_cifar_files_are_named(tmp_path):
    with pytest.raises(ToodError, match=r"data_batch_1\.bin: no such file"):
        read_cifar(tmp_path, "train")
    (tmp_path / "test_batch.bin").write_bytes(b"x" * 3074)
    with pytest.raises(ToodError, match=r"test_batch\.bin: 3074 bytes are not whole records of 3073"):
        read_cifar(tmp_path, "test")
    with pytest.raises(ToodError, match="train and test, found 'val'"):
        read_cifar(tmp_path, "val")
