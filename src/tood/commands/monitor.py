"""``tood monitor``: drift detection for production logits, continued across restarts."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tood.commands._console import FILE, SHARE, invalid_option, progress_bar, warnings_as_lines
from tood.errors import ToodError, located

if TYPE_CHECKING:
    from tood.outputs.outputs import Outputs

SAVE_SECONDS = 1.0  # between two saves of the state


@click.command()
@click.option("--state", type=FILE, required=True, help="File of the monitor; the first call makes it.")
@click.option("--calibrator", type=FILE, help="What `tood calibrate` wrote; needed by the first call.")
@click.option("--reference", type=FILE, help="Logits of held-out inputs; needed by the first call.")
@click.option(
    "--in",
    "sources",
    type=click.Path(path_type=Path, allow_dash=True),
    multiple=True,
    help="Logits in the order in which they came: files, or - for JSON lines on standard input, each a list of logits "
    'or {"logits": [...]}, perhaps with "id" and "features". May be given several times.',
)
@click.option("--id", "id_column", metavar="COLUMN", help="Column with the names of inputs, for the report.")
@click.option("--plan", "unknown", type=FILE, help="Logits of unknown inputs: simulate how soon they raise an alarm.")
@click.option("--alpha", type=SHARE, help="Chance that stationary traffic ever raises an alarm.  [default: 0.01]")
@click.option("--reject", type=SHARE, help="Share of the reference that counts as rejected.  [default: 0.05]")
@invalid_option("leave them out")
@click.option("--reset", is_flag=True, help="Forget earlier traffic and alarms first; the reference stays.")
@click.option("--fail-on-drift", is_flag=True, help="Exit with code 1 if an alarm was raised since the last reset.")
@click.option("--quiet", is_flag=True, help="Print neither warnings nor the report.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    state: Path,
    calibrator: Path | None,
    reference: Path | None,
    sources: tuple[Path, ...],
    id_column: str | None,
    unknown: Path | None,
    invalid: str,
    reset: bool,
    fail_on_drift: bool,
    quiet: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Watch production logits: have the known inputs drifted, or are there more unknown ones?

    The state is saved every second. If the command is killed, start it again with the same options: it continues after
    the last row saved, and rows of a file are counted once; a file that has changed is refused. However long it runs,
    stationary traffic raises an alarm with probability at most alpha. An alarm is printed at once.

    \b
    Example:
      tood monitor --state monitor.safetensors --calibrator cal.safetensors --reference held_out.npy
      tood monitor --state monitor.safetensors --in monday.parquet --in tuesday.parquet
      service | tood monitor --state monitor.safetensors --in -
      tood monitor --state monitor.safetensors --in today.parquet --fail-on-drift || alert
      tood monitor --state monitor.safetensors --plan unknown.npy
    """
    writes = reset or bool(sources) or not state.exists()
    with warnings_as_lines(quiet), _only_writer(state) if writes else contextlib.nullcontext():
        watch = _Watch(state, calibrator, reference, settings, invalid, print_alarms=not quiet and not as_json)
        if reset:
            watch.monitor.reset()
            watch.taken.clear()
            watch.save()
        if unknown is not None:
            _plan(watch, unknown, as_json)
            return
        for source in sources:
            if str(source) == "-":
                watch.lines(sys.stdin.buffer)
            else:
                with progress_bar("rows", quiet or as_json) as update:
                    watch.file(source, update, id_column)
    metrics = watch.monitor.to_dict()
    if as_json:
        click.echo(json.dumps({"state": str(state), "left_out": watch.left_out, **metrics}))
    elif not quiet:
        left_out = f", invalid and left out: {watch.left_out:,}" if watch.left_out else ""
        click.echo(f"{metrics['rows']:,} inputs so far, {metrics['rejected']:,} rejected{left_out}")
        click.echo(metrics["message"])
    if fail_on_drift and metrics["drift_detected"]:
        click.echo(f"tood: {state}: drift detected, so the exit code is 1 (--fail-on-drift)", err=True)
        sys.exit(1)


def _plan(watch: _Watch, unknown: Path, as_json: bool) -> None:
    """Print the delays that unknown inputs of a file would have."""
    from tood.deploy.plan import plan

    delays = plan(watch.monitor, watch.read(unknown))
    if as_json:
        click.echo(json.dumps([delay._asdict() for delay in delays]))
        return
    click.echo("reference  unknown  inputs until an alarm: median of 10 simulated streams (share of them with one)")
    for delay in delays:
        median = "none" if delay.median is None else f"{delay.median:,.0f}"
        click.echo(f"{delay.reference:>9,}{delay.share:>9.0%}{median:>9} ({delay.alarms:.2f})")


@contextlib.contextmanager
def _only_writer(state: Path) -> Iterator[None]:
    """Context in which only this process changes the state file."""
    from filelock import FileLock, Timeout

    if not state.parent.is_dir():
        raise ToodError(f"{state.parent}: no such folder; make it first")
    try:
        held = FileLock(state.with_name(f".{state.name}.lock"), timeout=0).acquire()
    except Timeout as error:
        raise ToodError(f"{state}: another `tood monitor` is using it; stop that one first") from error
    except OSError as error:
        raise ToodError(f"{state}: cannot be written ({error.strerror})") from error
    with held:
        yield


