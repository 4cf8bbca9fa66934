"""Why detection was lost: one documented rule, which decides only if 95 % of resamples agree.

Confidence gap: re-centre every task's channel and see how much of the loss comes back. This is tested first because it
can be repaired after training. What remains is divided between the other causes:

Crowding: even the newest task is separated from OOD worse at the end than older tasks were when they were new. With
features, OOD must also have come nearer to ID.

Lost features or dead channels: the logits of a task stand out less on its own classes, against other ID samples, than
when the task was new. Undo that at the last step and see how much of the loss comes back. The part that the features
show too counts as lost features, the rest as dead channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array
from tood.audit.bootstrap import Estimate, estimate
from tood.audit.evidence import Evidence

__all__ = ["Cause", "Judgement", "State", "judge", "named_causes"]

Cause: TypeAlias = Literal["confidence gap", "crowding", "lost features", "dead channels"]
State: TypeAlias = Literal["lost", "gained", "kept", "unsure"]
Figure: TypeAlias = Float64Array  # [1 + R]: a value, then its R resamples

# The name of each cause's part of the loss in Judgement.
PARTS: dict[Cause, str] = {
    "confidence gap": "gap",
    "crowding": "crowding",
    "lost features": "features",
    "dead channels": "channels",
}
LOSS = 0.02  # AUROC: a smaller change does not matter in practice
SHARE = 0.25  # of the loss: a mechanism that accounts for less is not a cause
NEARER = 0.05  # of the distance relative to the distances between ID samples: less is not crowding
SURE = 0.95  # of resamples must agree


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
    gap, crowding, own, left:
        Parts of the loss: restored by re-centring, due to crowding, due to old tasks that respond less, and
        unexplained. They add up to the loss.
    features, channels:
        ``own`` divided: features that stand out less, and logits that respond less to them (None without features).
    shares:
        Each part as a share of the loss; a quarter makes a cause.
    nearer:
        The share by which OOD has come nearer to ID, relative to the distances between ID samples.
    within:
        Accuracy lost when the task is given.
    causes:
        Those that 95 % of resamples name.
    undecided:
        Sets of causes that cannot be distinguished, or single causes that cannot be decided.
    """

    scope: str
    state: State
    loss: Estimate
    end: Estimate
    gap: Estimate
    crowding: Estimate
    own: Estimate
    left: Estimate
    features: Estimate | None
    channels: Estimate | None
    shares: Mapping[str, Estimate]
    nearer: Estimate | None
    within: Estimate
    causes: tuple[Cause, ...]
    undecided: tuple[tuple[Cause, ...], ...]


def judge(evidence: Evidence, scope: str) -> Judgement:
    """The judgement on one scope of a run with at least two tasks."""

    def figure(what: str) -> Figure:
        return np.concatenate([[evidence.values[what, scope]], evidence.draws[what, scope]])

    loss, recentred = figure("loss"), figure("recentred")
    # Each part is at most what the parts before it leave.
    gap = np.clip(recentred - figure("kept"), 0, np.maximum(loss, 0))
    rest = np.maximum(loss - gap, 0)
    crowding = np.clip(figure("learned") - figure("fresh"), 0, rest)
    rest = rest - crowding
    own = np.clip(figure("restored") - recentred, 0, rest)
    parts = {"gap": gap, "crowding": crowding, "own": own, "left": rest - own}
    nearer = None
    if ("channels", scope) in evidence.values:
        channels = np.clip(figure("channels") - recentred, 0, own)
        parts |= {"features": own - channels, "channels": channels}
        nearer = 1 - np.exp(-figure("nearer"))
    estimates = {name: _estimate(part) for name, part in parts.items()}
    whole = np.maximum(loss, 1e-9)
    state = _state(_estimate(loss))
    causes, undecided = _causes(parts, whole, nearer) if state == "lost" else ((), ())
    return Judgement(
        scope=scope,
        state=state,
        loss=_estimate(loss),
        end=_estimate(figure("end")),
        gap=estimates["gap"],
        crowding=estimates["crowding"],
        own=estimates["own"],
        left=estimates["left"],
        features=estimates.get("features"),
        channels=estimates.get("channels"),
        shares={name: _estimate(part / whole) for name, part in parts.items()},
        nearer=None if nearer is None else _estimate(nearer),
        within=_estimate(figure("within")),
        causes=causes,
        undecided=undecided,
    )


def named_causes(judgements: Iterable[Judgement]) -> tuple[Cause, ...]:
    """Every cause that some judgement names, in a fixed order."""
    named = {cause for judgement in judgements for cause in judgement.causes}
    return tuple(cause for cause in PARTS if cause in named)


def _causes(
    parts: Mapping[str, Figure], loss: Figure, nearer: Figure | None
) -> tuple[tuple[Cause, ...], tuple[tuple[Cause, ...], ...]]:
    """The rule: which causes are named, and which are undecided."""
    large = {name: _agreed(part[1:] >= SHARE * loss[1:]) for name, part in parts.items()}
    came_nearer = True if nearer is None else _agreed(nearer[1:] >= NEARER)
    crowding = _and(large["crowding"], came_nearer)
    decided: dict[Cause, bool | None] = {"confidence gap": large["gap"], "crowding": crowding}
    responses: dict[Cause, bool | None] = {}
    if "features" in parts:
        responses = {"lost features": large["features"], "dead channels": large["channels"]}
    # Old tasks respond less, but neither of the two reasons stands out.
    answers = list(responses.values())
    alike = large["own"] is not False and True not in answers and answers.count(None) != 1
    if not alike:
        decided |= responses
    causes = tuple(cause for cause, answer in decided.items() if answer)
    undecided: list[tuple[Cause, ...]] = [(cause,) for cause, answer in decided.items() if answer is None]
    if alike:
        undecided.append(("lost features", "dead channels"))
    return causes, tuple(undecided)


def _agreed(holds: npt.NDArray[np.bool_]) -> bool | None:
    """Whether something holds; None if resamples disagree."""
    share = float(np.mean(holds))
    if share >= SURE:
        return True
    return False if share <= 1 - SURE else None


def _and(first: bool | None, second: bool | None) -> bool | None:
    """Whether both hold; None if that is undecided."""
    if first is False or second is False:
        return False
    return None if first is None or second is None else True


def _state(loss: Estimate) -> State:
    if loss.low > 0 and loss.value >= LOSS:
        return "lost"
    if loss.high < 0 and loss.value <= -LOSS:
        return "gained"
    return "kept" if loss.high < 2.5 * LOSS else "unsure"


def _estimate(figure: Figure) -> Estimate:
    return estimate(figure[0], figure[1:])
