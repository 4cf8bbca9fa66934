"""Facts about a saved score and its decision, for people: ``tood inspect`` and ``tood calibrate``."""

from __future__ import annotations

import json
import os
from typing import Any

from tood.calibration import TOOD
from tood.calibration.tood import version
from tood.decision.calibrators import load_cal
from tood.decision.conformal import KIND as CONFORMAL
from tood.decision.conformal import Conformal
from tood.decision.sets import KIND as SETS
from tood.decision.sets import PredictionSets
from tood.errors import ToodError
from tood.storage.files import kind_of

__all__ = ["decision_facts", "description", "load_decision", "score_facts"]


def load_decision(path: str | os.PathLike[str]) -> Any:
    """A calibrator, a detector, or a :class:`Conformal` or :class:`PredictionSets` around one, from its file."""
    kinds: dict[str | None, Any] = {CONFORMAL: Conformal.load, SETS: PredictionSets.load}
    return kinds.get(kind_of(path), load_cal)(path)


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
    return {
        "rule": f"{cal.rule_['name']}, number {cal.rule_['number']}",
        "tood": cal.version_,
        "created": cal.created_,
        "metadata": cal.metadata_,
        "tasks": [list(task) for task in cal.partition_],
        "samples": int(cal.statistics_["count"].sum()),
        "dead channels": [d.task for d in cal.diagnostics_ if not d.alive],
    }


def decision_facts(conformal: Any, alpha: float) -> dict[str, Any]:
    """Of a conformal decision, or of prediction sets."""
    if isinstance(conformal, PredictionSets):
        share = min(conformal.unknown or 1, 1 - conformal.unknown)
        per = f", per true {conformal.per}" if conformal.per else ""
        return {
            "decision samples": len(conformal._gate),
            "smallest alpha": round(1 / (share * (len(conformal._gate) + 1)), 6),
            "guarantee": f"P(true class in the set | known input{per}) >= 1 - alpha, if samples and inputs are "
            "exchangeable",
        }
    given_by = {None: "known input", "winning": "known input, per winning task", "true": "known input, per true task"}
    given = "known input, per true class" if conformal.per_class else given_by[conformal.per_task]
    facts = {
        "decision samples": conformal.samples,
        "smallest alpha": round(1 / (conformal.samples + 1), 6),
        "guarantee": f"P(reject | {given}) <= alpha, if samples and inputs are exchangeable",
    }
    try:
        return facts | {f"threshold at {alpha:g}": conformal.thresholds(alpha)}
    except ToodError as error:
        return facts | {f"threshold at {alpha:g}": f"none: {error}"}