class _Watch:
    """A monitor, its file, the digests of its inputs, and the number of rows taken from each input file."""

    def __init__(
        self,
        path: Path,
        calibrator: Path | None,
        reference: Path | None,
        settings: dict[str, Any],
        invalid: Any,
        print_alarms: bool,
    ) -> None:
        from tood.decision.facts import load_decision
        from tood.deploy.drift import KIND, DriftMonitor
        from tood.storage.files import read_tensors, sha256

        self.path, self.invalid, self.print_alarms, self.left_out = path, invalid, print_alarms, 0
        self.taken: dict[str, list[Any]] = {}  # input file: its digest, rows taken
        self.saved = time.monotonic()
        given = {name: value for name, value in settings.items() if value is not None}
        for name, file in {"calibrator": calibrator, "reference": reference}.items():
            if file and not file.is_file():
                raise ToodError(f"{file}: no such file")
            given |= {name: sha256(file)} if file else {}
        if path.exists():
            self.monitor = DriftMonitor.load(path)
            try:
                notes = json.loads(read_tensors(path, KIND)[1].get("notes") or "{}")
                self.taken = {name: [digest, int(rows)] for name, (digest, rows) in notes.get("taken", {}).items()}
                self.made_from = dict(notes.get("made_from", {}))
            except (AttributeError, TypeError, ValueError, RecursionError) as error:
                raise ToodError(f"{path}: not a usable monitor: notes: {error}") from error
            made_with = self.made_from | {name: getattr(self.monitor, name) for name in settings}
            for name, value in given.items():
                if made_with.get(name) != value:
                    raise click.UsageError(f"{path} was made with another --{name}; remove it to start again")
        elif not (calibrator and reference):
            raise click.UsageError(f"{path} does not exist yet: give --calibrator and --reference to make it")
        else:
            self.made_from = {name: given.pop(name) for name in ("calibrator", "reference")}
            self.monitor = DriftMonitor(load_decision(calibrator), **given)
            rows = self.read(reference)
            with located(reference):
                self.monitor.fit(rows)
            self.save()

    def read(self, source: Path) -> Any:
        """All valid rows of a file."""
        from tood.deploy.logit_files import LogitsFile

        return self.input(LogitsFile(source, features=self.detects).outputs(self.invalid))

    def input(self, outputs: Outputs) -> Any:
        """What the monitor reads: of a calibrator, the logits alone."""
        return outputs if self.detects else outputs.logits

    @property
    def detects(self) -> bool:
        """Whether the score is a detector, which reads ``Outputs``."""
        return hasattr(self.monitor.cal, "needs")

    def save(self) -> None:
        notes = {"made_from": self.made_from, "taken": self.taken}
        self.monitor.save(self.path, notes=json.dumps(notes))
        self.saved = time.monotonic()

    def save_if_due(self) -> None:
        """Save once a second at most, so that frequent rows are not slowed down and rare ones are not lost."""
        if time.monotonic() - self.saved >= SAVE_SECONDS:
            self.save()

    def update(self, outputs: Outputs, where: str, ids: list[Any]) -> None:
        """Take in rows; print a new alarm at once."""
        before = self.monitor.drift_detected
        with located(where):
            self.monitor.update(self.input(outputs), ids)
        if self.print_alarms and not before and self.monitor.drift_detected:
            click.echo(f"ALARM at {where}: {self.monitor.report()}", err=True)

    def file(self, source: Path, progress: Any, id_column: str | None) -> None:
        """Take in the rows of a file that were not taken before."""
        import numpy as np

        from tood.deploy.logit_files import LogitsFile, valid_rows
        from tood.storage.files import sha256

        file = LogitsFile(source, [id_column] if id_column else (), features=self.detects)
        name, digest, rows = str(source.resolve()), sha256(source), file.rows
        before, taken = self.taken.get(name, [digest, 0])
        if before != digest:
            raise ToodError(
                f"{source}: has changed since {taken:,} of its rows were counted; give new rows in a file of their "
                "own, or --reset to start again"
            )
        done = 0
        for block in file.blocks():
            start, done = done, done + len(block.logits)
            if done > taken:
                fresh = np.arange(start, done) >= taken
                valid = valid_rows(block.logits, self.invalid, source, start)
                self.left_out += int((fresh & ~valid).sum())
                names = block.columns[id_column] if id_column else [f"{source.name}:{k}" for k in range(start, done)]
                chosen = np.flatnonzero(fresh & valid)
                where = f"{source}, rows {start} to {done - 1}"
                self.update(block.outputs[chosen], where, [names[row] for row in chosen])
                self.taken[name] = [digest, done]
                self.save_if_due()
            progress(done, rows)
        self.save()

    def lines(self, stream: Any) -> None:
        """Take in JSON lines until they end."""
        cal = self.monitor.cal
        columns = cal.shape_[0] if self.detects else cal.partition_.columns
        try:
            for number, line in enumerate(stream, start=1):
                where = f"standard input, line {number}"
                if not line.strip():
                    continue
                try:
                    outputs, name = _parsed(line, columns)
                except (ArithmeticError, KeyError, TypeError, ValueError, RecursionError) as error:
                    self.left_out += 1
                    if self.invalid == "reject":
                        continue
                    raise ToodError(
                        f'{where}: expected a list of {columns} logits or {{"logits": [...]}} ({error}); '
                        "`--invalid reject` continues without such rows"
                    ) from error
                self.update(outputs, where, [name or f"line {number}"])
                self.save_if_due()
        finally:  # after an error or a signal too: these rows do not come again
            self.save()


def _parsed(line: bytes, columns: int) -> tuple[Outputs, str]:
    """The outputs of one row, and its id or an empty text."""
    import numpy as np

    from tood.outputs.outputs import Outputs

    parsed = json.loads(line)
    parsed = parsed if isinstance(parsed, dict) else {"logits": parsed}
    logits = np.array(parsed["logits"], dtype=np.float64)
    if logits.shape != (columns,) or not np.isfinite(logits).all():
        raise ValueError(f"expected finite numbers, found shape {logits.shape}")
    features = np.array([parsed["features"]], dtype=np.float64) if "features" in parsed else None
    return Outputs(logits[None], features), str(parsed.get("id", ""))
