"""The verdict of an audit, as data; :mod:`tood.audit.wording` puts it into words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tood.audit import wording
from tood.audit.advice import Advice
from tood.audit.causes import PARTS, Judgement
from tood.audit.checks import Finding
from tood.audit.gap import Gap
from tood.audit.kept import Kept
from tood.outputs.directory import Run
from tood.storage.files import write_text

__all__ = ["Verdict", "read_verdict", "write_verdict"]

FORMAT = 5
FILE = "verdict.json"


@dataclass(frozen=True)
class Verdict:
    """The result of an audit.

    Attributes
    ----------
    tasks:
        The number of tasks learned.
    judgements:
        One per group of OOD sets, and one for ``all``; empty with one task or without OOD sets.
    by_task:
        What energy lost on each task but the last, (near + far) / 2.
    accuracy_forgetting:
        The mean of F_i.
    gap:
        Energies per task at the last step.
    calibration:
        The source of the calibration set.
    advice:
        Which score to use.
    findings:
        What is probably wrong with the files.
    notes:
        What else a reader should know.
    kept:
        What becomes of a decision that is kept from each old task's own step.
    traffic:
        The choice by ``traffic.npz`` of the last step, as :meth:`tood.choose.Choice.to_dict` gives it.
    """

    tasks: int
    judgements: tuple[Judgement, ...]
    by_task: tuple[float, ...]
    accuracy_forgetting: float
    gap: Gap
    calibration: str
    advice: Advice
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    kept: Kept | None = None
    traffic: Mapping[str, Any] | None = None

    @property
    def spoken(self) -> tuple[Judgement, ...]:
        """The judgements whose cause is reported: groups that lost; ``all`` instead if it agrees with both."""
        if not self.judgements:
            return ()
        *groups, whole = self.judgements
        lost = [group for group in groups if group.state == "lost"]
        agree = len(lost) == len(groups) > 1 and all(_agree(group, whole) for group in groups)
        if agree or (not lost and whole.state == "lost"):
            return (whole,)
        return tuple(lost)

    @property
    def cause(self) -> str:
        """The causes named, joined by "and"; else "none" (no loss), "undecided" or "unexplained"."""
        if not self.spoken:
            return "none"
        causes = [cause for cause in PARTS if any(cause in one.causes for one in self.spoken)]
        if causes:
            return " and ".join(causes)
        return "undecided" if any(judgement.undecided for judgement in self.spoken) else "unexplained"

    def card(self) -> dict[str, str]:
        """What was lost, why, and what to use with logits alone and with features."""
        return {"lost": wording.lost(self), "cause": wording.cause(self), **wording.use(self), **wording.kept(self)}

    def sentences(self) -> list[str]:
        """What is behind the card: tasks, accuracy, energies, distances, the other scores."""
        return list(wording.details(self))

    def to_dict(self) -> dict[str, Any]:
        """All of it for JSON, the words included."""
        fields = asdict(self)
        fields["findings"] = [finding._asdict() | {"text": str(finding)} for finding in self.findings]
        words = {"cause": self.cause, "card": self.card(), "sentences": self.sentences()}
        return {"format": FORMAT, **words, **fields}


def _agree(first: Judgement, second: Judgement) -> bool:
    """Whether neither judgement names a cause that the other rules out."""

    def possible(judgement: Judgement) -> set[str]:
        return {*judgement.causes, *(cause for causes in judgement.undecided for cause in causes)}

    return possible(second).issuperset(first.causes) and possible(first).issuperset(second.causes)


def write_verdict(run: Run, verdict: Verdict) -> None:
    """Write ``verdict.json`` into a run, with a digest of itself and of the metrics it belongs to."""
    document = verdict.to_dict()
    write_text(run.path / FILE, json.dumps({"digest": _digest(run, document), **document}, indent=1) + "\n")


def read_verdict(run: Run) -> dict[str, Any] | None:
    """The verdict stored in a run; None if there is none, or if it or the metrics have changed since."""
    try:
        document = json.loads((run.path / FILE).read_text(encoding="utf-8"))
        if document.pop("digest") == _digest(run, document) and document["format"] == FORMAT:
            return dict(document)
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        pass
    return None


def _digest(run: Run, document: Mapping[str, Any]) -> str:
    metrics = run.metrics_path.read_bytes() if run.metrics_path.exists() else b""
    return hashlib.sha256(json.dumps(document).encode() + metrics).hexdigest()
