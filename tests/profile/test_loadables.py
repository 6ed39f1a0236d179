"""A format or a kind of saved thing is one object and one line: `perfnb.load` asks each in turn."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace

import pytest

import perfnb
from perfnb.errors import RecordingError, TraceError
from perfnb.profile import loading
from perfnb.profile.registry import FILES, FOLDERS
from perfnb.recording.loadable import Loadable
from perfnb.trace import kineto, trace_file
from perfnb.trace.columns import TraceColumns
from perfnb.trace.trace_file import Reader
from tests.written_traces import training


@pytest.fixture(autouse=True)
def forget_readers() -> Iterator[None]:
    yield
    trace_file.readers.cache_clear()


def test_an_unknown_file_or_folder_is_one_line_that_points_to_the_formats_and_quotes_nothing(tmp_path: Path) -> None:
    lists = 'help(perfnb.load) and "File formats" in the documentation list the formats.'
    (tmp_path / "notes.txt").write_text("password=hunter2")
    sqlite3.connect(tmp_path / "run.sqlite").execute("create table a (b)").connection.close()
    os.mkfifo(tmp_path / "pipe")
    for name, says, error in (
        ("notes.txt", f"is not a file that perfnb can read; {lists}", TraceError),
        ("run.sqlite", f"is not a file that perfnb can read (it is an SQLite database); {lists}", TraceError),
        ("", f"contains neither a saved profile (no profile.json) nor traces; {lists}", RecordingError),
        ("pipe", "is a pipe or a device, which perfnb cannot read.", RecordingError),
    ):
        with pytest.raises(error) as caught:
            perfnb.load(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name} {says}"
    assert (Path(__file__).parents[2] / "docs" / "formats.md").read_text("utf-8").startswith("# File formats\n")
    with pytest.raises(TraceError, match=r"is not a trace that perfnb can read; help\(perfnb\.load\) and"):
        perfnb.load([tmp_path / "notes.txt"])


def test_a_new_format_is_one_reader_whose_caveats_are_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path, *options: object) -> TraceColumns:
        return kineto.decode(path.read_bytes().removeprefix(b"MINE"))

    own = Reader((".mine",), lambda path, head: head.startswith(b"MINE"), read, ("It has no colours.",))
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


def test_a_new_kind_is_one_loadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.list").write_text("1 2 3")
    own = Loadable(lambda path: path.suffix == ".list", lambda path, *_: path.read_text().split())
    monkeypatch.setitem(sys.modules, "of_mine", SimpleNamespace(LOADABLE=own))
    monkeypatch.setattr(loading, "FILES", ("of_mine:LOADABLE", *loading.FILES))

    assert perfnb.load(tmp_path / "a.list") == ["1", "2", "3"]


ROOMS = """
import sys
import perfnb

perfnb.load(sys.argv[1])
print(*sorted({name.split(".")[1] for name in sys.modules if name.startswith("perfnb.")}))
print("scipy" in sys.modules, "torch" in sys.modules)
"""


@pytest.mark.slow
def test_a_trace_is_loaded_without_the_rooms_of_other_results(tmp_path: Path) -> None:
    path = training(1).write(tmp_path / "trace.json")

    done = subprocess.run([sys.executable, "-c", ROOMS, str(path)], capture_output=True, text=True, check=True)

    rooms, others = done.stdout.splitlines()
    assert not {"bench", "experiments", "loop", "ranks", "step", "system"} & set(rooms.split())
    assert others == "False False"


@pytest.mark.parametrize("name", FOLDERS)
def test_no_file_is_a_kind_of_folder(name: str, tmp_path: Path) -> None:
    """So that a file need not ask for one."""
    files = [tmp_path / "profile.json", training(1).write(tmp_path / "rank_0.json"), tmp_path / "nothing"]
    files[0].write_text("{}")

    assert not any(resolve_name(name).recognise(file) for file in files)


@pytest.mark.parametrize("name", FILES)
def test_no_folder_is_a_kind_of_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").mkdir()

    assert not any(resolve_name(name).recognise(folder) for folder in (tmp_path, tmp_path / "trace.json"))
