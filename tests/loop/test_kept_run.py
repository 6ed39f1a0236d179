"""A loop's run is saved next to its profiles, and reported in one line when the process ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import perfnb
from perfnb.errors import RecordingError
from perfnb.loop import kept_run
from perfnb.loop.driver import LoopProfiler
from perfnb.loop.kept_run import KeptRun, keep_run
from tests.command.processes import environment
from tests.loop.loops import Training
from tests.loop.planted_runs import recorder_of, run, usual

#: A script that ends inside a window, in another folder, and knows nothing of what it leaves.
_SCRIPT = """
import os, perfnb
steps = iter(perfnb.profiled(range(60), at=[5, 50], steps=4, memory=False, flops=False, save="my runs"))
for step in steps:
    if step == 52:
        {end}
os.chdir("/")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("break", 0),
        ("raise SystemExit(3)", 3),
        ("1 / 0", 1),
        ("os.kill(os.getpid(), 2)", -2),
    ],
)
def test_a_script_leaves_its_run_and_says_where(end: str, code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", _SCRIPT.replace("{end}", end)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment(), check=False)
    assert (done.returncode, done.stdout) == (code, "")
    told = done.stderr.splitlines()[-1]
    assert told.startswith("perfnb: ")
    assert told.endswith("The run and 1 profile: perfnb show 'my runs'")
    found = perfnb.load(tmp_path / "my runs")
    assert isinstance(found, perfnb.results.RunSummary)
    assert found.steps["steps"].sum() == 52
    assert [path.name for path in tmp_path.iterdir()] == ["my runs"]


def test_a_run_has_the_same_figures_wherever_it_is_shown(tmp_path: Path) -> None:
    loop = perfnb.profiled(range(40), save=tmp_path / "runs", steps_by="batch")
    list(loop)
    resident = psutil.Process().memory_info().rss
    loop._profiler.recorder._process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=2 * resident))
    text = str(loop.run)
    assert loop.run is not None
    assert loop.run.memory["resident_bytes"].max() < 2 * resident, "it is that of the loop, not of what comes after"
    loop._kept_run._tell()
    assert str(perfnb.load(tmp_path / "runs")) == text


def test_of_several_loops_the_last_is_reported(tmp_path: Path) -> None:
    before = list(kept_run._to_tell)
    for name in "abc":
        list(perfnb.profiled(range(40), save=tmp_path / name))
    (left,) = [one for one in kept_run._to_tell if one not in before]
    assert left._folder == tmp_path / "c"
    assert sorted(path.parent.name for path in tmp_path.glob("*/run")) == ["a", "b"]


def test_a_folder_that_cannot_be_written_costs_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_run, "_to_tell", [])
    training = Training(20)
    loop = perfnb.profiled(
        training.batches, at=5, steps=2, traced=1, memory=False, flops=False, save=tmp_path / "file" / "runs"
    )
    (tmp_path / "file").touch()  # in the meantime
    with pytest.warns(RuntimeWarning, match="perfnb: kept in memory: The profile cannot be written"):
        list(map(training, loop))
    assert loop.profiles.paths == []
    assert loop.profiles[0].timing.steps == 2


def test_a_folder_that_cannot_be_written_is_refused_before_the_loop(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordingError, match=r"Nothing can be saved in .*file is not a folder"):
        perfnb.profiled(range(20), save=tmp_path / "file" / "runs")
    perfnb.profiled(range(20), save=tmp_path / "new" / "runs")
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is made before there is something to save"


def test_a_missing_profile_is_reported() -> None:
    with pytest.raises(IndexError, match="no profile yet"):
        perfnb.profiled(range(20)).profiles[0]


def test_a_hostile_folder_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    driver = LoopProfiler(save=tmp_path / "\x1b[31m a\nb\u202e")
    driver.recorder = recorder_of(usual(60), name="\x1b[31mevil\n")
    KeptRun(driver, asked=False)._tell()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert not set("\x1b\u202e") & set(said)


def test_each_rank_saves_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        found = run(usual(60), name="train")
        assert keep_run(found, tmp_path) == tmp_path / "run" / f"rank_{rank}"
    ranks = perfnb.load(tmp_path)
    assert isinstance(ranks, perfnb.results.RankRuns)
    assert ranks.ranks == [0, 1]
    assert ranks[1].name == "train"


def test_a_loop_knows_whether_its_results_were_read() -> None:
    loop = perfnb.profiled(range(3))
    assert not loop._kept_run.asked
    assert len(loop.profiles) == 0
    assert loop._kept_run.asked
    loop = perfnb.profiled(range(3))
    assert loop.run is None
    assert loop._kept_run.asked


class Profiles(list[Any]):
    """Profiles of a loop, and the folder that its user has given."""

    def __init__(self, count: int, given: str | None) -> None:
        super().__init__([None] * count)
        self.given, self.folder = given, None if given is None else Path(given)


NOT_SAVED = "All of it.\n\nperfnb: The run and 1 profile were not saved; save= would.\n"


