"""Outputs of continual learners in eight regimes, for regimes.py: one small file per run.

    python benchmarks/regimes_data.py OUT [REGIME ...]

Images come from $TOOD_DATA (a part of each class), features of frozen networks are kept in OUT/cache. A file holds, for
each step with at least two tasks (of 50 tasks every fifth), the task energies of the calibration set (20 samples per
class), of the test set and of each OOD set; of the last step also logits and features. A run whose file exists is not
made again.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tood import learners, models, streams
from tood.detectors import Outputs
from tood.energy import task_energies
from tood.outputs.sampling import draw_by_class
from tood.paper import toy
from tood.partition import Partition
from tood.runs.extract import forward
from tood.streams import Stream
from tood.streams.catalog import data_root
from tood.streams.features import frozen

PER_CLASS = 20  # calibration samples
TRAIN = {"cifar10": 1000, "cifar100": 200}  # images per class
TEST = {"cifar10": 200, "cifar100": 30}
UNKNOWN = 800  # images per OOD set
WITHOUT_REPLAY = ("finetune", "lwf")
TOY = 5  # seeds
SEVEN = ("finetune", "lwf", "er", "der", "wa", "bic", "icarl")


class Cell(NamedTuple):
    """One run."""

    regime: str
    stream: str
    learner: str
    tasks: int = 5
    network: str = ""  # frozen network of images
    hidden: int = 512  # width of the trained layer; 0 for none
    memory: int = 0  # samples per class; 0 for the preset's
    seed: int = 0  # also the class order, if not 0
    epochs: int = 0  # 0 for the preset's

    @property
    def name(self) -> str:
        """Of the file."""
        epochs = f"e{self.epochs}" if self.epochs else ""
        place = (self.stream, self.tasks, self.network, f"h{self.hidden}")
        parts = (*place, self.learner, self.memory, epochs, f"s{self.seed}")
        return "-".join(str(part) for part in parts if part)

    @property
    def replays(self) -> bool:
        """Whether old samples are trained on again."""
        return self.learner not in (*WITHOUT_REPLAY, "no_replay")


def cells() -> Iterator[Cell]:
    """Every run, regime by regime."""
    lite0, lite1 = "efficientnet_lite0", "efficientnet_lite1"
    for learner in SEVEN:
        yield Cell("CIFAR-10, frozen", "cifar10", learner, 5, lite0)
    for learner in SEVEN:
        yield Cell("CIFAR-100, frozen", "cifar100", learner, 10, lite0)
    for learner in ("finetune", "lwf", "er", "icarl"):
        yield Cell("CIFAR-100, frozen", "cifar100", learner, 20, lite0)
    for stream, learner in ((s, x) for s in ("cifar10", "cifar100") for x in ("finetune", "lwf", "er", "wa")):
        yield Cell("another backbone", stream, learner, {"cifar10": 5, "cifar100": 10}[stream], lite1, seed=1)
    for hidden, tasks in ((0, 15), (256, 15), (0, 11), (256, 11)):
        for learner, memory in (("finetune", 0), ("lwf", 0), ("er", 5), ("er", 20)):
            yield Cell("text", "clinc150", learner, tasks, hidden=hidden, memory=memory, seed=int(tasks == 11))
    for hidden, learner in ((h, x) for h in (0, 256) for x in ("finetune", "lwf", "er")):  # much longer
        memory = 5 if learner == "er" else 0
        yield Cell("text", "clinc150", learner, 15, hidden=hidden, memory=memory, seed=2, epochs=40)
    for learner in ("finetune", "lwf", "er", "wa", "icarl"):
        yield Cell("50 tasks", "cifar100", learner, 50, lite0)
    for learner, seed in ((x, s) for x in toy.REGIMES for s in range(TOY)):
        yield Cell("toy", "toy", learner, toy.Settings().tasks, seed=seed)
    for learner, seed in ((x, s) for x in SEVEN for s in range(2)):
        yield Cell("digits", "digits", learner, 4, seed=seed)
    for learner in ("finetune", "er"):
        yield Cell("from scratch", "cifar10", learner, 5)


def image_stream(cell: Cell) -> Stream:
    """A part of each class of a named stream."""
    whole, rng = streams.load(cell.stream), np.random.default_rng(0)

    def some(source: Any, per_class: int) -> tuple[Any, Any]:
        rows = draw_by_class(np.arange(len(source)), source.labels, per_class, rng)
        return source.take(rows), source.labels[rows]

    def any_class(source: Any) -> Any:
        return source.take(np.sort(rng.permutation(len(source))[:UNKNOWN]))

    ood = {g: {s.name: any_class(s.source) for s in whole.ood if s.group == g} for g in ("near", "far")}
    order = cell.seed or "label"
    train, test = some(whole.train, TRAIN[cell.stream]), some(whole.test, TEST[cell.stream])
    kind = "none" if cell.network else "crop_flip"
    return Stream.from_arrays(
        *train, *test, tasks=cell.tasks, ood=ood, order=order, name=cell.stream, augmentation=kind
    )


def text_stream(cell: Cell) -> Stream:
    """CLINC150 as sentence embeddings, whose squared length is the number of dimensions."""
    with np.load(Path(data_root(None)) / "clinc150-minilm.npz") as file:
        vectors = {s: file[f"{s}_minilm"].astype(np.float32) * 384**0.5 for s in ("train", "test", "oos_test")}
        labels = {s: file[f"{s}_labels"].astype(np.int64) for s in ("train", "test")}
    sizes = [len(part) for part in np.array_split(np.arange(150), cell.tasks)]
    sets = (vectors["train"], labels["train"], vectors["test"], labels["test"])
    ood = {"near": {"out-of-scope": vectors["oos_test"]}}
    return Stream.from_arrays(*sets, tasks=sizes, ood=ood, order=cell.seed or "label", name="clinc150")


def learner_of(cell: Cell, cache: Path) -> Any:
    """The learner with its stream and network."""
    preset = "cpu" if cell.stream == "digits" or (cell.stream == "cifar10" and not cell.network) else "frozen"
    settings = learners.preset(preset, cell.stream, cell.learner)
    name, _ = settings.pop("network"), settings.pop("adapter", 0)
    network: Any = name
    if cell.stream == "digits":
        stream = streams.load("digits", order=cell.seed or "label")
    elif cell.stream == "clinc150":
        stream = text_stream(cell)
        settings |= {"batch_size": 32, **({"memory": cell.memory * 150} if cell.memory else {})}
    else:
        stream = image_stream(cell)
        if cell.network:
            stream = frozen(stream, models.create(cell.network, stream.train.shape), root=cache, say=print)
        else:
            settings["epochs"] = 4
    if cell.epochs:
        settings["epochs"] = cell.epochs
    if preset == "frozen":
        network = models.create("mlp", stream.train.shape, seed=cell.seed, widths=[cell.hidden] if cell.hidden else [])
    return learners.create(cell.learner, stream=stream, network=network, seed=cell.seed, device="cpu", **settings)


def make(cell: Cell, cache: Path) -> dict[str, Any]:
    """Train and read the outputs of each step that counts."""
    if cell.stream == "toy":
        return toy_arrays(cell)
    learner = learner_of(cell, cache)
    stream: Stream = learner.stream
    arrays: dict[str, Any] = {"groups": np.array([s.group for s in stream.ood])}
    for step in range(len(stream)):
        learner.learn(step)
        if step == 0 or (len(stream) > 20 and step % 5 != 4):
            continue
        rows = np.concatenate([stream.train_rows(task) for task in range(step + 1)])
        chosen = np.sort(draw_by_class(rows, stream.train.labels[rows], PER_CLASS, (cell.seed, 7)))
        test = np.concatenate([stream.test_rows(task) for task in range(step + 1)])
        fused = learner.network.fused()

        def outputs(source: Any, rows: Any, labelled: bool = True, fused: Any = fused) -> Outputs:
            found = forward(fused, stream, source, rows)
            return Outputs(
                found["logits"], found["features"], stream.columns(source.labels[rows]) if labelled else None
            )

        sets = [outputs(stream.train, chosen), outputs(stream.test, test)]
        sets += [outputs(s.source, np.arange(len(s.source)), labelled=False) for s in stream.ood]
        arrays |= step_arrays(step, sets, Partition(stream.partition.tasks[: step + 1]), step == len(stream) - 1)
    return arrays


def step_arrays(step: int, sets: list[Outputs], partition: Partition, last: bool) -> dict[str, Any]:
    """Calibration set, test set and OOD sets of one step as arrays of a file."""
    names = ["calibration", "test", *(f"ood{i}" for i in range(len(sets) - 2))]
    arrays: dict[str, Any] = {}
    for name, outputs in zip(names, sets, strict=True):
        logits = np.asarray(outputs.logits)
        arrays[f"{step}/{name}"] = task_energies(logits, partition).astype(np.float32)
        if last:
            arrays |= {f"last/{name}/logits": logits, f"last/{name}/features": np.float16(outputs.features)}
        if outputs.labels is not None:
            arrays[f"{step}/{name}_labels"] = np.int16(outputs.labels)
            arrays[f"{step}/{name}_tasks"] = np.int16(partition.column_tasks[outputs.labels])
    return arrays


def toy_arrays(cell: Cell) -> dict[str, Any]:
    """The toy of the paper, with the features of its last hidden layer."""
    s, replay = toy.Settings(), toy.REGIMES[cell.learner].replay
    samples, (_, _, weights, batches) = toy.sample(cell.learner, cell.seed, s), toy._generators(cell.seed)
    body = toy.linear(weights, s.dimensions, s.hidden) + toy.linear(weights, s.hidden, s.hidden)
    head = [np.empty((s.hidden, 0), dtype=np.float32), np.empty(0, dtype=np.float32)]
    arrays: dict[str, Any] = {"groups": np.array(["near"])}
    for step in range(s.tasks):
        grown = toy.linear(weights, s.hidden, s.classes_per_task)
        head = [np.concatenate([old, new], axis=-1) for old, new in zip(head, grown, strict=True)]
        seen, parameters = head[1].size, [*body, *head]
        old = seen - s.classes_per_task
        inputs, labels = toy._flat(samples.train[old:seen], first=old)
        if replay:
            exemplars, of = toy._flat(samples.train[:old, : s.exemplars])
            inputs, labels = np.concatenate([inputs, exemplars]), np.concatenate([labels, of])
        toy.train(parameters, inputs, labels, s, batches)

        def outputs(inputs: Any, labels: Any = None, parameters: Any = parameters) -> Outputs:
            *_, features, logits = toy.activations(parameters, inputs)
            return Outputs(logits, features, labels)

        sets = [outputs(*toy._flat(samples.train[:seen, :PER_CLASS])), outputs(*toy._flat(samples.test[:seen]))]
        if step:
            partition = Partition.from_sizes([s.classes_per_task] * (step + 1))
            arrays |= step_arrays(step, [*sets, outputs(samples.ood)], partition, step == s.tasks - 1)
    return arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("regimes", nargs="*", help="by default all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    for cell in cells():
        file = options.out / f"{cell.name}.npz"
        if file.exists() or (options.regimes and cell.regime not in options.regimes):
            continue
        started = time.perf_counter()
        arrays = make(cell, options.out / "cache")
        arrays |= {"regime": np.array(cell.regime), "replays": np.array(cell.replays)}
        np.savez(file, **arrays)
        print(f"{cell.regime}: {cell.name}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
