"""``tood gate``: may the next version replace the deployed one?"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from tood.commands._console import FILE, SHARE, warnings_as_lines

EXIT_CODES = {"ship": 0, "recalibrate": 3, "block": 3, "undecided": 4}
POINTS = click.FloatRange(0, 100, min_open=True)


@click.command()
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@click.option("--old-decision", type=FILE, help="Decision file of OLD.  [default: OLD/decision.safetensors]")
@click.option("--new-decision", type=FILE, help="Decision file of NEW.  [default: NEW/decision.safetensors]")
@click.option("--old-threshold", type=float, help="Threshold of OLD, in place of that of its decision file.")
@click.option("--new-threshold", type=float, help="Threshold of NEW, in place of that of its decision file.")
@click.option("--reject", type=SHARE, default=0.05, show_default=True, help="Share of known inputs decisions reject.")
@click.option("--max-loss", type=POINTS, default=1.0, show_default=True, help="Points that each metric may lose.")
@click.option("--task-loss", type=POINTS, help="Points that each metric may lose within a task.  [default: 5]")
@click.option("--alpha", type=SHARE, default=0.05, show_default=True, help="Probability of a wrong verdict, at most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--junit", type=FILE, help="Write JUnit XML to this file.")
@click.option("--markdown", type=FILE, help="Write a summary to this Markdown file.")
@click.option("--html", type=FILE, help="Write a self-contained page to this file.")
@click.option("--github", is_flag=True, help="Also print GitHub annotations, and append the summary to the job's.")
def command(old: Path, new: Path, reject: float, as_json: bool, github: bool, **options: Any) -> None:
    """Compare the decisions of two versions on the same samples: ship, recalibrate first, do not ship, or cannot tell.

    OLD and NEW are folders with decision.safetensors (what `tood calibrate` wrote), test.npz (logits, labels and
    perhaps ids and classes), ood/NAME.npz (logits of unknown samples), and perhaps traffic.npz and calibration.npz.
    Exit codes: 0 ship, 1 failed to run, 2 wrong usage, 3 regression, 4 cannot tell.

    \b
    Examples:
      tood gate versions/5 versions/6
      tood gate versions/5 versions/6 --max-loss 2 --junit gate.xml --html gate.html
      tood gate runs/er/steps/05 runs/er/steps/06 --old-decision 5.safetensors --new-decision 6.safetensors
    """
    from tood.gate import compare, read_version, render
    from tood.storage.files import sha256, write_text

    with warnings_as_lines(as_json):
        before = read_version(old, options["old_decision"], options["old_threshold"], reject)
        after = read_version(new, options["new_decision"], options["new_threshold"], reject)
        gate = compare(before, after, options["max_loss"], options["alpha"], options["task_loss"])
    parent = getattr(after.cal, "metadata_", {}).get("parent_sha256")
    if parent is not None and parent != sha256(options["old_decision"] or old / "decision.safetensors"):
        gate.notes.append(f"the decision of NEW names another parent than OLD: {after.cal.metadata_.get('parent')}")
    for name in ("junit", "markdown", "html"):
        if options[name] is not None:
            write_text(options[name], getattr(render, name)(gate))
    click.echo(json.dumps(gate.to_dict(), indent=2) if as_json else render.plain_text(gate))
    if github:
        click.echo(render.github(gate), err=as_json)
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(render.markdown(gate))
    sys.exit(EXIT_CODES[gate.verdict])
