"""Publishers and known terms of the image sets; check with the publisher before you redistribute."""

from __future__ import annotations

import re
from typing import NamedTuple

from tood.streams.catalog import DATA

__all__ = ["Origin", "origin"]


class Origin(NamedTuple):
    """Publisher's page, terms and size of one image set."""

    source: str = "not known to tood"
    licence: str = "not known to tood; ask its publisher"
    size: str = "not known to tood"  # of the publisher's set; a packed set may be a part of it


def origin(name: str) -> Origin:
    """The origin of a set by its file name.

    >>> origin("dtd64-test.npz").licence
    'for research purposes'
    >>> origin("mine-train.npz").source
    'not known to tood'
    """
    stem = re.split(r"[-./]", name)[0]
    known = DATA["origins"]
    return Origin(*(known.get(stem) or known.get(stem.removesuffix("64")) or ()))
