"""Implement *Try it*, which tries a finding's lever on the profile's own step and sends the result to the report."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Collection
from pkgutil import resolve_name
from typing import Any

from perfnb.draw.progress import words
from perfnb.draw.widget import json_of
from perfnb.profile.kept_step import KeptStep
from perfnb.profile.registry import TRY_ONE

_GONE = "The step of this profile no longer exists: profile it again."
_STOPPED = "Stopped. Everything was restored."


class Trying:
    """Tries levers on request, one at a time.

    Parameters
    ----------
    kept : KeptStep
        The step of the profile.
    levers : collection of str
        The levers in the profile's findings. Other levers are not tried.
    tell : callable
        Called with the state as JSON whenever it changes. The state consists of the ``count`` of completed trials, the
        lever that is ``running`` (or ``None``), its progress (``words``, ``done`` and ``total``), and the ``answers``,
        keyed by lever.
    """

    def __init__(self, kept: KeptStep, levers: Collection[str], tell: Callable[[str], None]) -> None:
        self._kept, self._levers, self._tell = kept, frozenset(levers), tell
        self._state: dict[str, Any] = {"count": 0, "running": None, "answers": {}}
        self._runs = False
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()  # the kernel's main one
        except RuntimeError:
            self._loop = None

    @property
    def possible(self) -> bool:
        """Whether the step still exists and the main thread is accessible."""
        return self._reached and self._kept.find() is not None

    @property
    def _reached(self) -> bool:
        return self._loop is not None or threading.current_thread() is threading.main_thread()

    def press(self, lever: Any, after: Any) -> bool:
        """Try a lever after its button was pressed, and return whether it will be tried.

        Button presses are ignored while another trial is running. Because a front end may deliver a press after that
        trial has ended, each press includes the number of trials that had ended before it (`after`).

        JupyterLab delivers messages in a separate thread, even while a cell is running. A trial must run in the main
        thread, where it can be interrupted and where no cell is running at the same time.
        """
        if not isinstance(lever, str) or lever not in self._levers or not self._reached:
            return False
        if self._state["running"] is not None or after != self._state["count"]:
            return False
        self._say(running=lever, words="waiting for the running cell", done=0, total=None)
        if threading.current_thread() is threading.main_thread():
            self._run(lever)
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._run, lever)
        return True

    def stop(self) -> None:
        """Stop the running trial, in the same way as a kernel interrupt."""
        if self._runs:  # if the trial is waiting for a cell, that cell must not be interrupted
            signal.raise_signal(signal.SIGINT)

    def _run(self, lever: str) -> None:
        answer: dict[str, Any] = {"error": _STOPPED}
        before = signal.getsignal(signal.SIGINT)
        self._runs = True
        try:
            if not callable(before):  # between messages, a kernel ignores interrupts
                signal.signal(signal.SIGINT, signal.default_int_handler)
            answer = self._answer(lever)
        except KeyboardInterrupt:
            pass
        finally:
            self._runs = False
            signal.signal(signal.SIGINT, before)
            self._say(count=self._state["count"] + 1, running=None, answers={**self._state["answers"], lever: answer})

    def _answer(self, lever: str) -> dict[str, Any]:
        parts = self._kept.find()
        if parts is None:
            return {"error": _GONE}
        self._say(words="starting")
        try:
            answer: dict[str, Any] = resolve_name(TRY_ONE)(parts, lever, _Line(self._say))
        except Exception as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            return {"error": f"It could not be tried: {said}"}
        return answer

    def _say(self, **news: Any) -> None:
        self._state |= news
        self._tell(json_of(self._state))


class _Line:
    """A progress line that is shown in the report."""

    def __init__(self, say: Callable[..., None]) -> None:
        self._say = say

    def update(self, pass_name: str, done: int, total: int | None, note: str) -> None:
        self._say(words=words(pass_name, done, total), done=done, total=total)

    def close(self) -> None:
        pass
