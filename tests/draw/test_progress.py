"""Progress is drawn now and then, and leaves nothing behind."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from perfnb.draw import progress
from perfnb.draw.progress import Progress


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Line:
    def __init__(self):
        self.updates, self.closed = [], False

    def update(self, *update):
        self.updates.append(update)

    def close(self):
        self.closed = True


@pytest.fixture
def line(monkeypatch):
    made = Line()
    monkeypatch.setattr(progress, "_line", lambda: made)
    return made


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_at_most_five_updates_a_second(line):
    clock = Clock()
    with Progress(clock=clock) as advance:
        for step in range(100):
            advance("timed", step, 100)
            clock.now += 0.01
    assert len(line.updates) == 5
    assert line.closed


@pytest.mark.parametrize(
    ("done", "size", "percent"),
    [(0, 0, 0), (0, 1, 0), (1, 1, 100), (1, 3, 33), (199, 200, 99), (200, 200, 100)],
)
def test_a_file_is_read_in_percent(line, done, size, percent):
    with Progress(clock=Clock()) as advance:
        advance.of_file("a.json")(done, size)
    assert line.updates == [(f"{progress.READING}a.json", percent, 100, "")]


def test_a_new_pass_and_a_new_note_are_drawn_at_once(line):
    with Progress(clock=Clock()) as advance:
        advance("warmup", 1, 3)
        advance("warmup", 2, 3)
        advance("timed", 1, None)
        advance("timed", 2, 3, "a step takes 12 s")
        advance("timed", 3, 3, "a step takes 12 s")
    assert line.updates == [("warmup", 1, 3, ""), ("timed", 1, None, ""), ("timed", 2, 3, "a step takes 12 s")]


def test_it_ends_when_the_capture_fails(line):
    def interrupted():
        with Progress() as advance:
            advance("timed", 1, 3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert line.closed


def test_switched_off_or_in_a_script_it_is_silent(capsys):
    for enabled in (False, True):
        with Progress(enabled) as advance:
            advance("timed", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_on_stderr_without_a_thread(monkeypatch, nothing_left):
    from tqdm import tqdm

    monkeypatch.setattr(sys, "stderr", Terminal())
    before, interval = threading.active_count(), tqdm.monitor_interval
    with Progress() as advance:
        advance("warmup", 1, 5)
        advance("timed", 3, 20, "a note")
        assert threading.active_count() == before
    *drawn, cleared, rest = sys.stderr.getvalue().split("\r")
    assert list(dict.fromkeys(line.partition(": ")[0] for line in drawn if ": " in line)) == ["warm-up", "timed"]
    assert "3/20" in drawn[-1]
    assert drawn[-1].endswith("a note]")
    assert (cleared.strip(), rest) == ("", "")
    assert tqdm.monitor_interval == interval


def test_a_notebook_s_line_is_blank_in_the_end(monkeypatch):
    shown = []

    class Handle:
        def update(self, bundle, raw):
            shown.append(bundle)

    def display(bundle, raw, display_id):
        shown.append(bundle)
        return Handle()

    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", display)
    with Progress() as advance:
        advance("timed", 30, 20)
        advance("<b>", 1, None)
    empty = {"text/plain": "", "text/html": ""}
    assert shown[0] == shown[-1] == empty
    assert shown[1]["text/plain"] == "timed: step 30 of 20"
    assert 'value="20" max="20"' in shown[1]["text/html"]
    assert "&lt;b&gt;: step 1" in shown[2]["text/html"]


@pytest.mark.parametrize(
    ("progressed", "said"),
    [
        (("timed", 0, 20), "timed"),
        (("timed", 0, None), "timed"),
        (("timed", 1, 20), "timed: step 1 of 20"),
        (("timed", 1200, None), "timed: step 1,200"),
        (("reading a.json", 0, 100), "reading a.json: 0 %"),
        (("reading a.json", 40, 100), "reading a.json: 40 %"),
    ],
)
def test_how_much_is_done_in_words(progressed, said):
    assert progress.words(*progressed) == said


def test_a_notebook_s_line_has_its_note_and_no_amount_without_a_total(monkeypatch):
    shown = []
    handle = type("Handle", (), {"update": lambda self, bundle, raw: shown.append(bundle)})()
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: handle)
    drawn = progress._NotebookLine()
    drawn.update("timed", 3, None, "slow")
    drawn.update("timed", 3, 20, "")
    assert [each["text/plain"] for each in shown] == ["timed: step 3 · slow", "timed: step 3 of 20"]
    assert ["value=" in each["text/html"] for each in shown] == [False, True]


def test_a_line_that_is_given_is_used_even_if_progress_is_off():
    given = Line()
    with Progress(False, line=given) as advance:
        advance("timed", 1, 3)
    advance("timed", 2, 3)
    assert given.updates == [("timed", 1, 3, "")]
    assert given.closed
