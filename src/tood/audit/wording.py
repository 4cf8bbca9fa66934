"""The words of a verdict: the lines of its card, and the sentences behind them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tood import detectors
from tood.audit.advice import DEFAULT, Advice, Candidate
from tood.audit.causes import LOSS, LOST, PARTS, SHARE, Judgement
from tood.audit.gap import of_old_tasks
from tood.audit.kept import ALPHA
from tood.choose import ADVICE
from tood.metrics.resampling import WithInterval

if TYPE_CHECKING:
    from tood.audit.verdict import Verdict

__all__ = ["cause", "details", "kept", "lost", "use"]

MINOR = 0.05  # of the loss: smaller parts are not mentioned
RULE = f"a cause is {100 * SHARE:.0f} % or more of the loss"
WEAKER = "old tasks' weaker response"


def lost(verdict: Verdict) -> str:
    """What happened to energy on each group of OOD sets, near-OOD first."""
    if not verdict.judgements:
        why = "one task has been learned" if verdict.tasks == 1 else "there are no OOD sets to measure it on"
        return f"Not known: {why}."
    *groups, whole = verdict.judgements
    changes = [_change(one) for one in groups]
    if verdict.spoken == (whole,) and all(one.state != "lost" for one in groups):
        changes.append(f"together they lost {_points(whole.loss)} {_interval(whole.loss)}")
    sentences = [f"AUROC of energy on old tasks, in points: {'; '.join(changes)}."]
    for one in groups:
        if one.end.high < 0.5:
            why = "most of these inputs have more energy than known ones, so a threshold accepts them first"
            sentences.append(f"At the last step {one.scope}-OOD is below chance (AUROC {_points(one.end)}): {why}.")
    return " ".join(sentences)


def cause(verdict: Verdict) -> str:
    """Why it was lost, with shares of the loss."""
    if verdict.tasks == 1:
        return "Nothing can have been forgotten yet."
    if not verdict.judgements:  # no OOD sets
        gap, size = of_old_tasks(verdict.gap.calibration), verdict.advice.gap
        assert size is not None
        times = f"{size.value:.1f} ({size.low:.1f} to {size.high:.1f}) times the spread within tasks"
        return f"Old tasks lie {gap:.1f} below the latest in energy on the calibration set, {times}."
    if len(verdict.spoken) == 1:
        return _explained(verdict.spoken[0])
    return " ".join(f"{one.scope}-OOD: {_explained(one)}" for one in verdict.spoken) or "There is no loss to explain."


def use(verdict: Verdict) -> dict[str, str]:
    """Which score to use if there are only logits, and which with features; what each gains."""
    advice = verdict.advice
    if advice.basis == "calibration":
        text = f"{_name(advice.use)}, from the calibration set alone; OOD samples would show what it gains."
        return {"from logits": f"{text} {ADVICE}"} | _by_traffic(verdict)
    lines, default, best = {}, advice.default or advice.logits, advice.logits
    if default is None or best is None:
        lines["from logits"] = "Energy; no other score of logits was measured."
    else:
        better = f" Better: {_effect(best, advice)}." if best.certain and best.name != default.name else ""
        keep = " No gain of half a point is certain, so energy is as good." if not best.certain else ""
        if keep and "confidence gap" in verdict.cause:
            keep += " TOOD cannot restore what the gap took with this calibration set."
        lines["from logits"] = f"{_effect(default, advice)}.{better}{keep}"
    if advice.features:
        worse = advice.features.gains["all"].high < 0
        doubt = " This is worse than energy." if worse else " This is not certainly better than energy."
        doubt = "" if advice.features.certain else doubt
        lines["with features"] = f"{_effect(advice.features, advice)}.{doubt}"
    return lines | _by_traffic(verdict)


def kept(verdict: Verdict) -> dict[str, str]:
    """What becomes of a decision that is kept while the model goes on learning."""
    if verdict.kept is None:
        return {}
    (known, unknown), (still, caught), (again, caught_again) = (np.multiply(100, pair) for pair in verdict.kept)
    return {
        "kept decision": f"A threshold for {100 * (1 - ALPHA):.0f} % of known inputs, kept since each task was "
        f"learned, accepts {known:.1f} → {still:.1f} % of that task's inputs and rejects {unknown:.1f} → "
        f"{caught:.1f} % of unknown ones. Made again at the last step: {again:.1f} % and {caught_again:.1f} %."
    }


def _by_traffic(verdict: Verdict) -> dict[str, str]:
    """What the run's own traffic says, if there is some."""
    return {"by traffic": verdict.traffic["text"].replace("\n", " ")} if verdict.traffic else {}


def _effect(one: Candidate, advice: Advice) -> str:
    """``TOOD: near-OOD 60.1 → 66.0, +5.9 (+4.1 to +7.9); far-OOD …``: Avg AUROC of energy, then of the score."""
    changes = (
        f"{group}-OOD {_points(advice.energy[group])} → {_points(score)}, {_gain(one.gains[group])}"
        for group, score in one.scores.items()
        if group != "all"
    )
    return f"{_name(one.name)}: {'; '.join(changes)}"


