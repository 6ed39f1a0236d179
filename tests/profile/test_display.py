"""A report is shown in the way that the place where the code runs can show."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from perfnb import shell
from perfnb.profile import display
from perfnb.profile.report import report_document
from tests import summaries
from tests.samples import texts
from tests.samples.profile import DOCUMENTS

VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def notebook(monkeypatch):
    """What is displayed, in a notebook that only notes it."""
    shown = []
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda bundle, **options: shown.append((bundle, options)))
    return shown


def test_outside_a_notebook_the_text_is_printed(capsys):
    display.show(summaries.small_cnn())
    assert "small CNN" in capsys.readouterr().out


def test_a_notebook_gets_the_static_twin_and_then_the_live_report(notebook):
    display.show(summaries.small_cnn())
    (static, options), (live, _) = notebook
    assert options == {"raw": True}
    assert set(static) == {"text/plain", "text/html"}
    assert set(live) == {VIEW}
    assert 'class="perfnb-static-live perfnb-static-' in static["text/html"]


def test_two_reports_do_not_hide_each_other_s_twin(notebook):
    display.show(summaries.small_cnn())
    display.show(summaries.small_cnn())
    assert notebook[0][0]["text/html"] != notebook[2][0]["text/html"]


def test_without_widgets_the_static_twin_stands_alone(notebook, monkeypatch):
    monkeypatch.setitem(sys.modules, "perfnb.profile.widget", None)
    display.show(summaries.small_cnn())
    ((static, _),) = notebook
    assert "perfnb-static-live" not in static["text/html"].replace(".perfnb-static-live", "")


def test_a_poor_terminal_gets_question_marks(monkeypatch, capsys):
    class Ascii:
        encoding = "ascii"

        def __init__(self, stream):
            self.write, self.flush = stream.write, stream.flush

    monkeypatch.setattr(sys, "stdout", Ascii(sys.stdout))
    shell.print_text("├─ head 3 µs")
    assert capsys.readouterr().out == "?? head 3 ?s\n"


def test_the_widget_describes_itself_in_a_line():
    from perfnb.profile.widget import ReportWidget

    widget = ReportWidget(report_document(summaries.small_cnn()), "a")
    bundle, _ = widget._repr_mimebundle_()
    assert repr(widget) == bundle["text/plain"] == "ReportWidget('small CNN')"
    assert bundle[VIEW]["model_id"] == widget.model_id
    assert {"data", "_esm", "_css"} <= set(widget.get_state())
    widget.close()


def test_a_page_that_asks_for_the_whole_timeline_gets_it_while_there_is_one(monkeypatch):
    from perfnb.profile.widget import ReportWidget

    made, sent = [b"all", None], []
    monkeypatch.setattr(ReportWidget, "send", lambda self, content, buffers=None: sent.append((content, buffers)))
    document = report_document(summaries.small_cnn())
    widget = ReportWidget(document, "a", b"some", lambda: made.pop(0))
    for content in ("timeline", {}, {"timeline": "part"}, {"stop": 1}, {"try": None}):
        widget._answer(None, content, [])
    assert sent == []
    for _ in range(2):
        widget._answer(None, {"timeline": "whole"}, [])
    assert sent == [({"timeline": "whole"}, [b"all"])]
    assert widget.timeline == b"some"
    widget.close()
    other = ReportWidget(document, "b")
    other._answer(None, {"timeline": "whole"}, [])
    assert len(sent) == 1
    pressed = []
    other._trying = SimpleNamespace(
        possible=True, stop=lambda: pressed.append("stop"), press=lambda *args: pressed.append(args)
    )
    for content in ({"stop": 1}, {"try": "compile", "after": 2}, {"try": None}):
        other._answer(None, content, [])
    assert pressed == ["stop", ("compile", 2)]
    assert sent[1:] == [({"try": "ready"}, None)]
    other._trying.possible = False
    other._answer(None, {"try": None}, [])
    assert len(sent) == 2
    other.close()


@pytest.mark.parametrize("whole", [True, False])
def test_a_long_timeline_is_kept_for_the_page(notebook, monkeypatch, whole):
    asked = []
    monkeypatch.setattr(display, "bytes_of_report", lambda timeline, rows: (b"some", {"whole": whole}))
    monkeypatch.setattr(display, "report_document", lambda summary, timeline, facts: report_document(summary))
    monkeypatch.setattr(display, "timeline_bytes", lambda made, rows, limit: (f"bytes of {made}".encode(), {}))
    monkeypatch.setattr(
        "perfnb.profile.widget.ReportWidget", lambda document, view, saved, all_of, kept: asked.append(all_of)
    )
    monkeypatch.setattr(display, "show_live", lambda bundle, widget: widget("a"))
    again = iter([lambda: "a timeline", None, lambda: None])
    display.show(summaries.small_cnn(), None, lambda: next(again))
    (whole_of,) = asked
    assert (whole_of is None) == whole
    if not whole:
        assert [whole_of() for _ in range(3)] == [b"bytes of a timeline", None, None]


def test_a_page_has_the_timeline_with_the_row_of_each_layer(monkeypatch):
    monkeypatch.setattr(display, "timeline_bytes", lambda timeline, rows, limit: (b"packed", {"rows": rows}))
    monkeypatch.setattr(display, "report_document", lambda summary, timeline, facts: (timeline, facts))
    monkeypatch.setattr(display, "document_page", lambda document, packed: (document, packed))
    summary = summaries.small_cnn()
    timeline = SimpleNamespace(layers=["in no table", summary.layers.index[1]])
    assert display.standalone_page(summary) == ((None, None), b"")
    assert display.standalone_page(summary, timeline) == ((timeline, {"rows": [-1, 1]}), b"packed")


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
