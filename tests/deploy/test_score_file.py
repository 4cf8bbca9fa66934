import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tood import TOOD, ToodError
from tood.decision import Conformal
from tood.deploy import score_file as score_file_module
from tood.deploy.score_file import score_file

ROWS = 1000
BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "score_stream.py"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A calibrator, a conformal file, logits, and parts of 64 rows."""
    monkeypatch.setattr(score_file_module, "PART", 64)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 600)
    draw = lambda: (rng.normal(size=(600, 6)) + 5 * np.eye(6)[labels]).round(1)  # noqa: E731  rounded: ties
    cal = TOOD([[5, 0], [1, 2], [3, 4]]).fit(draw(), labels)
    cal.save(tmp_path / "cal.safetensors")
    for ties in ("conservative", "randomized"):
        Conformal(cal, per_task="winning", ties=ties, seed=4).fit(draw()).save(tmp_path / f"{ties}.safetensors")
    np.save(tmp_path / "logits.npy", (2 * rng.normal(size=(ROWS, 6))).astype(np.float32))
    return tmp_path


def test_the_file_holds_what_the_library_says(files):
    logits = np.load(files / "logits.npy")
    conformal = Conformal.load(files / "conservative.safetensors")
    assert score_file(files / "conservative.safetensors", files / "logits.npy", files / "s.parquet", alpha=0.1) == (
        ROWS,
        0,
    )
    table = pq.read_table(files / "s.parquet")
    decision = conformal.decide(logits, alpha=0.1)
    for name, expected in zip(("accept", "p_value", "score", "task"), decision, strict=True):
        np.testing.assert_array_equal(table[name].to_numpy(), expected)
    assert [str(field.type) for field in table.schema] == ["float", "int32", "double", "bool"]
    assert 0.05 < table["accept"].to_numpy().mean() < 0.95
    score_file(files / "cal.safetensors", files / "logits.npy", files / "plain.parquet")
    plain = pq.read_table(files / "plain.parquet")
    assert plain.column_names == ["score", "task"]
    np.testing.assert_array_equal(plain["score"].to_numpy(), conformal.cal.score(logits))
    np.testing.assert_array_equal(plain["task"].to_numpy(), conformal.cal.assign(logits))
    assert not list(files.glob("*.partial")) and not list(files.glob(".*"))


@pytest.mark.parametrize("ties", ["conservative", "randomized"])
@pytest.mark.parametrize("layout", ["npy", "npz", "parquet"])
def test_an_interrupted_run_goes_on_and_ends_with_the_same_bytes(files, ties, layout):
    source = files / f"logits.{layout}"
    logits = np.load(files / "logits.npy")
    if layout == "npz":
        np.savez_compressed(source, logits=logits)
    elif layout == "parquet":
        import pyarrow as pa

        pq.write_table(pa.table({f"logit_{c}": logits[:, c] for c in range(6)}), source, row_group_size=190)
    calibrator = files / f"{ties}.safetensors"
    score_file(calibrator, files / "logits.npy", files / "whole.parquet", alpha=0.1)

    def stop_after(rows):
        def progress(done, total):
            if done >= rows:
                raise KeyboardInterrupt

        return progress

    for rows, torn in ((130, 0), (400, 17), (ROWS, 0)):
        with pytest.raises(KeyboardInterrupt):
            score_file(calibrator, source, files / "s.parquet", alpha=0.1, progress=stop_after(rows))
        assert not (files / "s.parquet").exists()
        with (files / "s.parquet.partial").open("ab") as partial:
            partial.write(b"\0" * torn)  # as if killed within a write
    assert score_file(calibrator, source, files / "s.parquet", alpha=0.1) == (ROWS, ROWS)
    assert (files / "s.parquet").read_bytes() == (files / "whole.parquet").read_bytes()
    assert not (files / "s.parquet.partial").exists()


def test_a_killed_process_goes_on(files):
    command = """
