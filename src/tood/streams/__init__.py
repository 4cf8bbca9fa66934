"""Streams: tasks in order of arrival, their near- and far-OOD sets, and the sources of their samples."""

from tood.streams.datasets import DatasetSource, from_huggingface
from tood.streams.images import FolderSource, ImageListSource
from tood.streams.packed import PackedSource
from tood.streams.registry import load, names, register
from tood.streams.sources import ArraySource, Source, Subset, batches
from tood.streams.stream import OODSet, Stream

__all__ = [
    "ArraySource",
    "DatasetSource",
    "FolderSource",
    "ImageListSource",
    "OODSet",
    "PackedSource",
    "Source",
    "Stream",
    "Subset",
    "batches",
    "from_huggingface",
    "load",
    "names",
    "register",
]
