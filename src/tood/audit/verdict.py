"""The verdict of an audit: data first, and the words for it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tood import detectors
from tood.audit.advice import GAIN, Advice
from tood.audit.bootstrap import Estimate
from tood.audit.causes import LOSS, NEARER, SHARE, Judgement, named
from tood.audit.checks import Finding
from tood.audit.distances import Distances
from tood.audit.gap import Gap
from tood.files import write_text
from tood.runs.directory import Run

__all__ = ["Verdict", "read_verdict", "write_verdict"]

FORMAT = 2
FILE = "verdict.json"
MINOR = 0.05  # of the loss: smaller parts are not mentioned


@dataclass(frozen=True)
class Verdict:
    """What an audit found.

    Attributes
    ----------
    tasks, seeds:
        The number of tasks learned, and of runs judged together.
    judgements:
        One per group of OOD sets, and one for ``all``; empty with one task or without OOD sets.
    by_task:
        What energy lost on each task but the last, (near + far) / 2.
    accuracy_forgetting:
        The mean of F_i.
    gap, distances:
        Energies per task at the last step, and distances along the stream (None without features).
    calibration, logits:
        The source of the calibration set; which logits were scored.
    advice:
        Which score to use.
    findings:
        What is probably wrong with the files.
    notes:
        What else a reader should know.
    """

    tasks: int
    seeds: int
    judgements: tuple[Judgement, ...]
    by_task: tuple[float, ...]
    accuracy_forgetting: float
    gap: Gap
    distances: Distances | None
    calibration: str
    logits: str
    advice: Advice
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def spoken(self) -> tuple[Judgement, ...]:
        """The judgements whose cause is reported: groups that lost, as one if they agree."""
        groups = [one for one in self.judgements if one.scope != "all"]
        whole = [one for one in self.judgements if one.scope == "all"]
        lost = [one for one in groups if one.state == "lost"]
        if len(groups) > 1 and len(lost) == len(groups) and all(_agree(one, whole[0]) for one in lost):
            return tuple(whole)
        return tuple(lost or [one for one in whole if one.state == "lost"])

    @property
    def cause(self) -> str:
        """The causes named, joined by "and"; else "none" (no loss), "undecided" or "unexplained"."""
        if not self.spoken:
            return "none"
        found = named(self.spoken)
        if found:
            return " and ".join(found)
        return "undecided" if any(one.undecided for one in self.spoken) else "unexplained"

    def card(self) -> dict[str, str]:
        """Three lines: what was lost, why, what to use."""
        return {"lost": self._lost(), "cause": self._cause(), "use": self._use()}

    def sentences(self) -> list[str]:
        """What stands behind the card: tasks, accuracy, energies, distances, the other scores."""
        return [*self._details()]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(self)
        found["findings"] = [finding._asdict() | {"text": str(finding)} for finding in self.findings]
        if self.distances is not None:
            found["distances"]["ratio"] = self.distances.ratio
        words = {"cause": self.cause, "card": self.card(), "sentences": self.sentences()}
        return {"format": FORMAT, **words, **found}

    def _lost(self) -> str:
        if not self.judgements:
            why = "one task has been learned" if self.tasks == 1 else "there are no OOD sets to measure it on"
            return f"Not known: {why}."
        groups = [one for one in self.judgements if one.scope != "all"]
        lost = [one for one in groups if one.state == "lost"]
        others = [_unlost(one) for one in groups if one.state != "lost"]
        whole = self.judgements[-1]
        if lost:
            parts = [f"{_points(one.loss)} {_interval(one.loss)} on {one.scope}-OOD" for one in lost]
            return "; ".join([f"Energy lost {' and '.join(parts)} (points of AUROC)", *others]) + "."
        if whole.state == "lost":
            both = f"Energy lost {_points(whole.loss)} {_interval(whole.loss)} on near- and far-OOD together"
            return f"{both} (points of AUROC); neither is sure alone: {', '.join(others)}."
        return f"No loss of energy is sure: {'; '.join(others)} (points of AUROC)."

    def _cause(self) -> str:
        if not self.judgements:
            return self._gap_alone()
        if not self.spoken:
            return "There is no loss to explain."
        several = len(self.spoken) > 1
        return " ".join((f"{one.scope}-OOD: " if several else "") + _explained(one) for one in self.spoken)

    def _gap_alone(self) -> str:
        if self.tasks == 1:
            return "Nothing can have been forgotten yet."
        size = self.advice.gap
        shown = f", {size.value:.1f} ({size.low:.1f} to {size.high:.1f}) times the spread within tasks" if size else ""
        low = Gap.of_old(self.gap.calibration)
        return f"Old tasks lie {low:.1f} below the latest in energy on the calibration set{shown}."

    def _use(self) -> str:
        advice = self.advice
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
            text = f"Plain energy: the gain of the best of {advice.tried} scores, {_name(advice.best)}, is not sure: "
            text += f"{_gain(advice.gain)}."
        lost = advice.default_gain is not None and advice.default_gain.value <= -GAIN
        if lost and advice.default and advice.default_gain:
            text += f" TOOD's default, {_name(advice.default)}, loses: {_gain(advice.default_gain)}."
        return text

    def _details(self) -> Iterator[str]:
        worst = np.argsort(-np.asarray(self.by_task), kind="stable")[:3]
        shown = [f"task {i} {100 * self.by_task[i]:.1f}" for i in worst if self.by_task[i] >= LOSS]
        if shown:
            yield f"Tasks that lost most: {', '.join(shown)}."
        if self.tasks > 1:
            whole = _fell(self.accuracy_forgetting)
            within = self.judgements[-1].within if self.judgements else None
            given = f"; when the task is given it {_fell(within.value)} {_interval(within)}" if within else ""
            yield f"Accuracy on old tasks {whole} points{given}."
            yield f"Mean own-channel energies, oldest to latest task, on test data: {_numbers(self.gap.test)}."
        if self.distances is not None and self.tasks > 1:
            ratio, nearer = self.distances.ratio, self.judgements[-1].nearer if self.judgements else None
            came = f", {100 * nearer.value:.0f} % nearer {_interval(nearer)}" if nearer and nearer.value > 0 else ""
            yield (
                f"In feature space OOD was {ratio[0]:.2f} times as far from ID as ID from itself, and is "
                f"{ratio[-1]:.2f} times{came}."
            )
        elif self.tasks > 1:
            yield "There are no features at every step, so crowding cannot be judged."
        yield f"Scored: {self.logits}. Calibration set: {self.calibration}."
        if self.advice.gains:
            apart = ", ".join(f"{group}-OOD {_gain(gain)}" for group, gain in self.advice.gains.items())
            yield f"Gain of {_name(self.advice.best)} over energy: {apart}."
        losers = self.advice.losers
        if losers:
            most = ", ".join(f"{_name(name)} {_gain(gain)}" for name, gain in losers[:3])
            yield f"Surely worse than energy: {len(losers)} of {self.advice.tried} scores; most of all {most}."


def _agree(one: Judgement, other: Judgement) -> bool:
    """Whether nothing that one judgement names is denied by the other."""
    open_ = [
        {*judgement.causes, *(cause for kinds in judgement.undecided for cause in kinds)} for judgement in (one, other)
    ]
    return {*one.causes} <= open_[1] and {*other.causes} <= open_[0]


PARTS = {"confidence gap": "gap", "crowding": "crowding", "lost features": "features", "dead channels": "channels"}


def _explained(one: Judgement) -> str:
    """The causes of one judgement with their shares, what is undecided, and what is left."""

    def part(cause: str) -> str:
        return f"{cause} {_percent(one.shares[PARTS[cause]])}"

    rule = f"{100 * SHARE:.0f} % of the loss counts as a cause"
    said = [" and ".join(f"{part(cause)} of the loss, {_part_points(one, cause)} points" for cause in one.causes)]
    single = [kinds[0] for kinds in one.undecided if len(kinds) == 1]
    if single:
        parts = " and ".join(part(cause) + _how_near(one, cause) for cause in single)
        said.append(f"cannot be decided: {parts}; {rule}")
    alike = len(single) < len(one.undecided)
    if alike:
        both = " or ".join(part(cause) if one.features else cause for cause in ("lost features", "dead channels"))
        said.append(f"cannot be told apart: {both}, together {_percent(one.shares['own'])} of the loss")
    spoken = {*one.causes, *single, *(("lost features", "dead channels", WEAKER) if alike else ())}
    rest = {name: share for name, share in _shares(one).items() if name not in spoken and share.value >= MINOR}
    if not any(said):
        joined = ", ".join(f"{name} {_percent(share)}" for name, share in rest.items())
        return f"No cause is shown{': ' if joined else ''}{joined}; {rule}."
    if rest:
        said.append("the rest: " + ", ".join(f"{name} {100 * share.value:.0f} %" for name, share in rest.items()))
    if alike and one.features is None:
        said.append("features would tell the two apart")
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in said if text)


WEAKER = "old tasks' weaker response"
LATER = "later tasks worse from the start, though OOD is not nearer,"


def _shares(one: Judgement) -> dict[str, Estimate]:
    """What the loss is made of, in words: without features the last two causes are one."""
    found = {cause: one.shares[part] for cause, part in PARTS.items() if part in one.shares}
    if one.features is None:
        found[WEAKER] = one.shares["own"]
    if one.nearer is not None and one.nearer.value < NEARER and ("crowding",) not in one.undecided:
        found = {LATER if name == "crowding" else name: share for name, share in found.items()}
    return found | {"unexplained": one.shares["left"]}


def _part_points(one: Judgement, cause: str) -> str:
    return f"{100 * one.shares[PARTS[cause]].value * one.loss.value:.1f}"


def _how_near(one: Judgement, cause: str) -> str:
    """How much nearer OOD has come, if that is what leaves crowding open."""
    if cause != "crowding" or one.nearer is None or one.nearer.low >= NEARER:
        return ""
    return f" (OOD has come {_percent(one.nearer)} nearer; {100 * NEARER:.0f} % counts)"


def _unlost(one: Judgement) -> str:
    """A group that did not surely lose: its change, a gain being positive."""
    gain = Estimate(-one.loss.value, -one.loss.high, -one.loss.low)
    if one.state == "gained":
        return f"{one.scope}-OOD gained {_points(gain)} {_interval(gain)}"
    words = {"kept": "hardly changed,", "unsure": "has too few samples to tell,", "lost": "changed by"}[one.state]
    return f"{one.scope}-OOD {words} {_gain(gain)}"


def _name(detector: str) -> str:
    """The title of a detector and, unless it can be read from that, the name to type."""
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
    """At most six of them, evenly spread."""
    shown = np.asarray(values)
    if len(shown) > 6:
        shown = shown[np.linspace(0, len(shown) - 1, 6).round().astype(int)]
    return " ".join(f"{value:.1f}" for value in shown)


def write_verdict(run: Run, verdict: Verdict) -> None:
    """Write ``verdict.json`` into a run, marked with the figures it belongs to."""
    kept = {"metrics": _digest(run), **verdict.to_dict()}
    write_text(run.path / FILE, json.dumps(kept, indent=1) + "\n")


def read_verdict(run: Run) -> dict[str, Any] | None:
    """The verdict in a run; None if there is none, or if the figures have changed since."""
    try:
        found = json.loads((run.path / FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    usable = isinstance(found, dict) and found.get("format") == FORMAT and isinstance(found.get("card"), dict)
    return found if usable and found.get("metrics") == _digest(run) else None


def _digest(run: Run) -> str | None:
    file = run.metrics_path
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None
