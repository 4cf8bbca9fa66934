"""Frozen features: the images of a stream as vectors of a pretrained network, extracted once and kept on disk.

One ``.npy`` file per image set, memory-mapped by every run that uses it. Its name is a hash of what the features derive
from: the weights, the architecture and image size, the normalisation, and the images. So features of other images or of
another network are never reused. An interrupted extraction resumes; a file that has its final name is complete. It ends
with a digest of the features, after the array; NumPy does not read that part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from tood.arrays import FloatArray, IntArray, to_numpy
from tood.errors import ToodError
from tood.storage.files import write_file
from tood.streams.sources import Labelled, Source, Subset, batches, user_cache
from tood.streams.stream import OODSet, Stream

if TYPE_CHECKING:
    from tood.models import Network

__all__ = ["Extractor", "FeatureSource", "frozen"]

FORMAT = 1  # part of every key: raise it when the same images would give other features
TRAINING_ONLY = frozenset({"batch_statistics"})  # options of a network that do not change its features
BATCH = 32  # images per forward pass: intermediate results of 96 pixels stay below models.memory.LARGEST
BLOCK = 1024  # images per write; an interruption repeats at most two blocks
MARK = b"\ntood.sha256 "  # before the digest at the end of a file
EVERY = 20.0  # seconds between progress lines
Say = Callable[[str], object]


class FeatureSource(Labelled):
    """Vectors ``(feature - shift) / scale`` of the samples of another source, read from a memory-mapped file.

    Parameters
    ----------
    features:
        ``[N, D]``.
    labels:
        Class ids ``[N]``.
    shift, scale:
        ``[D]``, one number per feature.
    key:
        Digest of the images and the network that the features come from.
    """

    def __init__(
        self, features: FloatArray, labels: IntArray, shift: FloatArray, scale: FloatArray, key: str = ""
    ) -> None:
        self.features, self.labels, self.key = features, labels, key
        self.shift, self.scale = shift, scale
        self.shape: tuple[int, ...] = features.shape[1:]

    def take(self, rows: IntArray) -> FloatArray:
        """The vectors of these rows, float32 ``[k, D]``."""
        return (self.features[rows] - self.shift) / self.scale

    def standardise(self, source: Source) -> FeatureSource:
        """Other vectors with the same shift and scale."""
        return FeatureSource(source.take(np.arange(len(source))), source.labels, self.shift, self.scale)


def frozen(
    stream: Stream,
    network: Network,
    root: str | Path | None = None,
    say: Say | None = None,
    standardise: bool = True,
) -> Stream:
    """The stream as vectors: features of a network that does not change, extracted at most once.

    Vectors are not augmented.

    Parameters
    ----------
    stream:
        A stream of images.
    network:
        The network whose backbone computes the features.
    root:
        The folder of the cache; by default ``TOOD_CACHE``, or ``tood`` in the user's cache folder.
    say:
        Called with a progress line every 20 seconds while features are extracted.
    standardise:
        Give each feature mean 0 and variance 1 over the training samples of the first task, so that later
        tasks have no influence; otherwise features are used as the network computes them.

    Examples
    --------
    >>> import tempfile
    >>> from tood import models, streams
    >>> network = models.create("convnet", shape=(8, 8, 1))
    >>> frozen(streams.load("digits"), network, root=tempfile.mkdtemp()).train.shape
    (64,)
    """
    extractor = Extractor(network, stream, root)
    shift, scale = np.zeros(network.head.dim, np.float32), np.ones(network.head.dim, np.float32)
    if standardise:
        features = extractor.features(stream.train, "training images", say)
        shift, scale = standardisation(features[stream.train_rows(0)])

    def vectors(source: Source, name: str) -> FeatureSource:
        features = extractor.features(source, name, say)
        return FeatureSource(features, source.labels, shift, scale, key=extractor.path(source).stem)

    return dataclasses.replace(
        stream,
        name=f"{stream.name}, {extractor}",
        train=vectors(stream.train, "training images"),
        test=vectors(stream.test, "test images"),
        ood=tuple(OODSet(s.name, s.group, vectors(s.source, s.name)) for s in stream.ood),
        mean=(0.0,),
        std=(1.0,),
        augmentation="none",
    )


def standardisation(features: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``[D]`` each, float32: mean and standard deviation; 1 for a feature that is constant, which is only centred."""
    numbers = features.astype(np.float64)
    shift, spread = numbers.mean(axis=0), numbers.std(axis=0)
    scale = np.where(spread > 1e-6 * np.maximum(1, np.abs(shift)), spread, 1)
    return shift.astype(np.float32), scale.astype(np.float32)


