"""The section of the results page about one preset: our results next to the paper's, and which claims hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from results_pages.agreement import Claim, Order, Rank, Sign, claims, learner_orders, reference, signs, tood_ranks
from results_pages.facts import EXPLAINED, Fact, fact_rows
from results_pages.gains import Gains, both_protocols, seed_gains
from results_pages.markdown import quoted, table, yes_or_no
from results_pages.mechanisms import mechanism_claims
from tood.paper.collect import Collected
from tood.paper.reproduce import TARGETS, cells, notes, presets_of
from tood.report.appearance import label
from tood.report.summary import Key, Summary, collect, learner_label
from tood.report.tables import LEARNERS, TOOD_VARIANTS
from tood.runs.config import RunConfig
from tood.runs.metrics_file import trajectory

__all__ = ["preset_claims", "preset_section"]

OLD_TASKS = ("energy", *TOOD_VARIANTS, "tood_auto", "tood_joint")


def with_and_without_ber(own: Sequence[Collected]) -> dict[Key, Summary]:
    """Summaries of the runs with BER, and of those without it that have the same stream, learner and seed."""

    def of(one: Collected) -> tuple[str, str, Any]:
        return one.run.stream, learner_label(one.run).removesuffix("+ber"), one.run.manifest.get("seed")

    tuned = {of(one) for one in own if learner_label(one.run).endswith("+ber")}
    pairs = [(one.run, one.table) for one in own if of(one) in tuned]
    return collect(pairs) if pairs else {}


def preset_claims(own: Sequence[Collected]) -> list[Claim]:
    """The paper's claims, judged by the runs of one preset."""
    ours = collect((one.run, one.table) for one in own)
    return [*claims(ours, reference(), seed_gains(own), with_and_without_ber(own)), *mechanism_claims(own)]


def preset_section(own: Sequence[Collected], preset: str, judged: Sequence[Claim]) -> Iterator[str]:
    """The section of the index about the runs of one preset; ``judged``: its claims."""
    ours, theirs = collect((one.run, one.table) for one in own), reference()
    compared, orders = signs(ours, theirs), learner_orders(ours, theirs)
    yield from _coverage(own, preset)
    yield from _protocols(seed_gains(own), compared)
    if rows := list(fact_rows(_facts(own))):
        yield from ("### What learners did to the newest task", "", EXPLAINED, "")
        yield from table(("learner", "stream", "step: value"), rows)
    yield from _gains(compared)
    yield from _orders(orders)
    yield from _ranks(tood_ranks(ours, theirs))
    yield from _not_reproduced(judged, compared, orders)
    yield from _by_set(own)
    yield from _old_tasks(own, ours)


def _protocols(gains: Gains, compared: Sequence[Sign]) -> Iterator[str]:
    """Gains of TOOD on BiC's corrected and on its raw logits."""
    yield from ("### Both protocols: which of BiC's logits are scored", "")
    yield from (
        "Gain of TOOD over energy, points of Avg AUROC; in brackets the number of seeds. `corrected`: the logits the "
        "classifier answers with, which a user has. `raw`: before BiC's bias correction, as the authors of the paper "
        "scored. The interval (95 %) is over seeds.",
        "",
    )
    paper = {(s.stream, s.learner, s.detector): s.paper for s in compared}
    head = ("stream", "variant", "BiC's logits", *map(label, LEARNERS), "mean", "paper")
    yield from table(head, list(both_protocols(gains, paper)))


def _gains(compared: Sequence[Sign]) -> Iterator[str]:
    """Gain of each variant with each learner, in the paper and here."""
    yield from ("### Gain of TOOD over energy, points of Avg AUROC", "")
    rows = [
        (
            s.stream,
            label(s.learner),
            label(s.detector),
            f"{s.paper:+.1f}",
            "one seed" if s.spread is None else f"{s.spread:.1f}",
            f"{s.ours:+.1f}",
            f"{s.own_spread:.1f}, {s.seeds} seeds" if s.seeds > 1 else "one seed",
            yes_or_no(s.agrees) + ("" if s.significant else " (not significant in the paper)"),
        )
        for s in compared
    ]
    head = ("stream", "learner", "variant", "paper", "deviation", "here", "deviation here", "agrees")
    yield from table(head, rows)
    yield from (
        "Deviation: over seeds, the larger of energy's and TOOD's. Agrees: same sign; if the paper's gain is within "
        "its deviation, a gain here within the sum of both deviations.",
        "",
    )


def _orders(orders: Sequence[Order]) -> Iterator[str]:
    """Orders of learners, in the paper and here."""
    yield from ("### Order of learners, best first", "")
    rows = [
        (o.stream, o.by, " > ".join(map(label, o.paper)), " > ".join(map(label, o.ours)), f"{o.same} of {o.pairs}")
        for o in orders
    ]
    yield from table(("stream", "by", "paper", "here", "pairs in the same order"), rows)
    yield from ("Only pairs that differ in the paper by more than the deviation over its seeds are counted.", "")


