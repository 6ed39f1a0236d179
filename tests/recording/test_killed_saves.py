"""Killed at whatever instant, a save leaves the earlier folder or the new one, and the next save clears up after it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import perfnb
from perfnb import files as beside
from perfnb.errors import RecordingError
from perfnb.files import locate, write_text

#: What a program asks of the operating system that changes a folder.
_CALLS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "tempfile.mkdtemp"}


class Killed(BaseException):
    """Stands for the end of the process: from then on no call is carried out."""


class _Kill:
    """End the program before the call with a given number, and before every later one."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.calls = 0
        self.folder = ""
        sys.addaudithook(self._seen)  # cannot be taken away again

    def _seen(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.at is None or event not in _CALLS or not str(arguments[0]).startswith(self.folder):
            return
        if event == "open" and arguments[1] in ("r", "rb"):
            return
        self.calls += 1
        if self.calls > self.at:
            raise Killed

    @contextmanager
    def after(self, calls: int, folder: Path) -> Iterator[None]:
        self.at, self.calls, self.folder = calls, 0, str(folder)
        try:
            yield
        finally:
            self.at = None


@pytest.fixture(scope="module")
def kill() -> _Kill:
    return _Kill()


def save_timing(wall_ms: float, path: Path) -> Path:
    return perfnb.Timing((wall_ms,) * 3).save(path)


def saved_ms(path: Path) -> float:
    timing = perfnb.load(path)
    assert isinstance(timing, perfnb.Timing)
    return float(timing.samples_ms[0])


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.parametrize("earlier", [True, False], ids=["over an earlier one", "for the first time"])
def test_after_a_kill_at_any_instant_a_whole_folder_is_found_and_the_next_save_sweeps(
    tmp_path: Path, kill: _Kill, earlier: bool
) -> None:
    seen = set()
    for calls in range(200):
        folder = tmp_path / str(calls)
        folder.mkdir()
        path = folder / "run"
        if earlier:
            save_timing(1.0, path)
        try:
            with kill.after(calls, folder):
                save_timing(2.0, path)
        except Killed:
            pass
        else:
            break

        found = saved_ms(path) if locate(path).exists() else None
        seen.add((found, path.exists()))
        save_timing(3.0, folder / "another")
        assert hidden(folder) == [], calls
        if found is not None:
            assert path.exists()
            assert saved_ms(path) == found
        save_timing(4.0, path)
        assert saved_ms(path) == 4.0
    else:
        pytest.fail("the save never ended")
    assert calls > 5
    assert seen == ({(1.0, True), (1.0, False), (2.0, True)} if earlier else {(None, False), (2.0, True)})


@pytest.mark.slow
def test_sweeping_may_be_killed_too(tmp_path: Path, kill: _Kill) -> None:
    for calls in range(200):
        folder = tmp_path / str(calls)
        folder.mkdir()
        path = save_timing(1.0, folder / "run")
        for first in range(200):  # until it is killed where nothing stands at the path
            beside.sweep(folder)
            with pytest.raises(Killed), kill.after(first, folder):
                save_timing(2.0, path)
            if not path.exists():
                break
        try:
            with kill.after(calls, folder):
                beside.sweep(folder)
        except Killed:
            assert saved_ms(path) == 1.0
        else:
            break
        beside.sweep(folder)
        assert saved_ms(path) == 1.0
        assert [each.name for each in folder.iterdir()] == ["run"]
    assert calls > 3


def test_the_work_of_a_writer_that_is_alive_is_left_alone(tmp_path: Path) -> None:
    with beside.workplace(tmp_path) as work:
        (work / "part").write_text("half")
        save_timing(1.0, tmp_path / "run")
        write_text("whole", tmp_path / "page.html")
        assert (work / "part").read_text() == "half"
        assert len(hidden(tmp_path)) == 1
    assert hidden(tmp_path) == []


def test_a_file_that_is_written_sweeps_as_well(tmp_path: Path, kill: _Kill) -> None:
    with pytest.raises(Killed), kill.after(4, tmp_path):
        write_text("half", tmp_path / "page.html")
    assert len(hidden(tmp_path)) == 1

    write_text("whole", tmp_path / "page.html")

    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_work_that_was_swept_before_it_was_locked_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = beside.tempfile.mkdtemp, []

    def swept_at_once(**given: Any) -> str:
        made.append(make(**given))
        if len(made) < 3:
            beside.sweep(tmp_path)
        return made[-1]

    monkeypatch.setattr(beside.tempfile, "mkdtemp", swept_at_once)

    save_timing(1.0, tmp_path / "run")

    assert len(made) == 3
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


def test_where_there_are_no_locks_only_old_work_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "fcntl", None)
    with beside.workplace(tmp_path) as work:
        save_timing(1.0, tmp_path / "run")
        assert work.exists()
        os.utime(work.parent, (0, 0))
        save_timing(1.0, tmp_path / "run")
        assert not work.exists()


def test_something_of_another_name_is_not_taken_for_what_was_moved_away(tmp_path: Path) -> None:
    assert locate(tmp_path / "none") == tmp_path / "none"
    assert locate(tmp_path / "no" / "folder") == tmp_path / "no" / "folder"
    with pytest.raises(RecordingError, match=r"none does not exist\.$"):
        perfnb.load(tmp_path / "none")
