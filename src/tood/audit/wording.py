"""The words of a verdict: the three lines of its card, and the sentences behind them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tood import detectors
from tood.audit.advice import GAIN, Advice
from tood.audit.bootstrap import Estimate
from tood.audit.causes import LOSS, NEARER, PARTS, SHARE, Cause, Judgement
from tood.audit.gap import of_old_tasks

if TYPE_CHECKING:
    from tood.audit.verdict import Verdict

__all__ = ["cause", "details", "lost", "use"]

MINOR = 0.05  # of the loss: smaller parts are not mentioned
RULE = f"{100 * SHARE:.0f} % or more of the loss counts as a cause"
WEAKER = "old tasks' weaker response"
LATER = "later tasks worse from the start, though OOD is not nearer,"
RESPONSES: tuple[Cause, ...] = ("lost features", "dead channels")


def lost(verdict: Verdict) -> str:
    """How much energy lost on each group of OOD sets."""
    if not verdict.judgements:
        why = "one task has been learned" if verdict.tasks == 1 else "there are no OOD sets to measure it on"
        return f"Not known: {why}."
    *groups, whole = verdict.judgements
    losses = [f"{_points(one.loss)} {_interval(one.loss)} on {one.scope}-OOD" for one in groups if one.state == "lost"]
    others = [_change(one) for one in groups if one.state != "lost"]
    if losses:
        return "; ".join([f"Energy lost {' and '.join(losses)} (points of AUROC)", *others]) + "."
    if whole.state == "lost":
        both = f"Energy lost {_points(whole.loss)} {_interval(whole.loss)} on near- and far-OOD together"
        return f"{both} (points of AUROC); neither loss is certain alone: {', '.join(others)}."
    return f"No loss of energy is certain: {'; '.join(others)} (points of AUROC)."


def cause(verdict: Verdict) -> str:
    """Why it was lost, with shares of the loss."""
    if verdict.tasks == 1:
        return "Nothing can have been forgotten yet."
    if not verdict.judgements:  # no OOD sets
        size = verdict.advice.gap
        spreads = (
            f", {size.value:.1f} ({size.low:.1f} to {size.high:.1f}) times the spread within tasks" if size else ""
        )
        gap = of_old_tasks(verdict.gap.calibration)
        return f"Old tasks lie {gap:.1f} below the latest in energy on the calibration set{spreads}."
    if not verdict.spoken:
        return "There is no loss to explain."
    if len(verdict.spoken) == 1:
        return _explained(verdict.spoken[0])
    return " ".join(f"{one.scope}-OOD: {_explained(one)}" for one in verdict.spoken)


def use(advice: Advice) -> str:
    """Which score to use, and what it gains."""
    if advice.basis == "calibration":
        return f"{_name(advice.use)}, from the calibration set alone; OOD samples would show what it gains."
    assert advice.energy and advice.score and advice.gain
    if advice.use != "energy":
        before, after = _points(advice.energy), _points(advice.score)
        text = f"{_name(advice.use)}: Avg AUROC {before} → {after}, {_gain(advice.gain)}."
        text += f" Best of {advice.tried} scores, measured on OOD samples it was not chosen on."
        worse = [f"{group}-OOD {_gain(gain)}" for group, gain in advice.gains.items() if gain.value < 0]
        text += f" But {', '.join(worse)}." if worse else ""
    elif advice.best == "energy":
        text = f"Plain energy: none of {advice.tried} scores is better by half a point."
    else:
        text = f"Plain energy: the gain of the best of {advice.tried} scores, {_name(advice.best)}, is not certain: "
        text += f"{_gain(advice.gain)}."
    if advice.default and advice.default_gain and advice.default_gain.value <= -GAIN:
        text += f" TOOD's default, {_name(advice.default)}, loses: {_gain(advice.default_gain)}."
    return text


def details(verdict: Verdict) -> Iterator[str]:
    """The evidence in sentences."""
    worst = np.argsort(-np.asarray(verdict.by_task), kind="stable")[:3]
    losses = [f"task {i} {100 * verdict.by_task[i]:.1f}" for i in worst if verdict.by_task[i] >= LOSS]
    if losses:
        yield f"Tasks that lost most: {', '.join(losses)}."
    whole = verdict.judgements[-1] if verdict.judgements else None
    if verdict.tasks > 1:
        within = f"; when the task is given it {_fell(whole.within.value)} {_interval(whole.within)}" if whole else ""
        yield f"Accuracy on old tasks {_fell(verdict.accuracy_forgetting)} points{within}."
        yield f"Mean own-channel energies, oldest to latest task, on test data: {_numbers(verdict.gap.test)}."
    if whole:
        yield _distances(verdict, whole.nearer)
    yield f"Scored: {verdict.logits}. Calibration set: {verdict.calibration}."
    advice = verdict.advice
    if advice.gains and advice.best != "energy":
        by_group = ", ".join(f"{group}-OOD {_gain(gain)}" for group, gain in advice.gains.items())
        yield f"Gain of {_name(advice.best)} over energy: {by_group}."
    if advice.losers:
        worst_scores = ", ".join(f"{_name(name)} {_gain(gain)}" for name, gain in advice.losers[:3])
        yield f"Certainly worse than energy: {len(advice.losers)} of {advice.tried} scores; the worst: {worst_scores}."


def _distances(verdict: Verdict, nearer: Estimate | None) -> str:
    if verdict.distances is None:
        return "Distances between OOD and ID are not known: a step has no features, or too few test samples."
    first, *_, last = verdict.distances.ratio
    share = f", {100 * nearer.value:.0f} % nearer {_interval(nearer)}" if nearer and nearer.value > 0 else ""
    return (
        f"In feature space OOD was {first:.2f} times as far from ID as ID samples are from each other, and is now "
        f"{last:.2f} times as far{share}."
    )


def _explained(one: Judgement) -> str:
    """The causes of one judgement with their shares, what is undecided, and the rest."""

    def share(cause: Cause) -> str:
        return f"{cause} {_percent(one.shares[PARTS[cause]])}"

    def points(cause: Cause) -> str:
        return f"{100 * one.shares[PARTS[cause]].value * one.loss.value:.1f} points"

    single = [causes[0] for causes in one.undecided if len(causes) == 1]
    alike = RESPONSES in one.undecided
    mentioned = {*one.causes, *single, *((*RESPONSES, WEAKER) if alike else ())}
    rest = {name: part for name, part in _shares(one).items() if name not in mentioned and part.value >= MINOR}
    if not mentioned:
        shares = ", ".join(f"{name} {_percent(part)}" for name, part in rest.items())
        return f"No cause is shown{': ' if shares else ''}{shares}; {RULE}."
    sentences = []
    if one.causes:
        sentences.append(" and ".join(f"{share(cause)} of the loss, {points(cause)}" for cause in one.causes))
    if single:
        open_causes = " and ".join(share(cause) + _how_near(one, cause) for cause in single)
        sentences.append(f"cannot be decided: {open_causes}; {RULE}")
    if alike:
        both = " or ".join(share(cause) if one.features else cause for cause in RESPONSES)
        sentences.append(f"cannot be distinguished: {both}, together {_percent(one.shares['own'])} of the loss")
    if rest:
        sentences.append("the rest: " + ", ".join(f"{name} {100 * part.value:.0f} %" for name, part in rest.items()))
    if alike and one.features is None:
        sentences.append("features would distinguish the two")
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences)


def _shares(one: Judgement) -> dict[str, Estimate]:
    """Shares of the loss by the words for them; without features the last two causes are one."""
    shares: dict[str, Estimate] = {cause: one.shares[part] for cause, part in PARTS.items() if part in one.shares}
    if one.features is None:
        shares[WEAKER] = one.shares["own"]
    if one.nearer is not None and one.nearer.value < NEARER and ("crowding",) not in one.undecided:
        shares = {LATER if name == "crowding" else name: share for name, share in shares.items()}
    return shares | {"unexplained": one.shares["left"]}


def _how_near(one: Judgement, cause: Cause) -> str:
    """How much nearer OOD has come, if that is what leaves crowding undecided."""
    if cause != "crowding" or one.nearer is None or one.nearer.low >= NEARER:
        return ""
    return f" (OOD has come {_percent(one.nearer)} nearer; {100 * NEARER:.0f} % counts)"


def _change(one: Judgement) -> str:
    """The change of a group without a certain loss; a gain is positive."""
    gain = Estimate(-one.loss.value, -one.loss.high, -one.loss.low)
    if one.state == "gained":
        return f"{one.scope}-OOD gained {_points(gain)} {_interval(gain)}"
    words = "hardly changed" if one.state == "kept" else "has too few samples to decide"
    return f"{one.scope}-OOD {words}, {_gain(gain)}"


def _name(detector: str) -> str:
    """The title of a detector, with the name to type if it differs."""
    title = detectors.title(detector)
    return title if re.sub(r"\W+", "_", title.lower()).strip("_") == detector else f"{title} (`{detector}`)"


def _points(value: Estimate) -> str:
    return f"{100 * value.value:.1f}"


def _interval(value: Estimate) -> str:
    low, high = (round(100 * end, 1) + 0.0 for end in (value.low, value.high))  # + 0.0: no minus zero
    return f"({low:.1f} to {high:.1f})"


def _gain(value: Estimate) -> str:
    return f"{100 * value.value:+.1f} ({100 * value.low:+.1f} to {100 * value.high:+.1f})"


def _percent(value: Estimate) -> str:
    return f"{100 * value.value:.0f} % ({100 * value.low:.0f} to {100 * value.high:.0f})"


def _fell(loss: float) -> str:
    return f"{'fell' if loss > -1e-9 else 'rose'} by {abs(100 * loss):.1f}"


def _numbers(values: Sequence[float]) -> str:
    """At most six of the values, evenly spaced."""
    shown = np.asarray(values)
    if len(shown) > 6:
        shown = shown[np.linspace(0, len(shown) - 1, 6).round().astype(int)]
    return " ".join(f"{value:.1f}" for value in shown)
