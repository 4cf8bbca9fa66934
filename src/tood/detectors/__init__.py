"""Detectors by name: ``create("vim", dim=32)``, ``names()``; each turns outputs into one score a sample."""

from __future__ import annotations

from typing import Any

from tood.detectors.bank import KNN, NNGuide
from tood.detectors.base import Detector
from tood.detectors.calibrated import Temperature, TOODAuto, TOODMeanShift, TOODRobustAnchor
from tood.detectors.distance import MDS, RMDS, ViM
from tood.detectors.head import FDBD, NCI, SHE, GradNorm
from tood.detectors.logits import GEN, KLM, MSP, Energy, MaxLogit
from tood.detectors.network import ODIN, AdaScale
from tood.detectors.outputs import Head, Outputs
from tood.detectors.prototype import Prototype, TOODPrototype
from tood.detectors.search import Search, search
from tood.detectors.shaping import ASH, DICE, SCALE, VRA, ReAct
from tood.detectors.typicality import TOODJoint, Typicality
from tood.errors import UnknownNameError

__all__ = ["Detector", "Head", "Outputs", "Search", "classes", "create", "names", "search"]

# In the order in which tables list them.
_ALL: tuple[type[Detector], ...] = (
    *(MSP, MaxLogit, Energy, GEN, KLM),
    *(DICE, ASH, SCALE, ReAct, VRA, ViM),
    *(MDS, RMDS, KNN, NNGuide, FDBD, SHE, NCI, GradNorm),
    *(ODIN, AdaScale),
    *(Temperature, Prototype, TOODPrototype, TOODMeanShift, TOODRobustAnchor, TOODAuto),
    *(Typicality, TOODJoint),
)


def classes() -> dict[str, type[Detector]]:
    """Every detector's class by name; what it declares is class data."""
    return {detector.name: detector for detector in _ALL}


def names() -> list[str]:
    """The name of every detector.

    >>> names()[:3]
    ['msp', 'maxlogit', 'energy']
    """
    return list(classes())


def create(name: str, **parameters: Any) -> Detector:
    """A detector by name, with hyper-parameters.

    >>> create("vim", dim=32)
    ViM(dim=32)
    """
    known = classes()
    if name not in known:
        raise UnknownNameError("detector", name, known)
    for parameter in parameters:
        if parameter not in known[name].parameters:
            raise UnknownNameError(f"hyper-parameter of {name}", parameter, known[name].parameters)
    detector = known[name](**parameters)
    detector._check()
    return detector
