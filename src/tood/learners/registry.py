"""Learners by name: those of this package, registered ones, entry points and ``package.module:Class``."""

from __future__ import annotations

from tood.learners.base import Learner
from tood.registry import Registry

__all__ = ["LEARNERS", "register"]

LEARNERS: Registry[type[Learner]] = Registry("learner", "tood.learners", Learner)
register = LEARNERS.register
