"""Detectors by name: each turns outputs into one score per sample, higher = more in-distribution.

>>> names()[:3]
['msp', 'maxlogit', 'energy']
>>> create("knn", k=10)
KNN(k=10, size=None, seed=0, probe=1.0)
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tood.detectors.base import Detector
from tood.detectors.registry import classes, create, loadable, names, register, title
from tood.detectors.rows import FitData, Rows
from tood.outputs.outputs import Head, Outputs

__all__ = [
    "Detector",
    "FitData",
    "Head",
    "Outputs",
    "Rows",
    "classes",
    "create",
    "loadable",
    "names",
    "register",
    "title",
]

# Importing a file registers its detectors. Tables list these families first, in this order, then any other file's.
FAMILIES = (
    "logits",
    "shaping",
    "distance",
    "bank",
    "head",
    "network",
    "prototype",
    "calibrated",
    "typicality",
    "joint",
)

for _family in (*FAMILIES, *sorted(module.name for module in pkgutil.iter_modules(__path__))):
    import_module(f"{__name__}.{_family}")
