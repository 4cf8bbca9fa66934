"""Do the tests notice a mistake? `python benchmarks/mutants.py [--per-module N] [--seed S] [--modules NAME ...]`.

A mutant is the package with one small change: a comparison, an operator, a constant, a negated condition, a call left
out. For each module a seeded sample of all possible changes is made, and the module's own tests run against each: first
those that reach the changed line, fast ones first, then the others of their files. A mutant is killed if a test
fails, or if its tests take ten times their processor time or 6 GiB. Survivors are listed; mutants.md says which
are equivalent.

mutmut and cosmic-ray start one process per mutant and run all tests in it; here a process that has imported NumPy and
torch is forked, and only tests that can notice are run, which takes a tenth of the time. Mutants are made from the
syntax tree, in a copy of the source. Needs fork (Linux, macOS).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MODULES = {  # what is mutated, and its tests
    "partition": (["partition.py"], ["tests/test_partition.py"]),
    "energy": (["energy.py"], ["tests/test_energy.py"]),
    "calibration": (
        ["calibration"],
        ["tests/calibration"],
    ),
    "decision": (["decision"], ["tests/decision"]),
    "metrics": (["metrics"], ["tests/metrics"]),
    "detectors": (["detectors"], ["tests/detectors"]),
    "outputs": (["outputs"], ["tests/outputs"]),
}
PRELOADED = ("pytest", "numpy", "scipy.stats", "sklearn.metrics", "torch", "hypothesis.extra.numpy", "pyarrow.parquet")
MEMORY = 6 << 30  # bytes of address space: a mutant may allocate without end
SLOW = 3.0  # processor seconds: slower tests are left out
OPERATORS: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div},
    **{ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
NAMES = {"min": "max", "max": "min", "argmin": "argmax", "argmax": "argmin", "any": "all", "all": "any"}
NAMES |= {"mean": "sum", "maximum": "minimum", "minimum": "maximum", "zeros": "ones", "ones": "zeros"}
NAMES |= {"floor": "ceil", "ceil": "floor", "cummax": "cummin", "quantile": "percentile"}


@dataclass
class Mutant:
    """One change: the file, the place, and the new source."""

    path: Path  # relative to src/tood
    line: int
    change: str
    source: str = field(repr=False)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that may stand in the place of ``node``."""
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[i] = OPERATORS[type(operator)]()
            yield changed
    elif isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)) and type(node.op) in OPERATORS:
        changed = copy.deepcopy(node)
        changed.op = OPERATORS[type(node.op)]()
        yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
        yield copy.deepcopy(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        number = node.value
        yield ast.Constant(not number if isinstance(number, bool) else number + 1 if number < 10 else number * 2)
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        changed = copy.deepcopy(node)
        changed.test = ast.UnaryOp(ast.Not(), changed.test)
        yield changed
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in NAMES:
        yield ast.Name(NAMES[node.id], ast.Load())
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield ast.Attribute(copy.deepcopy(node.value), NAMES[node.attr], ast.Load())
    elif isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield ast.Pass()


class _Places(ast.NodeVisitor):
    """Every place that may be changed: not annotations, texts of errors and warnings, or imports for types."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.AST, str, int | None]] = []  # the parent, its field, and the place in a list

    def generic_visit(self, node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "keywords" if _is_warning(node) else ""):
                continue
            for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or _is_text(child):
                    continue
                self.found.append((node, name, place))
                if not isinstance(child, (ast.Raise, ast.JoinedStr)) and not _is_for_types(child):
                    self.visit(child)


def _is_warning(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_for_types(node: ast.AST) -> bool:
    if isinstance(node, (ast.AnnAssign, ast.Assign)):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
        value = ast.unparse(node.value) if node.value else ""
        return any(ast.unparse(target) == "__all__" for target in targets) or "TypeVar" in value or "Literal" in value
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """Every mutant of a file."""
    tree = ast.parse((root / path).read_text(encoding="utf-8"))
    places = _Places()
    places.visit(tree)
    mutants = []
    for parent, name, place in places.found:
        old = getattr(parent, name)[place] if place is not None else getattr(parent, name)
        if _is_for_types(old):
            continue
        for new in _changes(old):
            _put(parent, name, place, ast.copy_location(new, old))
            shown = f"{_short(old)}  ->  {_short(new)}"
            mutants.append(Mutant(path, old.lineno, shown, ast.unparse(ast.fix_missing_locations(tree))))
            _put(parent, name, place, old)
    return mutants


def _put(parent: ast.AST, name: str, place: int | None, node: ast.AST) -> None:
    if place is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[place] = node


def _short(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0][:90]


class Baseline:
    """A pytest plugin: the processor time of each test and the lines it reaches."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Called by pytest before each test."""
        self.coverage.switch_context(nodeid)
        self.seconds[nodeid] = -time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Called by pytest after each test."""
        self.seconds[nodeid] += time.process_time()


class Chosen:
    """A pytest plugin: only some tests, in a given order."""

    def __init__(self, names: list[str]) -> None:
        self.places = {name: place for place, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Called by pytest with all tests it found."""
        items[:] = sorted((i for i in items if i.nodeid in self.places), key=lambda i: self.places[i.nodeid])


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    yield


def _forked(source: Path, work: Any, seconds: float) -> int:
    """The exit code of ``work()`` in a child process whose ``tood`` is the one in ``source``; -1 for one that hangs."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            sys.path.insert(0, str(source))
            os.environ["PYTHONPATH"] = str(source)
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
            with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            with _silent():
                code = int(work())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else -1


def _pytest(arguments: list[str], plugin: Any) -> int:
    import pytest

    return pytest.main(["-q", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin", *arguments], plugins=[plugin])


def baseline(tests: list[str], source: Path, data: Path) -> tuple[dict[str, float], dict[str, dict[int, list[str]]]]:
    """The processor time of each test, and per file the tests that reach each line."""
    import json

    def work() -> int:
        import coverage

        measured = coverage.Coverage(data_file=str(data), source=[str(source / "tood")], messages=False)
        plugin = Baseline(measured)
        measured.start()
        code = _pytest(tests, plugin)
        measured.stop()
        found = measured.get_data()
        reached = {file: found.contexts_by_lineno(file) for file in found.measured_files()}
        data.with_suffix(".json").write_text(json.dumps([plugin.seconds, reached]))
        return code

    if _forked(source, work, 3600):
        raise SystemExit(f"the tests {' '.join(tests)} fail as they are")
    seconds, reached = json.loads(data.with_suffix(".json").read_text())
    return seconds, {file: {int(line): names for line, names in lines.items()} for file, lines in reached.items()}


def is_killed(
    mutant: Mutant, source: Path, seconds: dict[str, float], reached: dict[str, dict[int, list[str]]]
) -> bool:
    """Whether a test fails with this mutant."""
    file = source / "tood" / mutant.path
    names = [name for name in reached.get(str(file), {}).get(mutant.line, []) if name]
    files = {name.partition("::")[0] for name in names or seconds}
    first = sorted(names, key=lambda name: seconds[name])
    rest = sorted((n for n in seconds if n.partition("::")[0] in files and n not in {*names}), key=seconds.__getitem__)
    chosen = [name for name in [*first, *rest] if seconds[name] <= SLOW]
    limit = 20 + 10 * sum(seconds[name] for name in chosen)
    before = file.read_text(encoding="utf-8")
    file.write_text(mutant.source, encoding="utf-8")
    for cached in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        cached.unlink()
    try:
        sys.dont_write_bytecode = True
        # 0: all passed, 5: there was none
        return _forked(source, lambda: _pytest(["-x", *sorted(files)], Chosen(chosen)), limit) not in (0, 5)
    finally:
        file.write_text(before, encoding="utf-8")


def _files(place: Path) -> list[Path]:
    return sorted(place.glob("*.py")) if place.is_dir() else [place]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-module", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modules", nargs="*", default=list(MODULES), choices=MODULES, metavar="NAME")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != ROOT / "benchmarks"]  # it has a coverage.py
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take longer to import than most tests to run
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    total = [0, 0]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = f"{folder}/hypothesis"
        source = Path(folder).resolve() / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for module in arguments.modules:
            places, tests = MODULES[module]
            root = source / "tood"
            files = [file for place in places for file in _files(root / place)]
            possible = [mutant for file in files for mutant in mutants_of(file.relative_to(root), root)]
            chosen = random.Random(arguments.seed).sample(possible, min(arguments.per_module, len(possible)))
            seconds, reached = baseline(tests, source, Path(folder) / f"{module}.coverage")
            survivors = [mutant for mutant in chosen if not is_killed(mutant, source, seconds, reached)]
            killed = len(chosen) - len(survivors)
            total = [total[0] + len(chosen), total[1] + killed]
            print(f"{module:12} {len(possible):5} possible, {len(chosen):4} made, {killed:4} killed", flush=True)
            for mutant in survivors:
                print(f"    {mutant.path}:{mutant.line}: {mutant.change}", flush=True)
    print(f"{'total':12} {total[0]:20} made, {total[1]:4} killed ({100 * total[1] / total[0]:.0f} %)")


if __name__ == "__main__":
    main()
