"""Run by `make dist` in an environment with the core dependencies only: calibrate, score, save, load, measure."""

import importlib.util
import tempfile
from pathlib import Path

import numpy as np

from tood import TOOD, Partition, energy
from tood.metrics import auroc

absent = [name for name in ("torch", "scipy", "sklearn", "matplotlib", "pyarrow") if importlib.util.find_spec(name)]
if absent:
    raise SystemExit(f"this environment is not bare: {absent}")

rng = np.random.default_rng(0)
labels = np.repeat(np.arange(6), 50)
shift = np.array([-8, -8, -4, -4, 0, 0])  # old tasks' logits have shrunk
draw = lambda y: rng.normal(size=(len(y), 6)) + 6 * np.eye(6)[y] + shift  # noqa: E731
cal = TOOD(Partition.from_sizes([2, 2, 2])).fit(draw(labels), labels)
with tempfile.TemporaryDirectory() as folder:
    cal.save(Path(folder) / "cal.safetensors")
    cal = TOOD.load(Path(folder) / "cal.safetensors")
known, unknown = draw(labels), rng.normal(size=(300, 6)) + 2 + shift
plain, repaired = auroc(energy(known), energy(unknown)), auroc(cal.score(known), cal.score(unknown))
print(f"AUROC of energy {100 * plain:.1f}, of TOOD {100 * repaired:.1f}")
if not repaired > plain:
    raise SystemExit("TOOD should repair a pure shift")
