"""Sections of the results page: the paper's claims by regime, and the runs of one preset beside the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from results_pages.claims import Claim, mean_gain
from results_pages.collect import Collected
from results_pages.evidence import Evidence
from results_pages.markdown import table
from tood.evaluation.metrics_file import trajectory
from tood.paper.reference import stated
from tood.paper.reproduce import TARGETS, cells, notes, presets_of
from tood.report.appearance import label
from tood.report.summary import Key, Summary, learner_label
from tood.report.tables import LEARNERS, TOOD_VARIANTS
from tood.runs.config import RunConfig

__all__ = ["Regime", "claims_by_regime", "mechanism_rows", "preset_section"]

MECHANISMS = ("temperature", *TOOD_VARIANTS)
OLD_TASKS = ("energy", *TOOD_VARIANTS, "tood_joint")
LENGTH = "not tested at the paper's length"
# What it means if a rule fails: short training decides nothing about long training.
FAILS = {"cpu": LENGTH, "frozen": "not in this regime"}


class Regime(NamedTuple):
    """The claims in one regime: with BiC's logits raw, as the authors scored, and corrected, as a user has them."""

    name: str
    preset: str
    raw: Sequence[Claim]
    corrected: Sequence[Claim]

    def word(self, holds: bool | None) -> str:
        """Whether a claim holds here."""
        return {True: "yes", False: FAILS.get(self.preset, "**no**"), None: "unclear"}[holds]


def claims_by_regime(paper: Sequence[Claim], regimes: Sequence[Regime]) -> Iterator[str]:
    """One row per claim, one column per regime; a dash if a claim was not measured."""
    yield from ("## Claims of the paper", "")
    yield from (
        "Each claim is a rule, and every rule holds on the paper's own numbers; `stated`: the paper gives none. BiC is "
        "scored on its raw logits, as the authors did; if the corrected logits, which a user has, give other numbers, "
        f"they follow. `{LENGTH}`: the rule fails after ten epochs per task, and the paper trains 170.",
        "",
    )
    for regime in regimes:
        words = [regime.word(claim.holds) for claim in regime.raw]
        counts = ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words), reverse=True))
        yield f"- {regime.name}: {counts}."
    yield ""
    stated = {claim.text: claim.numbers for claim in paper}
    texts = dict.fromkeys([claim.text for regime in regimes for claim in regime.raw])
    rows = [(text, stated.get(text, "stated"), *(_cell(regime, text) for regime in regimes)) for text in texts]
    yield from table(("claim", "paper", *(regime.name for regime in regimes)), rows)


def _cell(regime: Regime, text: str) -> str:
    raw, corrected = ({claim.text: claim for claim in of}.get(text) for of in (regime.raw, regime.corrected))
    if raw is None or corrected is None:
        return "–"
    other = f"; BiC corrected: {regime.word(corrected.holds)}, {corrected.numbers}" if corrected != raw else ""
    return f"{regime.word(raw.holds)}: {raw.numbers}{other}"


def preset_section(
    own: Sequence[Collected], preset: str, paper: Evidence, raw: Evidence, corrected: Evidence
) -> Iterator[str]:
    """The section about the runs of one preset."""
    yield from _coverage(own, preset)
    yield from _gains(paper, raw, corrected)
    yield from _mechanisms(raw, corrected)
    yield from _by_set(own)
    yield from _old_tasks(own, corrected.values)


def _coverage(own: Sequence[Collected], preset: str) -> Iterator[str]:
    """Table of finished and missing runs."""
    names = {one.run.path.name for one in own}
    rows = []
    for target in (name for name in TARGETS if preset in presets_of(name) and name != "length"):  # has its own section
        configs = [cell.config for cell in cells(target, "runs", preset)]
        missing = [config for config in configs if config.name not in names]
        done = f"{len(configs) - len(missing)} of {len(configs)}"
        rows.append((f"`tood reproduce {target} --preset {preset}`", done, _missing(missing) or "none"))
    yield from ("### What was run", "")
    yield from table(("command", "runs", "missing"), rows)
    seeds = ", ".join(sorted({str(one.run.manifest.get("seed")) for one in own}))
    yield from (f"{len(own)} runs (seed {seeds}). [Every table](tables.md), cell by cell.", "")
    yield from (f"- {note}.\n" for target in TARGETS for note in notes(target, preset))


