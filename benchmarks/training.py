"""How fast the training loop is: against a bare loop, and against a plain one fed by Pillow. One thread, one run.

    python benchmarks/training.py [--rounds 4] [--steps 4]
    python benchmarks/training.py --profile     # where the learner's time goes, by torch.profiler

ResNet-32, batches of 128 generated 32-pixel images. Each variant has a process of its own; they take turns, a few steps
each, so that whatever else the machine does meets all of them. Times are CPU seconds. Also BiC's second stage as a
share of its first.

`--profile --steps 3` printed: convolutions 79 %, batch normalisation 14 %, ReLU, sums and pooling 6 %, all else 1 %
(data, augmentation, loss, clipping, optimizer). The loop has no more to save: the plain loop, which differs in memory
format and augments images one by one, takes 1.25 to 1.3 times as long.
"""

from __future__ import annotations

import argparse
import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset

from tood import learners, models
from tood.learners.bic import BiC
from tood.streams import Stream
from tood.streams.augment import augment, prepare

BATCH = 128
KINDS = {  # parts of the names of operations
    "convolutions": ("convolution",),
    "batch normalisation": ("batch_norm", "batchnorm"),
    "ReLU, sums, pooling": ("threshold", "relu", "clamp_min", "aten::add", "pool", "mean"),
}


