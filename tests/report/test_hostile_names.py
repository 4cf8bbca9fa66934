"""Names from a hostile manifest or metrics file, through every command that shows them: nothing gets out."""

import csv
import io
import json
import re
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from tests.made_runs import make_run

from tood.cli import cli
from tood.evaluation import Scorer, load_metrics, measure
from tood.evaluation.metrics_file import Row, save_metrics, to_table
from tood.outputs import Run

FORMULAS = ["=1+1", "+1", "-1", "@SUM(1)"]
NAMES = [
    *FORMULAS,
    r"\input{/etc/passwd}",
    "\x1b[2J\x1b]0;x\x07",
    "<script>alert(1)</script>",
    "a|b\nc\n# d",
    "../../up",
    "/tmp/up",
]
FIGURES = ["../../up", r"$\foo$", "\x1b[2J\x1b]0;x\x07"]  # matplotlib reads mathematics between dollars
PAGE = [NAMES.index(name) for name in NAMES if "script" in name or "up" in name]  # runs on the page are audited in full


def tood(*arguments):
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert done.exit_code == 0, (arguments, done.output, done.exception)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Everything that commands print and write of runs whose learner, stream and detector have such names."""
    parent = tmp_path_factory.mktemp("a") / "b" / "c"
    runs, out = parent / "runs", parent / "out"
    made = make_run(parent / "made", gap=2.0, per_class=6, ood_count=20, features=False)
    measure(Run(made), [Scorer("energy"), Scorer("tood_mean_shift")])
    rows = [Row(**row) for row in load_metrics(made).to_pylist()]
    for number, name in enumerate(NAMES):
        shutil.copytree(made, runs / f"r{number}")
        manifest = json.loads((made / "manifest.json").read_text())
        manifest |= {"learner": name, "stream": NAMES[number - 1], "seed": 0}
        (runs / f"r{number}" / "manifest.json").write_text(json.dumps(manifest))
        copies = [row._replace(detector=name) for row in rows if row.detector == "energy"]
        save_metrics(to_table([*rows, *copies]), runs / f"r{number}" / "metrics.parquet")
    before = {path for path in parent.parent.parent.rglob("*") if runs not in path.parents}
    texts = {
        "report": tood("report", *(runs / f"r{number}" for number in PAGE), "--out", out / "report"),
        "report --against": tood("report", runs, "--tables", "--against", "paper", "--out", out / "tables"),
        "report md": tood("report", runs, "--tables"),
        "report --full": tood("report", *(runs / f"r{number}" for number in PAGE), "--full", "--out", out / "full"),
        "audit": tood("audit", runs, "--detectors", "energy", "--full"),
        "ablate": tood("ablate", runs, "--only", "margin", "--no-plots", "--out", out / "ablations"),
    }
    files = {path: path.read_text() for path in out.rglob("*") if path.suffix in (".csv", ".md", ".html")}
    after = {path for path in parent.parent.parent.rglob("*") if runs not in path.parents and out not in path.parents}
    return texts, files, after - before - {out}


def of(shown, suffix, *more):
    texts, files, _ = shown
    found = [text for path, text in files.items() if path.suffix == suffix] + [texts[name] for name in more]
    assert len(found) > len(more)
    return found


def test_nothing_is_written_outside_out(shown):
    assert shown[2] == set()


@pytest.mark.parametrize("name", FIGURES)
def test_names_in_figures_are_text_and_their_folders_stay_in_out(tmp_path, name):
    parent = tmp_path / "a" / "b"
    run = make_run(parent / "run", gap=2.0, per_class=6, ood_count=20, features=False, learner=name, stream=name)
    measure(Run(run), [Scorer("energy"), Scorer("tood_mean_shift")])
    said = tood("report", run, "--plots", "--out", parent / "report")
    said += tood("ablate", run, "--only", "margin", "--out", parent / "ablations")
    assert all(c.isprintable() or c == "\n" for c in said)
    drawn = {path.relative_to(parent).parts[0] for path in tmp_path.rglob("*.png") if parent in path.parents}
    assert drawn == {"report", "ablations"}
    assert {path.name for path in tmp_path.rglob("*")} >= {"margin.png", "task0.png"}
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and [p.name for p in (tmp_path / "a").iterdir()] == ["b"]


def test_no_cell_of_a_csv_file_is_a_formula(shown):
    cells = [cell for text in of(shown, ".csv") for row in csv.reader(io.StringIO(text)) for cell in row]
    assert any(cell == "'=1+1" for cell in cells)
    for cell in cells:
        assert not cell.startswith(("=", "@", "\t", "\r")) and cell.isprintable(), cell
        assert not cell.startswith(("-", "+")) or np.isfinite(float(cell))


def test_no_html_and_no_new_line_in_markdown(shown):
    texts = of(shown, ".md", "report md")
    assert any("&lt;script" in text for text in texts)
    for text in texts:
        assert "<script" not in text and "\n# d" not in text
        for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
            assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_no_escape_sequence_reaches_the_terminal(shown):
    for name, text in shown[0].items():
        assert all(c.isprintable() or c == "\n" for c in text), name
    assert any(r"\x1b[2J" in text for text in shown[0].values())


def test_no_script_in_the_page_comes_from_a_name(shown):
    page, _ = of(shown, ".html")
    assert "<script>alert" not in page and "alert(1)" in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", page)


def test_the_status_of_a_sweep_shows_what_a_log_says_as_text(tmp_path):
    (tmp_path / "sweep.yaml").write_text("grid: {seed: [0]}\nbase: {preset: smoke}")
    (tmp_path / "runs" / ".logs").mkdir(parents=True)
    (tmp_path / "runs" / ".logs" / "digits-icarl-smoke-s0.log").write_text("tood: \x1b[2Jfailed\x07\n")
    arguments = ["sweep", tmp_path / "sweep.yaml", "--out", tmp_path / "runs", "--status"]
    assert r"failed: \x1b[2Jfailed\x07" in tood(*arguments)
    for stream in ("/abs/x", "../../x"):
        (tmp_path / "sweep.yaml").write_text(f"grid: {{stream: ['{stream}']}}")
        assert "x" in tood(*arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "sweep.yaml"]
