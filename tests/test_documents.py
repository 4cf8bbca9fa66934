"""The README and the docs: examples run as written, links resolve, the site builds without a warning."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import griffe
import pytest
from docs import generated
from tests import processes

from tood.evaluation.metrics_file import detectors_of, load_metrics
from tood.testing import ContractError, check_detector

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(<!-- not run: [^>]+ -->\n)?^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL
)


def blocks(page):
    """Pairs (Python block, its output as shown in a text block below, or ""); a comment above excludes a block."""
    return [(code, output) for skip, code, output in BLOCK.findall(page.read_text()) if not skip]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_examples_run_and_print_what_is_shown(page, tmp_path, monkeypatch, capsys, request):
    if re.search(r"^(import|from) (timm|transformers|torchmetrics)", page.read_text(), re.MULTILINE):
        request.getfixturevalue("torchvision")
    if 'environ["TOOD_DATA"]' in page.read_text() and not os.environ.get("TOOD_DATA"):
        pytest.skip("needs the folder named by TOOD_DATA")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for code, output in blocks(page):
        exec(compile(code, str(page), "exec"), namespace)
        printed = capsys.readouterr().out
        assert not output or printed == output


def test_the_files_of_the_extend_page_go_through_every_command(tmp_path, monkeypatch, registries):
    """The page's files are checked and run; a sweep's workers import them; audit and report do not."""
    text = (ROOT / "docs" / "how-to" / "extend.md").read_text().replace(" \\\n    ", " ")
    for name, content in re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    checks = importlib.import_module("test_mine")
    for check in (checks.test_detector, checks.test_learner, checks.test_stream):
        check()
    commands = re.findall(r"^(tood .*)$", text, re.MULTILINE)
    assert [command.split()[1] for command in commands] == ["run", "sweep", "audit", "report"]
    printed = {}
    for command in commands:
        result = processes.tood(*command.split()[1:])
        assert result.returncode == 0, result.stderr
        printed[command.split()[1]] = result.stdout
    assert {"cosine", "energy"} <= set(detectors_of(load_metrics(tmp_path / "one")))
    assert "2 runs in runs" in printed["sweep"]
    assert "cosine" in printed["report"] and "Smooth replay" in printed["report"]
    page = (tmp_path / "report" / "report.html").read_text()
    assert "cosine" in page and "Smooth replay" in page


def test_a_package_with_the_entry_points_of_the_extend_page_is_found_once_pip_installed_it(tmp_path):
    pytest.importorskip("setuptools")
    text = (ROOT / "docs" / "how-to" / "extend.md").read_text()
    package = tmp_path / "project" / "my_package"
    package.mkdir(parents=True)
    for name in ("cosine.py", "smooth.py", "blobs.py"):
        code = re.search(rf'^```python title="{name}"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)[1]
        (package / name).write_text(code)
    points = re.search(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
    (package.parent / "pyproject.toml").write_text(f'[project]\nname = "my_package"\nversion = "1.0"\n{points}')
    site = tmp_path / "site"
    pip = ["install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", site, package.parent]
    subprocess.run([sys.executable, "-m", "pip", *map(str, pip)], check=True, capture_output=True, timeout=120)
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])

    def tood(*arguments):
        command = [sys.executable, "-m", "tood.cli", *arguments]
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = tood("list")
    assert "cosine" in listed and "smooth" in listed and "blobs" in listed
    options = {"stream": "blobs", "learner": "smooth", "preset": "smoke", "detectors": "energy,cosine", "out": "one"}
    tood("run", *(f"--{name}={value}" for name, value in options.items()))
    assert detectors_of(load_metrics(tmp_path / "one")) == ["cosine", "energy"]
    assert tood("audit", "one").startswith("Lost")


def test_the_message_of_the_extend_page_is_what_a_flipped_sign_gives(tmp_path, monkeypatch, registries):
    text = (ROOT / "docs" / "how-to" / "extend.md").read_text()
    code = re.search(r'^```python title="cosine.py"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "flipped.py").write_text(code.replace("return (features", "return -(features"))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ContractError) as caught:
        check_detector(importlib.import_module("flipped").Cosine)
    assert str(caught.value) in text


def test_links_between_pages_exist():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_code_and_commands_are_at_most_78_columns_wide():
    wide = [
        (page.name, line)
        for page in PAGES
        for code in re.findall(r"^```(?:python|console|bash|yaml)\b.*?\n(.*?)^```$", page.read_text(), re.M | re.S)
        for line in code.splitlines()
        if len(line) > 78
    ]
    assert not wide


def test_readme_opens_with_the_two_commands():
    head = (ROOT / "README.md").read_text()[:1500]
    assert "make demo" in head and "make test" in head


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    arguments = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    result = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and "WARNING" not in result.stderr, result.stderr
    return folder


def test_no_page_shows_a_docstring_role_or_an_unfilled_table(site):
    for page in site.rglob("*.html"):
        text = re.sub(r"<[^>]+>", "", page.read_text())
        assert not re.search(r":(meth|class|func|mod|attr|data):\S", text), page
        assert "generated: " not in page.read_text(), page


TABLES = "[...document.querySelectorAll('.md-typeset__scrollwrap')].filter((e) => e.scrollWidth > e.clientWidth)"


def test_every_table_fits_a_screen_of_1280_pixels(site, browser):
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    wide = set()
    for page in sorted(site.rglob("index.html")):
        tab.goto(page.as_uri())
        if tab.evaluate("document.documentElement.scrollWidth") > 1280 or tab.evaluate(f"{TABLES}.length"):
            wide.add(page.parent.relative_to(site).as_posix())
    tab.close()
    assert not wide


def test_the_reference_names_every_option_detector_and_setting(site):
    from tood import detectors, learners

    cli = (site / "reference" / "cli" / "index.html").read_text()
    for name, command in all_commands():
        assert f"<code>{name}</code>" in cli, name
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0] in cli, (name, option.opts)
    page = (site / "reference" / "detectors" / "index.html").read_text()
    assert all(f"<code>{name}</code>" in page for name in detectors.names())
    page = (site / "reference" / "learners" / "index.html").read_text()
    for name in learners.names():
        if name != "ber":
            assert f'id="{name}"' in page, name
        assert all(f"<code>{setting}</code>" in page for setting in learners.settings_of(name)), name


def all_commands():
    from tood.cli import cli

    def walk(context, command):
        yield context.command_path, command
        for name in command.list_commands(context) if isinstance(command, click.Group) else ():
            child = command.get_command(context, name)
            yield from walk(click.Context(child, parent=context, info_name=name), child)

    return walk(click.Context(cli, info_name="tood"), cli)


def test_docstrings_are_prepared_for_the_page():
    text = "Sum.\n\n>>> 1 + 1\n2\n\nParameters\n----------\na, b:\n    Numbers.\nc:\n    Another."
    function = griffe.Function("f", docstring=griffe.Docstring(text))
    generated.Docstrings().on_object(obj=function)
    example, parameters = function.docstring.value.split("\n\nParameters\n----------\n")
    assert example == "Sum.\n\n```pycon\n>>> 1 + 1\n2\n```"
    assert parameters.split() == ["a:", "Numbers.", "b:", "Numbers.", "c:", "Another."]


def test_generated_tables_in_the_repository_are_current():
    """After a change of options, settings or detectors: python -m docs.generated."""
    command = [sys.executable, "-m", "docs.generated", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_generated_tables_are_found_by_name():
    used = {name for page in PAGES for name in generated.MARKER.findall(page.read_text())}
    assert used == set(generated.GENERATORS)
