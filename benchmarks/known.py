"""Known against scikit-learn's and pytorch-ood's detectors on CLINC150's sentence embeddings, in one run.

    TOOD_DATA=... python benchmarks/known.py                  # all tables, as in docs/how-to/embeddings.md
    TOOD_DATA=... python benchmarks/known.py --part decisions

Needs clinc150-minilm.npz. Times are processor times on one thread. Every method has a process of its own, so
that its peak memory is known.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import multiprocessing
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tood import Known
from tood.metrics import auroc

ALPHA = 0.05


class Data(NamedTuple):
    """Vectors and labels to fit and to test, and out-of-scope queries."""

    train: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    unknown: np.ndarray


Fitted = tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray] | None]  # score, predict


def load() -> tuple[Data, np.ndarray, np.ndarray]:
    """The official split; all queries of the 150 intents with their labels."""
    with np.load(Path(os.environ["TOOD_DATA"]) / "clinc150-minilm.npz") as file:
        parts = [file[f"{part}_minilm"].astype(np.float32) for part in ("train", "test", "val")]
        labels = [file[f"{part}_labels"].astype(np.int64) for part in ("train", "test", "val")]
        data = Data(parts[0], labels[0], parts[1], labels[1], file["oos_test_minilm"].astype(np.float32))
    return data, np.concatenate(parts), np.concatenate(labels)


def fit_known(x: np.ndarray, y: np.ndarray) -> Fitted:
    known = Known()
    for task in np.array_split(np.unique(y), 15):
        rows = np.isin(y, task)
        known.partial_fit(x[rows], y[rows])
    return known.score, known.predict


def fit_cosine(x: np.ndarray, y: np.ndarray) -> Fitted:
    means = np.stack([x[y == label].mean(axis=0) for label in np.unique(y)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return lambda v: (v @ means.T).max(axis=1), lambda v: np.unique(y)[(v @ means.T).argmax(axis=1)]


def fit_sklearn(name: str) -> Callable[[np.ndarray, np.ndarray], Fitted]:
    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        from sklearn.covariance import EllipticEnvelope
        from sklearn.neighbors import KNeighborsClassifier, LocalOutlierFactor
        from sklearn.svm import OneClassSVM

        if name == "neighbours":
            neighbours = KNeighborsClassifier(10).fit(x, y)
            return lambda v: -neighbours.kneighbors(v)[0][:, -1], neighbours.predict
        detector = {
            "lof": lambda: LocalOutlierFactor(novelty=True),
            "envelope": lambda: EllipticEnvelope(support_fraction=0.9, random_state=0),
            "svm": lambda: OneClassSVM(gamma="scale", nu=ALPHA),
        }[name]().fit(x)
        return detector.score_samples, None

    return fit


def fit_pytorch_ood(name: str) -> Callable[[np.ndarray, np.ndarray], Fitted]:
    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        import torch
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

        from peers import peers

        torch.set_num_threads(1)
        head = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.02)
        places = np.searchsorted(np.unique(y), y)
        head.fit(x[:20000], places[:20000])
        weight, bias = head.coef_.astype(np.float32), head.intercept_.astype(np.float32)
        peer = peers(weight, bias, dim=256, k=50)[name]
        features = torch.from_numpy(x)
        peer.fit(features @ torch.from_numpy(weight).T + torch.from_numpy(bias), features, torch.from_numpy(places))

        def score(v: np.ndarray) -> np.ndarray:
            z = torch.from_numpy(v)
            return peer.score(z @ torch.from_numpy(weight).T + torch.from_numpy(bias), z).numpy()

        return score, None

    return fit


METHODS: dict[str, Callable[[np.ndarray, np.ndarray], Fitted]] = {
    "Known, 15 tasks": fit_known,
    "cosine to the nearest mean": fit_cosine,
    "scikit-learn nearest neighbours, 10th": fit_sklearn("neighbours"),
    "scikit-learn LocalOutlierFactor": fit_sklearn("lof"),
    "scikit-learn one-class SVM": fit_sklearn("svm"),
    "scikit-learn EllipticEnvelope": fit_sklearn("envelope"),
    "pytorch-ood Mahalanobis": fit_pytorch_ood("mds"),
    "pytorch-ood relative Mahalanobis": fit_pytorch_ood("rmds"),
    "pytorch-ood ViM": fit_pytorch_ood("vim"),
    "pytorch-ood kNN": fit_pytorch_ood("knn"),
}


def measure(method: str, results: Any) -> None:
    """One method: AUROC, accuracy, processor seconds to fit and to score, peak memory above data and imports."""
    warnings.simplefilter("ignore")
    data = load()[0]
    if "pytorch" in method:
        import peers  # imports are not counted

        peers.import_pytorch_ood()
    elif "scikit" in method:
        import sklearn.covariance
        import sklearn.neighbors
        import sklearn.svm  # noqa: F401
    before, started = peak(reset=True), time.process_time()
    try:
        score, predict = METHODS[method](data.train, data.labels)
        score(data.test[:1])
        fitted = time.process_time()
        known, unknown = score(data.test), score(data.unknown)
        seconds = time.process_time() - fitted
        right = None if predict is None else float((predict(data.test) == data.test_labels).mean())
        results.put((auroc(known, unknown), right, fitted - started, seconds, peak() - before))
    except Exception as error:
        results.put(f"{type(error).__name__}: {str(error).splitlines()[0]}")


def peak(reset: bool = False) -> float:
    """The largest resident memory of this process so far, in MB; ``reset`` forgets it and gives the present one."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def against_peers() -> None:
    print(
        "| method | AUROC | accuracy | fit, s | score 5,500, s | peak MB |\n| --- | ---: | ---: | ---: | ---: | ---: |"
    )
    context = multiprocessing.get_context("spawn")
    for method in METHODS:
        queue = context.Queue()
        process = context.Process(target=measure, args=(method, queue))
        process.start()
        found = queue.get()
        process.join()
        if isinstance(found, str):
            print(f"| {method} | {found} | | | | |", flush=True)
            continue
        area, right, fit, score, memory = found
        accuracy = "" if right is None else f"{right:.1%}"
        print(f"| {method} | {100 * area:.1f} | {accuracy} | {fit:.1f} | {score:.2f} | {memory:.0f} |", flush=True)


