"""A report of leaks as text and as HTML. Golden texts: ``pytest --overwrite-golden``."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from perfnb.draw import escape
from perfnb.memory.leaks.find import leak_sentence, leaks_html, leaks_text, slope_words
from perfnb.memory.leaks.judge import LeakReport
from perfnb.stats.slope import Slope
from tests import summaries

MIB = 2**20
KEPT = Slope(MIB, MIB, MIB, 40)
FLAT = Slope(0.0, 0.0, 0.0, 40)
PROCESS = Slope(1.02 * MIB, 0.98 * MIB, 1.07 * MIB, 40)
NOISY = Slope(0.0, -700.0, 900.0, 40)


def survivors(*rows: tuple[object, ...]) -> pd.DataFrame:
    columns = ["device", "layer", "phase", "op", "bytes_per_step", "count_per_step", "steps", "kind"]
    return pd.DataFrame(list(rows), columns=columns)


TWO = survivors(
    ("cpu", "encoder.layers.0", "forward", "aten::add", MIB - 4096.0, 1.0, 32, "kept"),
    ("cpu", pd.NA, pd.NA, pd.NA, 4096.0, 2.0, 32, "kept"),
)
GROWING = survivors(("cpu", pd.NA, "loss", "aten::cat", float(MIB), 1.0, 40, "growing"))
SOME = survivors(*[("cpu", f"h.{i}", "forward", "aten::mm", 1000.0 - i, 1.0, 32, "kept") for i in range(20)])
HOSTILE = survivors(
    *[("cpu", name, "backward", name, 1024.0, 1.0, 32, "kept") for name in summaries.HOSTILE]
)  # fmt: skip


def report(verdict: str, reason: str, allocator: Slope | None, process: Slope | None, **changes: object) -> LeakReport:
    steps = np.arange(40)
    levels = steps * int(allocator.bytes_per_step) if allocator else pd.array([pd.NA] * 40)
    resident = 500 * MIB + steps * int(process.bytes_per_step) if process else pd.array([pd.NA] * 40)
    frame = pd.DataFrame({"step": steps, "allocated_bytes": levels, "process_bytes": resident})
    made = LeakReport(verdict, reason, allocator, process, None, survivors(), 0.0, frame)
    return replace(made, **changes)  # type: ignore[arg-type]


EXAMPLES = {
    "kept": report("leak", "kept", KEPT, PROCESS, survivors=TWO, after=130),
    "more": report("leak", "kept", KEPT, Slope(3.0 * MIB, 2.9 * MIB, 3.1 * MIB, 40), survivors=SOME, beyond_bytes=2e6),
    "growing": report("leak", "growing", KEPT, None, survivors=GROWING),
    "outside": report("leak", "outside", FLAT, PROCESS),
    "process_only": report("leak", "outside", None, PROCESS),
    "settled": report("no leak seen", "settled", FLAT, NOISY, early=PROCESS),
    "shapes": report("inconclusive", "shapes", FLAT, PROCESS),
    "garbage": report("no leak seen", "garbage", KEPT, NOISY, garbage_bytes=float(MIB)),
    "collected": report("no leak seen", "garbage", Slope(0.56 * MIB, -MIB, 2.0 * MIB, 40), NOISY, garbage_bytes=6e5),
    "unseen": report("inconclusive", "unseen", KEPT, NOISY, survivors=TWO),
    "unexplained": report("inconclusive", "unexplained", KEPT, NOISY),
    "hidden": report("inconclusive", "hidden", Slope(9e6, -2e6, 2e7, 40), PROCESS, survivors=TWO),
    "few": report("inconclusive", "few", Slope(MIB, None, None, 8), None),
    "unknown": report("inconclusive", "unknown", None, None),
    "steady": report("no leak seen", "steady", FLAT, NOISY),
    "small": report("no leak seen", "steady", FLAT, Slope(8000.0, 7000.0, 9000.0, 40)),
    "hostile": report("leak", "kept", KEPT, PROCESS, survivors=HOSTILE),
}


def test_golden(golden):
    texts = (f"== {name}\n{leaks_text(example)}\n" for name, example in EXAMPLES.items())
    golden("leaks.txt", "\n".join(texts))


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_line_is_wider_than_asked(name, width):
    for line in leaks_text(EXAMPLES[name], "x" * 300, width).splitlines():
        assert escape.cells(line) <= width, line


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_leak_is_said_where_it_is_the_verdict_and_nowhere_else(name):
    sentence, verdict = leak_sentence(EXAMPLES[name]), EXAMPLES[name].verdict
    assert (": a leak" in sentence) == (verdict == "leak")
    assert ("No leak seen" in sentence) == (verdict == "no leak seen")


@pytest.mark.parametrize(
    ("slope", "text"),
    [
        (KEPT, "1.00 MiB per step [1.00, 1.00]"),
        (NOISY, "0 B per step [−700, 900]"),
        (Slope(-3 * MIB, -4 * MIB, 1000, 40), "−3.00 MiB per step [−4.00, 0.000954]"),
        (Slope(1023.9, 0, 1024, 40), "1.00 KiB per step [0, 1.00]"),
        (Slope(2048, None, None, 5), "2.00 KiB per step"),
    ],
)
def test_growth_is_told_in_one_unit(slope, text):
    assert slope_words(slope) == text


@pytest.mark.parametrize("name", EXAMPLES)
def test_html_is_made_of_known_elements(name):
    seen = _Seen(leaks_html(EXAMPLES[name], "<script>alert(1)</script>"))
    known = {"div", "style", "p", "strong", "br", "i", "table", "caption", "thead", "tbody", "tr", "th", "td", "bdi"}
    assert {tag for tag, _ in seen.tags} <= known
    keys = {key for _, attributes in seen.tags for key in attributes}
    assert keys <= {"class", "style", "scope", "title", "aria-hidden", "align", "role", "aria-label", "tabindex"}
    assert not seen.unclosed
    assert EXAMPLES[name].verdict[1:] in "".join(seen.text)


def test_no_address_is_asked_for():
    assert not re.search(r"https?:|url\(|@import|src=", leaks_html(EXAMPLES["kept"]))


def test_the_bars_rise_with_the_level():
    page = leaks_html(EXAMPLES["kept"])
    heights = [int(height) for height in re.findall(r"height:(\d+)%", page)]
    assert heights[:40] == sorted(heights[:40])
    assert (heights[0], heights[39]) == (4, 100)
    flat = [int(height) for height in re.findall(r"height:(\d+)%", leaks_html(EXAMPLES["outside"]))]
    assert set(flat[:40]) == {4}


class _Seen(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.unclosed = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "br":
            self.unclosed.append(tag)

    def handle_endtag(self, tag):
        assert self.unclosed.pop() == tag

    def handle_data(self, data):
        if self.unclosed[-1:] != ["style"]:
            self.text.append(data)
