"""Out-of-distribution detection for continual learners: measured at every step, repaired without training."""

from tood.calibration import TOOD
from tood.choose import choose
from tood.energy import energy, task_energies
from tood.errors import ToodError
from tood.examples import example
from tood.known import Known
from tood.metrics import Trajectory
from tood.partition import Partition

__version__ = "0.2.0"

__all__ = ["TOOD", "Known", "Partition", "ToodError", "Trajectory", "choose", "energy", "example", "task_energies"]
