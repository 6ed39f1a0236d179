"""The pages on how the numbers are made cover every figure and name the thresholds in the code."""

from __future__ import annotations

import inspect
import re

import pytest

from perfnb.findings import doubts
from perfnb.gpu import device_time
from perfnb.memory.leaks import judge as leaks
from perfnb.recording.schema import PASSES, SCHEMA
from perfnb.remedies.values import measure_yardstick
from perfnb.stats import slope
from perfnb.timeline import data as timeline_data
from perfnb.timeline import timeline as timeline_room
from tests.accuracy.test_distortion import POINTS
from tests.accuracy.test_findings_planted import BAND
from tests.docs.pages import DOCS, README

OVERVIEW = (DOCS / "numbers.md").read_text("utf-8")
PARTS = sorted(DOCS.glob("numbers_*.md"))
PAGES = "\n".join([OVERVIEW, *(path.read_text("utf-8") for path in PARTS)])
LABELS = ["How", "Uncertainty", "Limits", "Source"]
#: Sections that describe no figure.
APART = {"The passes", "What `NA` means"}

#: Steps after which a lever's parameters are compared.
CHECKED = inspect.signature(measure_yardstick).parameters["steps"].default

_SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
SECTIONS = dict(_SECTION.findall(PAGES))
_LABEL = re.compile(r"^- \*\*(.+?)\*\*: \S", re.MULTILINE)


@pytest.mark.parametrize("section", [title for title in SECTIONS if title not in APART])
def test_a_section_says_how_how_surely_within_which_limits_and_from_where(section: str) -> None:
    found = _LABEL.findall(SECTIONS[section])

    assert [label for label in found if label in LABELS] == LABELS


def test_sections_without_a_figure_are_known() -> None:
    assert {title for title in SECTIONS if not _LABEL.search(SECTIONS[title])} == APART


def test_the_overview_lists_every_page_and_every_pass() -> None:
    listed = re.findall(r"^\| \[.+?\]\((numbers_\w+\.md)\)", OVERVIEW, re.MULTILINE)
    assert sorted(listed) == [path.name for path in PARTS]

    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", OVERVIEW, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == set(PASSES)


def test_every_frame_of_a_profile_has_its_section() -> None:
    frames = {frame for frame in SCHEMA if not frame.startswith("diff_")} - {"marks"}  # names, not figures
    frames -= {"functions", "stacks"}  # of other tools' files
    assert {frame for frame in frames if f"`p.{frame}`" not in PAGES} == set()


@pytest.mark.parametrize(
    "words",
    [
        f"than a launch takes ({device_time.LAUNCH_NS / 1e3:g} µs)",
        f"({device_time.HANDOVER_NS / 1e3:g} µs at most)",
        f"under {leaks.PROCESS_FLOOR_BYTES >> 10} KiB per step",
        f"Below {slope.FEWEST_STEPS} steps",
        f"each of {timeline_room._MOMENTS:,} stretches",
        f"({timeline_data.NOTEBOOK_BYTES / 1e6:g} MB packed in a notebook,",
        f"{timeline_data.PAGE_BYTES / 1e6:g} MB in a page)",
        f"`make accuracy` allows {100 * POINTS:g}",
        f"between {BAND[0]:g} and {BAND[1]:g} times what removing them saves",
        f"more than a factor of {doubts._APART:g} apart",
        f"timed ones took {doubts._HELD_UP:g} times as long",
        f"the parameters and buffers after {'three' if CHECKED == 3 else CHECKED} steps",
    ],
)
def test_thresholds_are_those_of_the_code(words: str) -> None:
    assert words in " ".join(PAGES.split())


def test_the_readme_claims_no_more_of_bounds_and_shares_than_is_tested() -> None:
    text = " ".join(README.read_text("utf-8").split())

    assert f"between {BAND[0]:g} and {BAND[1]:g} times what removing them saves" in text
    assert f"`make accuracy` allows {100 * POINTS:g}" in text
