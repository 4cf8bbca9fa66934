"""Training progress: a bar on a terminal, or one plain line per minute elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tood.learners import Progress

__all__ = ["training_progress"]

EVERY = 60.0  # seconds between plain lines


@contextlib.contextmanager
def training_progress(quiet: bool = False) -> Iterator[tuple[Callable[[Progress], None], Callable[[str], None]]]:
    """Yield two functions: one shows a :class:`~tood.learners.Progress`, the other prints a line."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    if quiet:
        yield (lambda progress: None), (lambda line: None)
    elif console.is_terminal:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        with Bars(TextColumn("{task.description}"), BarColumn(), console=console, transient=True) as bars:
            bar = bars.add_task("", total=None)

            def show(p: Progress) -> None:
                done = p.epoch * p.steps + p.step
                bars.update(bar, description=describe(p), total=p.epochs * p.steps, completed=done)

            yield show, bars.console.print
    else:
        last = time.monotonic()

        def report(p: Progress) -> None:
            nonlocal last
            if time.monotonic() - last >= EVERY:
                last = time.monotonic()
                console.print(describe(p))

        yield report, console.print


def describe(p: Progress) -> str:
    """Loss, accuracy, speed and time left, on one line."""
    from tood.storage.durations import duration

    return (
        f"task {p.task + 1}  epoch {p.epoch + 1}/{p.epochs}  training loss {p.loss:.3f}  training accuracy "
        f"{100 * p.accuracy:.1f}  {p.samples_per_second:.0f} samples/s  {duration(p.seconds_left)} left"
    )
