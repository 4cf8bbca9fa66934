"""Out-of-distribution detection for continual learners: measured at every step, repaired without training."""

from tood.calibration import TOOD
from tood.energy import energy, task_energies
from tood.errors import ToodError
from tood.metrics import Trajectory
from tood.partition import Partition

__version__ = "0.2.0"

__all__ = ["TOOD", "Partition", "ToodError", "Trajectory", "energy", "task_energies"]
