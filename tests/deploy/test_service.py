"""The recipes of docs/how-to/calibrate.md, "As a service"."""

import re
from pathlib import Path

import numpy as np
import pytest

from tood import TOOD
from tood.decision import Conformal

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "calibrate.md"


def test_the_fastapi_recipe_decides_as_the_library_does(tmp_path, monkeypatch):
    pytest.importorskip("fastapi")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 400)
    draw = lambda: rng.normal(size=(400, 4)) + 6 * np.eye(4)[labels]  # noqa: E731
    conformal = Conformal(TOOD([[0, 1], [2, 3]]).fit(draw(), labels)).fit(draw(), labels)
    conformal.save("decider.safetensors")
    [code] = [block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "fastapi" in block]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    namespace = {"network": np.asarray}
    exec(compile(code, str(PAGE), "exec"), namespace)
    rows = draw()[:5].tolist()
    expected = conformal.decide(np.array(rows), alpha=0.05)
    answer = namespace["decide"](rows)
    assert answer["accept"] == expected.accept.tolist() and answer["p_value"] == expected.p_value.tolist()
    routes = {route.path: route for route in namespace["app"].routes}
    assert routes["/decide"].methods == {"POST"}
