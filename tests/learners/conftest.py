import numpy as np
import pytest
import torch

from tood.streams import Stream


def blobs(classes=6, dim=8, each=24, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, dim)) * 2
    labels = np.repeat(np.arange(classes), each)
    return (centres[labels] + rng.normal(size=(len(labels), dim))).astype(np.float32), labels


@pytest.fixture(scope="session")
def vectors():
    """Three tasks of two Gaussian classes in eight dimensions, in random order of rows; nothing is augmented."""
    x, y = blobs()
    rng = np.random.default_rng(1)
    order = rng.permutation(len(y))
    return Stream.from_arrays(x[order], y[order], *blobs(each=20), tasks=3, name="blobs")


@pytest.fixture(scope="session")
def images():
    """Three tasks of two classes of small colour images, cropped and flipped."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(6), 16))
    pictures = rng.integers(0, 128, (96, 8, 8, 3)) + 20 * labels[:, None, None, None]
    pictures = pictures.astype(np.uint8)
    return Stream.from_arrays(pictures, labels, pictures, labels, tasks=3, augmentation="crop_flip", name="squares")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
