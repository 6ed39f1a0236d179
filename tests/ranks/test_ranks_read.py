"""Several ranks are read by executors and processes, with progress, and end together when one is bad."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfnb
from perfnb.errors import TraceError
from perfnb.recording import reading
from perfnb.trace import trace_file
from perfnb.trace.trace_file import Limits
from tests.ranks.rank_traces import rank_trace, written


class AtOnce(Executor):
    """An executor that runs each call immediately."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.mark.slow
def test_much_is_read_by_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    paths = written(tmp_path, [rank_trace(late).module("Net_0", 1, 900).module("Linear_0", 2, 800) for late in (0, 50)])
    alone = perfnb.load(paths)
    assert alone.layers["layer"].tolist() == ["Net_0", "Net_0.Linear_0"] * 2
    monkeypatch.setattr(reading, "_PAYS", 1)
    monkeypatch.setattr(reading, "read_file", None)  # not in this process

    ranks = perfnb.load(paths)

    pd.testing.assert_frame_equal(ranks.events, alone.events)
    pd.testing.assert_frame_equal(ranks.layers, alone.layers)
    assert ranks.meta == alone.meta
    assert str(ranks) == str(alone)


SLOW = """
import sys, time
from pathlib import Path
asked = sys.stdin.read()
place = int(asked.split("rank")[1].split(".json")[0])
(Path(sys.argv[1]) / f"begun{place}").touch()
if place != BAD:
    time.sleep(1000)
print("file", place, "is bad", file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.parametrize("how", ["the first is bad", "the second is bad", "interrupted"])
def test_what_goes_wrong_ends_the_reading_of_all_files(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    paths = written(tmp_path, [rank_trace(0)] * 8)
    bad = {"the first is bad": 0, "the second is bad": 1, "interrupted": -1}[how]
    slow = tmp_path / "slow.py"
    slow.write_text(SLOW.replace("BAD", str(bad)))
    begun: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def begin(command: list[str], **options: Any) -> subprocess.Popen[str]:
        begun.append(popen([sys.executable, str(slow), str(tmp_path)], **options))
        return begun[-1]

    def interrupted(executor: Any, function: Any, questions: Any) -> Any:
        for given in questions:
            executor.submit(function, *given)
        raise KeyboardInterrupt

    monkeypatch.setattr(reading, "_PAYS", 1)
    monkeypatch.setattr(reading.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(reading.subprocess, "Popen", begin)
    if how == "interrupted":
        monkeypatch.setattr(reading, "answers", interrupted)

    with pytest.raises(KeyboardInterrupt if how == "interrupted" else TraceError, match=None if bad < 0 else "is bad"):
        perfnb.load(paths)

    assert len(begun) <= 4
    assert all(process.poll() is not None for process in begun)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["one by one", "apart", "by an executor"])
def test_progress_tells_of_all_files_together(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = written(tmp_path, [rank_trace(0), rank_trace(50), rank_trace(60)])
    sizes, told = [path.stat().st_size for path in paths], []
    monkeypatch.setattr(trace_file, "QUIET_S", 0)
    monkeypatch.setattr(trace_file, "_EVERY_S", 0)
    monkeypatch.setattr(reading, "_PAYS", 1 if how == "apart" else 2**60)

    executor = AtOnce() if how == "by an executor" else None
    reading.read_recordings(paths, Limits(), executor, lambda done, total: told.append((done, total)))

    done = [done for done, _ in told]
    assert done == sorted(done)
    assert len(set(done)) >= 3
    assert done[-1] == sum(sizes)
    assert {total for _, total in told} == {sum(sizes)}
    monkeypatch.setattr(trace_file, "QUIET_S", 60)
    told.clear()
    reading.read_recordings(paths, Limits(), executor, lambda done, total: told.append((done, total)))
    assert not told
