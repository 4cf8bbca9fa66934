"""Make the golden files. Never run it for a format that exists: a new format goes beside the old one.

python -m tests.golden.make NEW_FOLDER    # known-1: the file of known classes
"""

import sys
import warnings
from pathlib import Path

import numpy as np

from tood import TOOD, Known, detectors
from tood.decision import Conformal, PredictionSets
from tood.deploy import DriftMonitor, LiveTOOD
from tood.export.onnx import export_scorer
from tood.outputs import Outputs

TASKS = [[3, 0], [1, 5, 2], [4]]


def draw(seed, rows=240, known=True):
    """Logits, features and labels of three tasks, whose levels differ."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 6, rows)
    signal = 5.0 * known * np.eye(6)[labels]
    logits = rng.normal(size=(rows, 6)) + signal + np.array([-2.0, 0, 0, -2, 3, 0])
    features = np.concatenate([signal, np.zeros((rows, 2))], axis=1) + rng.normal(size=(rows, 8))
    return Outputs(logits, features=features, labels=labels)


def known(folder):
    """A file of known classes, and its scores; two classes have more samples than are kept."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    labels = np.repeat(["a", "b", "c"], [12, 20, 5])
    vectors = (
        rng.normal(size=(37, 4)) + 3 * rng.normal(size=(3, 4))[np.unique(labels, return_inverse=True)[1]]
    ).astype(np.float32)
    one = Known(samples=10).fit(vectors, labels)
    one.save(folder / "three.known", metadata={"encoder": "golden"})
    inputs = 4 * rng.normal(size=(50, 4))
    expected = {"scores": one.score(inputs), "names": one.predict(inputs), "accept": one.decide(inputs, 0.1)}
    removed = Known.load(folder / "three.known").remove("b").score(inputs)
    np.savez_compressed(folder / "expected.npz", inputs=inputs, removed=removed, **expected)


def main(folder):
    folder.mkdir()
    fit, held_out, test, unknown = draw(0), draw(1), draw(2, rows=60), draw(3, rows=40, known=False)
    inputs = Outputs(*(np.concatenate([getattr(s, n) for s in (test, unknown)]) for n in ("logits", "features")))
    cal = TOOD(TASKS, margin=0.3, reference="oldest").fit(fit.logits, fit.labels)
    cal.save(folder / "calibrator.safetensors", metadata={"model": "golden", "parent": "none"})
    conformal = Conformal(cal, per_task="winning").fit(held_out.logits)
    conformal.save(folder / "conformal.safetensors")
    cross = Conformal.cross(TOOD(TASKS, "mean_shift"), fit.logits, fit.labels, folds=3)
    cross.save(folder / "cross.safetensors")
    sets = PredictionSets(cal).fit(held_out.logits, held_out.labels)
    sets.save(folder / "sets.safetensors")
    monitor = DriftMonitor(cal, seed=5).fit(held_out.logits)
    monitor.update(test.logits)
    monitor.save(folder / "monitor.safetensors")
    live = LiveTOOD(TASKS).partial_fit(fit.logits, fit.labels)
    live.save(folder / "live.safetensors")
    expected = {"logits": inputs.logits, "features": inputs.features}
    expected |= {"calibrator": cal.score(inputs.logits), "task": cal.assign(inputs.logits)}
    for name, decider in (("conformal", conformal), ("cross", cross)):
        decision = decider.decide(inputs.logits, alpha=0.1)
        expected |= {name: decision.accept, f"{name}.p": decision.p_value}
    expected["monitor"] = np.array([monitor.report().rejected, monitor.update(unknown.logits).report().rejected])
    expected["sets"] = sets.predict(inputs.logits, alpha=0.1)
    expected["live"] = live.calibrator("mean_shift").score(inputs.logits)
    for name in ("tood", "tood_joint", "typicality", "knn"):
        detector = detectors.create(name).fit(fit, partition=TASKS)
        detector.save(folder / f"{name}.safetensors")
        expected[name] = detector.score(inputs)
    export_scorer(conformal, folder / "scorer.onnx", alpha=0.1)
    np.savez_compressed(folder / "expected.npz", **expected)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    {"known": known}.get(Path(sys.argv[1]).name.split("-")[0], main)(Path(sys.argv[1]))
