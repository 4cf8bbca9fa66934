"""Every reader against damaged files: `python benchmarks/fuzz.py [--flips N] [--cases N] [--seed S]`.

For each kind of file a valid one is made, damaged and read again. A reader must raise a ToodError that names the file,
or give a result; any other exception is "bare". Two ways of damage:

- flips: one bit, in files that hold a checksum or a digest. A result must be that of the valid file, else it is
  "silent". Scores that a run keeps are derived, so that a damaged file is no error: they are computed again.
- cases: truncation, overwritten, inserted, removed or swapped bytes; for text, values of other types (dates, bytes,
  sets, recursion, huge numbers, deep nesting). A result may have "changed", since nothing marks a changed YAML file.
  Half of the cases of a file with a digest are forged: one value or array is replaced and the digest is right again.

"arrays" are no file: unusual ones (masked, sparse, meta, np.matrix, objects, ragged) go to functions that take logits.

One line per kind and a total. Exit code 1 if anything was silent or bare.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import json
import shutil
import sys
import tempfile
import time
import unittest.mock
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from click.testing import CliRunner

from tood import TOOD, Known, Partition, ToodError, Trajectory, detectors, energy, task_energies
from tood.audit import audit, read_verdict
from tood.commands.monitor import command as monitor_command
from tood.decision import Conformal, PredictionSets
from tood.deploy import DriftMonitor, LiveTOOD
from tood.deploy.score_file import score_file
from tood.detectors import Detector, Head, Outputs
from tood.evaluation import Scorer, load_metrics, measure, scores
from tood.metrics import auroc
from tood.outputs import Run, Step, write_manifest, write_step
from tood.report.gather import MeasuredRun
from tood.report.page.content import _verdict as shown_verdict
from tood.report.render import to_markdown
from tood.report.tables import best_tables, tables_of
from tood.runs import RunConfig
from tood.runs.config import measured_as, stored_settings
from tood.runs.sweep import read_sweep
from tood.storage.files import kind_of, read_tensors, write_tensors
from tood.storage.yaml_files import read_yaml, write_yaml
from tood.streams import Stream

COLUMNS = ("flips", "cases", "refused", "same", "changed", "silent", "bare")
TASKS = [[0, 1], [2, 3], [4, 5]]
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(60, 6)).astype(np.float32) + 4 * np.eye(6, dtype=np.float32)[np.arange(60) % 6]
LABELS = np.arange(60) % 6
FEATURES = RNG.normal(size=(60, 5)).astype(np.float32)


class Kind(NamedTuple):
    """A kind of file: how to make a valid one in a folder, and what reading it gives."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    digest: bool  # is one flipped bit always noticed, or without effect?
    text: bool = False
    derived: bool = False  # is it made again if it is damaged?
    forge: Callable[[Path, np.random.Generator], None] | None = None  # changes content, with a right digest


def calibrator(folder: Path) -> Path:
    TOOD(TASKS).fit(LOGITS, LABELS).save(folder / "f.safetensors")
    return folder / "f.safetensors"


def conformal(folder: Path) -> Path:
    Conformal(TOOD(TASKS).fit(LOGITS, LABELS)).fit(LOGITS, LABELS).save(folder / "f.safetensors")
    return folder / "f.safetensors"


def known(folder: Path) -> Path:
    Known(samples=5).fit(FEATURES, LABELS).save(folder / "f.safetensors")
    return folder / "f.safetensors"


def live(folder: Path) -> Path:
    one = LiveTOOD(TASKS)
    one.partial_fit(LOGITS, LABELS)
    one.save(folder / "f.safetensors")
    return folder / "f.safetensors"


def monitor(folder: Path) -> Path:
    DriftMonitor(TOOD(TASKS).fit(LOGITS, LABELS)).fit(LOGITS).update(LOGITS[:30]).save(folder / "f.safetensors")
    return folder / "f.safetensors"


def sets(folder: Path) -> Path:
    PredictionSets(TOOD(TASKS).fit(LOGITS, LABELS)).fit(LOGITS, LABELS).save(folder / "f.safetensors")
    return folder / "f.safetensors"


def detector(folder: Path) -> Path:
    head = Head(weight=RNG.normal(size=(6, 5)), bias=np.zeros(6))
    fitted = detectors.create("vim", dim=2).fit(
        Outputs(logits=LOGITS, features=FEATURES, labels=LABELS), partition=Partition(TASKS), head=head
    )
    fitted.save(folder / "f.safetensors")
    return folder / "f.safetensors"


