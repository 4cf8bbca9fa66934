"""The page in a real browser: it draws, says nothing on the console, asks for nothing, and its controls work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tood.evaluation import load_metrics, trajectory
from tood.outputs import Run, find_runs
from tood.report.gather import MeasuredRun, scores_at
from tood.report.page.write import write_page


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page; at the end there must have been no message on the console and no request but the file itself."""
    opened: list[tuple[Any, list[str], list[str]]] = []

    def open_page(path: Path, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        tab, said, asked = context.new_page(), [], []
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(path.as_uri())
        opened.append((context, said, asked))
        return tab

    yield open_page
    for context, said, asked in opened:
        context.close()
        assert said == []
        assert len(asked) == 1 and asked[0].startswith("file:")


@pytest.fixture(scope="module")
def page(five: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page([Run(five)], tmp_path_factory.mktemp("page") / "report.html")


def rows(tab: Any, table: str) -> dict[str, list[str]]:
    """The texts of a table's cells by its row heading."""
    found = tab.eval_on_selector_all(
        f"#{table} tbody tr", "all => all.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return {cells[0]: cells[1:] for cells in found}


def test_numbers_are_those_of_metrics_parquet(visit: Callable[..., Any], page: Path, five: Path) -> None:
    tab, one = visit(page), MeasuredRun(Run(five))
    energy = one.trajectory("energy")
    main = rows(tab, "main-table")["Energy"]
    figures = [energy.balanced().average(), *(energy.group(g).average() for g in ("near", "far"))]
    figures += [
        energy.balanced().average_forgetting(),
        one.trajectory("energy", "fpr_at_ood_recall").balanced().average(),
    ]
    assert main == [f"{100 * figure:.1f}" for figure in figures]
    shown = rows(tab, "trajectory-table")
    assert [float(text) for text in shown["Energy"]] == pytest.approx(100 * energy.balanced().by_step(), abs=0.0056)
    tab.select_option("#ood-set", "set:noise")
    tab.select_option("#metric", "fpr_at_id_recall")
    tab.select_option("#task", "1")
    shown = rows(tab, "trajectory-table")
    expected = 100 * one.trajectory("energy", "fpr_at_id_recall", ood_set="noise").mean()[1:, 1]
    assert shown["Energy"][0] == ""
    assert [float(text) for text in shown["Energy"][1:]] == pytest.approx(expected, abs=0.0056)
    assert [float(t) for t in shown["Accuracy"][1:]] == pytest.approx(100 * one.accuracy[1:, 1], abs=0.0056)


def test_the_table_sorts_by_any_column_and_by_keyboard(visit: Callable[..., Any], page: Path) -> None:
    tab = visit(page)
    values = [float(cells[0]) for cells in rows(tab, "main-table").values()]
    assert values == sorted(values, reverse=True)
    tab.focus("#main-table th:nth-child(5) button")
    tab.keyboard.press("Enter")
    tab.keyboard.press("Enter")  # the same heading keeps the focus, and turns the order
    forgetting = [float(cells[3]) for cells in rows(tab, "main-table").values()]
    assert forgetting == sorted(forgetting)
    assert tab.get_attribute("#main-table th:nth-child(5)", "aria-sort") == "ascending"


def test_a_detector_can_be_hidden_and_the_chart_answers_the_pointer(visit: Callable[..., Any], page: Path) -> None:
    tab = visit(page)
    before = tab.locator("#trajectory-chart g[aria-label=line] path").count()
    tab.focus("#detectors input[value=energy]")
    tab.keyboard.press("Space")
    assert tab.locator("#trajectory-chart g[aria-label=line] path").count() == before - 1
    assert "Energy" not in rows(tab, "trajectory-table")
    tab.locator("#trajectory-chart svg").hover(position={"x": 540, "y": 60})
    tab.wait_for_selector("#trajectory-chart g[aria-label=tip] text")
    assert "step 2: " in tab.text_content("#trajectory-chart g[aria-label=tip]")
    drawn = tab.locator("#trajectory-chart").inner_html()
    tab.select_option("#metric", "aupr_in")
    assert tab.locator("#trajectory-chart").inner_html() != drawn


def test_heat_maps_show_every_task_at_every_step(visit: Callable[..., Any], page: Path, five: Path) -> None:
    tab = visit(page)
    assert tab.locator("#map-left-chart g[aria-label=cell] rect").count() == 15
    values = MeasuredRun(Run(five)).trajectory("tood_robust_anchor").balanced().mean()
    texts = tab.locator("#map-right-chart g[aria-label=text] text").all_text_contents()
    assert [int(text) for text in texts] == pytest.approx(100 * values[np.tril_indices(5)], abs=0.51)
    tab.select_option("#map-left", "msp")
    assert tab.locator("#map-left-chart g[aria-label=text] text").all_text_contents() != texts


def test_the_threshold_reads_off_id_recall_and_ood_caught(visit: Callable[..., Any], page: Path, five: Path) -> None:
    tab = visit(page)
    along = scores_at(Run(five), ["energy"], range(5), None)["energy"]
    assert float(rows(tab, "readout")["ID, task 0 accepted"][0]) >= 95
    tab.focus("#step")
    for _ in range(4):
        tab.keyboard.press("ArrowRight")
    tab.focus("#threshold")
    tab.keyboard.press("ArrowLeft")
    edge = tab.evaluate("edges()[+document.getElementById('threshold').value]")
    shown = {name: cells[0] for name, cells in rows(tab, "readout").items()}
    last = along[4]
    expected = {"ID, all tasks seen accepted": np.mean(last.id >= edge)}
    expected |= {f"ID, task {i} accepted": np.mean(last.id[last.tasks == i] >= edge) for i in range(5)}
    expected |= {f"{name} ({group}) caught": np.mean(last.ood[name] < edge) for name, group in Run(five).ood.items()}
    assert {name: float(text) for name, text in shown.items()} == pytest.approx(
        {name: 100 * share for name, share in expected.items()}, abs=0.051
    )
    box = tab.locator("#score-chart svg").last.bounding_box()
    before = tab.input_value("#threshold")
    tab.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 90)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 90, steps=4)
    tab.mouse.up()
    dragged = int(tab.input_value("#threshold"))
    assert dragged != int(before) and 70 <= dragged <= 90
    tab.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 90)  # the button is up: nothing moves
    assert int(tab.input_value("#threshold")) == dragged
    tab.click("#recall")
    assert float(rows(tab, "readout")["ID, task 0 accepted"][0]) >= 95