def details(verdict: Verdict) -> Iterator[str]:
    """The evidence in sentences."""
    worst = np.argsort(-np.asarray(verdict.by_task), kind="stable")[:3]
    losses = [f"task {i} {100 * verdict.by_task[i]:.1f}" for i in worst if verdict.by_task[i] >= LOSS]
    if losses:
        yield f"Tasks that lost most: {', '.join(losses)}."
    if verdict.tasks > 1:
        changed = "rose" if verdict.accuracy_forgetting < -1e-9 else "fell"
        yield f"Accuracy on old tasks {changed} by {abs(100 * verdict.accuracy_forgetting):.1f} points."
        yield f"Mean own-channel energies, oldest to latest task, on test data: {_numbers(verdict.gap.test)}."
    nearer = verdict.judgements[-1].nearer if verdict.judgements else None
    if nearer:
        yield f"In feature space, in units of the distances between ID samples, OOD is {_percent(nearer)} nearer."
    elif verdict.judgements:
        yield "Distances between OOD and ID are not known: a step has no features, or too few test samples."
    yield f"Calibration set: {verdict.calibration}."
    advice = verdict.advice
    if advice.tried:
        yield f"{advice.tried} scores were compared: chosen on half of the OOD samples, measured on the other half."


def _explained(one: Judgement) -> str:
    """The causes of one judgement with their shares, what is undecided, and the rest."""
    shares: dict[str, WithInterval] = {cause: one.shares[part] for cause, part in PARTS.items() if part in one.shares}
    shares |= {} if LOST in shares else {WEAKER: one.shares["own"]}  # with features, divided into the two causes
    shares["unexplained"] = one.shares["left"]
    sentences = []
    if one.causes:
        points = {cause: 100 * shares[cause].value * one.loss.value for cause in one.causes}
        named = (f"{cause} {_percent(shares[cause])} of the loss, {lost:.1f} points" for cause, lost in points.items())
        sentences.append(" and ".join(named))
    for causes in one.undecided:
        share, more = one.shares["own"], "" if LOST in shares else "; features would distinguish the two"
        if len(causes) == 1:
            share, more = shares[causes[0]], f"; {RULE}"
        sentences.append(f"cannot be decided: {' or '.join(causes)} {_percent(share)} of the loss{more}")
    mentioned = {*one.causes, *(cause for causes in one.undecided for cause in (*causes, WEAKER))}
    rest = {name: share for name, share in shares.items() if name not in mentioned and share.value >= MINOR}
    if rest:
        sentences.append("the rest: " + ", ".join(f"{name} {100 * share.value:.0f} %" for name, share in rest.items()))
    if not mentioned:
        sentences.insert(0, f"no cause is shown; {RULE}")
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences)


def _change(one: Judgement) -> str:
    """What happened on a group; a gain is positive."""
    if one.state == "lost":
        return f"{one.scope}-OOD lost {_points(one.loss)} {_interval(one.loss)}"
    gain = WithInterval(-one.loss.value, -one.loss.high, -one.loss.low)
    if one.state == "gained":
        return f"{one.scope}-OOD gained {_points(gain)} {_interval(gain)}"
    words = "hardly changed" if one.state == "kept" else "may have lost, too few samples to decide"
    return f"{one.scope}-OOD {words}, {_gain(gain)}"


def _name(detector: str) -> str:
    """The title of a detector, with the name to type if it differs; TOOD is its default variant."""
    name, _, kind = detector.partition(" (")  # "rmds (backbone features)"
    title, kind = detectors.title(name), f", {kind[:-1]}" if kind else ""
    same = re.sub(r"\W+", "_", title.lower()).strip("_") == name
    return title + kind if same or name == DEFAULT else f"{title}{kind} (`{name}`)"


def _points(value: WithInterval) -> str:
    return f"{100 * value.value:.1f}"


def _interval(value: WithInterval) -> str:
    low, high = (round(100 * end, 1) + 0.0 for end in (value.low, value.high))  # + 0.0: no minus zero
    return f"({low:.1f} to {high:.1f})"


def _gain(value: WithInterval) -> str:
    return f"{100 * value.value:+.1f} ({100 * value.low:+.1f} to {100 * value.high:+.1f})"


def _percent(value: WithInterval) -> str:
    return f"{100 * value.value:.0f} % ({100 * value.low:.0f} to {100 * value.high:.0f})"


def _numbers(values: Sequence[float]) -> str:
    """At most six of the values, evenly spaced."""
    chosen = np.unique(np.linspace(0, len(values) - 1, 6).round().astype(int))
    return " ".join(f"{values[place]:.1f}" for place in chosen)