def network(folder: Path) -> Path:
    from tood import models

    models.create("mlp", shape=(5,), columns=6, widths=[8]).save(folder / "f.safetensors")
    return folder / "f.safetensors"


def read_network(path: Path) -> Any:
    from tood.models import Network

    return {name: tensor.numpy() for name, tensor in Network.load(path).state_dict().items()}


@functools.cache
def learner() -> Any:
    from tood import learners

    rng, labels = np.random.default_rng(1), np.arange(60) % 6
    samples = (3 * np.eye(6)[labels] + rng.normal(size=(60, 6))).astype(np.float32)
    stream = Stream.from_arrays(samples, labels, samples, labels, tasks=3, name="blobs")
    short = {"epochs": 2, "batch_size": 32, "lr": 0.05, "schedule": "none", "memory": 12}
    return learners.create("icarl", stream, network="mlp", **short)


def checkpoint(folder: Path) -> Path:
    """The checkpoint of a run that stopped after the first of two epochs of its second task."""
    learner().learn(0)
    stop = unittest.mock.patch.object(type(learner()), "end_task", side_effect=InterruptedError)
    with stop, contextlib.suppress(InterruptedError):
        learner().learn(1, folder)
    return folder / "task-01.safetensors"


def read_checkpoint(path: Path) -> Any:
    """Everything that a resumed run starts from."""
    from tood.learners.checkpoint import resume

    place, optimizer = resume(learner(), path)
    one = learner()
    state = [one.network.state_dict(), one.teacher.state_dict(), one.memory.state_dict(), *optimizer.values()]
    return [place, [{name: np.asarray(leaf) for name, leaf in part.items()} for part in state]]


def run_folder(folder: Path) -> Path:
    run = folder / "run"
    write_manifest(run, TASKS[:2], near=["n"], far=["f"], learner="er", stream="s", seed=0)
    for step in range(2):
        keep = 2 * (step + 1) > LABELS
        sets = {"logits": LOGITS[keep], "features": FEATURES[keep], "labels": LABELS[keep]}
        ood = {"n": {"logits": LOGITS[~keep], "features": FEATURES[~keep]}, "f": {"logits": 0 * LOGITS[:9]}}
        ood["f"]["features"] = 0 * FEATURES[:9]
        head = {"weight": np.ones((6, 5)), "bias": np.zeros(6)}
        write_step(run, step, test=sets, calibration=sets, fit=sets, ood=ood, head=head)
    measure(Run(run))
    return run


def inside(name: str) -> Callable[[Path], Path]:
    return lambda folder: run_folder(folder) / name


def read_step(path: Path) -> Any:
    """Everything of the step that the damaged file belongs to."""
    root = next(parent for parent in path.parents if (parent / "manifest.json").exists())
    step = Step(Run(root), 1)
    head = step.head
    return [step.test, step.predictions, step.ood, step.fit, step.calibration(), head and (head.weight, head.bias)]


def kept(folder: Path) -> Path:
    step = Step(Run(run_folder(folder)), 1)
    return step.folder / "scores" / "react.npz"


def read_scores(path: Path) -> Any:
    scored = scores(Step(Run(path.parents[3]), 1), Scorer("react"), keep=False)
    return [scored.test, scored.ood, scored.notes]


ODD: list[Any] = [None, True, -1, 0, 1.5, float("inf"), float("nan"), 10**26, "x", "", [], {}, [1], ["x"], {"x": 1}]
ODD += [functools.reduce(lambda inner, _: [inner], range(800), 1), "2020-01-01", [[]], "../../x"]


def odd(value: Any, rng: np.random.Generator) -> Any:
    """A copy of a JSON value with one entry, at any depth, replaced or removed."""
    if isinstance(value, (dict, list)) and value and rng.integers(4):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = keys[int(rng.integers(len(keys)))]
        copied: Any = dict(value) if isinstance(value, dict) else list(value)
        if rng.integers(5):
            copied[key] = odd(value[key], rng)
        else:
            del copied[key]
        return copied
    return ODD[int(rng.integers(len(ODD)))]


def forge_json(path: Path, rng: np.random.Generator) -> None:
    path.write_text(json.dumps(odd(json.loads(path.read_text()), rng)))


