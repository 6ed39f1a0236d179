"""The scripts and styles of what is drawn in the browser, read from the files that are shipped beside this module."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from importlib.resources import files

#: Parts that every view in the browser uses.
_SHARED = ("format.js", "dom.js", "grid.js", "columns.js", "layers.js", "chart.js", "notebook.js")

#: Charts of what was read of the machine.
_WATCHED = ("watch_store.js", "watch_lines.js", "watch_chart.js", "watch_strip.js", "watch_board.js", "watch_words.js")

#: The timeline: its events, its picture, what it says, how it is moved.
_TIMELINE = (
    "timeline_links.js",
    "timeline_store.js",
    "timeline_canvas.js",
    "timeline_marks.js",
    "timeline_frame.js",
    "timeline_details.js",
    "timeline_acts.js",
    "timeline_steer.js",
    "timeline_view.js",
    "timeline_plain.js",
    "timeline.js",
)

#: Parts of the report's script, in the order in which they are joined to one module.
SCRIPTS = (*_SHARED, "ops.js", *_TIMELINE, "findings.js", "fits.js", "memory.js", "roofline.js", "main.js")

#: The same with the tab of the machine.
WATCHED_SCRIPTS = (*SCRIPTS[:-1], *_WATCHED, "machine.js", SCRIPTS[-1])

#: The tab of the GPU.
GPU_SCRIPT = "gpu.js"

#: Parts of the script of the comparison of architectures.
ARCHITECTURES_SCRIPTS = (
    *_SHARED,
    "architecture_shares.js",
    "architecture_metrics.js",
    "architecture_trees.js",
    "architectures.js",
)

#: Parts of the script of a study of sizes.
SCALING_SCRIPTS = ("format.js", "dom.js", "chart.js", "notebook.js", "scaling.js")


#: Parts of the script of the live panel of a watch.
WATCH_SCRIPTS = ("format.js", "dom.js", "chart.js", "notebook.js", *_WATCHED, "watch.js")


@functools.cache
def report_script(watched: bool = False, gpu: bool = False) -> str:
    """The report's script: one ES module whose default export has ``render``.

    Parameters
    ----------
    watched : bool
        With the tab of the machine.
    gpu : bool
        With the tab of the GPU.
    """
    return _joined((GPU_SCRIPT,) * gpu + (WATCHED_SCRIPTS if watched else SCRIPTS))


@functools.cache
def report_style(watched: bool = False, gpu: bool = False) -> str:
    """The report's style sheet, with those of the tabs of the machine and of the GPU where there are such."""
    more = ("watch.css",) * watched + ("gpu.css",) * gpu
    return "".join(map(_read, ("theme.css", "report.css", "charts.css", "timeline.css", "findings.css", *more)))


@functools.cache
def architectures_script() -> str:
    """The script of the comparison of architectures: a module as the report's."""
    return "".join(map(_read, ARCHITECTURES_SCRIPTS))


@functools.cache
def architectures_style() -> str:
    """The style sheet of the comparison of architectures."""
    return report_style(watched=False) + _read("architectures.css")


@functools.cache
def scaling_script() -> str:
    """The script of a study of sizes: a module as the report's."""
    return "".join(map(_read, SCALING_SCRIPTS))


@functools.cache
def scaling_style() -> str:
    """The style sheet of a study of sizes."""
    return report_style(watched=False) + _read("scaling.css")


@functools.cache
def watch_script() -> str:
    """The script of the live panel of a watch: a module with ``initialize`` and ``render``."""
    return _joined(WATCH_SCRIPTS)


@functools.cache
def watch_style() -> str:
    """The style sheet of the live panel of a watch."""
    return report_style(watched=True)


@functools.cache
def static_style() -> str:
    """The style sheet of the static twin, without comments and line breaks."""
    text = re.sub(r"/\*.*?\*/", "", _read("theme.css") + _read("static.css"), flags=re.S)
    return re.sub(r"\s*([{};,])\s*", r"\1", re.sub(r"\s+", " ", text)).strip()


def _joined(names: Iterable[str]) -> str:
    """One module, without comments and indents: every notebook that is saved holds it."""
    return re.sub(r"^(\s+|//.*\n)", "", "".join(map(_read, names)), flags=re.M)


def _read(name: str) -> str:
    return files("perfnb.draw").joinpath("report", name).read_text(encoding="utf-8")
