"""The examples of docs/how-to/integrations.md, run where their library is there."""

import importlib.util
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "integrations.md"


def run(library, capsys):
    """What the block that imports the library's adapter prints."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (code,) = (block for block in blocks if f"tood.integrations.{library} import" in block)
    exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out.splitlines()


def test_pytorch_ood(pytorch_ood, capsys):
    lines = run("pytorch_ood", capsys)
    assert len(lines) == 2 and all(0.8 < float(line.split()[-1]) <= 1 for line in lines)


def test_avalanche(torchvision, capsys):  # which Avalanche imports
    if importlib.util.find_spec("avalanche") is None:
        pytest.skip("avalanche-lib is not installed")
    figures = {line.split()[0]: float(line.split()[1]) for line in run("avalanche", capsys)}
    assert list(figures) == ["Avg_AUROC_energy", "Avg_AUROC_tood", "D_avg_energy", "D_avg_tood"]
    shown = dict(re.findall(r"^(\w+_(?:energy|tood)) +(-?\d\.\d+)$", PAGE.read_text(), re.MULTILINE))
    assert figures == pytest.approx({name: float(value) for name, value in shown.items()}, abs=0.02)