@pytest.mark.parametrize(
    ("given", "count", "changed", "said"),
    [
        ("my runs", 0, {}, "perfnb: Steady. The run: perfnb show 'my runs'\n"),
        ("my runs", 2, {"asked": True, "rank": 0}, "perfnb: Steady. The run and 2 profiles: perfnb show 'my runs'\n"),
        ("my runs", 2, {"rank": 1}, ""),
        ("my runs", 2, {"notebook": True}, ""),
        ("my runs", 2, {"process": 1}, ""),  # a fork of the one with the loop
        ("my runs", 2, {"error": OSError("full")}, "perfnb: the run was not saved: OSError: full\n"),
        (None, 1, {}, NOT_SAVED),
        (None, 1, {"asked": True}, ""),
        (None, 0, {}, ""),
    ],
)
def test_what_is_reported_of_a_run_when_the_process_ends(
    given: str | None,
    count: int,
    changed: dict[str, Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = list[Any]()

    def keep(*what: Any) -> None:
        kept.append(what)
        if "error" in changed:
            raise changed["error"]

    run = SimpleNamespace(rank=changed.get("rank"), _line=lambda: "Steady", _text=lambda: "All of it.")
    monkeypatch.setattr(kept_run, "summarise", lambda recorder: run if recorder == "steps" else None)
    monkeypatch.setattr(kept_run, "keep_run", keep)
    monkeypatch.setattr(kept_run, "in_notebook", lambda: changed.get("notebook", False))
    driver: Any = SimpleNamespace(profiles=Profiles(count, given), recorder="steps")
    one = KeptRun(driver, asked=changed.get("asked", False))
    one._process += changed.get("process", 0)
    one._tell()
    assert capsys.readouterr() == ("", said)
    assert kept == ([(run, Path("my runs"))] if given is not None and "process" not in changed else [])
    driver.recorder = "no steps"
    one._tell()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("last", "interactive", "at_a_prompt", "notebook", "raised"),
    [
        (KeyboardInterrupt(), False, False, False, True),
        (ValueError(), False, False, False, False),
        (None, False, False, False, False),
        (KeyboardInterrupt(), True, False, False, False),
        (KeyboardInterrupt(), False, True, False, False),
        (KeyboardInterrupt(), False, False, True, False),
    ],
)
def test_a_process_that_was_interrupted_still_ends_with_the_signal(
    last: Any, interactive: bool, at_a_prompt: bool, notebook: bool, raised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = list[Any]()

    def execute(code: str) -> None:
        done.append(code)
        raise KeyboardInterrupt

    state = SimpleNamespace(flags=SimpleNamespace(interactive=interactive), **({"last_value": last} if last else {}))
    if at_a_prompt:
        state.ps1 = ">>> "
    monkeypatch.setattr(kept_run, "sys", state)
    monkeypatch.setattr(kept_run, "exec", execute, raising=False)
    monkeypatch.setattr(kept_run, "in_notebook", lambda: notebook)
    monkeypatch.setattr(kept_run, "_to_tell", [SimpleNamespace(_tell=lambda: done.append("reported"))] * 2)
    kept_run._tell_all()
    assert done == ["reported", "reported", *["raise KeyboardInterrupt"] * raised]


def test_a_run_is_saved_every_half_minute_and_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_run, "_to_tell", [])
    now, saves, at_exit = SimpleNamespace(s=100.0), list[float](), list[Any]()
    hooks = SimpleNamespace(register=at_exit.append, unregister=lambda _: at_exit.clear())
    monkeypatch.setattr(kept_run, "atexit", hooks)
    monkeypatch.setattr(kept_run, "time", SimpleNamespace(monotonic=lambda: now.s))
    monkeypatch.setattr(kept_run, "keep_run", lambda run, folder: saves.append(now.s))
    driver = LoopProfiler(save=tmp_path)
    driver.recorder = recorder_of(usual(60))
    kept = KeptRun(driver, asked=False)
    for now.s in (120.0, 130.0, 130.1, 160.0, 160.2, 190.0):
        kept.begin()
        assert (kept.begun, kept_run._to_tell, at_exit) == (True, [kept], [kept_run._tell_all])
        kept.end()
        assert not kept.begun
    assert saves == [130.1, 160.2]
    kept.end(for_good=True)
    assert saves == [130.1, 160.2, 190.0]

    def fails(*_: Any) -> None:
        raise OSError

    monkeypatch.setattr(kept_run, "keep_run", fails)
    kept.end(for_good=True)
    monkeypatch.setattr(kept_run, "in_notebook", lambda: True)
    monkeypatch.setattr(kept_run, "keep_run", lambda run, folder: saves.append(now.s))
    kept.end()
    assert saves[3:] == [190.0]
    nowhere = LoopProfiler()
    nowhere.recorder = recorder_of(usual(60))
    KeptRun(nowhere, asked=False).end(for_good=True)
    assert len(saves) == 4
