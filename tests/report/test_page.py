"""The page holds the run's own numbers, asks the network for nothing, and takes no data for markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tood import ToodError
from tood.audit import audit, ensure_verdict
from tood.cli import cli
from tood.evaluation.measure import measure
from tood.evaluation.metrics_file import load_metrics, trajectory
from tood.evaluation.score import Scorer
from tood.outputs import Run, find_runs
from tood.paper.reference import reported
from tood.report import plots as figures
from tood.report.appearance import label, spread
from tood.report.gather import MeasuredRun, StepScores, scores_at
from tood.report.page.content import histograms
from tood.report.page.write import write_page
from tood.report.summary import collect


def data_of(page: str) -> dict[str, Any]:
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(block)


@pytest.fixture(scope="module")
def page(five: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_page([Run(five)], tmp_path_factory.mktemp("page") / "report.html").read_text(encoding="utf-8")


def test_triangles_are_metrics_parquet(page: str, five: Path) -> None:
    (run,) = data_of(page)["runs"]
    table = load_metrics(five)
    rows = {
        (row["detector"], row["metric"], row["ood_set"], row["step"], row["task"]): row["value"]
        for row in table.to_pylist()
        if row["task"] is not None
    }
    assert set(run["metrics"]["energy"]) == {"auroc", "fpr_at_ood_recall", "fpr_at_id_recall", "aupr_in", "aupr_out"}
    places = [(t, i) for t in range(5) for i in range(t + 1)]
    count = 0
    for detector, metrics in run["metrics"].items():
        for metric, sets in metrics.items():
            for name, triangle in sets.items():
                for (t, i), value in zip(places, triangle, strict=True):
                    assert value == pytest.approx(rows[detector, metric, name, t, i], abs=5.1e-6)
                    count += 1
    assert count == sum(key[0] is not None for key in rows)
    accuracy = [rows[None, "accuracy", None, t, i] for t, i in places]
    assert run["accuracy"] == pytest.approx(accuracy, abs=5.1e-6)


def test_the_main_table_is_the_summary_of_the_runs(sweep: Path, tmp_path: Path) -> None:
    runs = find_runs([sweep])
    shown = data_of(write_page(runs, tmp_path / "report.html").read_text(encoding="utf-8"))
    expected = collect([(run, load_metrics(run.path)) for run in runs])
    for row in [*shown["table"], *shown["accuracy"]]:
        for metric, cell in row["values"].items():
            summary = expected[row["stream"], row["learner"], row["detector"], metric]
            assert (cell["mean"], cell["std"], cell["seeds"]) == summary
    assert {row["learner"] for row in shown["table"]} == {"icarl", "der", "wa"}
    assert [bool(run["scores"]) for run in shown["runs"]] == [True, True, False, True]  # der, icarl s0 and s1, wa
    assert len(shown["verdicts"]) == 3 and shown["start"] in {run["name"] for run in shown["runs"]}


def test_the_paper_s_figures_stand_beside_ours(build: Callable[..., Path], tmp_path: Path) -> None:
    run = build(tmp_path / "run", stream="cifar10", tasks=2, detectors=("energy", "tood_mean_shift"))
    page = write_page([Run(run)], tmp_path / "report.html", reported())
    shown = data_of(page.read_text(encoding="utf-8"))
    theirs = {row["detector"]: row["values"]["avg_auroc"]["paper"] for row in shown["table"]}
    assert theirs == {"energy": 65.9, "tood_mean_shift": 66.5}  # Table 1, iCaRL
    assert shown["accuracy"][0]["values"]["avg_cil_acc"]["paper"] == 80.9


def test_shares_read_off_histograms_are_exact(five: Path) -> None:
    along = scores_at(Run(five), ["energy"], range(5), None)["energy"]
    found = histograms(along, range(5))
    for place, step in enumerate(found["steps"]):
        scored = along[step]
        groups = {"all": scored.id} | {str(i): scored.id[scored.tasks == i] for i in range(step + 1)}
        low, high = found["ranges"][place]
        for j, edge in enumerate(low + (high - low) * np.arange(found["bins"] + 1) / found["bins"]):
            for name, scores in groups.items():
                counts = found["id"][name][place]
                assert sum(counts[j + 1 :]) == np.sum(scores >= edge) and sum(counts) == len(scores)
            for name, scores in scored.ood.items():
                assert sum(found["ood"][name][place][: j + 1]) == np.sum(scores < edge)
    assert found["id"]["4"][:4] == [None] * 4


def test_histograms_of_long_streams_are_thinned_and_constant_scores_do_not_break_them() -> None:
    along = [StepScores(np.zeros(t + 1), np.arange(t + 1), {"far": np.zeros(3)}) for t in range(60)]
    steps = spread(60, 21)
    found = histograms([along[step] for step in steps], steps)
    assert len(found["steps"]) == 21 and found["steps"][-1] == 59
    assert list(found["id"]) == ["all", "0", "15", "30", "44", "59"]
    assert found["ranges"][-1] == [-0.5, 0.5] and found["bins"] == 100  # so 0 is an edge, and is accepted there
    assert found["id"]["all"][-1] == [0] * 51 + [60] + [0] * 50


def test_a_long_stream_is_shown_by_group(long: Path, tmp_path: Path) -> None:
    (run,) = data_of(write_page([Run(long)], tmp_path / "report.html").read_text(encoding="utf-8"))["runs"]
    assert run["sets"] == {"near": "near", "far": "far"} and set(run["metrics"]["energy"]) == {
        "auroc", "fpr_at_ood_recall"}  # fmt: skip
    far = trajectory(load_metrics(long), "energy").group("far").mean()
    assert run["metrics"]["energy"]["auroc"]["far"] == pytest.approx(far[np.tril_indices(22)].tolist(), abs=5.1e-6)


def test_nothing_is_fetched_and_only_our_scripts_may_run(page: str) -> None:
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert re.findall(r"(?:src|href)=\"(?!#|data:)[^\"]*", markup) == []
    assert "url(" not in markup and "@import" not in markup
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert re.findall(r"'sha256-([^']*)'", policy) == digests and len(digests) == 5


def test_the_embedded_libraries_are_those_of_the_notice(page: str) -> None:
    assets = resources.files("tood.report.page") / "assets"
    notice = (assets / "NOTICE.md").read_text(encoding="utf-8")
    for name, version in (("d3.min.js", "7.9.2"), ("plot.umd.min.js", "0.6.17")):
        script = (assets / name).read_bytes()
        assert hashlib.sha256(script).hexdigest() in notice and f"v{version}".encode() in script[:100]
        assert version in notice and version in page
    assert "this permission notice appear in all copies" in notice and "THE SOFTWARE IS PROVIDED" in page


def test_the_page_is_reproducible_and_writes_no_figures_into_the_run(five: Path, tmp_path: Path, page: str) -> None:
    before = (five / "metrics.parquet").read_bytes()
    again = write_page([Run(five)], tmp_path / "again.html").read_text(encoding="utf-8")
    assert again == page and (five / "metrics.parquet").read_bytes() == before


def test_torch_is_not_needed(five: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\nfrom tood.outputs import Run\nfrom tood.report.page.write import write_page\n"
        "import tood.report.plots\n"
        f"write_page([Run({str(five)!r})], Path({str(tmp_path / 'page.html')!r}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "page.html").stat().st_size > 400_000


def test_a_run_without_its_outputs_still_has_its_figures(five: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("manifest.json", "metrics.parquet"):
        (tmp_path / "run" / name).write_bytes((five / name).read_bytes())
    shown = data_of(write_page([Run(tmp_path / "run")], tmp_path / "report.html").read_text(encoding="utf-8"))
    assert shown["verdicts"][0]["cause"] == "not known" and shown["runs"][0]["scores"] is None
    assert len(shown["table"]) == 7


def test_command(five: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    shutil.copytree(five, run)
    result = CliRunner().invoke(cli, ["report", str(run)])
    assert result.exit_code == 0 and "Avg AUROC" in result.stdout
    assert result.stderr.startswith(f"The page: {run / 'report/report.html'}\nNext: ")
    assert data_of((run / "report/report.html").read_text(encoding="utf-8"))["title"].endswith(
        "iCaRL on digits, seed 0"
    )
    monkeypatch.setattr(figures, "draw_all", lambda runs, folder, *_, **__: [folder / "a.png", folder / "a.pdf"])
    result = CliRunner().invoke(cli, ["report", str(run), "--plots", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0 and result.stdout == ""
    assert result.stderr.strip() == f"2 files in {tmp_path / 'out/plots'}"
    assert not (tmp_path / "out/report.html").exists()


def test_bad_input(five: Path, tmp_path: Path) -> None:
    with pytest.raises(ToodError, match="at least one"):
        write_page([], tmp_path / "page.html")
    (tmp_path / "unmeasured").mkdir()
    (tmp_path / "unmeasured/manifest.json").write_bytes((five / "manifest.json").read_bytes())
    with pytest.raises(ToodError, match=r"metrics\.parquet: no such file"):
        MeasuredRun(Run(tmp_path / "unmeasured"))


def test_the_page_recommends_what_it_measured_best(build: Callable[..., Path], tmp_path: Path) -> None:
    """Features that tell OOD from ID where logits do not: the verdict must name a detector that reads them."""
    names = ("energy", "tood_mean_shift", "tood_joint", "typicality")
    run = Run(build(tmp_path / "run", stream="mine", tasks=3, detectors=names))
    for step in run.steps():
        folder = run.folder(step) / "outputs"
        for path in (folder / "ood").glob("*.npz"):
            with np.load(path) as file:
                outputs = dict(file)
            outputs["logits"] = outputs["logits"] + 20.0  # OOD is louder than anything known
            outputs["features"] = -np.abs(outputs["features"]) - 1.0  # and lies where nothing known does
            np.savez(path, **outputs)
    expected = audit(run, names).verdict.advice.use
    assert expected in ("tood_joint", "typicality")
    measure(run, [Scorer(name) for name in names])
    shown = data_of(write_page([run], tmp_path / "report.html").read_text(encoding="utf-8"))
    assert shown["verdicts"][0]["card"] is None  # of other figures: the page says so, and does not score
    ensure_verdict(run)
    shown = data_of(write_page([run], tmp_path / "report.html").read_text(encoding="utf-8"))
    assert shown["verdicts"][0]["card"]["with features"].startswith(f"{label(expected)}")
