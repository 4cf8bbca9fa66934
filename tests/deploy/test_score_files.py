import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tood import TOOD, ToodError
from tood.decision import Conformal
from tood.deploy import score_files as score_files_module
from tood.deploy.score_file import score_file
from tood.deploy.score_files import find_files, score_files

ROWS = {"a": 300, "b": 10, "c": 0, "d": 77}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A conformal file, and logits in every layout in two folders."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 300)
    known = lambda: rng.normal(size=(300, 6)) + 5 * np.eye(6)[labels]  # noqa: E731
    Conformal(TOOD([[5, 0], [1, 2], [3, 4]]).fit(known(), labels)).fit(known()).save("cal.safetensors")
    draw = lambda name: rng.normal(size=(ROWS[name], 6)).astype(np.float32)  # noqa: E731
    for folder in ("in", "more"):
        (tmp_path / folder).mkdir()
    np.save("in/a.npy", draw("a"))
    np.savez("in/b.npz", logits=draw("b"))
    pq.write_table(pa.table({f"logit_{c}": column for c, column in enumerate(draw("c").T)}), "in/c.parquet")
    np.save("more/d.npy", draw("d"))
    (tmp_path / "in" / "notes.txt").write_text("not logits")
    return tmp_path


def alone(files, source):
    """The table that the same file gives by itself."""
    score_file("cal.safetensors", source, files / "alone.parquet", alpha=0.1)
    return pq.read_table(files / "alone.parquet")


def test_each_file_gives_the_rows_it_gives_alone(files):
    scored = score_files("cal.safetensors", ["in", "more/*.npy"], "out", alpha=0.1)
    assert {path.name: result.rows for path, result in scored.items()} == {
        f"{name}.parquet": rows for name, rows in ROWS.items()
    }
    for name, source in zip(ROWS, ("in/a.npy", "in/b.npz", "in/c.parquet", "more/d.npy"), strict=True):
        assert pq.read_table(files / "out" / f"{name}.parquet").equals(alone(files, source))
    assert sorted(os.listdir("out")) == [f"{name}.parquet" for name in ROWS]


def test_what_is_done_is_left_out_until_something_changes(files):
    def resumed(**changes):
        arguments = {"sources": ["in", "more"], "folder": "out", "alpha": 0.1, **changes}
        results = score_files("cal.safetensors", **arguments)
        return {path.stem for path, scored in results.items() if scored.earlier}

    assert resumed() == set()
    assert resumed() == {"a", "b", "c", "d"}
    status = os.stat("in/a.npy")
    np.save("in/a.npy", np.load("in/a.npy")[::-1].copy())  # same size, and below the same time
    os.utime("in/a.npy", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert resumed() == {"b", "c", "d"}
    (files / "out" / "b.parquet").unlink()
    assert resumed() == {"a", "c", "d"}
    (files / "out" / "d.parquet").write_bytes(b"cut off")
    assert resumed() == {"a", "b", "c"}
    assert resumed(alpha=0.2) == set()
    assert resumed(alpha=0.2) == {"a", "b", "c", "d"}


def test_a_killed_run_keeps_the_files_it_had_finished(files, monkeypatch):
    def second_is_killed(calibrator, source, target, **settings):
        if source.name == "b.npz":
            raise KeyboardInterrupt
        return score_file(calibrator, source, target, **settings)

    monkeypatch.setattr(score_files_module, "score_file", second_is_killed)
    with pytest.raises(KeyboardInterrupt):
        score_files("cal.safetensors", ["in"], "out")
    assert os.listdir("out") == ["a.parquet"]
    monkeypatch.setattr(score_files_module, "score_file", score_file)
    scored = score_files("cal.safetensors", ["in"], "out")
    assert [(one.rows, one.earlier) for one in scored.values()] == [(300, True), (10, False), (0, False)]


def test_one_bad_file_does_not_stop_the_others(files):
    np.save("in/aa.npy", np.full((3, 6), np.nan))
    with pytest.raises(ToodError, match=r"1 of 4 files failed: .*aa.npy: row 0, column 0: expected a finite"):
        score_files("cal.safetensors", ["in"], "out")
    assert pq.read_metadata("out/b.parquet").num_rows == 10 and not (files / "out" / "aa.parquet").exists()


def test_files_folders_and_patterns(files):
    names = lambda *sources: [str(path) for path in find_files(sources)]  # noqa: E731
    assert names("in") == ["in/a.npy", "in/b.npz", "in/c.parquet"]
    assert names("**/*.npy", "in/a.npy") == ["in/a.npy", "more/d.npy"]
    assert names("absent.npy") == ["absent.npy"]  # its reader says what is wrong
    np.save("[1].npy", np.zeros((1, 6)))
    assert names("[1].npy") == ["[1].npy"]


def test_bad_arguments_are_named(files):
    np.save("more/a.npy", np.zeros((1, 6)))
    cases = [
        (["in"], "in", "outputs go to a folder of their own, and a.npy is an input in it"),
        (["in", "more"], "out", r"a.parquet: would be the output of both .*in/a.npy and .*more/a.npy"),
        (["nothing/*.npy"], "out", "nothing/.*: expected files of logits"),
    ]
    for sources, folder, match in cases:
        with pytest.raises(ToodError, match=match):
            score_files("cal.safetensors", sources, folder)
    with pytest.raises(ToodError, match=r"absent\.safetensors: no such file"):
        score_files("absent.safetensors", ["in"], "out")
    assert not (files / "out").exists()


def test_the_command_takes_many(files):
    from click.testing import CliRunner

    from tood.commands.score import command

    def run(*arguments):
        arguments = ["--calibrator", "cal.safetensors", "--alpha", "0.1", *arguments]
        return CliRunner().invoke(command, arguments, catch_exceptions=False)

    shown = json.loads(run("--in", "in", "--in", "more/*.npy", "--out", "out", "--json").stdout)
    assert (
        shown["rows"] == sum(ROWS.values())
        and shown["earlier"] == 0
        and shown["rejected"] == sum(shown["rejected_tasks"])
    )
    assert {os.path.basename(path): v["rows"] for path, v in shown["files"].items()} == {
        f"{name}.parquet": rows for name, rows in ROWS.items()
    }
    assert "out: 387 rows scored in" in (text := run("--in", "in", "--in", "more", "--out", "out").stdout)
    assert "4 of the files in an earlier run" in text
    single = json.loads(run("--in", "in/a.npy", "--out", "s.parquet", "--json").stdout)
    assert single["rows"] == 300


def test_an_input_that_is_replaced_while_it_is_scored_is_scored_again(files, monkeypatch):
    original = score_files_module.score_file

    def replaced(*arguments, **settings):
        result = original(*arguments, **settings)
        np.save("more/d.npy", np.zeros((3, 6), dtype=np.float32))
        return result

    monkeypatch.setattr(score_files_module, "score_file", replaced)
    score_files("cal.safetensors", ["more"], "out")
    monkeypatch.undo()
    monkeypatch.chdir(files)
    (summary,) = score_files("cal.safetensors", ["more"], "out").values()
    assert summary.rows == 3 and not summary.earlier


def test_a_missing_file_does_not_stop_the_others(files):
    with pytest.raises(ToodError, match=r"^1 of 2 files failed: .*absent.npy: no such file$"):
        score_files("cal.safetensors", ["absent.npy", "more/d.npy"], "out")
    assert pq.read_metadata("out/d.parquet").num_rows == 77
