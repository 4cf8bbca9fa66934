"""Release gate: may the next version of a continual learner replace the deployed one?"""

from tood.gate.comparison import Gate, Way, compare
from tood.gate.coverage import Coverage, coverage
from tood.gate.files import read_version
from tood.gate.versions import Version

__all__ = ["Coverage", "Gate", "Version", "Way", "compare", "coverage", "read_version"]
