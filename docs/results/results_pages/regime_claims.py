"""The paper's claims in every regime side by side: each preset trained from scratch, and frozen pretrained features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from results_pages.agreement import Claim, claims, reference
from results_pages.markdown import table, yes_or_no
from results_pages.mechanisms import STREAM, claims_about_causes, point_of
from results_pages.pretrained_data import METRICS, Table, learner
from tood.metrics import mean_std
from tood.paper.collect import Collected
from tood.report.summary import Key, Summary
from tood.report.tables import LEARNERS, TOOD_VARIANTS

__all__ = ["FROZEN", "claims_by_regime", "frozen_claims"]

FROZEN = "frozen"  # the preset
FROM_OUTPUTS = ("learner", "closed", "gain")  # of a point: known only of collected runs


def frozen_claims(frozen: Table, shown: Sequence[Collected]) -> list[Claim]:
    """The claims about tables, over all runs of the regime, and those about causes.

    Parameters
    ----------
    frozen:
        The figures of all runs.
    shown:
        Collected runs, with what was measured on their outputs along the stream.
    """
    if not frozen.runs:
        return []
    gains = {
        (*setting, name): frozen.changes(setting, name, "avg_auroc")
        for setting in frozen.settings()
        for name in TOOD_VARIANTS
    }
    by_learner: dict[str, list[Collected]] = {name: [] for name in LEARNERS}
    for one in shown:
        if one.run.stream == STREAM and learner(one.run) in by_learner:
            by_learner[learner(one.run)].append(one)
    points = [*_points(frozen), *({name: of.get(name) for name in FROM_OUTPUTS} for of in map(point_of, shown))]
    causes = claims_about_causes(points, {name: seeds for name, seeds in by_learner.items() if seeds})
    return [*claims(_summaries(frozen), reference(), gains), *causes]


def _summaries(frozen: Table) -> dict[Key, Summary]:
    """Mean and deviation over seeds of every figure."""
    found = {}
    for stream, name, detector in frozen.scores:
        for metric in METRICS:
            if values := list(frozen.seeds(stream, name, detector, metric).values()):
                mean, std = mean_std(values)
                found[Key(stream, name, detector, metric)] = Summary(float(mean), float(std), len(values))
    return found


def _points(frozen: Table) -> Iterator[dict[str, Any]]:
    """One point per run of the stream of the paper's figures."""
    for (stream, name), seeds in frozen.runs.items():
        if stream != STREAM:
            continue
        energy, mds = (frozen.seeds(stream, name, detector, "d_avg") for detector in ("energy", "mds"))
        for seed, row in seeds.items():
            yield {
                "learner": name,
                "drift": float(row["drift"]) or None,  # closed-form learners train no features
                "f_avg": float(row["accuracy_forgetting"]),
                "old_accuracy": float(row["old_accuracy"]) if row.get("old_accuracy") else None,
                "d_avg": energy.get(seed),
                "mds_d_avg": mds.get(seed),
            }


def claims_by_regime(regimes: Mapping[str, Sequence[Claim]], shown: Sequence[Collected] = ()) -> Iterator[str]:
    """One row per claim, one column per regime; a dash where a claim was not measured.

    ``shown``: the frozen runs whose outputs were measured along the stream.
    """
    regimes = {name: judged for name, judged in regimes.items() if judged}
    if not regimes:
        return
    yield from ("## Claims of the paper", "")
    for name, judged in regimes.items():
        held, failed, unsure = ([claim.holds for claim in judged].count(word) for word in (True, False, None))
        yield f"- {name}: {held} hold, {failed} do not, {unsure} are unclear."
    yield ""
    if shown:
        seeds = ", ".join(sorted({str(one.run.manifest.get("seed")) for one in shown}))
        about = "Pretrained, frozen: rows about task 0, its energy and distances are of"
        yield from (f"{about} seed {seeds}, other rows of all seeds.", "")
    by_text = [{claim.text: claim for claim in judged} for judged in regimes.values()]
    rows = []
    for text in dict.fromkeys(text for own in by_text for text in own):
        found = [own.get(text) for own in by_text]
        paper = next(claim.paper for claim in found if claim)
        rows.append((text, paper, *(_cell(claim, paper) for claim in found)))
    yield from table(("claim", "paper", *regimes), rows)


def _cell(claim: Claim | None, paper: str) -> str:
    """Whether a claim holds and the figures; also the paper's, if it is counted over other detectors or learners."""
    if claim is None:
        return "–"
    return f"{yes_or_no(claim.holds)}: {claim.ours}" + f" (paper: {claim.paper})" * (claim.paper != paper)
