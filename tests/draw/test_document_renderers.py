"""Contracts of text, HTML, Markdown and JSON, over every document in `DOCUMENTS`."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.draw.as_html import document_html
from perfnb.draw.as_json import document_data
from perfnb.draw.as_markdown import document_markdown
from perfnb.draw.as_text import LEAST, document_line, document_text, section_text
from perfnb.draw.document import Axis, Code, Column, Document, Figure, Heat, Line, Series, Table, Verdict, words
from perfnb.draw.documented import Documented, usual_width
from perfnb.draw.live import document_page
from perfnb.draw.palette import mark
from perfnb.draw.shown import WIDGET_VIEW, show_live
from tests.draw.document_samples import DOCUMENTS, everything, unknown

WIDTHS = (60, 200)
TAGS = {"bdi", "br", "caption", "circle", "details", "div", "em", "g", "i", "li", "ol", "p", "path", "pre", "span"}
TAGS |= {"strong", "style", "summary", "svg", "table", "tbody", "td", "text", "th", "thead", "title", "tr", "ul"}
ATTRIBUTES = {"align", "aria-hidden", "aria-label", "class", "colspan", "cx", "cy", "d", "fill", "fill-opacity"}
ATTRIBUTES |= {"font-size", "height", "open", "r", "role", "scope", "stroke", "stroke-dasharray", "stroke-opacity"}
ATTRIBUTES |= {"stroke-width", "style", "tabindex", "text-anchor", "title", "viewbox", "width", "x", "y"}
#: Elements that have no end tag.
VOID = {"br", "img", "meta"}


class _Page(HTMLParser):
    """The elements, attributes and visible words of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.words, self.open = set[str](), set[str](), list[str](), list[str]()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.words += [value or "" for name, value in attrs if name == "aria-label"]
        self.open += [tag] * (tag not in VOID)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def flat(text: str) -> str:
    """Return a text without line breaks, with non-breaking spaces as plain spaces."""
    return " ".join(text.replace("\u00a0", " ").split())