def generated_images(count: int, seed: int = 0) -> np.ndarray:
    """Smooth colour fields with a little noise, ``[count, 32, 32, 3]``: they compress about as photographs do."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (count, 8, 8, 3)).repeat(4, 1).repeat(4, 2).astype(float)
    smooth = sum(np.roll(coarse, (dy, dx), (1, 2)) for dy in range(-2, 3) for dx in range(-2, 3)) / 25
    return np.clip(smooth + rng.normal(0, 4, smooth.shape), 0, 255).astype(np.uint8)


def make_stream(steps: int) -> Stream:
    """Two tasks of two classes, ``steps`` batches each."""
    images = generated_images(2 * steps * BATCH)
    labels = np.arange(len(images)) * 4 // len(images)
    return Stream.from_arrays(images, labels, images[::97], labels[::97], tasks=2, augmentation="crop_flip")


def step(network: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, columns: Tensor) -> None:
    optimizer.zero_grad()
    cross_entropy(network(inputs), columns).backward()
    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()


def fresh(layout: torch.memory_format) -> tuple[nn.Module, torch.optim.Optimizer]:
    network = models.create("resnet32", (32, 32, 3), columns=2).train().to(memory_format=layout)
    return network, torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, weight_decay=2e-4)


def the_learner(stream: Stream) -> Callable[[], None]:
    learner = learners.create("finetune", stream, network="resnet32", epochs=1, batch_size=BATCH, schedule="none")
    return lambda: learner.learn(0)


def bare_loop(stream: Stream) -> Callable[[], None]:
    network, optimizer = fresh(torch.channels_last)
    images, labels = torch.from_numpy(stream.train.take(np.arange(len(stream.train)))), stream.train.labels

    def run() -> None:
        generator = torch.Generator().manual_seed(0)
        for rows in torch.randperm(len(stream.train_rows(0)), generator=generator).split(BATCH):
            inputs = prepare(images[rows], stream.mean, stream.std)
            inputs = augment(inputs, "crop_flip", generator, black=stream.black)
            step(network, optimizer, inputs, torch.from_numpy(labels[rows.numpy()]))

    return run


class Files(Dataset[tuple[Tensor, int]]):
    """PNG files, decoded, padded, cropped and flipped one by one."""

    def __init__(self, folder: Path, stream: Stream) -> None:
        self.labels = stream.train.labels[stream.train_rows(0)]
        self.paths = [folder / f"{row}.png" for row in stream.train_rows(0)]
        for path, image in zip(self.paths, stream.train.take(stream.train_rows(0)), strict=True):
            if not path.exists():
                Image.fromarray(image).save(path)
        self.mean = torch.tensor(stream.mean)[:, None, None]
        self.std = torch.tensor(stream.std)[:, None, None]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = ImageOps.expand(Image.open(self.paths[index]).convert("RGB"), 4)
        left, top = torch.randint(0, 9, (2,)).tolist()
        image = image.crop((left, top, left + 32, top + 32))
        if torch.rand(1) < 0.5:
            image = ImageOps.mirror(image)
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float() / 255
        return (tensor - self.mean) / self.std, int(self.labels[index])


def plain_loop(stream: Stream, folder: Path) -> Callable[[], None]:
    network, optimizer = fresh(torch.contiguous_format)
    loader = DataLoader(Files(folder, stream), batch_size=BATCH, shuffle=True)

    def run() -> None:
        for inputs, columns in loader:
            step(network, optimizer, inputs, columns)

    return run


def seconds(run: Callable[[], None]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def work(name: str, steps: int, folder: Path, pipe: Connection) -> None:
    """A process of one variant: told to go, it starts anew, runs the steps and answers with the time they took."""
    torch.set_num_threads(1)
    stream = make_stream(steps)
    make = {"learner": the_learner, "bare": bare_loop, "plain": lambda stream: plain_loop(stream, folder)}[name]
    while pipe.recv():
        pipe.send(seconds(make(stream)))
    if name == "learner":
        pipe.send((bic_stages(make_stream(4)), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def bic_stages(stream: Stream) -> tuple[float, float]:
    """CPU seconds of the first and the second stage of one task of BiC, two epochs."""
    learner = learners.create("bic", stream, network="resnet32", epochs=2, batch_size=BATCH, memory=200)
    assert isinstance(learner, BiC)
    learner.learn(0)
    second: list[float] = []
    correct = learner.correct
    learner.correct = lambda: second.append(seconds(correct))  # type: ignore[method-assign]
    whole = seconds(lambda: learner.learn(1))
    return whole - second[0], second[0]


def profiled(steps: int) -> None:
    """Print the share of each kind of operation in the learner's steps."""
    torch.set_num_threads(1)
    stream = make_stream(steps)
    the_learner(stream)()  # warms up
    run = the_learner(stream)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    shares = dict.fromkeys((*KINDS, "rest"), 0.0)
    for event in profiler.key_averages():
        kind = next((kind for kind, parts in KINDS.items() if any(p in event.key.lower() for p in parts)), "rest")
        shares[kind] += event.self_cpu_time_total
    for kind, share in shares.items():
        print(f"{kind:22s} {share / sum(shares.values()):6.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--profile", action="store_true", help="only the shares of operations in the learner's steps")
    options = parser.parse_args()
    if options.profile:
        profiled(options.steps)
        return
    spawn, pipes = multiprocessing.get_context("spawn"), {}
    times: dict[str, list[float]] = {"learner": [], "bare": [], "plain": []}
    with tempfile.TemporaryDirectory() as folder:
        for name in times:
            pipes[name], theirs = spawn.Pipe()
            spawn.Process(target=work, args=(name, options.steps, Path(folder), theirs), daemon=True).start()
        for turn in range(options.rounds + 1):
            for name, pipe in pipes.items():
                pipe.send(True)
                spent = pipe.recv()
                if turn:  # the first round warms up
                    times[name].append(spent)
        for pipe in pipes.values():
            pipe.send(False)
        (first, second), peak = pipes["learner"].recv()
    median = {name: float(np.median(values)) for name, values in times.items()}
    for name, value in median.items():
        print(f"{name:8s} {1000 * value / options.steps:8.1f} ms a step")
    print(f"learner / bare loop      {median['bare'] / median['learner']:5.2f}  (goal: at least 0.95)")
    print(f"learner / plain loop     {median['plain'] / median['learner']:5.2f}  (goal: at least 1.2)")
    print(f"BiC stage 2 / stage 1    {second / first:7.4f}  (goal: below 0.02)")
    print(f"peak memory              {peak:.0f} MiB")


if __name__ == "__main__":
    main()
