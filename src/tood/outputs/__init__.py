"""Outputs: logits, features and labels of one set at one step, in memory and in a run directory."""

from typing import Any

from tood.outputs.backbone import write_backbone
from tood.outputs.directory import Run, find_runs, write_manifest
from tood.outputs.outputs import Head, Outputs
from tood.outputs.steps import Step, write_step

__all__ = ["Head", "Outputs", "Run", "Step", "extract", "find_runs", "write_backbone", "write_manifest", "write_step"]


def __getattr__(name: str) -> Any:
    """``extract`` needs torch, which is imported only when it is asked for."""
    if name == "extract":
        from tood.outputs.extraction import extract

        return extract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
