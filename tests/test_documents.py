"""Every Python block of the README and the docs runs as written, in order, unless a comment above it says why not."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page):
    return [code for skip, code in BLOCK.findall(page.read_text()) if not skip]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for code in blocks(page):
        exec(compile(code, str(page), "exec"), namespace)


def test_links_between_pages_exist():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_readme_opens_with_the_two_commands():
    head = (ROOT / "README.md").read_text()[:1500]
    assert "make demo" in head and "make test" in head
