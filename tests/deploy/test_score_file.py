import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from tood import TOOD, ToodError
from tood.decision import Conformal
from tood.deploy import score_file as score_file_module
from tood.deploy import table_files
from tood.deploy.score_file import score_file

ROWS = 1000
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "score_stream.py"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A calibrator, a conformal file, logits, and parts of 64 rows."""
    monkeypatch.setattr(score_file_module, "PART", 64)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 600)
    draw = lambda: (rng.normal(size=(600, 6)) + 5 * np.eye(6)[labels]).round(1)  # noqa: E731  rounded: ties
    cal = TOOD([[5, 0], [1, 2], [3, 4]]).fit(draw(), labels)
    cal.save(tmp_path / "cal.safetensors")
    Conformal(cal, per_task="winning").fit(draw()).save(tmp_path / "conformal.safetensors")
    np.save(tmp_path / "logits.npy", (2 * rng.normal(size=(ROWS, 6))).astype(np.float32))
    return tmp_path


def test_the_file_holds_what_the_library_says(files):
    logits = np.load(files / "logits.npy")
    conformal = Conformal.load(files / "conformal.safetensors")
    scored = score_file(files / "conformal.safetensors", files / "logits.npy", files / "s.parquet", alpha=0.1)
    table = pq.read_table(files / "s.parquet")
    decision = conformal.decide(logits, alpha=0.1)
    for name, expected in zip(("accept", "p_value", "score", "task"), decision, strict=True):
        np.testing.assert_array_equal(table[name].to_numpy(), expected)
    assert [str(field.type) for field in table.schema] == ["float", "int32", "double", "bool"]
    assert 0.05 < table["accept"].to_numpy().mean() < 0.95
    assert (scored.rows, scored.invalid, scored.rejected) == (ROWS, 0, (~decision.accept).sum())
    assert scored.tasks == np.bincount(decision.task, minlength=3).tolist()
    assert scored.rejected_tasks == np.bincount(decision.task[~decision.accept], minlength=3).tolist()
    score_file(files / "cal.safetensors", files / "logits.npy", files / "plain.parquet")
    plain = pq.read_table(files / "plain.parquet")
    assert plain.column_names == ["score", "task"]
    np.testing.assert_array_equal(plain["score"].to_numpy(), conformal.cal.score(logits))
    np.testing.assert_array_equal(plain["task"].to_numpy(), conformal.cal.assign(logits))
    assert not list(files.glob(".*"))


def test_scoring_imports_neither_detectors_nor_torch(files):
    program = """
