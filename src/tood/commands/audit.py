"""``tood audit``: the verdict on run directories, whichever framework made them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tood.console import FILE, complete_names

if TYPE_CHECKING:
    from tood.audit import Audit, Verdict
    from tood.report.tables import Table


@click.command()
@click.argument("paths", nargs=-1, required=True, type=FILE, metavar="RUN...")
@click.option(
    "--detectors",
    shell_complete=complete_names("detectors"),
    help="Detectors, separated by commas.  [default: all that can be scored]",
)
@click.option("--calibration", help="Source of the calibration samples, such as memory.  [default: the run's]")
@click.option("--full", is_flag=True, help="Also print the evidence and every table.")
@click.option("--json", "as_json", is_flag=True, help="Print verdict and figures as JSON.")
@click.option("--out", type=FILE, help="Folder to write verdict, tables and metrics.parquet to.")
def command(
    paths: tuple[Path, ...], detectors: str | None, calibration: str | None, full: bool, as_json: bool, out: Path | None
) -> None:
    """Judge run directories: how much OOD detection was lost, why, and which score to use.

    RUN needs only logits and labels, from any framework: tood.runs.write_manifest and tood.runs.write_step write it.
    Several RUNs that differ only in their seed are judged together. The verdict is kept in RUN/verdict.json.

    \b
    Examples:
      tood audit runs/digits-icarl-cpu-s0
      tood audit my-run --detectors energy,tood_robust_anchor --json
      tood audit my-run --calibration memory --out report
      tood audit runs/digits-icarl-cpu-s0 runs/digits-icarl-cpu-s1 --full
    """
    from tood.audit import audit, audit_seeds
    from tood.report.tables import tables_of
    from tood.runs import find_runs

    names = [name.strip() for name in detectors.split(",") if name.strip()] if detectors else None
    with _status_line(quiet=as_json) as progress:
        audits = [audit(run, names, calibration, progress) for run in find_runs(paths)]
    groups = [(group, group[0].verdict if len(group) == 1 else audit_seeds(group)) for group in _seeds(audits)]
    overviews = [_overview(group[0], verdict) for group, verdict in groups]
    tables: list[Table] = []
    if full or as_json or out:
        measured = [(one.run, one.table) for one in audits if one.evidence]
        tables = tables_of(measured)[: None if len(groups) > 1 else -1] if measured else []
    every = [*(table for table in overviews if table), *tables]
    if out is not None:
        _write(audits, groups, every, out)
    if as_json:
        click.echo(json.dumps(_mapping(groups, every), indent=2))
    else:
        _print(groups, overviews, tables, full)


def _seeds(audits: list[Audit]) -> list[list[Audit]]:
    """Audits in groups of runs that differ only in their seed."""
    from tood.report.summary import learner_label

    groups: dict[tuple[str, str, str], list[Audit]] = {}
    for one in audits:
        run = one.run
        rest = run.manifest.get("preset") if "seed" in run.manifest else run.path
        groups.setdefault((run.stream, learner_label(run), str(rest)), []).append(one)
    return list(groups.values())


def _overview(found: Audit, verdict: Verdict) -> Table | None:
    """AUROC along the stream of energy and of the recommended score, and accuracy; None without OOD sets."""
    from tood.report.tables import overview_table
    from tood.runs.metrics_file import detectors_of

    shown = [name for name in dict.fromkeys(("energy", verdict.advice.best)) if name in detectors_of(found.table)]
    return overview_table(found.table, shown, found.run) if found.evidence and shown else None


def _print(
    groups: list[tuple[list[Audit], Verdict]], overviews: list[Table | None], tables: list[Table], full: bool
) -> None:
    """A card and one table per group of runs, then all other tables."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table as Grid
    from rich.text import Text

    from tood.files import printable
    from tood.report.render import print_tables

    console = Console(highlight=False)
    for (group, verdict), overview in zip(groups, overviews, strict=True):
        if len(groups) > 1:
            console.print(Text(printable(", ".join(str(one.run.path) for one in group)), style="bold"))
        card = Grid.grid(padding=(0, 2))
        for name, text in verdict.card().items():
            card.add_row(Text(name.capitalize(), style="bold"), Text(printable(text)))
        for finding in verdict.findings:
            card.add_row(Text("Check", style="bold"), Text(printable(str(finding))))
        console.print(card)
        if full:
            lines = [*verdict.sentences(), *(f"Note: {note}." for note in verdict.notes)]
            console.print(Padding(Text("\n".join(map(printable, lines))), (1, 0, 0, 0)))
        console.print()
        print_tables([overview] if overview else [], console)
    print_tables(tables, console)
    if not full:
        console.print(Text("--full prints the evidence and every table, --json everything.", style="dim"))


def _mapping(groups: list[tuple[list[Audit], Verdict]], tables: list[Table]) -> dict[str, object]:
    verdicts = [{"runs": [str(one.run.path) for one in group], "verdict": v.to_dict()} for group, v in groups]
    first = {"run": verdicts[0]["runs"][0], "verdict": verdicts[0]["verdict"]} if len(verdicts) == 1 else {}  # type: ignore[index]
    figures = [record for table in tables for record in table.records()]
    return {**first, "verdicts": verdicts, "notes": list(groups[0][1].notes), "figures": figures}


def _write(audits: list[Audit], groups: list[tuple[list[Audit], Verdict]], tables: list[Table], out: Path) -> None:
    from tood.files import write_text
    from tood.report.render import markdown_line, write_tables
    from tood.runs.metrics_file import save_metrics

    write_tables(tables, out)
    if len(audits) == 1:
        save_metrics(audits[0].table, out / "metrics.parquet")
    verdicts = [verdict.to_dict() for _, verdict in groups]
    write_text(out / "verdict.json", json.dumps(verdicts[0] if len(verdicts) == 1 else verdicts, indent=2) + "\n")
    lines = []
    for group, verdict in groups:
        lines += [f"## {', '.join(str(one.run.path) for one in group)}", ""] if len(groups) > 1 else []
        lines += [f"- {name}: {text}" for name, text in verdict.card().items()]
        notes = [f"Note: {note}." for note in verdict.notes]
        lines += ["", *verdict.sentences(), "", *map(str, verdict.findings), *notes, ""]
    write_text(out / "verdict.md", "\n".join(map(markdown_line, lines)))


@contextlib.contextmanager
def _status_line(quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """A line with the step and detector being scored, on a terminal only; it is removed at the end."""
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet)
    if not console.is_terminal:
        yield lambda step, detector: None
        return
    with console.status("reading") as status:
        yield lambda step, detector: status.update(f"step {step}: {detector}")
