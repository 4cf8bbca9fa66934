"""Outdated metrics: which version of each detector made the metrics of a run, and which has changed since.

A detector's ``version`` is raised when its scores change. ``metrics.parquet`` keeps the versions that made it. Files
written before versions were kept have none: their metrics count as outdated unless the detector is still at version 1,
which is then the only one that can have made them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tood.detectors.base import REGISTRY
from tood.evaluation.metrics_file import VERSIONS, detectors_of
from tood.registry import described

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Outdated", "describe", "outdated", "summary", "with_versions"]


class Outdated(NamedTuple):
    """A detector whose metrics were made by another version than the current one."""

    detector: str
    version: int | None  # None: the file has no versions
    current: int

    def __str__(self) -> str:
        made = "unknown version" if self.version is None else f"version {self.version}"
        return f"{self.detector} ({made}, now {self.current})"


def with_versions(table: pa.Table) -> pa.Table:
    """The table with the current version of each of its detectors: for metrics that were just measured."""
    known = ((name, REGISTRY.known(name)) for name in detectors_of(table))
    versions = {name: detector.version for name, detector in known if detector is not None}
    return table.replace_schema_metadata({VERSIONS: json.dumps(versions, sort_keys=True)})


def outdated(table: pa.Table, names: Iterable[str] = ()) -> list[Outdated]:
    """The detectors of a table whose version has changed since they were measured, in alphabetical order.

    Parameters
    ----------
    table:
        The result of :func:`~tood.runs.load_metrics`.
    names:
        Only these detectors, names or ``package.module:Class``; by default all of the table. Detectors that are not
        registered in this process are ignored; nothing is imported.
    """
    wanted = set(names)
    versions = json.loads((table.schema.metadata or {}).get(VERSIONS, b"{}"))
    found = []
    for name in detectors_of(table):
        detector = REGISTRY.known(name)
        if detector is None or (wanted and not wanted & {name, described(detector)}):
            continue
        made = versions.get(name)
        if made != detector.version and not (made is None and detector.version == 1):
            found.append(Outdated(name, made, detector.version))
    return found


def describe(found: Iterable[Outdated]) -> str:
    """``outdated metrics: gmm (version 1, now 2), …``."""
    return f"outdated metrics: {', '.join(map(str, found))}"


def summary(tables: Iterable[pa.Table]) -> str:
    """One line about the outdated metrics of several runs, with how to renew them; empty if there are none."""
    found = sorted({one for table in tables for one in outdated(table)}, key=str)
    renew = "`tood run RUN/config.yaml --out RUN` renews them (`tood audit RUN` if it has no config.yaml)"
    return f"{describe(found)}; {renew}" if found else ""
