"""``tood monitor``: watch production logits for drift, across restarts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tood.console import progress_bar, warnings_as_lines

if TYPE_CHECKING:
    from tood.arrays import FloatArray
    from tood.deploy.drift import DriftMonitor

__all__ = ["command"]

FILE = click.Path(path_type=Path)
SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)
EVERY = 1 << 16  # rows of a file after which the state is saved
LINES = 64  # JSON lines after which it is


@click.command()
@click.option("--state", type=FILE, required=True, help="The monitor's file: made at the first call, continued later.")
@click.option("--calibrator", type=FILE, help="What `tood calibrate` wrote; for the first call.")
@click.option("--reference", type=FILE, help="Logits of ordinary held-out inputs, any format; for the first call.")
@click.option(
    "--in",
    "sources",
    type=click.Path(path_type=Path, allow_dash=True),
    multiple=True,
    help="Logits in the order in which they came: files, or - for JSON lines on standard input, each a list of logits "
    'or {"logits": [...]}. May be given several times.',
)
@click.option("--alpha", type=SHARE, help="Chance that stationary traffic ever raises an alarm.  [default: 0.01]")
@click.option("--reject", type=SHARE, help="Share of the reference that counts as rejected.  [default: 0.05]")
@click.option(
    "--invalid",
    type=click.Choice(["error", "reject"]),
    default="error",
    show_default=True,
    help="Rows with a missing, NaN or infinite logit: stop, or leave them out.",
)
@click.option("--reset", is_flag=True, help="Forget earlier traffic and alarms first; the reference stays.")
@click.option("--quiet", is_flag=True, help="Print neither warnings nor the report.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    state: Path,
    calibrator: Path | None,
    reference: Path | None,
    sources: tuple[Path, ...],
    invalid: str,
    reset: bool,
    quiet: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Watch production logits: have the known inputs drifted, or are there more unknown ones?

    The state is saved as rows come in. Killed and started again with the same command, it continues after the last row
    saved. However long it runs, stationary traffic raises an alarm with probability at most alpha. An alarm on standard
    input is printed at once.

    \b
    Example:
      tood monitor --state monitor.safetensors --calibrator cal.safetensors --reference held_out.npy
      tood monitor --state monitor.safetensors --in monday.parquet --in tuesday.parquet
      service | tood monitor --state monitor.safetensors --in -
    """
    with warnings_as_lines(quiet):
        watch = _Watch(state, calibrator, reference, settings, drop=invalid == "reject", tell=not quiet and not as_json)
        if reset:
            watch.reset()
        for source in sources:
            if str(source) == "-":
                watch.lines(sys.stdin)
            else:
                with progress_bar("rows", quiet or as_json) as update:
                    watch.file(source, update)
    figures = watch.monitor.to_dict()
    if as_json:
        click.echo(json.dumps({"state": str(state), "left_out": watch.left_out, **figures}))
    elif not quiet:
        left_out = f", {watch.left_out:,} invalid ones left out" if watch.left_out else ""
        click.echo(f"{figures['rows']:,} inputs so far, {figures['rejected']:,} rejected{left_out}")
        click.echo(figures["message"])


class _Watch:
    """A monitor in its file, with the number of rows it has taken from each input file."""

    def __init__(
        self,
        path: Path,
        calibrator: Path | None,
        reference: Path | None,
        settings: dict[str, Any],
        drop: bool,
        tell: bool,
    ) -> None:
        from tood.deploy.drift import KIND, DriftMonitor
        from tood.files import read_tensors

        self.path, self.drop, self.tell, self.left_out = path, drop, tell, 0
        given = {name: value for name, value in settings.items() if value is not None}
        self.taken: dict[str, list[int]] = {}  # input file: size, time of change, rows taken
        if path.exists():
            if calibrator or reference or given:
                raise click.UsageError(
                    f"{path} exists and keeps its settings; remove it to start again, or use --reset"
                )
            self.monitor = DriftMonitor.load(path)
            self.taken = json.loads(read_tensors(path, KIND)[1].get("notes") or "{}")
        elif not (calibrator and reference):
            raise click.UsageError(f"{path} does not exist yet: give --calibrator and --reference to make it")
        else:
            self.monitor = _fitted(calibrator, reference, given)
            self.save()

    def reset(self) -> None:
        self.monitor.reset()
        self.save()

    def save(self) -> None:
        self.monitor.save(self.path, notes=json.dumps(self.taken))

    def update(self, logits: FloatArray, where: str) -> None:
        """Take in rows; tell of a new alarm at once."""
        import numpy as np

        from tood.errors import ToodError

        valid = np.isfinite(logits).all(axis=1)
        if not valid.all() and not self.drop:
            raise ToodError(f"{where}, row {int(valid.argmin())} of these: expected finite numbers; `--invalid reject`")
        self.left_out += int((~valid).sum())
        before = self.monitor.drift_detected
        self.monitor.update(logits[valid])
        if self.tell and not before and self.monitor.drift_detected:
            click.echo(f"ALARM at {where}: {self.monitor.report()}", err=True)

    def file(self, source: Path, progress: Any) -> None:
        """Take in the rows of a file that were not taken before."""
        from tood.deploy.logit_files import LogitsFile

        file, name, status = LogitsFile(source), str(source.resolve()), source.stat()
        stamp = [status.st_size, status.st_mtime_ns]
        skip = self.taken[name][2] if self.taken.get(name, [])[:2] == stamp else 0
        rows = file.rows
        done = saved = 0
        for block in file.blocks():
            new = block.logits[max(0, skip - done) :]
            if len(new):
                self.update(new, f"{source}, rows from {done + len(block.logits) - len(new)}")
            done += len(block.logits)
            if done - max(saved, skip) >= EVERY:
                self.taken[name], saved = [*stamp, done], done
                self.save()
            progress(done, rows)
        self.taken[name] = [*stamp, done]
        self.save()

    def lines(self, stream: Any) -> None:
        """Take in JSON lines until they end."""
        count = 0
        for count, logits in enumerate(_json_rows(stream), start=1):
            self.update(logits, f"standard input, line {count}")
            if count % LINES == 0:
                self.save()
        if count % LINES:
            self.save()


def _fitted(calibrator: Path, reference: Path, settings: dict[str, Any]) -> DriftMonitor:
    """A new monitor."""
    import numpy as np

    from tood.deploy.drift import DriftMonitor
    from tood.deploy.logit_files import LogitsFile
    from tood.deploy.score_file import load_scorer

    blocks = [block.logits for block in LogitsFile(reference).blocks()]
    return DriftMonitor(load_scorer(calibrator), **settings).fit(np.concatenate(blocks))


def _json_rows(stream: Any) -> Iterator[FloatArray]:
    """``[1, C]`` for each line that is not empty."""
    import numpy as np

    from tood.errors import ToodError

    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            row = np.array(found["logits"] if isinstance(found, dict) else found, dtype=np.float64)
            if row.ndim != 1:
                raise ValueError(f"{row.ndim} axes")
        except (KeyError, TypeError, ValueError) as error:
            raise ToodError(
                f'standard input, line {number}: expected a list of logits or {{"logits": [...]}} ({error})'
            ) from error
        yield row[None]
