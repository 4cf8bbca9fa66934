"""Streams: tasks in order of arrival, their near- and far-OOD sets, and where the samples come from."""

from tood.streams.catalog import load, names
from tood.streams.download import from_huggingface
from tood.streams.folders import FolderSource, ImageListSource
from tood.streams.memory import Exemplars, Reservoir, class_balanced, herding
from tood.streams.packed import PackedSource
from tood.streams.sources import ArraySource, Source, Subset, batches
from tood.streams.stream import OODSet, Stream

__all__ = [
    "ArraySource",
    "Exemplars",
    "FolderSource",
    "ImageListSource",
    "OODSet",
    "PackedSource",
    "Reservoir",
    "Source",
    "Stream",
    "Subset",
    "batches",
    "class_balanced",
    "from_huggingface",
    "herding",
    "load",
    "names",
]
