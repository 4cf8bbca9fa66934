import hashlib
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tood.errors import ToodError
from tood.streams import ArraySource, FolderSource, PackedSource, packed
from tood.streams.packed import checksums, write_packed


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

    monkeypatch.setattr(packed, "checksums", slow)
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