import sys
from tood.deploy.score_file import score_file
score_file("conformal.safetensors", "logits.npy", "scores.parquet", alpha=0.1)
print(sorted({"tood.detectors", "torch"} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", program], cwd=files, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_every_format_gives_the_same_table(files):
    logits = np.load(files / "logits.npy")
    np.savez_compressed(files / "logits.npz", logits=logits)
    pq.write_table(pa.table({f"logit_{c}": logits[:, c] for c in range(6)}), files / "l.parquet", row_group_size=190)
    outputs = []
    for name in ("logits.npy", "logits.npz", "l.parquet"):
        score_file(files / "conformal.safetensors", files / name, files / "s.parquet", alpha=0.1)
        outputs.append(pq.read_table(files / "s.parquet"))
    assert outputs[0].equals(outputs[1]) and outputs[0].equals(outputs[2])


def test_invalid_rows_are_rejected_and_counted(files):
    logits = np.load(files / "logits.npy")
    bad = logits.copy()
    bad[[3, 700], [2, 5]] = np.nan, np.inf
    np.save(files / "bad.npy", bad)
    given = (files / "conformal.safetensors", files / "bad.npy", files / "s.parquet")
    with pytest.raises(ToodError, match=r"bad.npy: row 3, column 2: expected a finite number, found nan; .--invalid"):
        score_file(*given, alpha=0.1)
    scored = score_file(*given, alpha=0.1, invalid="reject")
    table = pq.read_table(files / "s.parquet").to_pydict()
    for name in ("score", "task", "p_value"):
        assert [row for row, value in enumerate(table[name]) if value is None] == [3, 700]
    assert not table["accept"][3] and not table["accept"][700]
    expected = Conformal.load(files / "conformal.safetensors").decide(logits, alpha=0.1)
    rest = np.setdiff1d(np.arange(ROWS), [3, 700])
    np.testing.assert_array_equal(np.array(table["score"], dtype=float)[rest], expected.score[rest])
    np.testing.assert_array_equal(np.array(table["accept"])[rest], expected.accept[rest])
    assert scored.invalid == 2 and scored.rejected == table["accept"].count(False) and sum(scored.tasks) == ROWS - 2
    plain = score_file(*given, invalid="reject")
    assert plain.rejected is None and pq.read_table(files / "s.parquet")["score"].null_count == 2


def test_kept_columns_are_copied(files):
    logits = np.load(files / "logits.npy")
    ids = [f"{row:04d}" for row in range(ROWS)]
    columns = {"id": ids, "day": np.arange(ROWS) % 7, **{f"logit_{c}": logits[:, c] for c in range(6)}}
    pq.write_table(pa.table(columns), files / "l.parquet", row_group_size=100)
    score_file(files / "cal.safetensors", files / "l.parquet", files / "s.parquet", keep=("day", "id"))
    table = pq.read_table(files / "s.parquet")
    assert table.column_names == ["day", "id", "score", "task"]
    assert table["id"].to_pylist() == ids and table["day"].to_pylist() == (np.arange(ROWS) % 7).tolist()
    pq.write_table(pa.table({**columns, "score": ids}), files / "l.parquet")
    with pytest.raises(ToodError, match="keep: 'score' is a column of the output"):
        score_file(files / "cal.safetensors", files / "l.parquet", files / "s.parquet", keep=("score",))


def test_probabilities_and_other_scales_are_told(files):
    logits = np.load(files / "logits.npy")
    exponents = np.exp(logits)
    np.save(files / "p.npy", exponents / exponents.sum(axis=1, keepdims=True))
    with pytest.raises(ToodError, match=r"p.npy, rows 0 to 999: .*found probabilities"):
        score_file(files / "cal.safetensors", files / "p.npy", files / "s.parquet")
    np.save(files / "far.npy", 100 * logits)
    with pytest.warns(UserWarning, match="far outside the range"):
        score_file(files / "cal.safetensors", files / "far.npy", files / "s.parquet")


def test_no_rows_are_a_table_without_rows(files):
    np.save(files / "none.npy", np.empty((0, 6), dtype=np.float32))
    assert score_file(files / "conformal.safetensors", files / "none.npy", files / "s.parquet", alpha=0.1).rows == 0
    assert pq.read_table(files / "s.parquet").num_rows == 0


def test_bad_input_is_named(files):
    logits = np.load(files / "logits.npy")
    np.save(files / "narrow.npy", logits[:, :4])
    logits[700, 2] = np.nan
    np.save(files / "nan.npy", logits)
    cases = [
        ("cal", "logits", 0.1, "cal.safetensors: a decision needs calibration scores"),
        ("conformal", "logits", 2.0, "alpha: expected a share"),
        ("cal", "narrow", None, r"narrow.npy, rows 0 to 999: logits: expected 6 columns"),
        ("cal", "nan", None, r"nan.npy: row 700, column 2: expected a finite number, found nan"),
        ("absent", "logits", None, "absent.safetensors: no such file"),
    ]
    for calibrator, source, alpha, match in cases:
        with pytest.raises(ToodError, match=match):
            score_file(files / f"{calibrator}.safetensors", files / f"{source}.npy", files / "s.parquet", alpha=alpha)
        assert not (files / "s.parquet").exists()
    for taken in ("cal.safetensors", "logits.npy"):
        before = (files / taken).read_bytes()
        with pytest.raises(ToodError, match=f"{taken}: is an input"):
            score_file(files / "cal.safetensors", files / "logits.npy", files / taken)
        assert (files / taken).read_bytes() == before
    for name in ("s.npy", "s.arrow", "s.JSON"):
        with pytest.raises(ToodError, match=rf"{name}: scores are written as Parquet or CSV; .* s.parquet or s.csv"):
            score_file(files / "cal.safetensors", files / "logits.npy", files / name)
        assert not (files / name).exists()


def test_csv_holds_the_same_numbers_as_parquet(files):
    logits = np.load(files / "logits.npy")
    logits[[3, 700]] = np.nan
    ids = [f'{row:04d}, "a"' for row in range(ROWS)]
    pq.write_table(pa.table({"id": ids, **{f"logit_{c}": logits[:, c] for c in range(6)}}), files / "l.parquet")
    for name in ("s.parquet", "S.CSV"):
        given = (files / "conformal.safetensors", files / "l.parquet", files / name)
        score_file(*given, alpha=0.1, invalid="reject", keep=("id",))
    table = pq.read_table(files / "s.parquet").to_pydict()
    with (files / "S.CSV").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(table) and [row["id"] for row in rows] == ids
    assert [row["accept"] == "true" for row in rows] == table["accept"]
    for name, kind in (("score", np.float32), ("task", int), ("p_value", float)):
        assert [kind(row[name]) if row[name] else None for row in rows] == table[name]
    assert table["score"].count(None) == 2


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_text_that_a_spreadsheet_would_run_is_quoted_in_csv(files, kind):
    texts = ["=1+1", " @x", "-a", "\x1b[2J", "plain", "-2", "+3e5", None]
    logits = np.load(files / "logits.npy")[: len(texts)]
    pq.write_table(pa.table({"id": pa.array(texts).cast(kind), "logits": list(logits)}), files / "l.parquet")
    score_file(files / "cal.safetensors", files / "l.parquet", files / "s.csv", keep=("id",))
    with (files / "s.csv").open(newline="") as file:
        cells = [row["id"] for row in csv.DictReader(file)]
    assert cells == ["'=1+1", "' @x", "'-a", "\\x1b[2J", "plain", "-2", "+3e5", ""]


def test_a_csv_file_is_complete_or_absent(files):
    def progress(done, rows):
        if done >= 130:
            raise KeyboardInterrupt

    before = sorted(files.iterdir())
    with pytest.raises(KeyboardInterrupt):
        score_file(files / "cal.safetensors", files / "logits.npy", files / "s.csv", progress=progress)
    columns = {
        "tags": [[1]] * ROWS,
        **{f"logit_{c}": column for c, column in enumerate(np.load(files / "logits.npy").T)},
    }
    pq.write_table(pa.table(columns), files / "l.parquet")
    with pytest.raises(ToodError, match=r"s.csv: a column cannot be written in this format \(.*list"):
        score_file(files / "cal.safetensors", files / "l.parquet", files / "s.csv", keep=("tags",))
    (files / "l.parquet").unlink()
    assert sorted(files.iterdir()) == before


def test_any_column_can_be_kept(files):
    """One with the name of an internal one, one named twice, a logit, and strings as polars writes them."""
    logits = np.load(files / "logits.npy")
    words = pa.array([f"a long word {row % 9}" for row in range(ROWS)]).cast(pa.string_view())
    columns = {"valid": words, **{f"logit_{c}": logits[:, c] for c in range(6)}}
    pyarrow.feather.write_feather(pa.table(columns), files / "l.arrow", chunksize=100)
    keep = ("valid", "logit_1", "valid")
    for name in ("s.parquet", "s.csv"):
        score_file(files / "cal.safetensors", files / "l.arrow", files / name, keep=keep)
    for table in (pq.read_table(files / "s.parquet"), pyarrow.csv.read_csv(files / "s.csv")):
        assert table.column_names == ["valid", "logit_1", "score", "task"]
        assert table["valid"].to_pylist() == words.to_pylist()
        np.testing.assert_array_equal(table["logit_1"].to_numpy().astype(np.float32), logits[:, 1])


@pytest.mark.parametrize("layout", ["lists", "columns"])
def test_nulls_among_whole_numbers_do_not_change_the_type_of_the_scores(files, monkeypatch, layout):
    monkeypatch.setattr(table_files, "BATCH_ROWS", 32)
    whole = np.rint(np.load(files / "logits.npy")).astype(np.int16)
    missing = np.isin(np.arange(ROWS), range(0, 128, 20))  # in every batch of the first two parts only
    if layout == "lists":
        rows = [None if gone else row for row, gone in zip(whole.tolist(), missing, strict=True)]
        table = pa.table({"logits": pa.array(rows, pa.list_(pa.int16()))})
    else:
        table = pa.table({f"logit_{c}": whole[:, c].astype(np.float32) for c in range(1, 6)})
        table = table.append_column("logit_0", pa.array(whole[:, 0], pa.int16(), mask=missing))
    pq.write_table(table, files / "l.parquet")
    score_file(files / "cal.safetensors", files / "l.parquet", files / "s.parquet", invalid="reject")
    scores = pq.read_table(files / "s.parquet")["score"].to_numpy()
    np.testing.assert_array_equal(np.isnan(scores), missing)
    np.testing.assert_array_equal(scores[~missing], TOOD.load(files / "cal.safetensors").score(whole[~missing]))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file():
    """Within 5 % at 10^6 and 10^7 rows and below 1 GB; at 10^7 at least a quarter of the speed of scoring in memory."""
    result = subprocess.run(
        [sys.executable, str(BENCHMARK), "--rows", "1000000", "10000000"], capture_output=True, text=True, check=True
    )
    few, many = (line.split() for line in result.stdout.splitlines()[-2:])
    assert float(many[-4]) < 1000
    assert abs(float(many[-2]) - 1) < 0.05, few
    assert float(many[-6]) >= 0.25
