import numpy as np
import pytest
from sklearn.datasets import load_digits, load_sample_images

from tood import streams


@pytest.fixture(scope="module")
def digits():
    return streams.load("digits")


def every(source):
    return source.take(np.arange(len(source)))


def test_classes_tasks_and_shares(digits):
    assert (len(digits), digits.sizes, digits.order) == (4, (2, 2, 2, 2), tuple(range(8)))
    assert (digits.train.shape, digits.augmentation) == ((8, 8, 1), "shift")
    sizes = np.bincount(load_digits().target)[:8]
    test = np.bincount(digits.test.labels)
    np.testing.assert_array_equal(np.bincount(digits.train.labels) + test, sizes)
    np.testing.assert_allclose(test / sizes, 0.3, atol=0.005)


def test_no_image_is_lost_or_in_both_splits(digits):
    """Training, test and near-OOD images together are scikit-learn's digits, each once."""
    data = load_digits()
    parts = [digits.train, digits.test, digits.ood[0].source]
    together = sorted(
        (int(label), image.tobytes()) for part in parts for label, image in zip(part.labels, every(part), strict=True)
    )
    scaled = np.rint(data.images * 255 / 16).astype(np.uint8)
    assert together == sorted((int(y), x.tobytes()) for y, x in zip(data.target, scaled, strict=True))
    assert set(digits.ood[0].source.labels.tolist()) == {8, 9}


def test_ood_sets_are_what_they_say(digits):
    assert [(s.name, s.group) for s in digits.ood] == [("eight_nine", "near"), ("photographs", "far"), ("noise", "far")]
    patches, noise = (every(s.source) for s in digits.ood[1:])
    photo = load_sample_images().images[0].astype(float)
    assert len(patches) == 2 * (photo.shape[0] // 32) * (photo.shape[1] // 32)
    corner = (photo[:4, :4] @ [0.299, 0.587, 0.114]).mean()
    assert abs(int(patches[0, 0, 0, 0]) - corner) <= 0.5
    across = (photo[32:36, 36:40] @ [0.299, 0.587, 0.114]).mean()  # second row and column of patches
    assert abs(int(patches[photo.shape[1] // 32 + 1, 0, 1, 0]) - across) <= 0.5
    assert abs(noise.mean() - 127.5) < 2


def test_it_is_always_the_same(digits):
    again = streams.load("digits")
    for one, two in zip((digits.train, digits.test), (again.train, again.test), strict=True):
        np.testing.assert_array_equal(every(one), every(two))
    for one, two in zip(digits.ood, again.ood, strict=True):
        np.testing.assert_array_equal(every(one.source), every(two.source))


def test_the_digits_can_be_told_apart(digits):
    """A nearest class mean on raw pixels is right on about nine of ten: labels and pixels belong together."""
    train, test = (every(s).reshape(len(s), -1).astype(float) for s in (digits.train, digits.test))
    means = np.stack([train[digits.train.labels == c].mean(0) for c in range(8)])
    guess = ((test[:, None] - means) ** 2).sum(-1).argmin(1)
    assert (guess == digits.test.labels).mean() > 0.88
