"""Render the pictures of the README and the documentation: ``make picture``, on an idle machine with Chromium.

The code of a page runs from the top, as a reader pastes it, and the picture is a screenshot of one of its results.
``python -m notebooks.pictures input loops`` renders only the pictures of these names.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "images"
#: Width of a picture in its own pixels, and its number of colours.
PIXELS, COLOURS = 1400, 32


class Picture(NamedTuple):
    """A picture: the page whose code makes the result, the result, and how much of it is seen.

    ``until`` is part of the last block of code that runs, ``tab`` is clicked first, and ``below`` is the tab at whose
    head the picture begins.
    """

    page: str
    result: str
    height: int
    until: str = ""
    tab: str = ""
    below: str = ""
    width: int = 1000


PICTURES = {
    "report": Picture("", "", 730, tab="Layers", width=1160),
    "quickstart": Picture("quickstart", "p", 420, until="%%profile_step"),
    "first_profile": Picture("first_profile", "p", 600, until="%%profile_step", tab="Layers"),
    "reading_top": Picture("reading", "p", 440),
    "reading_findings": Picture("reading", "p", 420, tab="Findings", below="Findings"),
    "reading_layers": Picture("reading", "p", 560, tab="Layers", below="Layers"),
    "reading_timeline": Picture("reading", "p", 560, tab="Timeline", below="Timeline"),
    "loops": Picture("loops", "loop.run", 620, until="print(loop.run)"),
    "trainers": Picture("trainers", "callback.run", 460, until="print(callback.run)"),
    "runs": Picture("runs", "run", 620, until="print(run)"),
    "memory": Picture("memory", "p", 760, until="peak = ", tab="Memory", below="Memory"),
    "leaks": Picture("leaks", "leaks", 560),
    "input": Picture("input", "test", 460, until="print(test)"),
    "stacks": Picture("stacks", "p", 560, tab="Flame graph", below="Flame graph"),
    "host_profiles": Picture("host_profiles", "h", 520, until="h.functions"),
    "compile": Picture("compile", "found", 420, until="print(found)"),
    "compiled": Picture("compiled", "p", 430, until="compiled_step, loader)", tab="Compiled", below="Compiled"),
    "comparing": Picture("comparing", "test", 520, until="print(test)"),
    "reports": Picture("reports", "r", 500, until="r.decision"),
    "architectures": Picture("architectures", "c", 540, until="print(c)"),
    "inference": Picture("inference", "found", 660, until="print(found)"),
    "tokens": Picture("tokens", "found", 620, until="print(found)"),
    "backends": Picture("backends", "found", 520, until="print(found)"),
    "ranks": Picture("ranks", "ranks", 640, until="%%profile_step"),
    "rank_scaling": Picture("rank_scaling", "study", 440, until="print(study)"),
    "launchers": Picture("launchers", "ranks", 640, until="print(ranks)"),
    "traces": Picture("traces", "p", 470, until="print(p)"),
    "watching": Picture("watching", "w", 490, until="%%gpuwatch"),
    "system": Picture("system", "c", 450, until="system_check"),
}


def main(names: list[str]) -> None:
    """Write the pictures of some names, or all of them: those of one page in a process of their own."""
    if unknown := set(names) - set(PICTURES):
        sys.exit(f"There is no picture {', '.join(sorted(unknown))}; there are {', '.join(PICTURES)}.")
    asked = names or list(PICTURES)
    if len({PICTURES[name].page for name in asked}) == 1:
        return write(asked)
    for page in dict.fromkeys(PICTURES[name].page for name in asked):
        its = [name for name in asked if PICTURES[name].page == page]
        subprocess.run([sys.executable, "-m", "notebooks.pictures", *its], cwd=ROOT, check=True)


def write(names: list[str]) -> None:
    """Run the code behind the pictures of a page, open the result in headless Chromium, and write them."""
    first = PICTURES[names[0]]
    with tempfile.TemporaryDirectory() as folder, chdir(folder), browser() as chromium:
        shown = Path(folder) / "shown.html"
        if first.page:
            result_of(first).to_html(shown)
        else:
            from perfnb import demo

            demo.main(shown)
        for name in names:
            shoot(chromium, shown, name)


def shoot(chromium: Any, shown: Path, name: str) -> None:
    """Open a result in a browser and write a picture of it."""
    picture, path = PICTURES[name], FOLDER / f"{name}.png"
    viewport = {"width": picture.width, "height": picture.height}
    page = chromium.new_page(viewport=viewport, device_scale_factor=PIXELS / picture.width)
    page.goto(shown.as_uri())
    if picture.tab:
        page.get_by_role("tab", name=picture.tab).click()
    if picture.below:
        tab = page.get_by_role("tab", name=picture.below)
        tab.evaluate("node => window.scrollTo(0, node.getBoundingClientRect().top + window.scrollY - 12)")
    page.wait_for_timeout(500)
    page.screenshot(path=path)
    page.close()
    compress(path)
    print(f"Wrote {path.relative_to(ROOT)}, {path.stat().st_size / 1e3:.0f} KB")


def result_of(picture: Picture) -> Any:
    """Run the code of a picture's page and return the result that it shows."""
    from IPython.core.interactiveshell import InteractiveShell

    from tests.docs.pages import DOCS, blocks_of

    shell = InteractiveShell.instance()
    for block in blocks_of(DOCS / f"{picture.page}.md"):
        if not block.not_run:
            shell.run_cell(block.code).raise_error()
        if picture.until and picture.until in block.code:
            break
    return eval(picture.result, shell.user_ns)


@contextmanager
def browser() -> Iterator[Any]:
    """Start headless Chromium."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        sys.exit("The pictures need Chromium, which is not installed.")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


def compress(path: Path) -> None:
    """Rewrite a picture with a palette of its most frequent colours, giving more weight to rare, bright colours."""
    from PIL import Image

    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    counted = picture.getcolors(picture.width * picture.height)
    by_weight = sorted(counted, key=lambda found: found[0] * (16 + max(found[1]) - min(found[1])), reverse=True)
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in by_weight[:COLOURS] for part in colour])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