def test_a_sweep_lets_one_choose_the_run(visit: Callable[..., Any], sweep: Path, tmp_path: Path) -> None:
    tab = visit(write_page(find_runs([sweep]), tmp_path / "report.html"))
    assert tab.locator("#verdicts article").count() == 3
    before = rows(tab, "trajectory-table")["Energy"]
    tab.select_option("#run", label="WA on digits, seed 0")
    assert rows(tab, "trajectory-table")["Energy"] != before
    tab.select_option("#run", label="iCaRL on digits, seed 1")
    assert tab.is_visible("#no-scores") and tab.is_hidden("#score-panel")
    heads = [text.split(" ")[0] for text in tab.locator("#main-table thead th").all_text_contents()]
    assert heads[:2] == ["Score", "Mean"] and set(heads[2:]) == {"iCaRL", "DER", "WA"}  # learners side by side
    runs = {run.learner: load_metrics(run.path) for run in find_runs([sweep]) if run.manifest["seed"] == 0}
    shown = dict(zip(heads[1:], rows(tab, "main-table")["Energy"], strict=True))
    by_learner = [float(shown[name].split(" ")[0]) for name in heads[2:]]
    assert float(shown["Mean"]) == pytest.approx(np.mean(by_learner), abs=0.11)
    wa = 100 * trajectory(runs["wa"], "energy").balanced().average()
    assert shown["WA"] == f"{wa:.1f}" and "±" in shown["iCaRL"]
    tab.select_option("#table-metric", "d_avg")
    lost = 100 * trajectory(runs["wa"], "energy").balanced().average_forgetting()
    assert dict(zip(heads[1:], rows(tab, "main-table")["Energy"], strict=True))["WA"] == f"{lost:.1f}"
    tab.select_option("#table-learner", "wa")
    assert tab.locator("#main-table tbody tr").count() == 4
    tab.select_option("#table-learner", "icarl")
    assert "±" in rows(tab, "main-table")["Energy"][1]


def test_a_word_is_explained_on_focus_and_the_first_run_is_no_baseline(
    visit: Callable[..., Any], build: Callable[..., Path], tmp_path: Path
) -> None:
    for learner, fade in (("finetune", 0.9), ("der", 0.6)):
        build(tmp_path / learner, tasks=3, learner=learner, fade=fade, detectors=("energy", "tood_robust_anchor"))
    tab = visit(write_page(find_runs([tmp_path]), tmp_path / "report.html"))
    assert tab.locator("#run option:checked").text_content() == "DER on digits, seed 0"
    tab.locator(".term").first.focus()
    tip = tab.evaluate("getComputedStyle(document.activeElement, '::after').content")
    assert "learned together" in tip
    ends = tab.locator("#trajectory-chart g[aria-label=text] text").all_text_contents()
    assert set(ends) == {"Energy", "robust anchor (paper)"}  # labelled at the ends of their lines
    assert tab.locator("#accuracy-chart g[aria-label=line] path").count() == 1


