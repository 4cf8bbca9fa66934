import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def packed_sets():
    """The folder of the real packed sets."""
    if not os.environ.get("TOOD_DATA"):
        pytest.skip("TOOD_DATA is not set: the packed image sets are not at hand")
    return Path(os.environ["TOOD_DATA"])


@pytest.fixture
def images():
    """Twenty smooth random images, 16 pixels per side, of 4 classes: the array and its labels."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (20, 4, 4, 3)).astype(np.uint8)
    return small.repeat(4, 1).repeat(4, 2), np.arange(20) % 4


@pytest.fixture
def write_pack():
    """Write a packed set in one of the three layouts, encoded as PNG."""

    def png(array):
        buffer = io.BytesIO()
        Image.fromarray(array).save(buffer, "PNG")
        return buffer.getvalue()

    def write(path, array, labels, layout, classes=("a", "b", "c", "d")):
        n, h, w, _ = array.shape
        if layout == "images":
            arrays = {"images": array}
        elif layout == "jpeg":
            blobs = [png(image) for image in array]
            arrays = {"jpeg": np.frombuffer(b"".join(blobs), np.uint8), "offsets": np.cumsum([0, *map(len, blobs)])}
        else:  # sheets of 2 x 3 tiles, the last one padded
            blobs = []
            for start in range(0, n, 6):
                sheet = np.full((2 * h, 3 * w, 3), 77, np.uint8)
                for i, image in enumerate(array[start : start + 6]):
                    r, c = divmod(i, 3)
                    sheet[r * h : (r + 1) * h, c * w : (c + 1) * w] = image
                blobs.append(png(sheet))
            arrays = {
                "sheets": np.frombuffer(b"".join(blobs), np.uint8),
                "offsets": np.cumsum([0, *map(len, blobs)]),
                "tile": np.array([h, w]),
            }
        np.savez(path, labels=labels.astype(np.int16), classes=np.array(classes), **arrays)
        return path

    return write


@pytest.fixture
def write_folder():
    """Write images as ``ROOT/CLASS/N.png``."""

    def write(root, array, labels, classes=("a", "b", "c", "d")):
        for i, (image, label) in enumerate(zip(array, labels, strict=True)):
            path = root / classes[label] / f"{i:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
        return root

    return write
