"""Values reported in the TOOD paper, shipped as CSV files."""

from __future__ import annotations

import csv
from importlib import resources

from tood.report.summary import Key, Summaries, Summary

__all__ = ["reported", "table_rows"]


def reported() -> Summaries:
    """The paper's Table 1 (three seeds), the BER rows of Table 2, and the ImageNet table (one seed)."""
    values: Summaries = {}
    for row in table_rows("table1_main.csv"):
        key = Key(row["stream"], row["method"], row["detector"], row["metric"])
        values[key] = Summary(float(row["mean"]), float(row["std"]), 3)
    for row in table_rows("table2_ber.csv"):
        if row["finetune"] != "none":
            for metric in ("avg_auroc", "avg_fpr95"):
                key = Key(row["stream"], f"{row['method']}+{row['finetune']}", row["detector"], metric)
                values[key] = Summary(float(row[metric]), 0.0, 1)
    for row in table_rows("table3_imagenet.csv"):
        key = Key(row["stream"], row["method"], row["detector"], row["metric"])
        values[key] = Summary(float(row["value"]), 0.0, 1)
    return values


def table_rows(name: str) -> list[dict[str, str]]:
    """The rows of one shipped CSV file."""
    text = (resources.files("tood.paper") / "tables" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
