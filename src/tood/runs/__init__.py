"""Runs: the configuration of a run, and every stage from training to metrics; sweeps over many."""

from typing import Any

from tood.runs.config import RunConfig

__all__ = ["RunConfig", "run"]


def __getattr__(name: str) -> Any:
    """``run`` needs torch, which is imported only when it is asked for."""
    if name == "run":
        from tood.runs.stages import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