def few_classes(x: np.ndarray, y: np.ndarray, unknown: np.ndarray) -> None:
    """AUROC against out-of-scope queries by number of classes and samples; means over three draws."""
    chosen = ("Known, 15 tasks", "cosine to the nearest mean", "scikit-learn nearest neighbours, 10th")
    chosen += ("pytorch-ood Mahalanobis", "pytorch-ood relative Mahalanobis")
    print(f"| classes × samples | {' | '.join(chosen)} |\n| --- |{' ---: |' * len(chosen)}")
    for classes, size in ((2, 20), (10, 20), (50, 20), (150, 20), (10, 100), (50, 100), (150, 100)):
        areas = np.empty((3, len(chosen)))
        for seed in range(3):
            train, test = split(y, classes, size, seed)
            for column, method in enumerate(chosen):
                try:
                    score, _ = METHODS[method](x[train], y[train])
                    areas[seed, column] = 100 * auroc(score(x[test]), score(unknown))
                except Exception:
                    areas[seed, column] = np.nan
        cells = " | ".join("fails" if np.isnan(area) else f"{area:.1f}" for area in areas.mean(axis=0))
        print(f"| {classes} × {size} | {cells} |", flush=True)


def split(y: np.ndarray, classes: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of random classes: ``size`` of each to fit, the others to test."""
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(y == label)) for label in rng.permutation(np.unique(y))[:classes]]
    return np.concatenate([part[:size] for part in rows]), np.concatenate([part[size:] for part in rows])


def decisions(data: Data, x: np.ndarray, y: np.ndarray) -> None:
    """Known inputs rejected per class; two standard errors cover the draw of both samples and inputs."""
    print(f"alpha {ALPHA}; share of known inputs rejected, mean over classes")
    print("| classes × samples | known rejected | classes above alpha + 2 s.e. | unknown rejected |")
    print("| --- | ---: | ---: | ---: |")
    for classes, size in ((10, 20), (150, 20), (150, 50), (150, 100)):
        found = []
        for seed in range(5):
            train, test = split(y, classes, size, seed)
            found.append(rejections(x[train], y[train], x[test], y[test], data.unknown))
        print("| {} × {} | {:.1%} | {:.1%} | {:.1%} |".format(classes, size, *np.mean(found, axis=0)), flush=True)
    official = rejections(*data)
    print("| 150 × 100, official split | {:.1%} | {:.1%} | {:.1%} |".format(*official))


def rejections(train: np.ndarray, labels: np.ndarray, test: np.ndarray, true: np.ndarray, unknown: np.ndarray) -> Any:
    known = Known().fit(train, labels)
    rejected = ~known.decide(test, ALPHA)
    names, sizes = np.unique(true, return_counts=True)
    shares = np.array([rejected[true == name].mean() for name in names])
    n = len(labels) / len(names)
    k = np.floor(ALPHA * (n + 1))
    of_threshold = k * (n + 1 - k) / (n + 1) ** 2 / (n + 2)  # variance of Beta(k, n + 1 - k)
    error = np.sqrt(of_threshold + ALPHA * (1 - ALPHA) / sizes)
    return shares.mean(), (shares > ALPHA + 2 * error).mean(), 1 - known.decide(unknown, ALPHA).mean()


def costs(data: Data) -> None:
    """Time of one class at 500 classes of 50 samples in 768 dimensions; exactness of remove and merge on CLINC150."""
    rng = np.random.default_rng(0)
    known = Known()
    draw = lambda: (rng.normal(size=768) + rng.normal(size=(50, 768))).astype(np.float32)  # noqa: E731
    for name in range(500):
        known.add(name, draw())
    times: dict[str, list[float]] = {"add": [], "first score after it": [], "decide after it": [], "remove": []}
    for repeat in range(7):
        vectors = draw()
        steps = [lambda v=vectors, r=repeat: known.add(1000 + r, v), lambda v=vectors: known.score(v[:1])]
        steps += [lambda v=vectors: known.decide(v[:1]), lambda r=repeat: known.remove(1000 + r)]
        for spent, step in zip(times.values(), steps, strict=True):
            started = time.process_time()
            step()
            spent.append(time.process_time() - started)
    print("500 classes x 50 samples x 768 dimensions, median of 7:")
    print(", ".join(f"{name} {1000 * np.median(spent):.1f} ms" for name, spent in times.items()))
    x, y = data.train, data.labels
    whole = Known().fit(x, y)
    kept = y >= 10
    fewer, removed = Known().fit(x[kept], y[kept]), Known().fit(x, y)
    for name in range(10):
        removed.remove(name)
    merged = Known()
    for part in np.array_split(np.random.default_rng(0).permutation(len(y)), 7):
        merged.merge(Known().fit(x[part], y[part]))
    scores, apart = whole.score(data.test), np.abs(removed.score(data.test) - fewer.score(data.test)).max()
    print(f"scores: largest {np.abs(scores).max():.0f}; largest differences:")
    print(f"10 of 150 classes removed, or never added: {apart:.1e}")
    print(f"7 random shards merged, or one pass: {np.abs(merged.score(data.test) - scores).max():.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--part", choices=["costs", "decisions", "few", "peers"])
    part = parser.parse_args().part
    warnings.simplefilter("ignore")
    data, x, y = load()
    if part in (None, "costs"):
        costs(data)
    if part in (None, "decisions"):
        decisions(data, x, y)
    if part in (None, "peers"):
        against_peers()
    if part in (None, "few"):
        few_classes(x, y, data.unknown)


if __name__ == "__main__":
    main()
