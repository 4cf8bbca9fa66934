"""Claims: the release gate blocks a version within the limits at most alpha of the time, and ships few true losses.

    python benchmarks/gate.py                                     # simulated versions
    python benchmarks/gate.py --whole                             # whole versions: networks, calibration, decisions
    python benchmarks/gate.py --clinc DATA/clinc150-minilm.npz    # CLINC150, version by version

Simulated: n known and n unknown samples in 5 tasks. Both versions answer alike except for `--flips` of the samples,
which change at random, and for a true loss. The table shows the share of `--trials` with each verdict.

Whole versions: two noisy linear networks, each with its own calibration samples. What each deployed decision truly
loses is measured on 60,000 further samples, and compared with the verdict on 2,000.

CLINC150: 15 tasks of 10 intents, a linear head on fixed sentence embeddings, replay of 20 queries per intent. The
energy threshold is set on validation queries after task 5 and kept. Each later version is compared with version 5.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from tood import TOOD
from tood.decision import Conformal
from tood.gate import Version, compare
from tood.gate.statistics import Outcomes, judge
from tood.outputs import Outputs

TASKS = 5
OTHERS = ("keep the calibrator", "recalibrate", "switch to TOOD")
SHARES = {"accuracy": 0.9, "known": 0.95, "unknown": 0.8}  # correct, accepted, rejected


def changed(old: np.ndarray, share: float, loss: float, flips: float, rng: np.random.Generator) -> np.ndarray:
    """`old` [n] bool, True with probability `share`: half of `flips` fall, half of it return, and `loss` fall too."""
    draw = rng.random(len(old))
    return np.where(old, draw >= (loss + flips / 2) / share, draw < flips / 2 / (1 - share))


def simulate(sizes: list[int], flips: float, trials: int, alpha: float, max_loss: float) -> None:
    print(f"max loss {max_loss:g} points, alpha {alpha}, flips {flips:.0%}, {trials:,} trials\n")
    print("| true loss | in | samples | ship | undecided | blocked |\n| ---: | --- | ---: | ---: | ---: | ---: |")
    for loss, where in [(0, "none"), (max_loss, "all"), *((5, metric) for metric in SHARES)]:
        for n in sizes:
            rng, seen = np.random.default_rng(n), Counter()
            for _ in range(trials):
                lost = {name: loss / 100 * (where in (name, "all")) for name in SHARES}
                old = {name: rng.random(n) < share for name, share in SHARES.items()}
                new = {name: changed(old[name], SHARES[name], lost[name], flips, rng) for name in SHARES}
                before, after = (
                    Outcomes(v["accuracy"], (v["known"], np.zeros(n)), {"set": (~v["unknown"], np.zeros(n))})
                    for v in (old, new)
                )
                seen[judge(before, after, np.arange(n) % TASKS, max_loss, alpha).verdict] += 1
            shares = " | ".join(f"{seen[verdict] / trials:.3f}" for verdict in ("ship", "undecided", "block"))
            print(f"| {loss:g} | {where} | {n:,} | {shares} |", flush=True)


def whole(trials: int, alpha: float, max_loss: float) -> None:
    """Verdicts on versions whose true losses are known."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(6, 16))
    warnings.simplefilter("ignore")

    def draw(rows: int, signal: float = 1.1) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 6, rows)
        return rng.normal(size=(rows, 16)) + signal * weight[labels], labels

    counts = {True: Counter(), False: Counter()}
    for _ in range(trials):
        (test, labels), unknown, (many, answers), many_unknown = (
            draw(2000),
            draw(2000, 0.45),
            draw(60000),
            draw(60000, 0.45),
        )
        versions, truth = [], []
        for noise in (0.15, rng.choice([0.15, 0.2, 0.35])):
            network = 0.5 * (weight + noise * rng.normal(size=weight.shape)).T
            fit, decide = draw(600), draw(600)
            cal = TOOD([[0, 1], [2, 3], [4, 5]]).fit(fit[0] @ network, fit[1])
            decision = Conformal(cal).fit(decide[0] @ network)
            known = Outputs(test @ network, labels=labels)
            versions.append(Version(decision, known, {"set": Outputs(unknown[0] @ network)}))
            accept, accept_unknown = (decision.decide(x @ network, 0.05).accept for x in (many, many_unknown[0]))
            correct = ((many @ network).argmax(axis=1) == answers).mean()
            truth.append(np.array([correct, -max(1 - accept.mean(), 0.05), 1 - accept_unknown.mean()]))
        within = bool((truth[0] - truth[1]).max() <= max_loss / 100)
        counts[within][compare(*versions, max_loss, alpha).verdict] += 1
    names = ("ship", "undecided", "recalibrate", "block")
    print(f"| true loss | {' | '.join(names)} |\n| --- |{' ---: |' * len(names)}")
    for within, seen in counts.items():
        title = "within the limit" if within else "beyond it"
        print(f"| {title} | {' | '.join(str(seen[name]) for name in names)} |")


