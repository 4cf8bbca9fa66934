import importlib.util
import os
from pathlib import Path

import pytest

# One thread a process, set before NumPy and torch start their pools: more collapse when anything else runs.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("MPLBACKEND", "Agg")


@pytest.fixture(scope="session")
def peers():
    """``benchmarks/peers.py``, which declares the operators torchvision misses before pytorch-ood is imported."""
    path = Path(__file__).parents[1] / "benchmarks" / "peers.py"
    spec = importlib.util.spec_from_file_location("peers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        module.import_pytorch_ood()
    except ImportError as error:
        pytest.skip(f"pytorch-ood is not installed: {error}")
    return module


pytest_plugins = ["tests.made_runs"]