def _missing(configs: Sequence[RunConfig]) -> str:
    """``cifar10, seed 1, 2: icarl, bic``: learners that lack the same seeds, per stream."""
    seeds: dict[tuple[str, str], list[str]] = {}
    for config in configs:
        seeds.setdefault((config.identity.stream, config.identity.label), []).append(str(config.seed))
    learners: dict[tuple[str, str], list[str]] = {}
    for (stream, learner), numbers in seeds.items():
        learners.setdefault((stream, ", ".join(numbers)), []).append(learner)
    return "; ".join(f"{stream}, seed {numbers}: {', '.join(of)}" for (stream, numbers), of in learners.items())


def _gains(paper: Evidence, raw: Evidence, corrected: Evidence) -> Iterator[str]:
    """Gains of TOOD over energy with each learner, in the paper and here."""
    yield from ("### Gain of TOOD over energy, points of Avg AUROC", "")
    yield from (
        "In brackets: the standard deviation over seeds (of the paper: the larger of energy's and TOOD's) and the "
        "number of seeds. BiC raw: before its bias correction, as the authors scored; corrected: what a user has. The "
        "interval of a mean (95 %) is over seeds.",
        "",
    )
    sources = {"paper": paper.gains, "here, BiC raw": raw.gains, "here, BiC corrected": corrected.gains}
    rows, agreement = [], []
    for stream in dict.fromkeys(stream for stream, _, _ in paper.gains):
        for variant in TOOD_VARIANTS:
            for name, gains in sources.items():
                known = {of: gains[stream, of, variant] for of in LEARNERS if (stream, of, variant) in gains}
                if known and any(key[0] == stream for key in raw.gains):
                    cells_ = (_gain(known.get(learner)) for learner in LEARNERS)
                    rows.append((stream, label(variant), name, *cells_, str(mean_gain(list(known.values())))))
    yield from table(("stream", "variant", "source", *map(label, LEARNERS), "mean"), rows)
    for (stream, learner, variant), theirs in paper.gains.items():
        ours = raw.gains.get((stream, learner, variant))
        if ours is not None and abs(theirs.mean) > theirs.std + 1e-9:  # the paper rounds to one decimal
            agreement.append((_agrees(theirs, ours), f"{stream} {label(learner)} {label(variant)}"))
    for word in ("same sign", "opposite sign", "unclear"):
        names = [name for found, name in agreement if found == word]
        if names:
            share = f"{len(names)} of {len(agreement)}"
            yield f"- {word}, of the paper's gains above its deviation: {share}: {', '.join(names)}."
    yield ""


def _agrees(theirs: Summary, ours: Summary) -> str:
    """A gain that rounds to 0.0, or within its deviation over seeds, has no sign."""
    if abs(ours.mean) < max(0.05, ours.std):
        return "unclear"
    return "same sign" if theirs.mean * ours.mean > 0 else "opposite sign"


def _gain(gain: Summary | None) -> str:
    if gain is None:
        return ""
    return f"{gain.mean:+.1f} ({gain.std:.1f}, {gain.seeds})" if gain.seeds > 1 else f"{gain.mean:+.1f} (1)"


def mechanism_rows(values: Mapping[Key, Summary]) -> list[dict[str, str | float]]:
    """Gain over energy of temperature and of the paper's variants, per stream and learner of the paper."""
    return [
        {"stream": key.stream, "learner": key.learner, "mechanism": key.detector, "gain": value.mean - plain.mean}
        for key, value in values.items()
        if key.detector in MECHANISMS and key.metric == "avg_auroc" and key.learner in LEARNERS
        if (plain := values.get(key._replace(detector="energy"))) is not None
    ]