import os, signal, sys
from tood.deploy import score_file as batch
batch.PART = 64
stop = int(sys.argv[1])
progress = lambda done, rows: os.kill(os.getpid(), signal.SIGKILL) if done >= stop else None
print(batch.score_file("randomized.safetensors", "logits.npy", "s.parquet", alpha=0.1, progress=progress))
"""
    run = lambda stop: subprocess.run(  # noqa: E731
        [sys.executable, "-c", command, str(stop)], cwd=files, capture_output=True, text=True
    )
    assert run(300).returncode == -signal.SIGKILL
    assert not (files / "s.parquet").exists()
    assert re.search("resumed=(320|384)", run(10**9).stdout)  # the next part may have been written meanwhile
    score_file(files / "randomized.safetensors", files / "logits.npy", files / "whole.parquet", alpha=0.1)
    assert (files / "s.parquet").read_bytes() == (files / "whole.parquet").read_bytes()


def test_parts_made_from_other_things_are_not_used(files):
    given = {"calibrator": files / "conservative.safetensors", "source": files / "logits.npy", "alpha": 0.1}
    np.save(files / "other.npy", np.load(files / "logits.npy") + 1)

    def progress(done, rows):
        if done >= 500:
            raise KeyboardInterrupt

    def resumed(before=lambda: None, **changes):
        with pytest.raises(KeyboardInterrupt):
            score_file(**given, target=files / "s.parquet", progress=progress)
        before()
        return score_file(**{**given, **changes}, target=files / "s.parquet").resumed

    assert resumed() in (512, 576)  # the next part may be written while the progress of one is told
    assert resumed(alpha=0.2) == 0
    assert resumed(alpha=None) == 0
    assert resumed(calibrator=files / "randomized.safetensors") == 0
    assert resumed(source=files / "other.npy") == 0
    assert resumed(before=lambda: os.utime(files / "logits.npy", ns=(1, 1))) == 0  # written to in between


def test_an_existing_output_stays_until_the_new_one_is_whole(files):
    (files / "s.parquet").write_bytes(b"before")

    def progress(done, rows):
        assert (files / "s.parquet").read_bytes() == b"before"

    score_file(files / "cal.safetensors", files / "logits.npy", files / "s.parquet", progress=progress)
    assert pq.read_metadata(files / "s.parquet").num_rows == ROWS


def test_a_second_writer_is_refused(files):
    def progress(done, rows):
        with pytest.raises(ToodError, match="another process is writing"):
            score_file(files / "cal.safetensors", files / "logits.npy", files / "s.parquet")

    score_file(files / "cal.safetensors", files / "logits.npy", files / "s.parquet", progress=progress)


def test_no_rows_are_a_table_without_rows(files):
    np.save(files / "none.npy", np.empty((0, 6), dtype=np.float32))
    assert score_file(files / "conservative.safetensors", files / "none.npy", files / "s.parquet", alpha=0.1).rows == 0
    assert pq.read_table(files / "s.parquet").num_rows == 0


def test_bad_input_is_named(files):
    logits = np.load(files / "logits.npy")
    np.save(files / "narrow.npy", logits[:, :4])
    logits[700, 2] = np.nan
    np.save(files / "nan.npy", logits)
    cases = [
        ("cal", "logits", 0.1, "cal.safetensors: alpha needs calibration scores"),
        ("conservative", "logits", 2.0, "alpha: expected a share"),
        ("cal", "narrow", None, r"narrow.npy, counting from row 0: logits: expected 6 columns"),
        ("cal", "nan", None, r"nan.npy, counting from row \d+: logits: expected finite numbers"),
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
    with pytest.raises(ToodError, match=r"s.csv: scores are written as Parquet"):
        score_file(files / "cal.safetensors", files / "logits.npy", files / "s.csv")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file():
    """Within 5 % at 10^6 and 10^7 rows and below 1 GB; at 10^7 at least half the speed of scoring in memory."""
    result = subprocess.run(
        [sys.executable, str(BENCHMARK), "--rows", "1000000", "10000000"], capture_output=True, text=True, check=True
    )
    few, many = (line.split() for line in result.stdout.splitlines()[-2:])
    assert float(many[-4]) < 1000
    assert abs(float(many[-2]) - 1) < 0.05, few
    assert float(many[-6]) >= 0.5
