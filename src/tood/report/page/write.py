"""One self-contained HTML file for a run or a sweep: it opens from disk and loads nothing from the network.

The data is one block of JSON; scripts put it on the page as text, never as markup. The content security policy allows
only the embedded scripts, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from tood.errors import ToodError
from tood.outputs.directory import Run
from tood.report.appearance import COLOURS, label
from tood.report.gather import MeasuredRun
from tood.report.page.content import content
from tood.report.summary import Key, Summary
from tood.storage.files import printable, write_text

__all__ = ["write_page"]

SCRIPTS = ("d3.min.js", "plot.umd.min.js", "common.js", "charts.js", "page.js")


def write_page(
    runs: Iterable[Run | MeasuredRun],
    path: Path,
    reference: Mapping[Key, Summary] | None = None,
    verdicts: Mapping[Path, dict[str, Any] | None] | None = None,
) -> Path:
    """Write the HTML page of a set of runs.

    Parameters
    ----------
    runs:
        Runs with a ``metrics.parquet``.
    path:
        The HTML file.
    reference:
        Published values, shown next to ours.
    verdicts:
        Verdicts by run directory; a run without one here gets the verdict stored in its directory.

    Returns
    -------
    The same path.
    """
    measured = MeasuredRun.all_of(runs)
    if not measured:
        raise ToodError("runs: expected at least one, found none")
    path = Path(path)
    write_text(path, render(content(measured, reference or {}, verdicts or {}), _title(measured)))
    return path


def render(shown: dict[str, Any], title: str) -> str:
    """HTML of the page that shows the data from :func:`~tood.report.page.content.content`."""
    names = {name for run in shown["runs"] for name in run["detectors"]}
    names |= {row[kind] for row in [*shown["accuracy"], *shown["table"]] for kind in ("learner", "detector")}
    labels = {name: label(name) for name in sorted(names)}
    scripts, terms = [_asset(name) for name in SCRIPTS], json.loads(_asset("terms.json"))
    parts = {
        "TITLE": html.escape(printable(title)),
        "HASHES": " ".join(f"'sha256-{_digest(script)}'" for script in scripts),
        "STYLE": _asset("page.css"),
        "SCRIPTS": "\n".join(f"<script>{script}</script>" for script in scripts),
        "DATA": _json({**shown, "title": title, "labels": labels, "colours": COLOURS, "terms": terms}),
    }
    # One pass, so that inserted text is not searched for placeholders.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def _title(measured: list[MeasuredRun]) -> str:
    if len(measured) == 1:
        return f"OOD forgetting: {measured[0].name}"
    streams = ", ".join(dict.fromkeys(one.run.stream for one in measured))
    return f"OOD forgetting: {len(measured)} runs on {streams}"


def _json(value: dict[str, Any]) -> str:
    """JSON without characters that an HTML parser treats specially."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=str)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (resources.files("tood.report.page") / "assets" / name).read_text(encoding="utf-8")
