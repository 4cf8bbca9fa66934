"""Imports follow the picture in CONTRIBUTING: each layer imports itself and the layers above it in this list."""

import ast
import subprocess
import sys
from pathlib import Path

import tood

SOURCE = Path(tood.__file__).parent
LAYERS = [
    {"errors"},
    {"arrays", "files", "hub", "npz_files", "own_code", "ray_tasks", "registry", "sampling", "times"},
    {"partition", "checks", "energy", "diagnostics", "statistics", "calibration"},
    {"metrics"},
    {"detectors", "models"},  # ODIN and AdaScale run the network; extract returns Outputs
    {"decision"},
    {"streams"},
    {"learners"},
    {"deploy", "export", "testing"},
    {"runs"},
    {"audit"},
    {"report"},
    {"integrations"},
    {"paper"},
    {"console"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
PUBLIC = {"TOOD": "calibration", "Partition": "partition", "Trajectory": "metrics", "ToodError": "errors"}


def imports():
    """Pairs (file, package or module of tood that it imports), imports inside functions included."""
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "tood":
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tood."):
                names = [node.module.split(".")[1]]
            elif isinstance(node, ast.Import):
                names = [alias.name.split(".")[1] for alias in node.names if alias.name.startswith("tood.")]
            else:
                continue
            yield from ((file.relative_to(SOURCE), PUBLIC.get(name, name)) for name in names)


def room(file):
    return file.parts[0].removesuffix(".py")


def test_every_package_has_a_layer():
    rooms = {room(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py")} - {"__init__"}
    assert rooms <= set(RANK), "new: add it to LAYERS here and to the layout in CONTRIBUTING.md"


def test_no_import_points_back():
    back = [
        f"{file} imports {name}"
        for file, name in imports()
        if room(file) in RANK and name in RANK and RANK[name] > RANK[room(file)]
    ]
    assert not back


def test_only_commands_import_the_paper():
    assert {room(file) for file, name in imports() if name == "paper"} <= {"paper", "commands"}


def test_importing_tood_is_light():
    code = "import sys, numpy; before = set(sys.modules); import tood; print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"torch", "scipy", "sklearn", "matplotlib", "pyarrow", "rich", "click", "yaml", "PIL"}
    assert not heavy & set(loaded)
