"""Imports follow the picture in CONTRIBUTING: an arrow of the source that is not in the picture fails."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import tood

SOURCE = Path(tood.__file__).parent
WORDS = [
    "errors",
    "arrays",
    "partition",
    "energy",
    "registry",
    "settings",
    "storage",
    "examples",
]  # each may import the ones before
# Each room imports the words, and of the other rooms only those named here.
ROOMS = {
    "calibration": [],
    "outputs": [],
    "known": ["calibration"],
    "metrics": ["calibration"],
    "choose": ["outputs", "metrics"],
    "detectors": ["calibration", "outputs", "metrics"],
    "evaluation": ["outputs", "metrics", "detectors"],
    "decision": ["calibration", "detectors"],
    "deploy": ["calibration", "outputs", "decision"],
    "export": ["calibration", "known", "outputs", "detectors", "decision"],
    "audit": ["choose", "calibration", "outputs", "metrics", "detectors", "evaluation", "decision"],
    "gate": ["calibration", "outputs", "metrics", "detectors", "decision"],
    "report": ["outputs", "metrics", "detectors", "evaluation", "decision", "audit"],
    # Training; nothing above imports it.
    "models": ["outputs"],
    "streams": ["outputs", "models"],
    "learners": ["outputs", "models", "streams"],
    "runs": ["outputs", "metrics", "detectors", "evaluation", "models", "streams", "learners"],
}
EVERY = [*ROOMS]
ROOMS |= {
    "testing": EVERY,
    "integrations": EVERY,
    "paper": EVERY,
    "commands": [*EVERY, "paper", "integrations"],
    "cli": ["commands"],
    "__main__": ["cli"],
}
PUBLIC = {
    "TOOD": "calibration",
    "Known": "known",
    "example": "examples",
    "Partition": "partition",
    "Trajectory": "metrics",
    "ToodError": "errors",
}


def rooms_named(node):
    """The rooms that an import statement, or a string such as "tood.report.page", names."""
    if isinstance(node, ast.ImportFrom) and node.module == "tood":
        names = [PUBLIC.get(alias.name, alias.name) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = re.findall(r"^tood\.(\w+)", node.module or "")
    elif isinstance(node, ast.Import):
        names = [name for alias in node.names for name in re.findall(r"^tood\.(\w+)", alias.name)]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        names = re.findall(r"^tood\.(\w+)[\w.]*$", node.value)
    else:
        names = []
    return [name for name in names if name in WORDS or name in ROOMS]


def arrows():
    """Pairs (importing room, imported room) with the files; imports inside functions and by string included."""
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        place = file.relative_to(SOURCE)
        room = place.parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text())):
            for name in rooms_named(node):
                if name != room and room != "__init__":
                    found.setdefault((room, name), set()).add(str(place))
    return found


def test_every_room_is_in_the_picture():
    rooms = {file.relative_to(SOURCE).parts[0].removesuffix(".py") for file in SOURCE.rglob("*.py")} - {"__init__"}
    assert rooms == {*WORDS, *ROOMS}, "new: add it to the picture here and in CONTRIBUTING.md"


def test_every_arrow_is_in_the_picture():
    allowed = {word: WORDS[:place] for place, word in enumerate(WORDS)}
    allowed |= {room: [*WORDS, *others] for room, others in ROOMS.items()}
    wrong = {arrow: files for arrow, files in arrows().items() if arrow[1] not in allowed[arrow[0]]}
    assert not wrong


def test_the_picture_has_no_circle():
    before = set()
    for room, others in ROOMS.items():
        assert set(others) <= before | {"paper", "integrations"}, room
        before.add(room)


def test_importing_tood_is_light():
    code = "import sys, numpy; before = set(sys.modules); import tood; print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"torch", "scipy", "sklearn", "matplotlib", "pyarrow", "rich", "click", "yaml", "PIL"}
    assert not heavy & set(loaded)
