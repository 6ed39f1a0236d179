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


def test_a_new_pass_is_drawn_at_once(line):
    with Progress(clock=Clock()) as advance:
        advance("warmup", 1, 3)
        advance("warmup", 2, 3)
        advance("timed", 1, None)
    assert line.updates == [("warmup", 1, 3, ""), ("timed", 1, None, "")]


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
        advance("timed", 3, 20)
        assert threading.active_count() == before
    assert "warm-up" in sys.stderr.getvalue()
    assert "3/20" in sys.stderr.getvalue()
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


def test_a_new_note_is_drawn_at_once(line):
    with Progress(clock=Clock()) as advance:
        advance("timed", 1, 3)
        advance("timed", 2, 3, "a step takes 12 s")
        advance("timed", 3, 3, "a step takes 12 s")
    assert line.updates == [("timed", 1, 3, ""), ("timed", 2, 3, "a step takes 12 s")]
