import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.processes import tood

from tood import TOOD, ToodError
from tood.commands.calibrate import command as calibrate
from tood.commands.inspect import command as inspect
from tood.commands.score import command as score
from tood.decision import Conformal


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 600)
    draw = lambda: rng.normal(size=(600, 6)) + 5 * np.eye(6)[labels]  # noqa: E731
    np.savez("cal.npz", logits=draw(), labels=labels)
    np.savez("more.npz", logits=draw(), labels=labels)
    np.save("new.npy", draw())
    (tmp_path / "tasks.json").write_text("[[0, 1], [2, 3], [4, 5]]")
    return tmp_path


def run(command, *arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)


GIVEN = ("--logits", "cal.npz", "--tasks", "tasks.json", "--out", "cal.safetensors")


def test_a_calibrator_is_the_one_fit_gives(folder):
    result = run(calibrate, *GIVEN, "--variant", "mean_shift", "--margin", 0.2, "--reference", "oldest", "--json")
    data = np.load("cal.npz")
    expected = TOOD([[0, 1], [2, 3], [4, 5]], "mean_shift", 0.2, "oldest").fit(data["logits"], data["labels"])
    loaded = TOOD.load("cal.safetensors")
    np.testing.assert_array_equal(loaded.score(data["logits"]), expected.score(data["logits"]))
    rows = json.loads(result.stdout)["tasks"]
    assert [row["median"] for row in rows] == expected.statistics_["median"].tolist()


def test_a_manifest_serves_as_tasks(folder):
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "tasks": [[0, 1], [2, 3], [4, 5]]}))
    run(calibrate, *GIVEN)
    run(calibrate, "--logits", "cal.npz", "--tasks", "manifest.json", "--out", "again.safetensors")
    first, again = (TOOD.load(folder / f"{name}.safetensors").channels_ for name in ("cal", "again"))
    np.testing.assert_array_equal(first.location, again.location)


def test_decisions_per_class_from_file_to_file(folder):
    run(calibrate, *GIVEN, "--conformal", "more.npz", "--per-class")
    data, more, new = np.load("cal.npz"), np.load("more.npz"), np.load("new.npy")
    cal = TOOD([[0, 1], [2, 3], [4, 5]]).fit(data["logits"], data["labels"])
    expected = Conformal(cal, per_class=True).fit(more["logits"], more["labels"]).decide(new, alpha=0.1)
    result = run(score, "--calibrator", "cal.safetensors", "--in", "new.npy", "--out", "s.parquet", "--alpha", 0.1)
    assert "s.parquet: 600 rows scored" in result.stdout
    table = pq.read_table("s.parquet")
    assert table["p_value"].to_pylist() == expected.p_value.tolist()
    assert table["accept"].to_pylist() == expected.accept.tolist()
    assert "per true class" in run(inspect, "cal.safetensors").stdout
    assert "--per-class need --holdout" in run(calibrate, *GIVEN, "--force", "--per-class").output


def test_holdout_splits_every_sample_into_one_half(folder):
    run(calibrate, *GIVEN, "--holdout", 0.25, "--per-task", "true")
    conformal = Conformal.load("cal.safetensors")
    assert conformal.cal.statistics_["count"].sum() == 450
    assert conformal.samples == 150
    run(calibrate, *GIVEN, "--folds", 4, "--force")
    assert Conformal.load("cal.safetensors").cal.statistics_["count"].sum() == 600


def test_alpha_below_what_the_samples_allow_is_refused(folder):
    run(calibrate, *GIVEN, "--holdout", 0.5)
    arguments = ("--calibrator", "cal.safetensors", "--in", "new.npy", "--out", "s.parquet", "--alpha", 0.001)
    with pytest.raises(ToodError, match=r"300 calibration samples cannot reject anything at alpha=0\.001"):
        run(score, *arguments)


