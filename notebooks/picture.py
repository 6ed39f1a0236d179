"""Makes the README's picture: ``make picture``, on a machine that does nothing else, with Chromium installed.

It profiles the step of ``make demo`` and photographs the head and the layers of the page that this writes.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "notebooks" / "images" / "report.png"
#: Width and height of what is shown, in pixels of the page; the picture has half as many more each way.
WIDTH, HEIGHT, SCALE = 1180, 1010, 1.5


def main() -> None:
    """Profile, open the page in Chromium without a screen, and write the picture."""
    from playwright.sync_api import sync_playwright

    from perfnb import demo

    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("The picture needs Chromium: install it, or leave the picture as it is.")
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
