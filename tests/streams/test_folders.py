import numpy as np
import pytest
from PIL import Image

from tood.errors import ToodError
from tood.streams import FolderSource, ImageListSource
from tood.streams.images import fit


def test_a_folder_a_class_in_sorted_order(tmp_path, images, write_folder):
    samples, labels = images
    write_folder(tmp_path, samples, labels, classes=("zebra", "ant", "bee", "cat"))
    (tmp_path / "ant" / "notes.txt").write_text("not an image")
    source = FolderSource(tmp_path, size=16)
    assert source.classes == ("ant", "bee", "cat", "zebra")
    order = np.concatenate([np.flatnonzero(labels == c) for c in (1, 2, 3, 0)])
    np.testing.assert_array_equal(source.labels, np.repeat([0, 1, 2, 3], 5))
    np.testing.assert_array_equal(source.take(np.arange(20)), samples[order])
    np.testing.assert_array_equal(source.take(np.array([19, 4])), samples[order[[19, 4]]])
    assert source.take(np.array([], int)).shape == (0, 16, 16, 3)


def test_flat_takes_every_image_below_as_one_class(tmp_path, images, write_folder):
    write_folder(tmp_path, *images)
    Image.fromarray(images[0][0]).save(tmp_path / "top.png")
    source = FolderSource(tmp_path, size=8, flat=True)
    assert (len(source), source.shape, set(source.labels.tolist())) == (21, (8, 8, 3), {0})


def test_grey_and_palette_files_become_rgb(tmp_path):
    (tmp_path / "a").mkdir()
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    Image.fromarray(grey).save(tmp_path / "a" / "0.png")
    Image.fromarray(grey).convert("P").save(tmp_path / "a" / "1.png")
    taken = FolderSource(tmp_path, size=8).take(np.array([0, 1]))
    np.testing.assert_array_equal(taken, np.broadcast_to(grey[..., None], (2, 8, 8, 3)))


def test_the_shorter_side_is_scaled_and_the_middle_kept():
    """A picture of its own coordinates: after fitting, the corner that is left says what was cut."""
    y, x = np.mgrid[:64, :128].astype(np.uint8)
    image = Image.fromarray(np.stack([x, y, y], -1))
    assert np.asarray(fit(image, 64))[0, 0].tolist() == [32, 0, 0]  # 128 wide: 32 columns go on each side
    assert np.asarray(fit(image, 56, resize=64))[0, 0].tolist() == [36, 4, 4]
    assert fit(image, 7, resize=9).size == (7, 7)
    tall = fit(image.transpose(Image.Transpose.TRANSPOSE), 64)
    assert np.asarray(tall)[0, 0].tolist() == [32, 0, 0]


def test_damaged_and_missing_images_are_named(tmp_path, images, write_folder):
    write_folder(tmp_path, *images)
    source = FolderSource(tmp_path, size=16)
    victim = tmp_path / source.files[3]
    victim.write_bytes(victim.read_bytes()[:60])
    with pytest.raises(ToodError, match=victim.name + ": damaged"):
        source.take(np.arange(20))
    victim.unlink()
    with pytest.raises(ToodError, match=victim.name + ": no such file"):
        source.take(np.arange(20))


def test_folders_without_what_is_needed(tmp_path, images, write_folder):
    with pytest.raises(ToodError, match="no such folder"):
        FolderSource(tmp_path / "nowhere", size=8)
    with pytest.raises(ToodError, match="found no folder at all"):
        FolderSource(tmp_path, size=8)
    write_folder(tmp_path, *images)
    with pytest.raises(ToodError, match="no folder e"):
        FolderSource(tmp_path, size=8, classes=["a", "e"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ToodError, match="empty: no images"):
        FolderSource(tmp_path, size=8)
    with pytest.raises(ToodError, match="size, resize"):
        FolderSource(tmp_path / "a", size=8, resize=4, flat=True)


def test_an_image_list_gives_paths_and_labels(tmp_path, images, write_folder):
    samples, labels = images
    write_folder(tmp_path / "pictures", samples, labels)
    listing = tmp_path / "test.txt"
    listing.write_text("c/002.png 2\na/004.png 0\n\nb/001.png -1\n")
    source = ImageListSource(listing, tmp_path / "pictures", size=16)
    assert source.labels.tolist() == [2, 0, -1]
    assert source.classes == ("a", "1", "c")
    np.testing.assert_array_equal(source.take(np.arange(3)), samples[[2, 4, 1]])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("../secret.png 0", r"line 1: \.\./secret\.png leaves the image folder"),
        ("/etc/secret.png 0", "leaves the image folder"),
        ("a\\..\\..\\secret.png 0", "leaves the image folder"),
        ("a/000.png", "expected a path and a label"),
        ("", "lists no images"),
    ],
)
def test_bad_lines_are_refused(tmp_path, line, message):
    listing = tmp_path / "list.txt"
    listing.write_text(line + "\n")
    with pytest.raises(ToodError, match=message):
        ImageListSource(listing, tmp_path, size=8)
