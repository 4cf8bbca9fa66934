import io
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from tood.errors import ToodError
from tood.streams import PackedSource
from tood.streams.packed import checksums


@pytest.mark.parametrize("layout", ["sheets", "jpeg", "images"])
def test_every_layout_gives_the_pixels_that_went_in(tmp_path, images, write_pack, layout):
    samples, labels = images
    source = PackedSource(write_pack(tmp_path / "x-train.npz", samples, labels, layout))
    assert (len(source), source.shape, source.layout) == (20, (16, 16, 3), layout)
    assert source.classes == ("a", "b", "c", "d")
    np.testing.assert_array_equal(source.labels, labels)
    np.testing.assert_array_equal(source.take(np.arange(20)), samples)
    np.testing.assert_array_equal(source.take(np.array([3, 1])), samples[[3, 1]])


@pytest.mark.parametrize("layout", ["sheets", "jpeg", "images"])
def test_resizing_is_pillows_bilinear_and_crops_what_was_scaled(tmp_path, images, write_pack, layout):
    samples, labels = images
    path = write_pack(tmp_path / "x-train.npz", samples, labels, layout)
    for size, resize, margin in ((10, None, 0), (16, 20, 2)):
        side = size + 2 * margin
        scaled = np.stack([Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR) for image in samples])
        expected = scaled[:, margin : margin + size, margin : margin + size]
        np.testing.assert_array_equal(PackedSource(path, size, resize).take(np.arange(20)), expected)


@pytest.mark.parametrize(
    ("size", "resize", "message"),
    [
        (16, "squish", "resize: expected 'squash' or pixels of the shorter side, found 'squish'"),
        (16, 8, "size, resize: expected a whole size of 1 or more and a resize no smaller, found 16 and 8"),
        (True, None, "expected a whole size"),
        (0, None, "expected a whole size of 1 or more .* found 0"),
        (None, 20, "expected a whole size of 1 or more .* found None and 20"),
    ],
)
def test_sizes_that_cannot_be_are_refused_at_once(tmp_path, images, write_pack, size, resize, message):
    path = write_pack(tmp_path / "x-train.npz", *images, "images")
    with pytest.raises(ToodError, match=message):
        PackedSource(path, size, resize)


def test_a_wrong_checksum_is_found_when_the_images_are_read(tmp_path, images, write_pack):
    path = write_pack(tmp_path / "x-train.npz", *images, "sheets")
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  x-train.npz\n")
    source = PackedSource(path)
    with pytest.raises(ToodError, match=r"x-train\.npz: damaged: its SHA-256"):
        source.take(np.array([0]))


def test_a_damaged_image_inside_is_named(tmp_path, images, write_pack):
    path = write_pack(tmp_path / "x-train.npz", *images, "jpeg")
    with np.load(path) as pack:
        arrays = {name: pack[name] for name in pack.files}
    start, end = arrays["offsets"][7:9]
    arrays["jpeg"] = arrays["jpeg"].copy()
    arrays["jpeg"][start:end] = 0
    np.savez(path, **arrays)
    with pytest.raises(ToodError, match=r"x-train\.npz, image 7 of jpeg: damaged"):
        PackedSource(path).take(np.array([0]))


def pack_without(pack, **changes):
    arrays = {**pack, **changes}
    buffer = io.BytesIO()
    np.savez(buffer, **{name: array for name, array in arrays.items() if array is not None})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": None}, "sheets, jpeg, images, found none"),
        ({"labels": None}, "expected an array 'labels', found"),
        ({"labels": np.array([0, 9])}, "labels run from 0 to 9, expected 0 to 1"),
        ({"images": np.zeros((2, 4, 4, 3))}, "expected uint8 images"),
        ({"images": np.zeros((1, 4, 4, 3), np.uint8)}, "1 images for 2 labels"),
        ({"labels": np.array([], int)}, "one label per image"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, changes, message):
    pack = {"labels": np.array([0, 1]), "classes": np.array(["a", "b"]), "images": np.zeros((2, 4, 4, 3), np.uint8)}
    path = tmp_path / "x-test.npz"
    path.write_bytes(pack_without(pack, **changes))
    with pytest.raises(ToodError, match=message) as caught:
        PackedSource(path).take(np.array([0]))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("layout", ["sheets", "jpeg", "images"])
def test_any_damage_is_one_clear_error(tmp_path, images, write_pack, layout):
    """Bytes overwritten or cut anywhere: either the file can still be read, or the error names it."""
    whole = write_pack(tmp_path / "whole.npz", *images, layout).read_bytes()
    rng = np.random.default_rng(0)
    errors = {}
    for i in range(150):
        data = bytearray(whole)
        for place in rng.integers(0, len(data), 3):
            data[place] = rng.integers(256)
        path = tmp_path / f"{i}.npz"
        path.write_bytes(data[: rng.integers(len(data))] if i % 3 == 0 else data)
        try:
            assert PackedSource(path).take(np.arange(20)).shape == (20, 16, 16, 3)
        except ToodError as error:
            errors[path] = str(error)
    assert len(errors) > 50
    assert all(str(path) in message for path, message in errors.items())


def test_a_list_of_checksums_that_is_not_one(tmp_path):
    assert checksums(tmp_path) == {}
    (tmp_path / "SHA256SUMS").write_text("what is this\n")
    with pytest.raises(ToodError, match="SHA256SUMS: expected lines"):
        checksums(tmp_path)
    (tmp_path / "SHA256SUMS").write_bytes(b"\xff\xfe" + b"0" * 64)
    with pytest.raises(ToodError, match=r"SHA256SUMS: expected lines of a SHA-256 and a file name .*utf-8"):
        checksums(tmp_path)


@pytest.mark.data
def test_real_sets_are_read_pixel_by_pixel(packed_sets):
    """One set of lossless sheets and one of single JPEG files, against the plainest possible decoding."""
    with np.load(packed_sets / "dtd-test.npz") as pack:
        blob, offsets, (h, w) = pack["sheets"].tobytes(), pack["offsets"], pack["tile"]
    tiles = []
    for start, end in pairwise(offsets):
        sheet = Image.open(io.BytesIO(blob[start:end])).convert("RGB")
        for top in range(0, sheet.height, h):
            for left in range(0, sheet.width, w):
                tiles.append(np.asarray(sheet.crop((left, top, left + w, top + h))))
    source = PackedSource(packed_sets / "dtd-test.npz")
    np.testing.assert_array_equal(source.images, np.stack(tiles[: len(source)]))

    with np.load(packed_sets / "tinyimagenet-test.npz") as pack:
        blob, offsets = pack["jpeg"].tobytes(), pack["offsets"]
    source = PackedSource(packed_sets / "tinyimagenet-test.npz", size=32)
    for row in (0, 1, 2500, 4999):
        image = Image.open(io.BytesIO(blob[offsets[row] : offsets[row + 1]])).convert("RGB")
        expected = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(source.take(np.array([row]))[0], expected)