def forge_tensors(path: Path, rng: np.random.Generator) -> None:
    """Replace or remove one entry of the description, at any depth, and write the file with a right digest."""
    kind = kind_of(path)
    arrays, described = read_tensors(path, kind)
    key = str(rng.choice(sorted(described)))
    try:
        described[key] = json.dumps(odd(json.loads(described[key]), rng))
    except ValueError:
        described[key] = ODD[int(rng.integers(len(ODD)))]
    write_tensors(path, kind, arrays, described)


def forge_metrics(path: Path, rng: np.random.Generator) -> None:
    """Values that no run has in some rows of one column, in a file without a digest, as others may write it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    place = int(rng.integers(table.num_columns))
    kind = table.schema.types[place]
    values: list[Any] = [None, "", "x", "near", "far", '{"logits": "raw"}', "[", "a" * 4000, "\x1b[2J"]
    if kind != pa.string():
        values = [None, -1, 0, 1, 3, 9999] if kind == pa.int32() else [None, -1.0, 0.5, float("nan"), float("inf")]
    value, column = values[int(rng.integers(len(values)))], table.column(place).to_pylist()
    chosen = rng.random(len(column)) < rng.choice([0.02, 0.5, 1.0])
    column = [value if take else old for old, take in zip(column, chosen, strict=True)]
    table = table.set_column(place, table.schema.field(place), pa.array(column, kind))
    rows = np.flatnonzero(rng.random(len(column)) < rng.choice([0.1, 1.0]))
    pq.write_table(table.take(pa.array(rows)).replace_schema_metadata(None), path)


def read_report(path: Path) -> Any:
    """The tables and trajectories of the run that a file belongs to."""
    run = Run(path.parent)
    one = MeasuredRun(run)
    tables = [*tables_of([(run, one.table)]), *best_tables([(run, one.table)])]
    return [[to_markdown(table) for table in tables], one.accuracy, [one.trajectory(d).values for d in one.detectors]]


def read_card(path: Path) -> Any:
    """What the page shows of a stored verdict; one that is damaged is made again by its caller."""
    return shown_verdict(MeasuredRun(Run(path.parent)), read_verdict(Run(path.parent)))


def read_config(path: Path) -> Any:
    """The settings of a run, and whether it is measured as they say."""
    settings = stored_settings(path.parent)
    found = RunConfig.from_mapping(settings, str(path))
    return [found.to_mapping(), measured_as(found, path.parent) is not None]


def run_config(folder: Path) -> Path:
    run = run_folder(folder)
    write_yaml(run / "config.yaml", RunConfig(stream="s", learner="er", detectors=("energy",)).to_mapping())
    return run / "config.yaml"


def judged(folder: Path) -> Path:
    run = Run(run_folder(folder))
    audit(run)
    return run.path / "verdict.json"


def facts(folder: Path) -> Path:
    run = run_folder(folder)
    (run / "steps/01/learner.json").write_text('{"loss": 0.5, "gap": 1.5}')
    return run / "steps/01/learner.json"


def read_facts(path: Path) -> Any:
    return MeasuredRun(Run(path.parents[2])).point()


def watched(folder: Path) -> Path:
    """A state of ``tood monitor``."""
    notes = json.dumps({"made_from": {"calibrator": "a", "reference": "b"}, "taken": {"/x.npy": ["c", 3]}})
    DriftMonitor(TOOD(TASKS).fit(LOGITS, LABELS)).fit(LOGITS).update(LOGITS[:30]).save(folder / "f.safetensors", notes)
    np.save(folder / "new.npy", LOGITS)
    return folder / "f.safetensors"


def read_watched(path: Path) -> Any:
    """What ``tood monitor --in FILE`` says; it changes the state, so it works on a copy."""
    copy = path.with_name("copy.safetensors")
    shutil.copy(path, copy)
    arguments = ["--state", str(copy), "--in", str(path.with_name("new.npy")), "--json"]
    result = CliRunner().invoke(monitor_command, arguments)
    if isinstance(result.exception, ToodError):
        raise ToodError(str(result.exception).replace(copy.name, path.name))
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout) | {"state": ""}


def unusual(rng: np.random.Generator) -> Any:
    """An array of logits that few would pass."""
    import torch

    logits = LOGITS[: int(rng.integers(1, 60))]
    tensor = torch.from_numpy(logits.copy())
    made: list[Callable[[], Any]] = [
        lambda: np.ma.masked_array(logits, mask=rng.random(logits.shape) < rng.choice([0.0, 0.1, 1.0])),
        lambda: np.matrix(logits),
        lambda: tensor.to_sparse(),
        lambda: tensor.to_sparse_csr(),
        lambda: tensor.to("meta"),
        lambda: tensor.to(torch.complex64),
        lambda: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
        lambda: torch.nested.nested_tensor([tensor[0], tensor[0, :3]]),
        lambda: torch.nn.Parameter(tensor),
        lambda: logits.astype(object),
        lambda: logits.astype(str),
        lambda: logits.astype("datetime64[s]"),
        lambda: logits.astype([("a", np.float32), ("b", np.float32)]),
        lambda: logits.astype(">f4"),
        lambda: logits.astype(np.longdouble),
        lambda: logits[:, ::-1].T,
        lambda: [*logits.tolist(), [1.0]],
        lambda: {"logits": logits},
        lambda: logits.tolist() if rng.integers(2) else iter(logits),
        lambda: ODD[int(rng.integers(len(ODD)))],
        lambda: np.float64(1.5),
        lambda: memoryview(np.ascontiguousarray(logits)),
        lambda: [tensor, tensor],
        lambda: logits[0],
        lambda: logits[None],
    ]
    return made[int(rng.integers(len(made)))]()


@functools.cache
def consumers() -> list[Callable[[Any], Any]]:
    """What takes an array from a user."""
    cal = TOOD(TASKS).fit(LOGITS, LABELS)
    conformal = Conformal(cal).fit(LOGITS, LABELS)
    live = LiveTOOD(TASKS).partial_fit(LOGITS, LABELS)
    watch = DriftMonitor(cal).fit(LOGITS)
    energy_detector = detectors.create("energy").fit(partition=Partition(TASKS))
    return [
        energy,
        cal.score,
        cal.assign,
        lambda x: task_energies(x, TASKS),
        lambda x: TOOD(TASKS).fit(x, LABELS),
        lambda x: TOOD(TASKS).fit(LOGITS, x),
        lambda x: conformal.decide(x, alpha=0.1),
        lambda x: live.partial_fit(x, LABELS),
        watch.update,
        lambda x: auroc(x, LOGITS[:, 0]),
        lambda x: Known().add("a", x),
        lambda x: energy_detector.score(Outputs(logits=x)),
        Partition,
        lambda x: Trajectory(x).average(),
    ]


def read_unusual(path: Path) -> Any:
    """An unusual array, drawn from a seed in the file, given to one function."""
    data = path.read_bytes()
    if data == b"0":
        return 0
    rng = np.random.default_rng(list(data))
    consumer = consumers()[int(rng.integers(len(consumers())))]
    try:
        consumer(unusual(rng))
    except ToodError as error:
        raise ToodError(f"{path}: {error}") from error
    return 1


def arrays(folder: Path) -> Path:
    (folder / "seed").write_bytes(b"0")
    return folder / "seed"


def forge_seed(path: Path, rng: np.random.Generator) -> None:
    path.write_bytes(rng.bytes(8))


def read_manifest(path: Path) -> Any:
    run = Run(path.parent)
    return run.partition.tasks, run.ood, run.learner, run.stream, run.calibration, run.steps()


def npz(folder: Path) -> Path:
    np.savez(folder / "f.npz", logits=LOGITS)
    return folder / "f.npz"


def npy(folder: Path) -> Path:
    np.save(folder / "f.npy", LOGITS)
    return folder / "f.npy"


def table() -> Any:
    import pyarrow as pa

    return pa.table({f"logit_{c}": LOGITS[:, c] for c in range(6)})


def parquet(folder: Path) -> Path:
    import pyarrow.parquet as pq

    pq.write_table(table(), folder / "f.parquet")
    return folder / "f.parquet"


def arrow(folder: Path) -> Path:
    import pyarrow.feather as feather

    feather.write_feather(table(), folder / "f.arrow")
    return folder / "f.arrow"


def stream(folder: Path) -> Path:
    import pyarrow as pa

    with pa.ipc.new_stream(folder / "f.arrow", table().schema) as writer:
        writer.write_table(table())
    return folder / "f.arrow"


def csv(folder: Path) -> Path:
    import pyarrow.csv

    pyarrow.csv.write_csv(table(), folder / "f.csv")
    return folder / "f.csv"


def read_scored(path: Path) -> Any:
    """Scores of a damaged file of logits by a sound calibrator."""
    import pyarrow.parquet as pq

    out = path.parent / "scores.parquet"
    score_file(calibrator(path.parent), path, out)
    return pq.read_table(out)["score"].to_numpy()


def config(folder: Path) -> Path:
    text = "stream: digits\nlearner: icarl\npreset: cpu\nseed: 3\nsettings: {epochs: 2, lr: 0.1}\ndetectors: [energy]\n"
    (folder / "f.yaml").write_text(text)
    return folder / "f.yaml"


def sweep(folder: Path) -> Path:
    text = "base: {stream: digits}\ngrid: {learner: [icarl, der], seed: [0, 1]}\nalso: [{learner: wa, preset: cpu}]\n"
    (folder / "f.yaml").write_text(text)
    return folder / "f.yaml"


def partition(folder: Path) -> Path:
    (folder / "f.json").write_text(Partition(TASKS).to_json())
    return folder / "f.json"


def read_partition(path: Path) -> Any:
    try:
        return Partition.from_json(path.read_text(encoding="utf-8", errors="replace")).tasks
    except ToodError as error:
        raise ToodError(f"{path}: {error}") from error


KINDS: dict[str, Kind] = {
    "calibrator": Kind(calibrator, lambda path: TOOD.load(path).score(LOGITS), digest=True, forge=forge_tensors),
    "conformal": Kind(
        conformal, lambda path: list(Conformal.load(path).decide(LOGITS, alpha=0.1)), digest=True, forge=forge_tensors
    ),
    "known": Kind(known, lambda path: Known.load(path).score(FEATURES), digest=True, forge=forge_tensors),
    "live": Kind(live, lambda path: LiveTOOD.load(path).calibrator().score(LOGITS), digest=True, forge=forge_tensors),
    "monitor": Kind(
        monitor, lambda path: DriftMonitor.load(path).update(LOGITS).to_dict(), digest=True, forge=forge_tensors
    ),
    "sets": Kind(sets, lambda path: PredictionSets.load(path).predict(LOGITS), digest=True, forge=forge_tensors),
    "detector": Kind(
        detector,
        lambda path: Detector.load(path).score(Outputs(logits=LOGITS, features=FEATURES)),
        digest=True,
        forge=forge_tensors,
    ),
    "network": Kind(network, read_network, digest=True, forge=forge_tensors),
    "tood monitor": Kind(watched, read_watched, digest=True, forge=forge_tensors),
    "metrics.parquet": Kind(inside("metrics.parquet"), lambda p: load_metrics(p).to_pydict(), digest=True),
    "report": Kind(inside("metrics.parquet"), read_report, digest=False, forge=forge_metrics),
    "verdict.json": Kind(judged, read_card, digest=False, text=True, forge=forge_json),
    "config.yaml": Kind(run_config, read_config, digest=False, text=True),
    "learner.json": Kind(facts, read_facts, digest=False, text=True, forge=forge_json),
    "arrays": Kind(arrays, read_unusual, digest=False, forge=forge_seed),
    "checkpoint": Kind(checkpoint, read_checkpoint, digest=True, forge=forge_tensors),
    "kept scores": Kind(kept, read_scores, digest=True, derived=True),
    "test.npz": Kind(inside("steps/01/outputs/test.npz"), read_step, digest=True),
    "calibration.npz": Kind(inside("steps/01/outputs/calibration.npz"), read_step, digest=True),
    "fit.npz": Kind(inside("steps/01/outputs/fit.npz"), read_step, digest=True),
    "ood/n.npz": Kind(inside("steps/01/outputs/ood/n.npz"), read_step, digest=True),
    "head.npz": Kind(inside("steps/01/head.npz"), read_step, digest=True),
    "manifest.json": Kind(inside("manifest.json"), read_manifest, digest=True, text=True, forge=forge_json),
    "logits.npz": Kind(npz, read_scored, digest=True),
    "logits.npy": Kind(npy, read_scored, digest=False),
    "logits.parquet": Kind(parquet, read_scored, digest=False),
    "logits.arrow": Kind(arrow, read_scored, digest=False),
    "Arrow stream": Kind(stream, read_scored, digest=False),
    "logits.csv": Kind(csv, read_scored, digest=False),
    "run.yaml": Kind(config, lambda path: RunConfig.from_mapping(read_yaml(path), str(path)), digest=False, text=True),
    "sweep.yaml": Kind(
        sweep, lambda path: [cell.path.name for cell in read_sweep(path, path.parent)], digest=False, text=True
    ),
    "partition.json": Kind(partition, read_partition, digest=False, text=True, forge=forge_json),
}
TOKENS = ["", "-1", "1e400", "null", "[a]", "{}", "true", "7", '"x"', "../../x", "[[[[", "0", "nan", "~", "&a", "\0"]
TOKENS += ["2020-01-01", "!!binary aGk=", "!!set {a, b}", "{1: 2}", "{[1]: 2}", "&a [*a]", "[x]", "1" + 26 * "0", "? x"]
TOKENS += [
    "[" * 3000,
    ".inf",
    "0x7f",
    "2020-01-01T00:00:00Z",
    "!!python/name:os.system",
    "*a",
    "{<<: 1}",
    "1:30",
    "[x,[y]]",
]


def flip(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    changed[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def damage(data: bytes, rng: np.random.Generator, text: bool) -> bytes:
    """One of several kinds of heavier damage."""
    place, size = int(rng.integers(len(data))), int(rng.integers(1, 40))
    kind = int(rng.integers(7 if text else 5))
    noise = rng.integers(0, 256, size=size, dtype=np.uint8).tobytes()
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + noise + data[place + size :]
    if kind == 2:
        return data[:place] + noise + data[place:]
    if kind == 3:
        return data[:place] + data[place + size :]
    if kind == 4:
        other = int(rng.integers(len(data)))
        changed = bytearray(data)
        changed[place], changed[other] = changed[other], changed[place]
        return bytes(changed)
    token = str(rng.choice(TOKENS)).encode()
    words = data.replace(b",", b" , ").replace(b"[", b"[ ").replace(b"]", b" ]").split(b" ")
    words[int(rng.integers(len(words)))] = token
    return b" ".join(words)


def same(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, Outputs):
        names = ("logits", "features", "labels")
        return all(same(getattr(first, name), getattr(second, name)) for name in names)
    if isinstance(first, np.ndarray):
        return isinstance(second, np.ndarray) and np.array_equal(first, second)
    return bool(first == second)


def fuzz(name: str, kind: Kind, flips: int, cases: int, seed: int) -> tuple[dict[str, int], list[str]]:
    """The tally of one kind, and what went wrong."""
    tally = dict.fromkeys(COLUMNS, 0)
    wrong: list[str] = []
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = kind.make(Path(folder))
        expected, data = kind.read(path), path.read_bytes()
        for one_bit in [True] * (flips if kind.digest else 0) + [False] * cases:
            forged = not one_bit and kind.forge is not None and (name == "arrays" or bool(rng.integers(2)))
            path.write_bytes(data if forged else flip(data, rng) if one_bit else damage(data, rng, kind.text))
            if forged and kind.forge:
                kind.forge(path, rng)
            tally["flips" if one_bit else "cases"] += 1
            try:
                found = kind.read(path)
            except ToodError as error:
                tally["refused"] += 1
                if not forged and str(path.parent) not in str(error) and path.name not in str(error):
                    tally["bare"] += 1
                    wrong.append(f"{name}: the error does not name the file: {error}")
                continue
            except Exception as error:
                tally["bare"] += 1
                wrong.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
                continue
            if same(expected, found):
                tally["same"] += 1
            elif one_bit or kind.derived:
                tally["silent"] += 1
                wrong.append(f"{name}: {'one flipped bit' if one_bit else 'damage'} changed the result")
            else:
                tally["changed"] += 1
    return tally, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=20_000, help="over all kinds with a checksum or a digest")
    parser.add_argument("--cases", type=int, default=100_000, help="over all kinds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS, metavar="KIND")
    arguments = parser.parse_args()
    kinds = {name: KINDS[name] for name in arguments.kinds}
    flips = -(-arguments.flips // max(1, sum(kind.digest for kind in kinds.values())))
    cases = -(-arguments.cases // len(kinds))
    print(" ".join(["kind".ljust(16), *(column.rjust(8) for column in (*COLUMNS, "seconds"))]))
    total = dict.fromkeys(COLUMNS, 0)
    for name, kind in kinds.items():
        started = time.perf_counter()
        tally, wrong = fuzz(name, kind, flips, cases, arguments.seed)
        total = {column: total[column] + tally[column] for column in COLUMNS}
        _line(name, [*tally.values(), round(time.perf_counter() - started)])
        for line, count in collections.Counter(wrong).most_common(5):
            print(f"    {count} × {line}", flush=True)
    _line("total", list(total.values()))
    return int(total["silent"] > 0 or total["bare"] > 0)


def _line(name: str, numbers: list[int]) -> None:
    print(" ".join([name.ljust(16), *(f"{number:8,}" for number in numbers)]), flush=True)


if __name__ == "__main__":
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # a bomb is a MemoryError here, not a dead machine
    raise SystemExit(main())
