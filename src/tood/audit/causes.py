"""Why detection was lost: one documented rule, which decides only if the 95 % interval does.

Confidence gap: re-centre every task's channel and see how much of the loss comes back. This is tested first because it
can be repaired after training. What remains is divided between the other causes:

Crowding: even the newest task is separated from OOD worse at the end than older tasks were when they were new. With
features, OOD must also have come nearer to ID.

Lost features or dead channels: the logits of a task stand out less on its own classes, against other ID samples, than
when the task was new. Undo that at the last step and see how much of the loss comes back. The part that the features
show too counts as lost features, the rest as dead channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from tood.audit.evidence import Evidence
from tood.metrics.resampling import Drawn, WithInterval, interval

__all__ = ["Cause", "Judgement", "State", "judge"]

Cause: TypeAlias = Literal["confidence gap", "crowding", "lost features", "dead channels"]
State: TypeAlias = Literal["lost", "gained", "kept", "unsure"]
Answer: TypeAlias = bool | None  # None: not known, or the interval does not decide
Causes: TypeAlias = tuple[Cause, ...]

# The name of each cause's share of the loss in Judgement.
PARTS: dict[Cause, str] = {
    "confidence gap": "gap",
    "crowding": "crowding",
    "lost features": "features",
    "dead channels": "channels",
}
LOSS = 0.02  # AUROC: a smaller change does not matter in practice
SHARE = 0.25  # of the loss: a mechanism that accounts for less is not a cause
NEARER = 0.05  # of the distance relative to the distances between ID samples: less is not crowding

# Old tasks respond less: is the part that the features show a cause? Is the rest? What is named, and what stays open.
LOST: Cause = "lost features"
DEAD: Cause = "dead channels"
RESPONSES: dict[tuple[Answer, Answer], tuple[Causes, tuple[Causes, ...]]] = {
    (True, True): ((LOST, DEAD), ()),
    (True, None): ((LOST,), ((DEAD,),)),
    (True, False): ((LOST,), ()),
    (None, True): ((DEAD,), ((LOST,),)),
    (None, None): ((), ((LOST, DEAD),)),
    (None, False): ((), ((LOST,),)),
    (False, True): ((DEAD,), ()),
    (False, None): ((), ((DEAD,),)),
    (False, False): ((), ((LOST, DEAD),)),
}


@dataclass(frozen=True)
class Judgement:
    """What happened on one group of OOD sets, and why.

    Attributes
    ----------
    scope:
        ``near``, ``far``, or ``all`` (both weighted equally).
    state:
        ``lost`` or ``gained`` if the interval of the loss excludes 0 and the change is at least 2 points; else
        ``kept``, or ``unsure`` if a loss of 5 points is not excluded.
    loss, end:
        D_avg of energy, and its AUROC at the last step.
    shares:
        Parts of the loss, as shares of it: ``gap`` (restored by re-centring), ``crowding``, ``own`` (old tasks respond
        less) and ``left`` (unexplained) add up to 1. With features, ``own`` is divided into ``features`` that stand out
        less and ``channels``, logits that respond less to them. A quarter makes a cause.
    nearer:
        The share by which OOD has come nearer to ID, relative to the distances between ID samples.
    causes:
        Those whose share is certainly a quarter or more: its whole interval is.
    undecided:
        Sets of causes that cannot be distinguished, or single causes that cannot be decided.
    """

    scope: str
    state: State
    loss: WithInterval
    end: WithInterval
    shares: Mapping[str, WithInterval]
    nearer: WithInterval | None
    causes: Causes
    undecided: tuple[Causes, ...]


def judge(evidence: Evidence, scope: str) -> Judgement:
    """The judgement on one scope of a run with at least two tasks."""

    def drawn(what: str) -> Drawn:
        return evidence.drawn[what, scope]

    loss, recentred = drawn("loss"), drawn("recentred")
    # Each part is at most what the parts before it leave.
    gap = np.clip(recentred - drawn("kept"), 0, np.maximum(loss, 0))
    rest = np.maximum(loss - gap, 0)
    crowding = np.clip(drawn("learned") - drawn("fresh"), 0, rest)
    own = np.clip(drawn("restored") - recentred, 0, rest - crowding)
    parts = {"gap": gap, "crowding": crowding, "own": own, "left": rest - crowding - own}
    nearer = None
    if ("channels", scope) in evidence.drawn:  # features at every step
        channels = np.clip(drawn("channels") - recentred, 0, own)
        parts |= {"features": own - channels, "channels": channels}
        nearer = 1 - np.exp(-drawn("nearer"))
    shares = {name: part / np.maximum(loss, 1e-9) for name, part in parts.items()}
    state = _state(interval(loss))
    causes, undecided = _causes(shares, nearer) if state == "lost" else ((), ())
    return Judgement(
        scope=scope,
        state=state,
        loss=interval(loss),
        end=interval(drawn("end")),
        shares={name: interval(share) for name, share in shares.items()},
        nearer=None if nearer is None else interval(nearer),
        causes=causes,
        undecided=undecided,
    )


def _causes(shares: Mapping[str, Drawn], nearer: Drawn | None) -> tuple[Causes, tuple[Causes, ...]]:
    """The rule: which causes are named, and which are undecided."""
    beyond = {name: share - SHARE for name, share in shares.items()}
    if nearer is not None:  # crowding needs both
        beyond["crowding"] = np.minimum(beyond["crowding"], nearer - NEARER)
    answers = {name: _answer(interval(excess)) for name, excess in beyond.items()}
    first: Causes = ("confidence gap", "crowding")
    named = tuple(cause for cause in first if answers[PARTS[cause]])
    undecided = tuple((cause,) for cause in first if answers[PARTS[cause]] is None)
    if answers["own"] is False:
        return named, undecided
    named_too, undecided_too = RESPONSES[answers.get("features"), answers.get("channels")]
    return named + named_too, undecided + undecided_too


def _answer(excess: WithInterval) -> Answer:
    """Whether a value is 0 or more; None if its interval holds both answers."""
    return True if excess.low >= 0 else False if excess.high < 0 else None


def _state(loss: WithInterval) -> State:
    if loss.low > 0 and loss.value >= LOSS:
        return "lost"
    if loss.high < 0 and loss.value <= -LOSS:
        return "gained"
    return "kept" if loss.high < 2.5 * LOSS else "unsure"