class Extractor:
    """Extracts features of image sets into the cache, or finds them there.

    Parameters
    ----------
    network:
        The network whose backbone computes the features, on its own device.
    stream:
        The stream; its mean and std normalise the images unless the network has its own.
    root:
        As for :func:`frozen`.
    """

    def __init__(self, network: Network, stream: Stream, root: str | Path | None = None) -> None:
        if len(stream.train.shape) != 3:
            raise ToodError(f"frozen: {stream.name} has vectors already, {stream.train.shape}; expected images")
        self.network = network.fused()
        self.mean, self.std = network.normalisation(stream.train.shape[-1]) or (stream.mean, stream.std)
        self.folder = user_cache(root) / "features"
        spec = {name: value for name, value in (network.spec or {}).items() if name not in TRAINING_ONLY}
        digest = hashlib.sha256(json.dumps([FORMAT, spec or None, self.mean, self.std]).encode())
        if not spec:  # a network of the user's own: what it is, and what it computes
            probe = np.random.default_rng(0).integers(0, 256, size=(2, *stream.train.shape)).astype(np.uint8)
            digest.update(repr(network.backbone).encode() + self.forward(probe).astype(np.float16).tobytes())
        for name, tensor in sorted(network.backbone.state_dict().items()):
            digest.update(name.encode() + to_numpy(tensor).tobytes())
        self.digest = digest.hexdigest()
        self._paths: dict[int, tuple[Source, Path]] = {}  # by id; the source is kept, so that no other gets its id

    def __str__(self) -> str:
        return f"{(self.network.spec or {}).get('name', 'network')} {self.digest[:12]}"

    def path(self, source: Source) -> Path:
        """The path of a set's features, whether or not the file exists."""
        if id(source) not in self._paths:  # `content` reads every image
            key = hashlib.sha256(f"{self.digest} {content(source)}".encode()).hexdigest()
            self._paths[id(source)] = source, self.folder / self.digest[:12] / f"{key[:32]}.npy"
        return self._paths[id(source)][1]

    def missing(self, stream: Stream) -> dict[Path, int]:
        """The files of features of a stream that must still be extracted, and the number of images of each."""
        sources = {self.path(s): s for s in (stream.train, stream.test, *(ood.source for ood in stream.ood))}
        return {path: len(s) for path, s in sources.items() if _open(path, self._shape(s)) is None}

    def features(self, source: Source, name: str, say: Say | None = None) -> FloatArray:
        """Features ``[N, D]`` of every sample of a source, memory-mapped and read-only.

        Processes that want the same features at the same time wait for the one that extracts them.
        """
        path, shape = self.path(source), self._shape(source)
        features = _open(path, shape)
        if features is not None:
            return features
        if say is not None and path.exists():
            say(f"features of {name}: {path} is damaged and will be replaced")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_suffix(".lock")):
                if _open(path, shape) is None:
                    self._extract(source, path, name, say or (lambda line: None))
        except OSError as error:
            raise ToodError(
                f"{path.parent}: features cannot be written ({error.strerror or error}); "
                "nothing incomplete is used; set TOOD_CACHE to a folder with room and start again"
            ) from error
        return np.load(path, mmap_mode="r", allow_pickle=False)

    def _shape(self, source: Source) -> tuple[int, int]:
        return len(source), self.network.head.dim

    def _extract(self, source: Source, path: Path, name: str, say: Say) -> None:
        """Append block after block to ``NAME.part``, then rename it.

        The how-to "Start from a pretrained network" promises that an interrupted extraction resumes. A block is flushed
        to disk before the next one begins, so after a crash all blocks but the last are sound.
        """
        if self.network.head.weight.device.type == "cpu":
            from tood.models.memory import keep_freed_memory

            keep_freed_memory()
        rows, dim = self._shape(source)
        part, row = path.with_suffix(".part"), 4 * dim  # bytes
        with part.open("ab") as file:
            done = max(0, file.tell() // (BLOCK * row) - 1) * BLOCK
            file.truncate(done * row)
            last_line = -EVERY
            for first in range(done, rows, BLOCK):
                if time.monotonic() - last_line >= EVERY:
                    last_line = time.monotonic()
                    say(f"features of {name}: {first:,} of {rows:,} images")
                last = min(first + BLOCK, rows)
                chunks = [np.arange(i, min(i + BATCH, last)) for i in range(first, last, BATCH)]
                for samples in batches(source, chunks):
                    file.write(self.forward(samples).tobytes())
                file.flush()
                os.fsync(file.fileno())
        features = np.memmap(part, np.float32, "r", shape=(rows, dim))

        def write(temporary: Path) -> None:
            with temporary.open("wb") as file:
                np.save(file, features)
                file.write(_ending(features))

        write_file(path, write)
        part.unlink()

    def forward(self, samples: Any) -> FloatArray:
        """Features ``[n, D]`` of one batch of images, float32."""
        import torch

        from tood.streams.augment import prepare

        with torch.inference_mode():
            inputs = prepare(samples, self.mean, self.std, self.network.head.weight.device)
            return self.network.features(inputs).float().cpu().numpy()


def content(source: Source) -> str:
    """A fingerprint of the images of a source: the source's own, or a hash of all images."""
    if hasattr(source, "content"):
        return str(source.content())
    if isinstance(source, Subset):
        return hashlib.sha256(content(source.source).encode() + source.rows.tobytes()).hexdigest()
    digest = hashlib.sha256(f"{len(source)} {source.shape}".encode())
    for first in range(0, len(source), BLOCK):
        samples = source.take(np.arange(first, min(first + BLOCK, len(source))))
        digest.update(np.ascontiguousarray(samples).tobytes())
    return digest.hexdigest()


def _open(path: Path, shape: tuple[int, int]) -> FloatArray | None:
    """The features in a file, memory-mapped; None if the file is absent, damaged or not of this shape.

    All features are compared with their digest: 256 MB (CIFAR-10) take 0.2 s, and training reads every feature anyway.
    """
    try:
        features: np.memmap[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        if features.shape != shape or features.dtype != np.float32:
            return None
        with path.open("rb") as file:
            file.seek(features.offset + features.nbytes)
            return features if file.read() == _ending(features) else None
    except (FileNotFoundError, ValueError, EOFError):
        return None


def _ending(features: FloatArray) -> bytes:
    """What a file has after the features: their digest."""
    return MARK + hashlib.sha256(features.ravel().data).hexdigest().encode()
