import numpy as np
import pytest

from tood.errors import ToodError

torch = pytest.importorskip("torch")

from tood.streams.augment import augment, crop, prepare  # noqa: E402

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
BLACK = [-m / s for m, s in zip(MEAN, STD, strict=True)]


def pixels(n=9, size=12, channels=3):
    return np.random.default_rng(0).integers(0, 256, (n, size, size, channels)).astype(np.uint8)


def test_prepared_images_are_scaled_and_normalised():
    raw = pixels()
    batch = prepare(raw, MEAN, STD)
    expected = (raw / 255 - np.array(MEAN)) / np.array(STD)
    assert (batch.dtype, tuple(batch.shape)) == (torch.float32, (9, 3, 12, 12))
    assert batch.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_allclose(batch.permute(0, 2, 3, 1).numpy(), expected, atol=1e-6)
    assert torch.equal(prepare(torch.from_numpy(raw), MEAN, STD, device="cpu"), batch)


def test_vectors_pass_and_other_things_do_not():
    vectors = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_array_equal(prepare(vectors, (0.0,), (1.0,)).numpy(), vectors)
    with pytest.raises(ToodError, match="expected uint8 images"):
        prepare(np.zeros((2, 4, 4, 3), np.float32), MEAN, STD)


@pytest.mark.parametrize(("pad", "channels"), [(0, 3), (1, 1), (4, 3)])
def test_crops_equal_padding_cutting_and_mirroring_image_by_image(pad, channels):
    """Padded before normalising, as torchvision's RandomCrop does."""
    raw = pixels(channels=channels)
    n, size = raw.shape[:2]
    rng = np.random.default_rng(1)
    offsets, flips = rng.integers(0, 2 * pad + 1, (2, n)), rng.integers(0, 2, n).astype(bool)
    expected = np.empty_like(raw)
    for i in range(n):
        padded = np.pad(raw[i], ((pad, pad), (pad, pad), (0, 0)))
        window = padded[offsets[0, i] : offsets[0, i] + size, offsets[1, i] : offsets[1, i] + size]
        expected[i] = window[:, ::-1] if flips[i] else window
    mean, std, black = MEAN[:channels], STD[:channels], BLACK[:channels]
    batch = crop(prepare(raw, mean, std), torch.from_numpy(offsets), torch.from_numpy(flips), pad, black)
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch, prepare(expected, mean, std))


def windows(raw, pad):
    """Every crop of every image, mirrored or not: {bytes: (top, left, flip)} for each image."""
    size = raw.shape[1]
    found = []
    for image in raw:
        padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
        cut = {}
        for top in range(2 * pad + 1):
            for left in range(2 * pad + 1):
                window = padded[top : top + size, left : left + size]
                cut[window.tobytes()] = (top, left, 0)
                cut[np.ascontiguousarray(window[:, ::-1]).tobytes()] = (top, left, 1)
        found.append(cut)
    return found


@pytest.mark.parametrize("kind", ["crop_flip", "shift"])
def test_every_offset_and_flip_is_equally_likely_and_images_differ(kind):
    from scipy.stats import chisquare

    raw = pixels(n=8, size=8)
    known = windows(raw, 1)
    generator = torch.Generator().manual_seed(0)
    batch = torch.from_numpy(raw).permute(0, 3, 1, 2)
    draws = []
    for _ in range(200):
        out = augment(batch, kind, generator)  # an eighth of 8 pixels is a pad of 1
        draws.append([known[i][image.tobytes()] for i, image in enumerate(out.permute(0, 2, 3, 1).numpy())])
    assert any(len(set(draw)) > 1 for draw in draws)
    top, left, flip = np.array(draws).reshape(-1, 3).T
    assert chisquare(np.bincount(3 * top + left, minlength=9)).pvalue > 1e-3
    if kind == "shift":
        assert not flip.any()
    else:
        assert chisquare(np.bincount(flip)).pvalue > 1e-3


def test_the_same_generator_state_gives_the_same_batch():
    batch = prepare(pixels(), MEAN, STD)
    one, two, three = (
        augment(batch, "crop_flip", torch.Generator().manual_seed(seed), black=BLACK) for seed in (0, 0, 1)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, three)


def test_resized_crops_are_windows_of_8_to_100_percent_and_3_to_4():
    size, n = 48, 400
    ramp = torch.arange(size, dtype=torch.float32)
    image = torch.stack([ramp.expand(size, size), ramp[:, None].expand(size, size)])  # each pixel's column and row
    out = augment(image.expand(n, 2, size, size), "resized_crop", torch.Generator().manual_seed(0))
    wide = (out[:, 0, 24, 30] - out[:, 0, 24, 18]) / 12  # the slope in the middle is the window's share of the width
    high = (out[:, 1, 30, 24] - out[:, 1, 18, 24]) / 12
    area, ratio = (wide.abs() * high).numpy(), (wide.abs() / high).numpy()
    assert 0.07 < area.min() < 0.12 and 0.8 < area.max() <= 1 and 0.45 < area.mean() < 0.55  # drawn evenly
    assert ratio.min() > 0.7 and ratio.max() < 1.43  # whole pixels
    assert 0.4 < (wide < 0).float().mean() < 0.6  # mirrored
    assert out.amin() >= 0 and out.amax() <= size - 1