def _ranks(ranks: Sequence[Rank]) -> Iterator[str]:
    """Ranks of TOOD, in the paper and here."""
    yield from ("### Rank of TOOD by Avg AUROC, among the detectors that both tables have", "")
    rows = [(r.stream, label(r.learner), label(r.detector), str(r.paper), str(r.ours), str(r.of)) for r in ranks]
    yield from table(("stream", "learner", "variant", "paper", "here", "of"), rows)


def _not_reproduced(judged: Sequence[Claim], compared: Sequence[Sign], orders: Sequence[Order]) -> Iterator[str]:
    """Everything that differs from the paper."""
    yield from ("### What did not reproduce", "")
    rows = [(c.text, c.paper, c.ours) for c in judged if c.holds is False]
    rows += [
        (f"{s.stream}, {label(s.learner)}: gain of {label(s.detector)}", f"{s.paper:+.1f}", f"{s.ours:+.1f}")
        for s in compared
        if not s.agrees
    ]
    rows += [
        (f"{o.stream}: order of learners by {o.by}", "–", f"{o.pairs - o.same} of {o.pairs} pairs are reversed")
        for o in orders
        if o.same < o.pairs
    ]
    yield from table(("claim", "paper", "here"), rows) if rows else ("Everything measured so far did.", "")


def _facts(own: Sequence[Collected]) -> Iterator[Fact]:
    """Numbers that learners computed at each step."""
    for one in own:
        for step, facts in enumerate(one.facts):
            yield from (Fact(one.run.stream, name, step, value) for name, value in facts.items())


def _by_set(own: Sequence[Collected]) -> Iterator[str]:
    """AUROC of energy per OOD set and its change by TOOD, means over seeds."""
    by_stream: dict[str, dict[str, dict[str, list[tuple[float, ...]]]]] = {}
    for one in own:
        of_learner = by_stream.setdefault(one.run.stream, {}).setdefault(label(learner_label(one.run)), {})
        for name in filter(None, one.table["ood_set"].unique().to_pylist()):
            of_learner.setdefault(name, []).append(_averages(one, name))
    yield from ("### By OOD set", "")
    yield from ("AUROC of energy; in brackets the change by mean shift and by robust anchor.", "")
    for stream, learners in by_stream.items():
        sets = sorted({name for of_learner in learners.values() for name in of_learner})
        rows = [(learner, *(_change(seeds.get(name, ())) for name in sets)) for learner, seeds in learners.items()]
        yield from table((f"learner, {stream}", *sets), rows)


def _old_tasks(own: Sequence[Collected], ours: Mapping[Key, Summary]) -> Iterator[str]:
    """AUROC of old tasks at the last step, by their own channels and by each score."""
    channels: dict[tuple[str, str], list[float]] = {}
    for one in own:
        if "own_channel" in one.along:
            *old, _ = one.along["own_channel"]
            channels.setdefault((one.run.stream, learner_label(one.run)), []).append(100 * sum(old) / len(old))
    rows = []
    for (stream, learner), values in channels.items():
        keys = (Key(stream, learner, detector, "old_auroc") for detector in OLD_TASKS)
        figures = (f"{ours[key].mean:.1f}" if key in ours else "" for key in keys)
        rows.append((stream, label(learner), f"{sum(values) / len(values):.1f}", *figures))
    yield from ("### Old tasks at the last step", "")
    yield from (
        "AUROC of all tasks but the newest. Own channel: by the energy of the sample's own task alone, which a score "
        "cannot use, since it does not know the task. About 50 means that the channel is dead.",
        "",
    )
    yield from table(("stream", "learner", "own channel", *map(label, OLD_TASKS)), rows)


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


def _coverage(own: Sequence[Collected], preset: str) -> Iterator[str]:
    """Tables of finished and missing runs, and the commits."""
    names = {one.run.path.name for one in own}
    rows = []
    for target in (name for name in TARGETS if preset in presets_of(name) and name != "length"):  # has its own section
        configs = [cell.config for cell in cells(target, "runs", preset)]
        missing = [config for config in configs if config.name not in names]
        done = len(configs) - len(missing)
        command = f"`tood reproduce {target} --preset {preset}`"
        rows.append((command, f"{done} of {len(configs)}", _missing(missing) or "none"))
    yield from ("### What was run", "")
    yield from table(("command", "runs", "missing"), rows)
    commits = quoted(dict.fromkeys(one.commit for one in own))
    seeds = sorted({str(one.run.manifest.get("seed")) for one in own})
    yield from (
        f"{len(own)} runs (seed {', '.join(seeds)}), collected at commit {commits}.",
        "[Every table](tables.md), cell by cell.",
        "",
    )
    for target in TARGETS:
        yield from (f"- {note}." for note in notes(target, preset))
    yield ""


def _missing(configs: Sequence[RunConfig]) -> str:
    """``cifar10, seed 1, 2: icarl, bic``: learners that lack the same seeds, per stream."""
    seeds: dict[tuple[str, str], list[str]] = {}
    for config in configs:
        seeds.setdefault((config.identity.stream, config.identity.label), []).append(str(config.seed))
    learners: dict[tuple[str, str], list[str]] = {}
    for (stream, learner), numbers in seeds.items():
        learners.setdefault((stream, ", ".join(numbers)), []).append(learner)
    return "; ".join(f"{stream}, seed {numbers}: {', '.join(of)}" for (stream, numbers), of in learners.items())
