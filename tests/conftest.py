import contextlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path

import pytest
from tests.browser import browser  # noqa: F401 (a fixture of all tests)

# One thread a process, set before NumPy and torch start their pools: more collapse when anything else runs.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("MPLBACKEND", "Agg")


@contextlib.contextmanager
def untraced():
    """Without coverage's tracer, which doubles the time of imports and of code that calls many functions."""
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)


if "PYTEST_XDIST_WORKER" in os.environ:  # most tests need these packages of others; the first process runs no test
    with untraced():
        for package in ("lightning_fabric", "scipy.stats", "sklearn.datasets", "sklearn.metrics", "pyarrow.parquet"):
            with contextlib.suppress(ImportError):
                importlib.import_module(package)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with untraced() if item.get_closest_marker("untraced") else contextlib.nullcontext():
        return (yield)


@pytest.fixture(scope="session")
def peers_module():
    """``benchmarks/peers.py``, which declares the operators that torchvision misses."""
    path = Path(__file__).parents[1] / "benchmarks" / "peers.py"
    spec = importlib.util.spec_from_file_location("peers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def peers(peers_module):
    """pytorch-ood's detectors."""
    try:
        peers_module.import_pytorch_ood()
    except ImportError as error:
        pytest.skip(f"pytorch-ood is not installed: {error}")
    return peers_module


@pytest.fixture(scope="session")
def torchvision(peers_module):
    """For what imports torchvision: timm, the image models of transformers."""
    try:
        peers_module.import_torchvision()
    except ImportError as error:
        pytest.skip(f"torchvision is not installed: {error}")


@pytest.fixture
def registries(monkeypatch):
    """Forget afterwards what a test registers or imports."""
    from tood.detectors.base import REGISTRY
    from tood.learners.base import LEARNERS
    from tood.models import NETWORKS
    from tood.streams.registry import STREAMS

    before = set(sys.modules)
    for registry in (REGISTRY, LEARNERS, NETWORKS, STREAMS):
        monkeypatch.setattr(registry, "_items", dict(registry.items()))
    yield
    for name in set(sys.modules) - before:
        if not name.startswith("tood."):
            del sys.modules[name]


@pytest.fixture
def install(tmp_path, monkeypatch, registries):
    """Install a package with entry points, as pip leaves it on disk."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))

    def write(name, text, points, group="tood.things"):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(text)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in points.items()))

    return write


pytest_plugins = ["tests.made_runs"]
