"""Publishers and known terms of the image sets; check with the publisher before you redistribute."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["ORIGINS", "Origin", "origin"]


class Origin(NamedTuple):
    """Publisher's page, terms and size of one image set."""

    source: str
    licence: str
    size: str  # of the publisher's set; a packed set may be a part of it


IMAGENET = "ImageNet terms of access: see https://www.image-net.org/download"
IMAGENET_SIZE = "1,281,167 training and 50,000 validation images"
CIFAR = Origin(
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    "none stated; cite Krizhevsky 2009",
    "50,000 training and 10,000 test images",
)
DTD = Origin("https://www.robots.ox.ac.uk/~vgg/data/dtd/", "for research purposes", "5,640 images")
UNKNOWN = Origin("not known to tood", "not known to tood; ask its publisher", "not known to tood")
ORIGINS = {
    "cifar10": CIFAR,
    "cifar100": CIFAR,
    "tinyimagenet": Origin(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip", IMAGENET, "100,000 training and 10,000 validation images"
    ),
    "imagenet64": Origin("https://www.image-net.org", IMAGENET, IMAGENET_SIZE),
    "svhn": Origin(
        "http://ufldl.stanford.edu/housenumbers/", "non-commercial use only", "73,257 training and 26,032 test images"
    ),
    "mnist": Origin(
        "http://yann.lecun.com/exdb/mnist/",
        "CC BY-SA 3.0 (LeCun and Cortes)",
        "60,000 training and 10,000 test images",
    ),
    "places": Origin("http://places2.csail.mit.edu", "see source", "36,500 validation images (Places365)"),
    "dtd": DTD,
    "textures": DTD,
    "imagenet1k": Origin("https://www.image-net.org", IMAGENET, IMAGENET_SIZE),
    "ssb_hard": Origin("https://github.com/sgvaze/SSB", IMAGENET, "49,000 images"),
    "ninco": Origin("https://github.com/j-cb/NINCO", "see source", "5,879 images"),
    "inaturalist": Origin("https://github.com/deeplearning-wisc/large_scale_ood", "see source", "10,000 images"),
    "openimage_o": Origin("https://github.com/haoqiwang/vim", "see source", "17,632 images"),
}


def origin(name: str) -> Origin:
    """The origin of a set by its file name.

    >>> origin("dtd64-test.npz").licence
    'for research purposes'
    >>> origin("mine-train.npz").source
    'not known to tood'
    """
    stem = re.split(r"[-./]", name)[0]
    return ORIGINS.get(stem) or ORIGINS.get(stem.removesuffix("64")) or UNKNOWN
