"""The screenshot of the page: ``tood demo --full``, then ``python docs/images/page.py runs/demo/report/report.html``.

Needs Playwright, Pillow and Chromium.
"""

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

OUT = Path(__file__).with_name("page.png")


def main() -> None:
    """Take the top of the page, in 64 colours so that the file is small."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1100, "height": 1480})
        tab.goto(Path(sys.argv[1]).resolve().as_uri())
        tab.screenshot(path=OUT)
        browser.close()
    Image.open(OUT).convert("RGB").quantize(64).save(OUT, optimize=True)


if __name__ == "__main__":
    main()
