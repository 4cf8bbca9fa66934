"""Why detection was lost: one documented rule, decided only when 95 % of resamples agree.

Confidence gap: its test is its cure. Re-centre every task's channel and see how much of the loss comes back. It is
weighed first, since it can be cured after training. Of the rest:

Crowding: even the newest task is separated from OOD worse at the end than older tasks were when they were new. With
features, OOD must also have come nearer to ID.

Lost features or dead channels: the logits of a task stand out less on its own classes, against other ID samples, than
when it was new; undo that at the last step and see how much of the loss comes back. Features are lost as far as the
features stand out less too; beyond that the channels are dead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tood.arrays import Float64Array
from tood.audit.bootstrap import Estimate, estimate
from tood.audit.evidence import Evidence

__all__ = ["Cause", "Judgement", "State", "judge"]

Cause: TypeAlias = Literal["confidence gap", "crowding", "lost features", "dead channels"]
Pair: TypeAlias = tuple[float, Float64Array]  # a value and its draws
State: TypeAlias = Literal["lost", "gained", "kept", "unsure"]

LOSS = 0.02  # AUROC: a smaller change does not matter in practice
SHARE = 0.25  # of the loss: a mechanism that accounts for less is not a cause
NEARER = 0.05  # of the distance in units of ID's own: less is not crowding
SURE = 0.95  # of resamples must agree


@dataclass(frozen=True)
class Judgement:
    """What happened on one group of OOD sets, and why.

    Attributes
    ----------
    scope:
        ``near``, ``far``, or ``all`` (both weighted alike).
    state:
        ``lost`` or ``gained`` if the interval of the loss excludes 0 and the change is at least 2 points; else
        ``kept``, or ``unsure`` if a loss of 5 points is not excluded.
    loss, end:
        D_avg of energy, and its AUROC at the last step.
    gap, crowding, own, left:
        Points of the loss: given back by re-centring, due to crowding, to old tasks that respond less, and to nothing
        shown. They add up to the loss.
    features, channels:
        ``own`` divided: features that stand out less, and logits that respond less to them (None without features).
    shares:
        Each as a share of the loss; the rule is a quarter.
    nearer:
        The share by which OOD has come nearer to ID, in units of ID's own distances.
    within:
        Accuracy lost when the task is given.
    causes:
        Those that 95 % of resamples name.
    undecided:
        Sets of causes that cannot be distinguished, or a single one that cannot be decided.
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

    def pair(what: str) -> Pair:
        return evidence.values[what, scope], evidence.draws[what, scope]

    loss = pair("loss")
    parts = _parts(loss, *map(pair, ("learned", "kept", "recentred", "fresh", "restored")))
    nearer = None
    if ("channels", scope) in evidence.values:
        parts |= _divided(parts["own"], pair("recentred"), pair("channels"))
        nearer = _both(lambda value: 1 - np.exp(-value), pair("nearer"))
    lost = estimate(*loss)
    state = _state(lost)
    sides = {name: _side(draws >= SHARE * np.maximum(loss[1], 1e-9)) for name, (_, draws) in parts.items()}
    came = _side(nearer[1] >= NEARER) if nearer else True
    causes, undecided = _causes(sides, came) if state == "lost" else ((), ())
    return Judgement(
        scope=scope,
        state=state,
        loss=lost,
        end=estimate(*pair("end")),
        **{name: estimate(*parts[name]) for name in ("gap", "crowding", "own", "left")},
        features=estimate(*parts["features"]) if "features" in parts else None,
        channels=estimate(*parts["channels"]) if "channels" in parts else None,
        shares={name: _share(part, loss) for name, part in parts.items()},
        nearer=estimate(*nearer) if nearer else None,
        within=estimate(*pair("within")),
        causes=causes,
        undecided=undecided,
    )


def _parts(loss: Pair, learned: Pair, kept: Pair, recentred: Pair, fresh: Pair, restored: Pair) -> dict[str, Pair]:
    """The loss cut into what re-centring gives back, crowding, old tasks' weaker response, and what is left."""
    gap = _both(lambda back, now, lost: np.clip(back - now, 0, np.maximum(lost, 0)), recentred, kept, loss)
    rest = _both(lambda lost, back: np.maximum(lost - back, 0), loss, gap)
    crowding = _both(lambda first, new, left: np.clip(first - new, 0, left), learned, fresh, rest)
    others = _both(np.subtract, rest, crowding)
    own = _both(lambda back, now, left: np.clip(back - now, 0, left), restored, recentred, others)
    return {"gap": gap, "crowding": crowding, "own": own, "left": _both(np.subtract, others, own)}


def _divided(own: Pair, recentred: Pair, channels: Pair) -> dict[str, Pair]:
    """Old tasks' weaker response: dead channels first, what is left lies in the features."""
    dead = _both(lambda back, now, whole: np.clip(back - now, 0, whole), channels, recentred, own)
    return {"features": _both(np.subtract, own, dead), "channels": dead}


def _causes(
    sides: Mapping[str, bool | None], came: bool | None
) -> tuple[tuple[Cause, ...], tuple[tuple[Cause, ...], ...]]:
    """The rule: which causes are named, and which cannot be distinguished.

    ``sides`` say whether a part accounts for a quarter of the loss, ``came`` whether OOD has come nearer; None if
    resamples disagree.
    """
    crowding = False if came is False else sides["crowding"] if came else sides["crowding"] and None
    found: dict[Cause, bool | None] = {"confidence gap": sides["gap"], "crowding": crowding}
    own: dict[Cause, bool | None] = {}
    if "features" in sides:
        own = {"lost features": sides["features"], "dead channels": sides["channels"]}
    unclear = [cause for cause, side in own.items() if side is None]
    alike = sides["own"] is not False and True not in own.values() and len(unclear) != 1
    found |= {} if alike else own
    causes = tuple(cause for cause, side in found.items() if side)
    undecided: tuple[tuple[Cause, ...], ...] = tuple((cause,) for cause, side in found.items() if side is None)
    return causes, undecided + ((("lost features", "dead channels"),) if alike else ())


def _side(holds: npt.NDArray[np.bool_]) -> bool | None:
    """Whether something holds; None if resamples disagree."""
    share = float(np.mean(holds))
    return True if share >= SURE else False if share <= 1 - SURE else None


def _state(loss: Estimate) -> State:
    if loss.low > 0 and loss.value >= LOSS:
        return "lost"
    if loss.high < 0 and loss.value <= -LOSS:
        return "gained"
    return "kept" if loss.high < 2.5 * LOSS else "unsure"


def _both(function: Callable[..., Any], *pairs: Pair) -> Pair:
    """A function of values and, in the same way, of their draws."""
    return float(function(*(pair[0] for pair in pairs))), np.asarray(function(*(pair[1] for pair in pairs)))


def _share(part: Pair, loss: Pair) -> Estimate:
    whole = max(loss[0], 1e-9), np.maximum(loss[1], 1e-9)
    return estimate(part[0] / whole[0], np.clip(part[1] / whole[1], 0, 1))


def named(judgements: Sequence[Judgement]) -> tuple[Cause, ...]:
    """Every cause named, in a fixed order."""
    order: tuple[Cause, ...] = ("confidence gap", "crowding", "lost features", "dead channels")
    return tuple(cause for cause in order if any(cause in one.causes for one in judgements))
