"""A format or a kind of saved thing is one object and one line: `perfnb.load` asks each in turn."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest

import perfnb
from perfnb.errors import RecordingError, TraceError
from perfnb.profile import loading
from perfnb.profile.loading import several_in
from perfnb.profile.profile import Profile
from perfnb.profile.registry import FILES, FOLDERS
from perfnb.recording.loadable import Loadable
from perfnb.trace import kineto, trace_file
from perfnb.trace.columns import TraceColumns
from perfnb.trace.trace_file import Reader
from tests.recordings import ByHand
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
        ("absent", "does not exist.", RecordingError),
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

    saved = perfnb.load(profile.save(tmp_path / "saved"))
    assert [("It has no colours." in each._analysis.notes) for each in (profile, saved)] == [True, True]
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
import importlib, sys
import perfnb

p = perfnb.load(sys.argv[1])
print(*sorted({name.split(".")[1] for name in sys.modules if name.startswith("perfnb.")}))
print(len(p.layers), "scipy" in sys.modules, len(str(p)) > 0)
for name in ("profile.display", "draw.progress", "draw.palette", "draw.assets"):
    importlib.import_module(f"perfnb.{name}")
print(*sys.modules)
"""


@pytest.mark.slow
def test_a_trace_is_loaded_and_shown_without_large_packages_or_the_rooms_of_other_results(tmp_path: Path) -> None:
    path = training(1).write(tmp_path / "trace.json")

    done = subprocess.run([sys.executable, "-c", ROOMS, str(path)], capture_output=True, text=True, check=True)

    rooms, facts, modules = (line.split() for line in done.stdout.splitlines())
    assert not {"bench", "experiments", "loop", "ranks", "step", "system"} & set(rooms)
    assert facts == ["6", "False", "True"]
    assert not {"torch", "matplotlib", "IPython", "ipywidgets", "anywidget", "tqdm"} & set(modules)


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


@pytest.mark.parametrize("name", ["max_bytes", "max_events"])
def test_a_limit_is_a_whole_number_above_zero(name: str, tmp_path: Path) -> None:
    path = training(1).write(tmp_path / "trace.json")
    for wrong in (True, "9", 1.5):
        with pytest.raises(TypeError, match=f"^{name} must be a whole number, not "):
            perfnb.load(path, **{name: wrong})
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"^{name} must be a number above 0, not {wrong}"):
            perfnb.load(path, **{name: wrong})
    with pytest.raises(TraceError, match=name) as caught:
        perfnb.load(path, **{name: 1})
    assert str(path) in str(caught.value)
    perfnb.load(path, **{name: 10**6})


def test_other_arguments_are_refused_in_a_sentence_that_names_them(tmp_path: Path) -> None:
    path: Any = training(1).write(tmp_path / "trace.json")
    load: Any = perfnb.load
    for wrong in ("", 3):
        with pytest.raises(TypeError, match=r"^steps must be the name of a range, such as 'iteration', not "):
            load(path, steps=wrong)
    with pytest.raises(TypeError, match=r"^executor must be an executor from concurrent\.futures"):
        load(path, executor=3)
    for wrong in (3, b"trace.json"):
        with pytest.raises(TypeError, match=r"^path must be a path or a list of paths, not "):
            load(wrong)
    with pytest.raises(TypeError, match=r"^path must be a list of paths, but it contains 3"):
        load([path, 3])
    with pytest.raises(TypeError, match=r"^provenance must be a list of paths, but it contains 3"):
        load(path, provenance=[3])
    with pytest.raises(TraceError, match=r"^A provenance file belongs to a single trace"):
        load([path], provenance=path)
    with pytest.raises(TraceError, match=r"^A provenance file belongs to a single trace"):
        load(path, provenance=path, journal=tmp_path / "journal")
    timing = perfnb.Timing((1.0, 2.0)).save(tmp_path / "timing")
    with pytest.raises(TraceError, match=r"^Steps can be named only in traces, and .*timing is not a trace"):
        load(timing, steps="iteration")
    with pytest.raises(TraceError, match=r"^A provenance file belongs to a trace, and .*timing is not a trace"):
        load(timing, provenance=path)


@pytest.mark.parametrize(("count", "said"), [(1, "0:"), (5, "0, 1, 2, 3, 4:"), (6, "0, 1, 2, 3, 4, others:")])
def test_the_results_inside_a_folder_are_named_up_to_five(count: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    for number in range(count):
        perfnb.Timing((1.0, 2.0)).save(tmp_path / str(number))
    with pytest.raises(RecordingError, match=rf"is a folder that contains {said} choose one of them\.$"):
        perfnb.load(tmp_path)
    assert several_in(tmp_path) == [tmp_path / str(number) for number in range(count)]
    assert several_in(tmp_path / "0") == several_in(tmp_path / "nothing") == several_in(tmp_path / "absent") == []


def test_several_paths_and_journals_go_to_their_loaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(loading, "resolve_name", lambda name: lambda *args: asked.append((name, args)) or name)
    one, other = tmp_path / "a", tmp_path / "b"
    load: Any = perfnb.load
    assert load(one, journal="j") == load([one, str(other)], journal="j", steps="it") == loading.FLEET
    assert load([one, other]) == loading.SEVERAL
    assert [(name, args[0]) for name, args in asked] == [
        (loading.FLEET, [one]), (loading.FLEET, [one, other]), (loading.SEVERAL, [one, other])
    ]  # fmt: skip
    assert [args[1] for _, args in asked[:2]] == ["j", "j"]
    assert asked[1][1][-1] == "it"
    monkeypatch.setattr(loading, "read_file", lambda *_: ["one", "two"])
    assert loading._trace(one, "limits", None) == loading.OF_RECORDINGS  # type: ignore[arg-type, comparison-overlap]
    assert asked[-1][1] == (["one", "two"],)


def test_a_profile_is_one_line_of_what_was_timed_or_loaded(tmp_path: Path) -> None:
    for steps, words in ((1, "1 step"), (2, "2 steps")):
        trace = training(steps)
        loaded = perfnb.load(trace.write(tmp_path / "trace.json"))
        assert repr(loaded) == f"<perfnb.Profile of 'trace.json': {len(trace.events)} events, {words}>"
    recording = ByHand().step(0, 2000).recording()
    assert repr(Profile(recording)) == "<perfnb.Profile 'by hand': 2 ms per step, 6 steps timed>"
    traced = recording.steps[recording.steps["pass"] == "traced"]
    assert repr(Profile(replace(recording, steps=traced))) == "<perfnb.Profile 'by hand': 0 steps timed>"