def test_names_cannot_become_markup(visit: Callable[..., Any], build: Callable[..., Path], tmp_path: Path) -> None:
    evil = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">"
    path = build(tmp_path / "run", tasks=2, detectors=("energy",), learner=evil, classes=[evil, "b", "c", "d"])
    tab = visit(write_page([Run(path)], tmp_path / "report.html"))
    assert tab.title() == f"OOD forgetting: {evil} on digits, seed 0" and tab.locator("img").count() == 0
    assert evil in tab.locator("#settings-list").text_content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_colour_scheme_and_can_be_told(visit: Callable[..., Any], page: Path, scheme: str) -> None:
    tab = visit(page, color_scheme=scheme)

    def lightness(what: str) -> float:
        colour = tab.evaluate(f"getComputedStyle(document.body).{what}")
        return float(np.mean([int(part) for part in colour.strip("rgb()").split(",")[:3]]))

    assert (lightness("backgroundColor") > lightness("color")) == (scheme == "light")
    tab.focus("#theme")
    tab.keyboard.press("Enter")
    assert (lightness("backgroundColor") > lightness("color")) == (scheme == "dark")
    assert abs(lightness("backgroundColor") - lightness("color")) > 150


@pytest.mark.parametrize("width", [375, 1280])
def test_nothing_is_wider_than_the_screen_and_every_control_has_a_name(
    visit: Callable[..., Any], page: Path, width: int
) -> None:
    tab = visit(page, viewport={"width": width, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    right = tab.evaluate("document.querySelector('main').getBoundingClientRect().right")
    ends = tab.eval_on_selector_all(".chart svg text", "all => all.map((one) => one.getBoundingClientRect().right)")
    assert ends and max(ends) <= right + 1  # labels at the ends of lines too
    nameless = tab.eval_on_selector_all(
        "select, input, button",
        "all => all.filter((one) => !(one.labels?.length || one.textContent.trim())).map((one) => one.id)",
    )
    assert nameless == []
    heights = tab.eval_on_selector_all(
        "select, button:not(th button)", "all => all.filter((e) => e.offsetParent).map((e) => e.offsetHeight)"
    )
    assert min(heights) >= 32  # large enough for a finger


def test_a_long_stream_is_drawn(visit: Callable[..., Any], long: Path, tmp_path: Path) -> None:
    tab = visit(write_page([Run(long)], tmp_path / "report.html"))
    assert tab.locator("#map-left-chart g[aria-label=cell] rect").count() == 22 * 23 // 2
    assert tab.get_attribute("#step", "max") == "20"
    tab.focus("#step")
    tab.keyboard.press("End")
    assert tab.text_content("#step-value") == "21"


@pytest.mark.slow
def test_a_hundred_runs_and_a_hundred_tasks_stay_usable(
    visit: Callable[..., Any], browser: Any, build: Callable[..., Path], tmp_path: Path
) -> None:
    few = ("energy", "msp", "maxlogit", "knn", "tood", "tood_robust_anchor")
    one = build(tmp_path / "one", tasks=10, per_class=10, detectors=few)
    manifest = json.loads((one / "manifest.json").read_text())
    for place in range(100):
        copy = shutil.copytree(one, tmp_path / f"sweep/{place}")
        own = manifest | {"learner": ["icarl", "bic", "der", "wa", "lwf"][place % 5], "seed": place // 5}
        (copy / "manifest.json").write_text(json.dumps(own))
    build(tmp_path / "tasks", tasks=100, size=1, per_class=4, detectors=("energy", "msp", "tood"))
    for name in ("sweep", "tasks"):
        path = write_page(find_runs([tmp_path / name]), tmp_path / f"{name}.html")
        assert path.stat().st_size < 5e6
        tab = browser.new_page()
        session = tab.context.new_cdp_session(tab)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})  # processor time: free of the machine's load
        tab.goto(path.as_uri())
        spent = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        assert spent["TaskDuration"] < 2  # parsing, scripts, layout and paint
        assert tab.evaluate("performance.getEntriesByName('first-contentful-paint').length") == 1
        tab.close()
