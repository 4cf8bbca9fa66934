"""Publishers and known terms of the image sets; check with the publisher before you redistribute."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["ORIGINS", "Origin", "origin"]


class Origin(NamedTuple):
    """Publisher's page and terms of one image set."""

    source: str
    licence: str


IMAGENET = "ImageNet terms of access: see https://www.image-net.org/download"
CIFAR = Origin("https://www.cs.toronto.edu/~kriz/cifar.html", "none stated; cite Krizhevsky 2009")
DTD = Origin("https://www.robots.ox.ac.uk/~vgg/data/dtd/", "for research purposes")
ORIGINS = {
    "cifar10": CIFAR,
    "cifar100": CIFAR,
    "tinyimagenet": Origin("http://cs231n.stanford.edu/tiny-imagenet-200.zip", IMAGENET),
    "imagenet64": Origin("https://www.image-net.org", IMAGENET),
    "svhn": Origin("http://ufldl.stanford.edu/housenumbers/", "non-commercial use only"),
    "mnist": Origin("http://yann.lecun.com/exdb/mnist/", "CC BY-SA 3.0 (LeCun and Cortes)"),
    "places": Origin("http://places2.csail.mit.edu", "see source"),
    "dtd": DTD,
    "textures": DTD,
    "imagenet1k": Origin("https://www.image-net.org", IMAGENET),
    "ssb_hard": Origin("https://github.com/sgvaze/SSB", IMAGENET),
    "ninco": Origin("https://github.com/j-cb/NINCO", "see source"),
    "inaturalist": Origin("https://github.com/deeplearning-wisc/large_scale_ood", "see source"),
    "openimage_o": Origin("https://github.com/haoqiwang/vim", "see source"),
}


def origin(name: str) -> Origin:
    """The origin of a set by its file name.

    >>> origin("dtd64-test.npz").licence
    'for research purposes'
    >>> origin("mine-train.npz")
    Origin(source='not known to tood', licence='not known to tood; ask its publisher')
    """
    stem = re.split(r"[-./]", name)[0]
    known = ORIGINS.get(stem) or ORIGINS.get(stem.removesuffix("64"))
    return known or Origin("not known to tood", "not known to tood; ask its publisher")
