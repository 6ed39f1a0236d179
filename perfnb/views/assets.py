"""The report's scripts and styles, read from the files that are shipped beside this module."""

from __future__ import annotations

import functools
import re
from importlib.resources import files

#: Parts of the report's script, in the order in which they are joined to one module.
SCRIPTS = (
    "format.js",
    "dom.js",
    "grid.js",
    "columns.js",
    "layers.js",
    "ops.js",
    "chart.js",
    "fits.js",
    "memory.js",
    "roofline.js",
    "main.js",
)


@functools.cache
def report_script() -> str:
    """The report's script: one ES module whose default export has ``render``."""
    return "".join(_read(name) for name in SCRIPTS)


@functools.cache
def report_style() -> str:
    """The report's style sheet."""
    return _read("theme.css") + _read("report.css") + _read("charts.css")


@functools.cache
def static_style() -> str:
    """The style sheet of the static twin, without comments and line breaks."""
    text = re.sub(r"/\*.*?\*/", "", _read("theme.css") + _read("static.css"), flags=re.S)
    return re.sub(r"\s*([{};,])\s*", r"\1", re.sub(r"\s+", " ", text)).strip()


def _read(name: str) -> str:
    return files("perfnb.views").joinpath("report", name).read_text(encoding="utf-8")
