"""The metrics load nothing heavy."""

import subprocess
import sys


def test_nothing_heavy_is_imported():
    heavy = "{'torch', 'scipy', 'sklearn', 'pandas', 'matplotlib'} & set(sys.modules)"
    script = f"import sys, tood.metrics; print(sorted({heavy}))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"
