"""Render the README's picture: ``make picture``, on an idle machine with Chromium.

It profiles the step of ``make demo`` and takes a screenshot of the top of the page and its layers.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "notebooks" / "images" / "report.png"
#: Width and height in CSS pixels, and pixels of the picture per CSS pixel.
WIDTH, HEIGHT, SCALE = 1180, 1010, 1.5


def main() -> None:
    """Profile, open the page in headless Chromium, and write the picture."""
    from playwright.sync_api import sync_playwright

    from perfnb import demo

    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("The picture needs Chromium, which is not installed.")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_path = Path(folder) / "demo.html"
        demo.main(page_path)
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=SCALE)
        page.goto(page_path.as_uri())
        page.get_by_role("tab", name="Layers").click()
        page.screenshot(path=PICTURE, clip={"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT})
        chromium.close()
    print(f"Wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