def clinc_versions(file: Path, tasks: int, seed: int, steps: int | None = None) -> list[dict[str, Outputs]]:
    """Outputs of the first versions on validation, test and out-of-scope queries."""
    import torch

    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    with np.load(file, allow_pickle=False) as data:
        arrays = {name: data[name].astype(np.float32) for name in data.files if name.endswith("_minilm")}
        labels = {name: data[f"{name}_labels"].astype(np.int64) for name in ("train", "val", "test")}
    order = rng.permutation(150)  # class of each column
    column = np.argsort(order)
    labels = {name: column[values] for name, values in labels.items()}
    per_task, memory, versions = 150 // tasks, np.empty(0, dtype=int), []
    weight = torch.zeros(150, 384)
    bias = torch.zeros(150)
    for t in range(steps or tasks):
        seen = (t + 1) * per_task
        new = np.flatnonzero((labels["train"] >= seen - per_task) & (labels["train"] < seen))
        w = weight[:seen].clone().requires_grad_()
        b = bias[:seen].clone().requires_grad_()
        optimizer = torch.optim.Adam([w, b], lr=0.003)
        for _ in range(30):
            both = np.concatenate([new, memory])
            for batch in np.array_split(rng.permutation(both), len(both) // 64):
                x, y = torch.from_numpy(arrays["train_minilm"][batch]), torch.from_numpy(labels["train"][batch])
                loss = torch.nn.functional.cross_entropy(x @ w.T + b, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        weight[:seen], bias[:seen] = w.detach(), b.detach()
        kept = [rng.permutation(np.flatnonzero(labels["train"] == c))[:20] for c in range(seen - per_task, seen)]
        memory = np.concatenate([memory, *kept])
        head = w.detach().numpy(), b.detach().numpy()

        def outputs(name: str, head=head, seen=seen) -> Outputs:
            logits = arrays[f"{name}_minilm"] @ head[0].T + head[1]
            if name not in labels:
                return Outputs(logits)
            rows = labels[name] < seen
            return Outputs(logits[rows], labels=labels[name][rows])

        versions.append({name: outputs(name) for name in ("val", "test", "oos_test")})
    return versions


def clinc(file: Path, kept_from: int, seed: int) -> None:
    """Compare version `kept_from` with each later one whose threshold was kept."""
    warnings.simplefilter("ignore")
    steps = clinc_versions(file, tasks=15, seed=seed)

    def version(step: int, threshold: float | None = None) -> Version:
        outputs, width = steps[step], steps[step]["test"].logits.shape[1]
        cal = TOOD([range(width)], variant="none", margin=0.0).fit(outputs["val"].logits, outputs["val"].labels)
        return Version(
            Conformal(cal).fit(outputs["val"].logits),
            outputs["test"],
            {"oos": outputs["oos_test"]},
            calibration=outputs["val"],
            threshold=threshold,
            tasks=[range(10 * t, 10 * t + 10) for t in range(step + 1)],
        )

    old = version(kept_from - 1)
    names = ("version", "verdict", "accuracy", "known rejected", "unknown rejected", "AUROC", *OTHERS)
    print(f"| {' | '.join(names)} |\n| ---: | --- |{' ---: |' * (len(names) - 2)}")
    for step in range(kept_from, len(steps)):
        gate = compare(old, version(step, old.limit))
        cells = [f"{100 * c.old:.1f} → {100 * c.new:.1f}" for c in gate.judged.changes]
        ways = {way.name: way.judged.changes[2].new for way in gate.ways if way.judged}
        others = [f"{100 * ways[name]:.1f}" if name in ways else "-" for name in OTHERS]
        print(f"| {step + 1} | {gate.verdict} | {' | '.join([*cells, *others])} |", flush=True)
    print(f"\n{gate.text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 500, 1000, 2000])
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--flips", type=float, default=0.04)
    parser.add_argument("--alpha", type=float, default=0.05)
    parser.add_argument("--max-loss", type=float, default=1.0)
    parser.add_argument("--clinc", type=Path, metavar="FILE")
    parser.add_argument("--kept-from", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    if options.whole:
        whole(options.trials, options.alpha, options.max_loss)
    elif options.clinc:
        clinc(options.clinc, options.kept_from, options.seed)
    else:
        simulate(options.sizes, options.flips, options.trials, options.alpha, options.max_loss)


if __name__ == "__main__":
    main()
