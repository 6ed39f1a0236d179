"""Names become text that shows what it is and does nothing."""

from __future__ import annotations

import json
import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfnb.draw import escape
from tests.summaries import HOSTILE

LONE = "\ud800 lone"
NAMES = st.one_of(st.text(), st.sampled_from((*HOSTILE, LONE)), st.text(alphabet="<>&\"'$\\\n\x1b\u202e\u0301a"))


@given(NAMES, st.integers(min_value=1, max_value=60))
def test_plain_text_is_one_short_visible_line(name, width):
    shown = escape.plain(name, width)
    assert escape.cells(shown) <= width
    assert len(shown.splitlines()) <= 1
    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}]
    shown.encode("utf-8")


@given(NAMES, st.integers(min_value=1, max_value=60))
def test_fitted_text_has_the_width_asked_for(name, width):
    assert escape.cells(escape.fit(name, width)) == width


@given(NAMES)
def test_markup_reads_back_as_the_text_that_was_shown(name):
    read = _Text()
    read.feed(f'<b title="{escape.html(name)}">{escape.html(name)}</b>')
    read.close()
    assert read.tags == [("b", [("title", escape.plain(name))])]
    assert "".join(read.text) == escape.plain(name)


@given(st.dictionaries(NAMES, st.one_of(NAMES, st.none(), st.floats(allow_nan=False, allow_infinity=False))))
def test_json_reads_back_and_cannot_end_its_script(value):
    text = escape.json_in_script(value)
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028\u2029")


def test_json_refuses_what_json_has_not():
    with pytest.raises(ValueError, match="JSON compliant"):
        escape.json_in_script([float("nan")])


def test_what_cannot_be_seen_is_spelled_out():
    assert escape.plain("a\nb\tc\x1b[31m\u202e\u2028") == r"a\nb\tc\x1b[31m\u202e\u2028"
    assert escape.plain(LONE) == r"\ud800 lone"


def test_names_have_at_most_200_characters():
    shown = [escape.plain("é" * length) for length in (199, 200, 201, 402, 403, 10_000)]
    assert [(len(name), name.count("…")) for name in shown] == [(199, 0), (200, 0), *[(200, 1)] * 4]


def test_wide_characters_count_twice():
    assert escape.fit("汉字", 6) == "汉字  "
    assert escape.cells(escape.plain("汉字" * 50, 11)) <= 11


def test_marks_do_not_climb():
    assert escape.plain("z" + "\u0301" * 300, 40).count("\u0301") <= 3


def test_formulas_are_plain_text_to_matplotlib():
    assert escape.chart("$x$") == r"\$x\$"


class _Text(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, attrs))

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("unit", ["%", "ms", "s", "µs", "B", "GiB"])
def test_a_number_and_its_unit_stand_on_one_line(unit):
    text = f"It takes 50.0 {unit}, and 3 more steps"

    for width in range(12, 40):
        lines = escape.wrapped(text, width)

        assert " ".join(lines) == text
        assert any(f"50.0 {unit}," in line for line in lines)


@pytest.mark.parametrize(
    ("width", "shown"), [(7, "abcdefg"), (6, "abc…fg"), (5, "ab…fg"), (2, "a…"), (1, "…"), (0, "")]
)
def test_a_name_is_shortened_in_its_middle(width, shown):
    assert escape.shorten("abcdefg", width) == shown


def test_long_words_are_broken_and_others_are_not():
    assert escape.wrapped("ab cd efg", 5) == ["ab cd", "efg"]
    assert escape.wrapped("ab cd efg", 4) == ["ab", "cd", "efg"]
    assert escape.wrapped("a bcdefgh i", 3) == ["a", "bcd", "efg", "h i"]
    assert escape.wrapped("", 3) == [""]


def test_lines_of_a_bullet_below_the_first_are_indented():
    assert escape.bullets(["one two", "three"], 6) == ["• one", "  two", "• thre", "  e"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("it is 50.0 ms [49.0, 51.0] b", "it is 50.0@ms [49.0,@51.0] b"),
        ("a 1.50 × [1.25, −2.00]", "a 1.50@× [1.25,@−2.00]"),
        ("a 3 GiB b 12 samples/s", "a 3@GiB b 12@samples/s"),
        ("a 3 more, version 5 breaks, 7, b", "a 3 more, version 5 breaks, 7, b"),
    ],
)
def test_only_figures_do_not_break_in_html(text, kept):
    assert escape.html_sentence(text) == kept.replace("@", "\u00a0")


def test_up_to_three_marks_belong_to_a_character():
    assert escape.plain("q\u0301\u0302\u0303") == "q\u0301\u0302\u0303"
    assert escape.plain("q\u0301\u0302\u0303\u0304a\u0301") == "q\u0301\u0302\u0303\\u0304\u00e1"


@pytest.mark.parametrize(
    ("char", "shown"), [("\x9f", r"\x9f"), ("\u200b", r"\u200b"), ("\ue000", r"\ue000"), ("\U000f0000", r"\U000f0000")]
)
def test_a_character_is_spelled_out_as_python_does(char, shown):
    assert escape.plain(f"a{char}b") == f"a{shown}b"