def hidden(text: str) -> set[str]:
    """Return the characters that are invisible or change how others are shown."""
    return {char for char in set(text) if unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp"}} - {"\n"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_whole_and_inert_in_every_format(name: str) -> None:
    document = DOCUMENTS[name]()
    assert "These figures disagree" not in " ".join(document.notes)

    texts = {width: document_text(document, width) for width in WIDTHS}
    for width, text in texts.items():
        assert not hidden(text)
        for line in text.splitlines():
            assert escape.cells(line) <= width, line
            assert line == line.rstrip()

    markdown = document_markdown(document)
    assert not re.search(r"<(?!/?[a-z]*\b(?:&|$))[a-z/]", markdown)
    assert "](" not in markdown
    assert "\x1b" not in markdown

    page = _Page(document_html(document))
    assert page.tags <= TAGS
    assert page.attributes <= ATTRIBUTES
    assert not page.open, "elements that are not closed"

    data = document_data(document)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert not hidden("".join(_texts(data)))

    text, html = flat(texts[max(WIDTHS)]), flat(" ".join(page.words))
    for figure in map(flat, _figures(data)):
        assert figure in text
        assert figure in html


@pytest.mark.parametrize("name", ["everything", "hostile"])
def test_a_page_has_one_module_and_no_name_as_markup(name: str) -> None:
    html = document_page(DOCUMENTS[name]())
    assert html.count("<script") == html.count("</script>") == 2
    assert "<img src=x" not in html


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from _texts(value)
    elif isinstance(data, list):
        for value in data:
            yield from _texts(value)


def _is_listed_whole(table: dict[str, Any]) -> bool:
    """Return whether text and HTML show every row and column of a table."""
    return (
        table["nesting"] is None and len(table["columns"]) < 20 and len(table["rows"]) <= min(table["budget"].values())
    )


def _figures(data: dict[str, Any]) -> Iterator[str]:
    """Yield the numbers of a document, in words, from its JSON alone: what text at a great width and HTML must show."""
    for figure in data["figures"]:
        yield fmt.with_interval(words(figure["value"], figure["unit"]), figure["value"], figure["interval"])
    for section in data["sections"]:
        if section["type"] == "bars":
            for bar in section["bars"]:
                yield from (words(part["value"], section["unit"]) for part in bar["parts"] if part["value"])
        elif section["type"] == "effects":
            for row in section["rows"]:
                yield fmt.with_interval(fmt.ratio(row["ratio"]), row["ratio"], row["interval"])
        elif section["type"] == "table" and _is_listed_whole(section):
            for row in section["rows"]:
                for cell, column in zip(row, section["columns"], strict=True):
                    if isinstance(cell, dict) and "parts" in cell:
                        yield words(cell["number"], column["unit"])
                    elif isinstance(cell, dict) and "number" in cell:
                        yield fmt.with_interval(words(cell["number"], cell["unit"]), cell["number"], cell["interval"])
                    elif isinstance(cell, str) and column["unit"] != "text" and not column["live"]:
                        yield cell
                    elif cell is not None and column["unit"] != "text" and not column["live"]:
                        yield cell if isinstance(cell, str) else words(cell, column["unit"])
        elif section["type"] == "scatter":
            for dot in section["dots"]:
                yield from (words(dot[axis], section[axis]["unit"]) for axis in "xy")
        elif section["type"] == "series":
            for line in section["lines"]:
                known = [value for value in line["values"] if value is not None]
                yield from (words(end, section["y"]["unit"]) for end in (known and (min(known), max(known))))
        elif section["type"] == "code":
            yield section["text"].splitlines()[0] if section["text"] else ""
        elif section["type"] == "cards":
            yield from (card["bound"] for card in section["cards"])
    for tab in data["tabs"]:
        yield from _figures(tab)


@pytest.mark.parametrize("width", [80, 100])
def test_a_document_as_text(width: int, golden: Callable[[str, str], None]) -> None:
    golden(f"document_{width}.txt", document_text(everything(), width) + "\n")


def test_nothing_known_is_a_header_and_no_empty_section() -> None:
    text = document_text(unknown())
    assert text.splitlines()[:2] == ["perfnb · profile", "step n/a · rate n/a"]
    assert "No " not in text
    assert "No " not in "".join(_Page(document_html(unknown())).words)


def test_a_column_in_which_nothing_is_known_is_left_out() -> None:
    columns = (Column("layer"), Column("FLOPs", "flops"), Column("time", "ms"))
    table = Table("Layers", columns, [("conv", None, 1.5), ("linear", float("nan"), None)])
    shown = Document("profile", sections=(table,))
    assert document_text(shown).splitlines()[2:] == [
        "Layers",
        "layer     time",
        "──────────────",
        "conv   1.50 ms",
        "linear     n/a",
        "n/a: not measured, or not applicable to this row",
    ]
    assert "FLOPs" not in document_html(shown)
    assert document_data(shown)["sections"][0]["rows"] == [["conv", None, 1.5], ["linear", None, None]]


def test_columns_give_way_in_the_order_of_their_priority() -> None:
    columns = (Column("layer"), *(Column(f"figure {n}", "ms", priority=n % 3) for n in range(7)))
    shown = Document("profile", sections=(Table("", columns, [("conv", *[1.5] * 7)]),))
    assert "Not shown at this width: figure 5." in document_text(shown, LEAST)
    assert "Not shown" not in document_text(shown, 100)


def test_a_document_in_one_line_has_its_subject_or_its_kind() -> None:
    verdict = Verdict("good", "It is fast.")
    shown = Document("profile", "net", verdict=verdict), Document("profile", verdict=verdict), Document("profile")
    assert [*map(document_line, shown)] == ["net: It is fast.", "profile: It is fast.", "profile"]


def test_text_is_as_wide_as_the_terminal_but_never_very_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, width in (("20", 60), ("133", 133)):
        monkeypatch.setenv("COLUMNS", columns)
        assert usual_width() == width
    monkeypatch.setattr("perfnb.draw.documented.in_notebook", lambda: True)
    assert usual_width() == 100


def test_code_keeps_its_indentation() -> None:
    shown = Document(
        "levers", verdict=Verdict("good", "Keep it", code="with a:\n\tb()"), sections=(Code("if a:\n    b"),)
    )
    assert document_text(shown).splitlines() == [
        "perfnb · levers",
        "Keep it",
        "      with a:",
        "          b()",
        "",
        "if a:",
        "    b",
    ]
    assert "<pre>with a:\n    b()</pre>" in document_html(shown)


@pytest.mark.parametrize(("room", "drawn"), [(40, "▁█▁▁▁▁▁▁"), (6, "█▁▁▁")])
def test_a_cell_of_a_heat_map_shows_its_own_value(room: int, drawn: str) -> None:
    """With too little room, a cell shows the largest of neighbouring values, and nothing of others."""
    heat = Heat("Waits", "ms", ["r"], list("abcdefgh"), [[1.0, 8.0, *[1.0] * 6]])
    assert section_text(heat, room)[1] == f"r {drawn}"


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    heat = Heat("Traffic", "bytes", ["a"], ["b", "c"], numpy.array([[1.5, numpy.nan]]))
    shown = Document("ranks", figures=(Figure("steps", numpy.int64(2**40), "count"),), sections=(heat,))
    data = document_data(shown)
    assert data["figures"][0]["value"] == 2**40
    assert data["sections"][0]["values"] == [[1.5, None]]
    assert re.search(r"1\.10 T", document_text(shown))


@pytest.mark.parametrize(("log", "ticks"), [(False, ["0 ms", "150 ms"]), (True, ["1 ms", "10 ms", "100 ms"])])
def test_a_wide_band_is_cut_off_and_an_axis_may_be_logarithmic(log: bool, ticks: list[str]) -> None:
    line = Line(mark("forward"), [1.0, 100.0], [1.0, 50.0], [2.0, 9_000.0])
    series = Series("Latency", Axis("rate", "/s"), Axis("latency", "ms", log), [1.0, 2.0], (line,))
    html = document_html(Document("latency", sections=(series,)))
    ends = re.findall(r'text-anchor="end">([^<]+)<', html)
    assert ends == ["2 /s", *ticks]
    (band,) = re.findall(r'd="([^"]+Z)"', html)
    assert min(float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", band)) == 8.0  # the top of the chart


class _Greeting(Documented):
    """A result as short as one can be."""

    def _document(self) -> Document:
        table = Table("Layers", (Column("layer"), Column("time", "ms", bar=True)), [("<conv>", 1.5), ("linear", 0.5)])
        return Document("greeting", "<b>", verdict=Verdict("good", "Hello: 2.00 ms"), sections=(table,))


def test_a_new_result_is_one_function(tmp_path: Path) -> None:
    result = _Greeting()
    for width in WIDTHS:
        assert "Hello: 2.00 ms" in document_text(result._document(), width)
    assert str(result).splitlines()[-2:] == ["<conv>  1.50 ms ████████", "linear 0.500 ms ██▋"]
    assert repr(result) == "<perfnb._Greeting: <b>: Hello: 2.00 ms>"
    assert "&lt;conv&gt;" in result._repr_mimebundle_()["text/html"]
    assert "<conv>" not in result.to_html(tmp_path / "greeting.html").read_text("utf-8")
    assert document_data(result._document())["sections"][0]["rows"] == [["<conv>", 1.5], ["linear", 0.5]]


def test_a_result_that_is_displayed_is_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("anywidget")
    described, displayed = list[Document](), list[Any]()

    class Costly(_Greeting):
        def _document(self) -> Document:
            described.append(super()._document())
            return described[-1]

    monkeypatch.setattr("perfnb.draw.documented.in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda bundle, **_: displayed.append(bundle))
    Costly()._ipython_display_()

    assert len(described) == 1
    static, live = displayed
    assert "Hello: 2.00 ms" in static["text/plain"]
    assert "perfnb-static-live" in static["text/html"]
    view = live["application/vnd.jupyter.widget-view+json"]
    assert (view["version_major"], view["version_minor"]) == (2, 0)


def test_a_live_view_follows_its_static_twin_if_widgets_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[Any, bool]] = []
    views: list[str] = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append((data, raw)))

    def widget(view: str) -> Any:
        views.append(view)
        return SimpleNamespace(_repr_mimebundle_=lambda: ({WIDGET_VIEW: "live", "text/plain": "x"}, {}))

    def absent(view: str) -> Any:
        raise ImportError

    static = {"text/plain": "t", "text/html": "<p>h</p>"}
    show_live(static, absent)
    assert shown == [(static, True)]
    for _ in range(2):
        shown.clear()
        show_live(static, widget)
        twin = f'<div class="perfnb-static-live perfnb-static-{views[-1]}"><p>h</p></div>'
        assert shown == [({"text/plain": "t", "text/html": twin}, True), ({WIDGET_VIEW: "live"}, True)]
    assert views[0] != views[1]


def test_what_has_a_document_prints_itself_outside_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Mine(Documented):
        """A result."""

        def _document(self) -> Document:
            return Document("thing", "of mine", verdict=Verdict("good", "All is well"))

    Mine()._ipython_display_()
    assert capsys.readouterr().out == f"{Mine()}\n"
    assert repr(Mine()) == "<perfnb.Mine: of mine: All is well>"
    monkeypatch.setattr("perfnb.draw.documented.in_notebook", lambda: True)
    monkeypatch.setattr("perfnb.draw.documented.show_live", lambda static, widget: print(sorted(static)))
    Mine()._ipython_display_()
    assert capsys.readouterr().out == "['text/html', 'text/plain']\n"
