"""Facts about a saved score and its decision, for people: ``tood inspect`` and ``tood calibrate``."""

from __future__ import annotations

import json
from typing import Any

from tood.calibration import TOOD
from tood.calibration.tood import version
from tood.errors import ToodError

__all__ = ["decision_facts", "description", "score_facts"]


def description(scorer: Any) -> dict[str, str]:
    """Where a score comes from, as texts to keep in an exported file: rule, version, date and the user's metadata."""
    cal = getattr(scorer, "cal", scorer)
    made = {"tood": version(), "rule": json.dumps(getattr(cal, "rule_", {"name": getattr(cal, "name", "")}))}
    if isinstance(cal, TOOD):
        made |= {"created": cal.created_, "metadata": json.dumps(cal.metadata_)}
    return made


def score_facts(cal: Any) -> dict[str, Any]:
    """Of a calibrator, or of a detector."""
    if not isinstance(cal, TOOD):
        return {"score": getattr(cal, "name", type(cal).__name__)}
    facts = {
        "rule": f"{cal.rule_['name']}, number {cal.rule_['number']}",
        "created": cal.created_,
        "metadata": cal.metadata_,
        "tasks": [list(task) for task in cal.partition_],
        "samples": int(cal.statistics_["count"].sum()),
        "dead channels": [d.task for d in cal.diagnostics_ if not d.alive],
    }
    return facts | ({"accuracy seen": round(cal.seen_.accuracy, 4)} if hasattr(cal, "seen_") else {})


def decision_facts(conformal: Any, alpha: float) -> dict[str, Any]:
    """Of a conformal decision."""
    per = {None: "known input", "winning": "known input, per winning task", "true": "known input, per true task"}
    given = "known input, per true class" if conformal.per_class else per[conformal.per_task]
    facts = {
        "decision samples": conformal.samples,
        "smallest alpha": round(1 / (conformal.samples + 1), 6),
        "guarantee": f"P(reject | {given}) <= alpha, if samples and inputs are exchangeable",
    }
    try:
        return facts | {f"threshold at {alpha:g}": conformal.thresholds(alpha)}
    except ToodError as error:
        return facts | {f"threshold at {alpha:g}": f"none: {error}"}
