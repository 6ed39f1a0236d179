"""A format or a kind of saved thing is one object and one line: `perfnb.load` asks each in turn."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import perfnb
from perfnb.errors import RecordingError, TraceError
from perfnb.recording import reading
from perfnb.recording.reading import Loader
from perfnb.trace import kineto, trace_file
from perfnb.trace.columns import TraceColumns
from perfnb.trace.trace_file import Reader
from tests.written_traces import training


def listed() -> str:
    """What the error about an unknown file says that perfnb reads."""
    kinds = [loader.what for loader in reading.loaders() if loader.what != "traces"]
    *kinds, last = [*kinds, *(reader.what for reader in trace_file.readers())]
    return f"perfnb.load reads {', '.join(kinds)} and {last}."


@pytest.fixture(autouse=True)
def forget_readers() -> Iterator[None]:
    yield
    trace_file.readers.cache_clear()


def test_an_unknown_file_or_folder_is_one_sentence_that_lists_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Dear diary")
    sqlite3.connect(tmp_path / "run.sqlite").execute("create table a (b)").connection.close()
    os.mkfifo(tmp_path / "pipe")
    for name, says, error in (
        ("notes.txt", "is not a file that perfnb can read (it starts with 'Dear diary')", TraceError),
        ("run.sqlite", "is not a file that perfnb can read (it is an SQLite database)", TraceError),
        ("", "holds neither a saved profile (no profile.json) nor traces", RecordingError),
        ("pipe", "is a pipe or a device", RecordingError),
    ):
        with pytest.raises(error) as caught:
            perfnb.load(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name} {says}: {listed()}"
    assert "saved profiles, saved watches, " in listed()
    assert "CUDA memory snapshots (pickle)" in listed()
    with pytest.raises(TraceError, match=r"is not a trace that perfnb can read .*: it reads .*torch\.profiler"):
        perfnb.load([tmp_path / "notes.txt"])


def test_a_new_format_is_one_reader_whose_caveats_are_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path, *options: object) -> TraceColumns:
        return kineto.decode(path.read_bytes().removeprefix(b"MINE"))

    own = Reader("mine", (".mine",), lambda path, head: head.startswith(b"MINE"), read, ("It has no colours.",))
    monkeypatch.setitem(sys.modules, "of_mine", SimpleNamespace(READER=own))
    monkeypatch.setattr(trace_file, "READERS", ("of_mine:READER", *trace_file.READERS))
    trace_file.readers.cache_clear()
    path = tmp_path / "rank0.mine"
    path.write_bytes(b"MINE" + json.dumps(training(1).events).encode())

    profile = perfnb.load(path)

    assert "It has no colours." in str(profile)
    assert "It has no colours." in str(perfnb.load(profile.save(tmp_path / "saved")))
    path.with_name("rank1.mine").write_bytes(path.read_bytes())
    path.rename(tmp_path / "saved" / "rank0.mine")
    assert perfnb.load(tmp_path).ranks == [1]


def test_a_new_kind_is_one_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.list").write_text("1 2 3")
    own = Loader("lists", lambda path: path.suffix == ".list", lambda path, *_: path.read_text().split())
    monkeypatch.setitem(sys.modules, "of_mine", SimpleNamespace(LOADER=own))
    monkeypatch.setattr(reading, "LOADERS", ("of_mine:LOADER", *reading.LOADERS))

    assert perfnb.load(tmp_path / "a.list") == ["1", "2", "3"]


def test_a_limit_given_twice_is_refused() -> None:
    with pytest.raises(TypeError, match="max_bytes is given twice"):
        perfnb.load("trace.json", limits={"max_bytes": 1}, max_bytes=2)
