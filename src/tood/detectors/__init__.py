"""Detectors by name: each turns outputs into one score per sample, higher = more in-distribution.

>>> names()[:3]
['msp', 'maxlogit', 'energy']
>>> create("knn", k=10)
KNN(k=10, size=None, seed=0)
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from tood.detectors.base import REGISTRY, Detector, FitData, Rows, register
from tood.errors import ToodError
from tood.outputs.outputs import Head, Outputs
from tood.registry import naming_errors, source_digest

__all__ = ["Detector", "FitData", "Head", "Outputs", "Rows"]
__all__ += ["classes", "create", "loadable", "names", "register", "title"]

# Importing a file registers its detectors. Tables list these families first, in this order, then any other file's.
FAMILIES = ("logits", "shaping", "distance", "bank", "head", "network", "prototype", "calibrated", "typicality")

for _family in (*FAMILIES, *sorted(module.name for module in pkgutil.iter_modules(__path__))):
    import_module(f"{__name__}.{_family}")

names = REGISTRY.names


def classes() -> dict[str, type[Detector]]:
    """Classes of the built-in and registered detectors by name."""
    return dict(REGISTRY.items())


def loadable() -> tuple[list[str], dict[str, str]]:
    """Names of all detectors, and why installed ones that cannot be imported are left out."""
    kept, left_out = [], {}
    for name in names():
        try:
            REGISTRY.get(name)
            kept.append(name)
        except ToodError as error:
            left_out[name] = str(error)
    return kept, left_out


def create(name: str, **parameters: Any) -> Detector:
    """A detector by name, with hyper-parameters.

    Parameters
    ----------
    name:
        One of :func:`names`, or ``"package.module:Class"`` for a class of your own, which is imported.
    parameters:
        The detector's hyper-parameters.

    Examples
    --------
    >>> create("vim", dim=32)
    ViM(dim=32)
    """
    detector_class = REGISTRY.get(name)
    source_digest(detector_class)  # now: while a run trains, the file may be edited
    with naming_errors(detector_class, "__init__"):
        return detector_class().set_params(**parameters)


def title(name: str) -> str:
    """How a detector is written in tables and plots; its name if it is not registered. Imports nothing.

    >>> title("knn"), title("someone_elses")
    ('KNN', 'someone_elses')
    """
    detector_class = REGISTRY.known(name)
    return detector_class.title or name if detector_class else name