def _mechanisms(raw: Evidence, corrected: Evidence) -> Iterator[str]:
    """The parts of TOOD over the paper's learners, from the runs of the tables above."""
    paper, rows = stated(), []
    for name in MECHANISMS:
        cells_ = []
        for evidence in (raw, corrected):
            gains = [float(row["gain"]) for row in mechanism_rows(evidence.values) if row["mechanism"] == name]
            cells_.append(
                f"{mean(gains):+.2f} ({min(gains):+.1f} to {max(gains):+.1f}, {len(gains)})" if gains else "–"
            )
        rows.append((label(name), f"{paper[name, '']:+.1f}", *cells_))
    yield from ("### Rescaling alone, and TOOD (mechanism_dissociation)", "")
    yield from (
        "Gain over energy, points of Avg AUROC: mean over the paper's five learners on both streams, the range, and "
        "the number of settings. The paper states +3.1 for TOOD beside this ablation; its Table 1 averages to the "
        "values here.",
        "",
    )
    yield from table(("score", "paper", "here, BiC raw", "here, BiC corrected"), rows)


def _by_set(own: Sequence[Collected]) -> Iterator[str]:
    """AUROC of energy per OOD set and its change by TOOD, means over seeds."""
    streams: dict[str, dict[str, dict[str, list[tuple[float, ...]]]]] = {}
    for one in own:
        learner = streams.setdefault(one.run.stream, {}).setdefault(label(learner_label(one.run)), {})
        for name in filter(None, one.table["ood_set"].unique().to_pylist()):
            learner.setdefault(name, []).append(_averages(one, name))
    yield from ("### By OOD set", "")
    yield from ("AUROC of energy; in brackets the change by mean shift (paper) and by robust anchor (paper).", "")
    for stream, learners in streams.items():
        sets = sorted({name for of_learner in learners.values() for name in of_learner})
        rows = [(learner, *(_change(seeds.get(name, ())) for name in sets)) for learner, seeds in learners.items()]
        yield from table((f"learner, {stream}", *sets), rows)


def _averages(one: Collected, ood_set: str) -> tuple[float, ...]:
    """Average AUROC in percent of energy and both TOOD variants against one set."""
    calibrations = {"energy": None} | dict.fromkeys(TOOD_VARIANTS, one.run.calibration)
    return tuple(
        100 * trajectory(one.table, detector, ood_set=ood_set, calibration=calibration).average()
        for detector, calibration in calibrations.items()
    )


def _change(seeds: Sequence[tuple[float, ...]]) -> str:
    """``68.7 (+0.8, +1.0)``; empty if nothing was measured."""
    if not seeds:
        return ""
    energy, *variants = (sum(column) / len(seeds) for column in zip(*seeds, strict=True))
    return f"{energy:.1f} ({', '.join(f'{value - energy:+.1f}' for value in variants)})"


def _old_tasks(own: Sequence[Collected], values: Mapping[Key, Summary]) -> Iterator[str]:
    """AUROC of old tasks at the last step, by their own channels and by each score."""
    channels: dict[tuple[str, str], list[float]] = {}
    for one in own:
        if "own_channel" in one.along:
            *old, _ = one.along["own_channel"]
            channels.setdefault((one.run.stream, learner_label(one.run)), []).append(100 * sum(old) / len(old))
    rows = []
    for (stream, learner), of_seeds in channels.items():
        keys = (Key(stream, learner, detector, "old_auroc") for detector in OLD_TASKS)
        scores = (f"{values[key].mean:.1f}" if key in values else "" for key in keys)
        rows.append((stream, label(learner), f"{sum(of_seeds) / len(of_seeds):.1f}", *scores))
    yield from ("### Old tasks at the last step", "")
    yield from (
        "AUROC of all tasks but the newest. Own channel: by the energy of the sample's own task alone, which a score "
        "cannot use, since it does not know the task. About 50 means that the channel is dead.",
        "",
    )
    yield from table(("stream", "learner", "own channel", *map(label, OLD_TASKS)), rows)
