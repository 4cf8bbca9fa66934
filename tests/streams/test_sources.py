import threading
import tracemalloc

import numpy as np
import pytest

from tood.errors import ToodError
from tood.streams import ArraySource, Subset, batches
from tood.streams.sources import measure


def test_images_are_kept_without_a_copy_and_read_by_row(images):
    samples, labels = images
    source = ArraySource(samples, labels)
    assert np.shares_memory(source.samples, samples)
    assert (len(source), source.shape) == (20, (16, 16, 3))
    rows = np.array([7, 0, 7])
    np.testing.assert_array_equal(source.take(rows), samples[[7, 0, 7]])
    np.testing.assert_array_equal(source.labels, labels)


def test_grey_images_get_a_channel_and_vectors_become_float32():
    assert ArraySource(np.zeros((2, 8, 8), np.uint8)).shape == (8, 8, 1)
    vectors = ArraySource(np.ones((2, 5)), [3, 4])
    assert (vectors.shape, vectors.take(np.array([1])).dtype) == ((5,), np.float32)


@pytest.mark.parametrize(
    ("samples", "labels", "message"),
    [
        (np.zeros((2, 8, 8, 3)), [0, 1], "uint8 images"),
        (np.zeros((2, 3, 3, 3, 3), np.uint8), [0, 1], "shape"),
        (np.full((2, 3), np.nan), [0, 1], "NaN"),
        (np.zeros((0, 8, 8, 3), np.uint8), [], "at least one sample"),
        (np.zeros((2, 3)), [0], "expected 2 entries"),
        (np.zeros((2, 3)), [0.5, 1.0], "whole numbers"),
    ],
)
def test_bad_samples_are_refused(samples, labels, message):
    with pytest.raises(ToodError, match=message):
        ArraySource(samples, labels)


def test_a_subset_reads_the_rows_it_names(images):
    samples, labels = images
    subset = Subset(ArraySource(samples, labels), np.array([5, 9, 2]))
    np.testing.assert_array_equal(subset.labels, labels[[5, 9, 2]])
    np.testing.assert_array_equal(subset.take(np.array([2, 0])), samples[[2, 5]])
    assert (len(subset), subset.shape) == (3, (16, 16, 3))


class Slow(ArraySource):
    lazy = True

    def take(self, rows):
        self.threads = {*getattr(self, "threads", ()), threading.get_ident()}
        self.taken = getattr(self, "taken", 0) + 1
        return super().take(rows)


def test_batches_come_in_order_and_lazy_sources_are_read_ahead_by_another_thread(images):
    samples, labels = images
    chunks = np.split(np.arange(20), 5)
    source = Slow(samples, labels)
    read = batches(source, chunks, ahead=2)
    first = next(read)
    together = np.concatenate([first, *read])
    np.testing.assert_array_equal(together, samples)
    assert threading.get_ident() not in source.threads
    plain = list(batches(ArraySource(samples, labels), chunks))
    np.testing.assert_array_equal(np.concatenate(plain), samples)


def test_no_more_batches_wait_than_asked_for(images):
    source = Slow(*images)
    read = batches(source, iter(np.split(np.arange(20), 20)), ahead=2)
    next(read)
    read.close()
    assert source.taken <= 3


def test_measured_statistics_are_those_of_numpy(images):
    samples, labels = images
    mean, std = measure(ArraySource(samples, labels))
    np.testing.assert_allclose(mean, (samples / 255).mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std, (samples / 255).std((0, 1, 2)), rtol=1e-9)
    assert measure(ArraySource(np.ones((2, 5)))) == ((0.0,), (1.0,))


def test_statistics_of_many_images_are_exact_and_need_little_memory():
    samples = np.random.default_rng(0).integers(0, 256, (3000, 16, 16, 3), dtype=np.uint8)
    counts = np.stack([np.bincount(channel, minlength=256) for channel in samples.reshape(-1, 3).T])
    source, values, pixels = ArraySource(samples), np.arange(256) / 255, samples[..., 0].size
    tracemalloc.start()
    mean, std = measure(source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert mean == tuple(counts @ values / pixels)
    assert std == tuple(np.sqrt(counts @ values**2 / pixels - np.square(mean)))
    assert peak < samples.nbytes