def test_errors_are_one_line(folder):
    np.savez("bare.npz", logits=np.zeros((3, 6)))
    result = tood("calibrate", "--logits", "bare.npz", "--tasks", "tasks.json", "--out", "x.safetensors")
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("tood: bare.npz: expected labels beside the logits, found none")
    result = tood("calibrate", *GIVEN, "--holdout", "0.5", "--folds", "3")
    assert result.returncode == 2 and "one of --holdout, --conformal and --folds" in result.stderr
    result = tood("calibrate", *GIVEN, "--parent", "absent.safetensors")
    assert result.returncode == 2 and "'--parent': File 'absent.safetensors' does not exist" in result.stderr
    result = tood("calibrate", "--logits", "bare.npz", "--tasks", "tasks.json", "--out", "bare.npz")
    assert result.returncode == 2 and "bare.npz exists" in result.stderr
    result = tood("calibrate", *GIVEN[:4], "--out", "absent/cal.safetensors")
    assert result.returncode == 1 and result.stderr.startswith("tood: absent: no such folder")


def csv(path, logits, **columns):
    table = {**columns, **{f"logit_{c}": logits[:, c] for c in range(logits.shape[1])}}
    pyarrow.csv.write_csv(pa.table(table), path)


def test_csv_in_and_scores_with_ids_out(folder):
    data, new = np.load("cal.npz"), np.load("new.npy")
    csv("cal.csv", data["logits"], label=data["labels"])
    np.savetxt("bare.csv", data["logits"], delimiter=",")
    np.savetxt("labels.csv", data["labels"], fmt="%d")
    tasks = ("--tasks", "[[0, 1], [2, 3], [4, 5]]")
    run(calibrate, "--logits", "cal.csv", *tasks, "--out", "a.safetensors", "--holdout", 0.5)
    run(calibrate, "--logits", "bare.csv", "--labels", "labels.csv", *tasks, "--out", "b.safetensors", "--holdout", 0.5)
    run(calibrate, *GIVEN, "--holdout", 0.5)
    csv("new.csv", new, id=[f"{row:03d}" for row in range(600)])
    for name in ("a", "b"):
        given = f"--calibrator {name}.safetensors --in new.csv --out {name}.parquet --keep id --alpha 0.1"
        result = run(score, *given.split())
        assert result.exit_code == 0, result.output
    run(score, "--calibrator", "cal.safetensors", "--in", "new.npy", "--out", "npy.parquet", "--alpha", 0.1)
    table, other, expected = (pq.read_table(f"{name}.parquet") for name in ("a", "b", "npy"))
    assert table.equals(other) and table["id"].to_pylist()[:2] == ["000", "001"]
    np.testing.assert_allclose(table["score"].to_numpy(), expected["score"].to_numpy(), rtol=1e-9)


def test_the_summary_counts_what_the_file_holds(folder):
    run(calibrate, *GIVEN, "--holdout", 0.5)
    new = np.concatenate([np.load("new.npy"), np.zeros((100, 6)), np.full((1, 6), np.nan)])
    np.save("new.npy", new)
    given = ["--calibrator", "cal.safetensors", "--in", "new.npy", "--out", "s.parquet", "--alpha", 0.1]
    given += ["--invalid", "reject"]
    result = run(score, *given)
    table = pq.read_table("s.parquet")
    rejected = 701 - sum(table["accept"].to_pylist())
    assert f"rejected: {rejected:,} ({rejected / 701:.1%})" in result.stdout
    assert "invalid: 1 rows with a missing, NaN or infinite logit, rejected, with a null score" in result.stdout
    figures = json.loads(run(score, *given, "--json").stdout)
    assert figures["rejected"] == rejected == figures["invalid"] + sum(figures["rejected_tasks"])
    assert figures["tasks"] == [table["task"].to_pylist().count(t) for t in range(3)]
    assert run(score, *given, "--quiet").output == ""


def test_rows_are_those_of_the_file(folder):
    data = dict(np.load("cal.npz"))
    data["logits"][417, 3] = np.nan
    np.savez("nan.npz", **data)
    given = ("--logits", "nan.npz", "--tasks", "tasks.json", "--out", "cal.safetensors", "--holdout", 0.5)
    result = CliRunner().invoke(calibrate, [str(a) for a in given])
    assert str(result.exception) == "nan.npz: logits: expected finite numbers, found nan at (417, 3)"
    labels = np.load("cal.npz")["labels"]
    labels[99] = 6
    np.save("wrong.npy", labels)
    result = CliRunner().invoke(calibrate, [*GIVEN, "--labels", "wrong.npy", "--holdout", "0.5", "--force"])
    assert str(result.exception) == "wrong.npy: labels: expected logit columns 0 to 5, found 6 at row 99"


