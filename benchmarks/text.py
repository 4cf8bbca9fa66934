"""The text regime: continual learners on sentence embeddings of CLINC150, every detector at every step.

    TOOD_DATA=... python benchmarks/text.py OUT [--seeds 0,1,2] [--learners er,bic] [--detectors tood] [--track all]

The 15 intents of the domain "banking" are kept out, as far-OOD; the out-of-scope queries are near-OOD. The other 135
intents arrive in 15 tasks. Preset `frozen` (a trained layer of 512 on the embeddings), memories of 5 sentences per
intent. A run that is finished is not made again.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
from pathlib import Path

import numpy as np

from tood import learners
from tood.runs import RunConfig, run

BANKING = "account_blocked balance bill_balance bill_due freeze_account interest_rate min_payment order_checks pay_bill"
BANKING += " pin_change report_fraud routing spending_history transactions transfer"
MEMORY = 5  # sentences per intent


def write_stream(path: Path) -> None:
    """The sentences of 135 intents, the out-of-scope queries, and those of the domain that is kept out."""
    with np.load(Path(os.environ["TOOD_DATA"]) / "clinc150-minilm.npz") as file:
        names = file["classes"]
        known = np.flatnonzero(~np.isin(names, BANKING.split()))
        arrays = {"ood_near_out_of_scope": file["oos_test_minilm"].astype(np.float32)}
        others = []
        for part in ("train", "test", "val"):
            labels, vectors = file[f"{part}_labels"], file[f"{part}_minilm"].astype(np.float32)
            seen = np.isin(labels, known)
            if part != "train":
                others.append(vectors[~seen])
            if part != "val":
                arrays |= {part: vectors[seen], f"{part}_labels": np.searchsorted(known, labels[seen])}
    np.savez(path, **arrays, ood_far_banking=np.concatenate(others), classes=names[known])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--learners", default=",".join(learners.names()))
    parser.add_argument("--detectors", default="")
    parser.add_argument("--track", default="calibration")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "clinc.npz"
    if not file.exists():
        write_stream(file)
    for seed in map(int, given.seeds.split(",")):
        for name in given.learners.split(","):
            known = learners.checked_settings(name, "none", {})[0].__dataclass_fields__
            settings = {"batch_size": 32, "memory": 135 * MEMORY}
            config = RunConfig(
                stream={"npz": str(file), "tasks": 15},
                learner=name,
                preset="frozen",
                seed=seed,
                settings={key: value for key, value in settings.items() if key in known},
                detectors=tuple(filter(None, given.detectors.split(","))),
                track=(given.track,),
                store="metrics",
            )
            print(name, seed, flush=True)
            suffix = "" if given.track == "calibration" else f"-{given.track}"
            run(config, given.out / f"{name}{suffix}-s{seed}", say=lambda line: None)


if __name__ == "__main__":
    main()
