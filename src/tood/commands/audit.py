"""``tood audit``: the verdict on run directories, whichever framework made them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from tood.commands._console import FILE, complete_names, split_names

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
@click.option("--track", help="Data that detectors are fitted on, such as memory.  [default: the run's]")
@click.option("--full", is_flag=True, help="Also print the evidence and every table.")
@click.option("--json", "as_json", is_flag=True, help="Print verdict and tables as JSON.")
@click.option("--out", type=FILE, help="Folder to write verdict, tables and metrics.parquet to.")
def command(
    paths: tuple[Path, ...], detectors: str | None, track: str | None, full: bool, as_json: bool, out: Path | None
) -> None:
    """Judge run directories: how much OOD detection was lost, why, and which score to use.

    RUN needs only logits and labels, from any framework: tood.runs.write_manifest and tood.runs.write_step write it.
    Several RUNs that differ only in their seed are judged together. The verdict is kept in RUN/verdict.json.

    \b
    Examples:
      tood audit runs/digits-icarl-cpu-s0
      tood audit my-run --detectors energy,tood_robust_anchor --json
      tood audit my-run --track memory --out report
      tood audit runs/digits-icarl-cpu-s0 runs/digits-icarl-cpu-s1 --full
    """
    from tood.audit import audit
    from tood.outputs import find_runs
    from tood.report.tables import tables_of

    names = split_names(detectors) if detectors else None
    with _status_line(quiet=as_json) as progress:
        audits = [audit(run, names, track, progress) for run in find_runs(paths)]
    groups = _groups(audits)
    overviews = [_overview(group, several=len(groups) > 1) for group in groups]
    measured = [(one.run, one.table) for one in audits if one.evidence]
    tables = tables_of(measured, track=track or "") if measured and (full or as_json or out) else []
    all_tables = [*filter(None, overviews), *tables]
    if out is not None:
        _write(groups, all_tables, out)
    if as_json:
        click.echo(json.dumps(_for_json(groups, all_tables), indent=2))
    else:
        _print(groups, overviews, tables, full, named=names is not None)


class Group(NamedTuple):
    """Audits of runs that differ only in their seed, and the verdict on all of them."""

    audits: list[Audit]
    verdict: Verdict

    @property
    def paths(self) -> list[str]:
        """The run directories."""
        return [str(one.run.path) for one in self.audits]


def _groups(audits: list[Audit]) -> list[Group]:
    from tood.audit import audit_seeds
    from tood.report.summary import check_distinct, learner_label

    check_distinct([one.run for one in audits])
    seeds: dict[tuple[str, str, str], list[Audit]] = {}
    for one in audits:
        run = one.run
        preset = run.manifest.get("preset") if "seed" in run.manifest else run.path
        seeds.setdefault((run.stream, learner_label(run), str(preset)), []).append(one)
    return [Group(own, own[0].verdict if len(own) == 1 else audit_seeds(own)) for own in seeds.values()]


def _overview(group: Group, several: bool) -> Table | None:
    """AUROC along the stream of energy, TOOD and the recommended score, and accuracy; None without OOD sets."""
    from tood.audit.advice import DEFAULT
    from tood.evaluation.metrics_file import detectors_of
    from tood.report.tables import overview_table

    first = group.audits[0]
    measured = detectors_of(first.table)
    shown = [name for name in dict.fromkeys(("energy", DEFAULT, group.verdict.advice.best)) if name in measured]
    if not (first.evidence and shown):
        return None
    table = overview_table(first.table, shown, first.run)
    return replace(table, name=f"{table.name}-{first.run.path.name}") if several else table


def _print(groups: list[Group], overviews: list[Table | None], tables: list[Table], full: bool, named: bool) -> None:
    """Print a card and one table per group of runs, then all other tables.

    ``named``: the user named the detectors, so the card says which of them were left out.
    """
    from rich.console import Console

    from tood.report.render import print_card, print_tables
    from tood.storage.files import printable

    console = Console(highlight=False, markup=False)
    for group, overview in zip(groups, overviews, strict=True):
        if len(groups) > 1:
            console.print(printable(", ".join(group.paths)), style="bold")
        verdict = group.verdict
        print_card(verdict.to_dict(), verdict.notes if full else _about_the_run(verdict.notes, named), console)
        console.print("\n".join(["", *map(printable, verdict.sentences() if full else []), *[""] * full]))
        print_tables([overview] if overview else [], console)
    print_tables(tables, console)
    console.print("Next: `tood report RUN` writes the page, --full prints the evidence and every table.", style="dim")


def _about_the_run(notes: Sequence[str], named: bool) -> list[str]:
    """The notes for a card: not those of single detectors, and those about all of them only if the user named some."""
    from tood.detectors import names

    known, about_all = set(names()), ("left out", "no fit set")
    return [note for note in notes if note.partition(":")[0] not in known and (named or not note.startswith(about_all))]


def _for_json(groups: list[Group], tables: list[Table]) -> dict[str, object]:
    verdicts = [{"runs": group.paths, "verdict": group.verdict.to_dict()} for group in groups]
    only = {"run": groups[0].paths[0], "verdict": verdicts[0]["verdict"]} if len(groups) == 1 else {}
    figures = [record for table in tables for record in table.records()]
    return {**only, "verdicts": verdicts, "notes": list(groups[0].verdict.notes), "figures": figures}


def _write(groups: list[Group], tables: list[Table], out: Path) -> None:
    """Write tables, metrics and verdicts to a folder."""
    from tood.evaluation.metrics_file import save_metrics
    from tood.report.render import write_tables
    from tood.storage.files import write_text

    write_tables(tables, out)
    if len(groups) == len(groups[0].audits) == 1:
        save_metrics(groups[0].audits[0].table, out / "metrics.parquet")
    verdicts = [group.verdict.to_dict() for group in groups]
    write_text(out / "verdict.json", json.dumps(verdicts[0] if len(verdicts) == 1 else verdicts, indent=2) + "\n")


@contextlib.contextmanager
def _status_line(quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """A line with the step and detector being scored, on a terminal only; it is removed at the end."""
    from rich.console import Console

    with Console(stderr=True, quiet=quiet).status("reading") as status:  # draws nothing if it is no terminal
        yield lambda step, detector: status.update(f"scoring detectors: {detector}, step {step}")
