"""Release gate: may the next version of a continual learner replace the deployed one?"""

from tood.gate.comparison import Gate, Way, compare
from tood.gate.files import read_version
from tood.gate.versions import Version

__all__ = ["Gate", "Version", "Way", "compare", "read_version"]
