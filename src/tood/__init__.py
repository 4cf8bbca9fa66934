"""Out-of-distribution detection for continual learners: measured at every step, repaired without training."""

from typing import Any

from tood.calibration import TOOD
from tood.choose import choose
from tood.energy import energy, task_energies
from tood.errors import ToodError
from tood.examples import example
from tood.known import Known
from tood.metrics import Trajectory
from tood.partition import Partition

__version__ = "0.2.0"

__all__ = [
    "TOOD",
    "Known",
    "Partition",
    "ToodError",
    "Trajectory",
    "choose",
    "energy",
    "example",
    "results",
    "task_energies",
]


def __getattr__(name: str) -> Any:
    """``tood.results``, whose imports are not light."""
    if name != "results":
        raise AttributeError(f"module 'tood' has no attribute {name!r}")
    from tood.evaluation.results import results

    return results