def test_risk_bounds_the_error_among_accepted(folder):
    data = dict(np.load("cal.npz"))
    wrong = np.random.default_rng(1).random(600) < 0.2  # a fifth of the labels are not what the logits say
    data["labels"] = np.where(wrong, (data["labels"] + 1) % 6, data["labels"])
    np.savez("cal.npz", **data)
    run(calibrate, *GIVEN, "--holdout", 0.5)
    given = ("--calibrator", "cal.safetensors", "--in", "new.npy", "--out", "s.parquet")
    run(score, *given, "--risk", 0.4)
    limit = Conformal.load("cal.safetensors").risk_threshold(0.4)
    table = pq.read_table("s.parquet")
    np.testing.assert_array_equal(table["accept"].to_numpy(), table["score"].to_numpy() >= limit)
    result = CliRunner().invoke(score, [*given, "--risk", "0.05"])
    assert "risk: an error rate of 0.05 cannot be guaranteed at any threshold" in str(result.exception)


def test_tasks_are_a_file_or_json(folder):
    for tasks, match in (
        ("[[0, 1], [1]]", "column 1 is in task 0 and in task 1"),
        ("nofile.json", "found 'nofile.json'"),
        ('{"a": 1}', "one list of column indices per task, found None"),
        ("", "or a file, found ''"),
    ):
        result = CliRunner().invoke(calibrate, ["--logits", "cal.npz", "--tasks", tasks, "--out", "x.safetensors"])
        assert str(result.exception).startswith("--tasks: ") and match in str(result.exception)


def test_samples_for_decisions_are_not_those_of_calibration(folder):
    data, more = np.load("cal.npz"), np.load("more.npz")
    mixed = np.random.default_rng(1).permutation(600)
    (folder / "link.npz").symlink_to("cal.npz")
    np.savez("copy.npz", logits=data["logits"][mixed], labels=data["labels"][mixed])
    np.savez("part.npz", logits=data["logits"][:300], labels=data["labels"][:300])
    csv("cal.csv", data["logits"], label=data["labels"])
    np.save("labels.npy", data["labels"])
    for name in ("cal.npz", "link.npz", "copy.npz", "part.npz", "cal.csv"):
        for labels in ((), ("--labels", "labels.npy")):
            result = CliRunner().invoke(calibrate, [*GIVEN, *labels, "--conformal", name])
            assert result.exit_code == 1 and not (folder / "cal.safetensors").exists()
            assert str(result.exception).endswith(
                f"rows of cal.npz in {name}; give another file, or --holdout 0.5 or --folds 5 in its place"
            )
    np.savez("some.npz", **{name: np.concatenate([more[name], data[name][:6]]) for name in more})  # duplicates
    assert run(calibrate, *GIVEN, "--conformal", "some.npz").exit_code == 0


def test_class_names_as_labels_are_one_line_that_says_how_to_convert_them(folder):
    names = np.array(["cat", "dog", "fox", "hen", "owl", "rat"])
    np.save("names.npy", names[np.load("cal.npz")["labels"]])
    result = tood("calibrate", *GIVEN, "--labels", "names.npy")
    first = str(np.load("names.npy")[0])
    assert result.returncode == 1 and result.stderr == (
        f"tood: names.npy: labels: expected logit columns 0 to 5 (could not convert string to float: {first!r}); "
        "replace each class name by its logit column, as in [classes.index(name) for name in labels] with classes in "
        "the order of the columns\n"
    )


def test_scores_as_csv(folder):
    run(calibrate, *GIVEN, "--holdout", 0.5)
    given = ("--calibrator", "cal.safetensors", "--alpha", 0.1, "--in", "new.npy")
    for name in ("s.parquet", "s.csv"):
        assert f"{name}: 600 rows scored" in run(score, *given, "--out", name).stdout
    assert pyarrow.csv.read_csv("s.csv").to_pydict() == pq.read_table("s.parquet").to_pydict()
    result = CliRunner().invoke(score, [str(a) for a in (*given, "--in", "more.npz", "--out", "all.csv")])
    assert "all.csv: expected the name of a folder" in str(result.exception)
