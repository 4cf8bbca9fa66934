"""A real browser, for tests of the page and of the documentation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def _chromium() -> str | None:
    found = (shutil.which(name) for name in ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path), None)


def _missing(what: str) -> NoReturn:
    """On CI a page that no browser has shown is a failure; elsewhere the tests are skipped."""
    if os.environ.get("CI"):
        pytest.fail(f"{what}, and CI is set; TOOD_BROWSER=skip goes without")
    pytest.skip(what)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if os.environ.get("TOOD_BROWSER") == "skip":
        pytest.skip("TOOD_BROWSER=skip")
    try:
        from playwright import sync_api as api
    except ImportError:
        _missing("Playwright is not installed")
    if (path := _chromium()) is None:
        _missing("no Chromium on this machine")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield running
        running.close()
