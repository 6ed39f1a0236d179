"""What ``perfnb run`` does around a script in this process: its folder, its report, and how it starts launchers."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import perfnb.loop.driver
import perfnb.loop.kept_run
import perfnb.loop.run
import perfnb.profile.trackers
from perfnb.command import run
from perfnb.command.run import _levers, _new_folder, _Report
from perfnb.command.sub_command import WrongUse
from tests.command.processes import called


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start in an empty folder, as the only rank."""
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report_of(*program: str, **options: Any) -> _Report:
    usual = {"at": [5], "every": 7, "save": None, "log": None, "steps_by": "first", "levers": None}
    return _Report(argparse.Namespace(program=program or ("train.py",), **{**usual, **options}))


class Driver:
    """A driver whose run has ended."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.given, self.named, self.calls = given, named, list[str]()
        end = lambda name: SimpleNamespace(**{name: lambda: self.calls.append(name)})  # noqa: E731
        self.trial: Any = end("close")
        self.on_demand = SimpleNamespace(begin=lambda: self.calls.append("begin"), end=lambda: self.calls.append("end"))
        self.recorder, self.planned_at, self.done, self.length = "recorder", 5, 9, 27
        self.kept(())

    def close(self) -> None:
        self.calls.append("driver")

    def kept(self, profiles: Sequence[Any], *paths: Path) -> None:
        class Profiles(list[Any]):
            pass

        self.profiles: Any = Profiles(profiles)
        self.profiles.paths = paths

    def why_no_profile(self, end: str) -> str:
        return f"had 9 steps before {end}"


class Profile:
    def __init__(self, step: int) -> None:
        self.meta = {"loop": {"step": step}}

    def __str__(self) -> str:
        return f"profile of step {self.meta['loop']['step']}"


@pytest.mark.parametrize(
    ("program", "levers", "name", "tried"),
    [
        (("a/train.py",), None, "train", False),
        (("-m", "pkg.train"), [], "pkg.train", True),
        (("t",), ["x"], "t", ["x"]),
    ],
)
def test_profiles_go_to_a_folder_that_is_new_unless_it_is_given(
    program: tuple[str, ...], levers: Any, name: str, tried: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfnb.loop.driver, "LoopProfiler", Driver)
    monkeypatch.setattr(run.time, "strftime", lambda form: "now")
    for save, target in ((None, f"runs/{name}_now"), (None, f"runs/{name}_now_2"), ("kept", "kept")):
        driver: Any = report_of(*program, save=save, levers=levers).start("loader")
        assert driver.given == ([5], 7, folder / target)
        assert (driver.named["name"], driver.named["loader"], driver.named["try_levers"]) == (name, "loader", tried)
        assert driver.calls == ["begin"]
        assert (folder / target).exists() == (save is None)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    """Return a function that finishes a report and returns its paragraphs without line breaks."""
    monkeypatch.setattr(perfnb.loop.kept_run, "keep_run", lambda run, at: at / run)
    monkeypatch.setattr(perfnb.profile.trackers, "open_runs", lambda names: names)
    logged: list[Any] = []
    monkeypatch.setattr(perfnb.profile.trackers, "log_at_once", lambda *given: logged.append(given) or ["Logged."])

    def finish(report: _Report, driver: Driver | None, summary: str | None = "run", optimizers: int = 1) -> list[str]:
        monkeypatch.setattr(perfnb.loop.run, "summarise", lambda recorder: summary if recorder == "recorder" else 0)
        report._driver = driver  # type: ignore[assignment]
        report.finish(SimpleNamespace(optimizers=optimizers))  # type: ignore[arg-type]
        return [" ".join(part.split()) for part in report._text.split("\n\n")]

    finish.logged = logged  # type: ignore[attr-defined]
    return finish


SAVED = "The whole run was saved to kept/run. To show it again, use perfnb show kept/run."


def test_the_report_holds_the_run_and_the_last_profile_with_their_places(
    parts: Any, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    driver = Driver()
    driver.kept([Profile(5), Profile(90)], folder / "kept" / "a", folder / "kept" / "b")
    reported = parts(report_of(save="kept"), driver)
    assert reported == [
        "run",
        "profile of step 90",
        f"{SAVED} The profile above was saved to kept/b (and 1 earlier ones next to it).",
    ]
    assert driver.calls == ["driver", "close", "end"]

    elsewhere = tmp_path_factory.mktemp("elsewhere")
    driver = Driver()
    driver.trial = None
    driver.kept([Profile(5)], elsewhere / "a")
    assert parts(report_of(save="kept"), driver, None) == [
        "profile of step 5",
        f"The profile above was saved to {elsewhere / 'a'}.",
    ]
    assert driver.calls == ["driver", "end"]
    assert parts.logged == []


NO_OPTIMIZER = (
    "perfnb run: there is no profile, because a step ends when an optimizer steps, and none did. To end steps with the "
    "next batch instead, use --steps-by batch."
)
SEVERAL = (
    "2 optimizers stepped, and each step ends with the first of them. Work between this and the next batch is not part "
    "of any step. To end steps with the last optimizer, use --steps-by last."
)


@pytest.mark.parametrize(
    ("by", "optimizers", "planned_at", "done", "said"),
    [
        ("first", 0, 5, 9, [NO_OPTIMIZER]),
        ("last", 0, None, 9, [NO_OPTIMIZER]),
        ("batch", 0, 5, 30, ["perfnb run: no profile, because the script had 9 steps before its end. Try --at 3."]),
        ("first", 1, 5, 27, ["perfnb run: no profile, because the script had 9 steps before its end. Try --at 0."]),
        ("first", 1, 5, 20, ["perfnb run: no profile, because the script had 9 steps before its end. Try --at 0."]),
        ("last", 2, 5, 99, ["perfnb run: no profile, because the script had 9 steps before its end. Try --at 10."]),
        ("first", 2, None, 99, [SEVERAL, ""]),
        ("first", 1, None, 99, [""]),
    ],
)
def test_a_run_without_a_profile_says_what_to_do(
    by: str, optimizers: int, planned_at: int | None, done: int, said: list[str], parts: Any
) -> None:
    driver: Any = Driver()
    driver.planned_at, driver.done = planned_at, done
    assert parts(report_of(save="kept", steps_by=by), driver, None, optimizers) == said


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_first_rank_logs_its_profiles_with_their_steps_and_its_run(
    rank: str, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    first, second = Profile(5), Profile(90)
    for summary, runs in (("run", [("run", None)]), (None, [])):
        driver = Driver()
        driver.kept([first, second], Path("a"), Path("b"))
        reported = parts(report_of(save="kept", log="wandb"), driver, summary)
        assert reported[-1].endswith("Logged.") == (rank == "0")
        assert parts.logged == ([([(first, 5), (second, 90), *runs], ["wandb"])] if rank == "0" else [])
        parts.logged.clear()


def test_a_report_that_fails_is_explained_and_an_empty_folder_is_removed(parts: Any, folder: Path) -> None:
    for save, left in ((None, []), ("kept", [folder / "runs"])):
        report = report_of(save=save)
        report._folder = _new_folder(folder / "runs" / "train")
        driver = Driver()
        driver.close = lambda: {}["gone"]  # type: ignore[method-assign]
        assert parts(report, driver) == ["perfnb run: the report could not be created: KeyError: 'gone'"]
        assert list(folder.iterdir()) == left
    none = "perfnb run: there are no steps: the main thread used neither a torch optimizer nor a DataLoader."
    assert parts(report_of(), None) == [none]


@pytest.mark.parametrize(
    ("ranks", "rank", "here", "reported"),
    [
        (None, None, 0, True),
        ("1", "3", 0, True),
        ("2", None, 0, True),
        ("2", "0", 0, True),
        ("2", "1", 0, False),
        (None, None, 1, False),
    ],
)
def test_the_report_is_printed_once(
    ranks: str | None, rank: str | None, here: int, reported: bool,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, value in (("WORLD_SIZE", ranks), ("RANK", rank)):
        if value is not None:
            monkeypatch.setenv(name, value)
    report = report_of()
    report.tell()
    report._text, report._process = "All of it.", os.getpid() + here  # another process is one that the script forked
    report.tell()
    assert capsys.readouterr() == ("", "\nAll of it.\n" if reported else "")
    monkeypatch.setattr(sys, "stderr", None)  # a script may have closed it
    report.tell()


def test_only_levers_of_a_loop_are_tried() -> None:
    assert _levers("threads,gc_freeze") == ["threads", "gc_freeze"]
    with pytest.raises(WrongUse, match=r"^--try: a running loop allows only these levers: "):
        _levers("threads,autocast")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--at", "-1"), "--at must be a number of steps that is at least 0."),
        (("--at", "5,1000000001"), "--at must be a number of steps that is at least 0."),
        (("--every", "0"), "--every must be a number of steps that is at least 1."),
        (("--every", "1000000001"), "--every must be a number of steps that is at least 1."),
        (("--at", "0,1000000000", "--every", "1"), "nothing.py does not exist or is not a file"),
        (("--at", "5", "--every", "1000000000"), "nothing.py does not exist or is not a file"),
        (("--try=threads,no_such",), "--try: a running loop allows only these levers: threads, compile, "),
        (("--try=",), "--try: a running loop allows only these levers: threads, compile, "),
    ],
)
def test_wrong_options_are_refused_before_the_script_starts(words: tuple[str, ...], said: str) -> None:
    done = called("run", *words, "nothing.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"perfnb run: {said}")


def test_a_script_runs_and_its_report_is_registered_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(run, "run_as_main", lambda program: ran.append(program) or error)
    monkeypatch.setattr(run.atexit, "register", lambda function: ran.append(function.__name__))
    monkeypatch.setattr(_Report, "finish", lambda report, steps: ran.append(report.start == steps._make_driver))
    (folder / "train.py").touch()
    for error in (None, 3):
        assert called("run", "train.py", "--lr", "1").returncode == (error or 0)
    assert ran == ["tell", ["train.py", "--lr", "1"], True] * 2
    (folder / "file").touch()
    assert "file" in called("run", "--save", "file/kept", "train.py").stderr
    assert len(ran) == 6


def test_a_launcher_becomes_this_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "train.py").touch()

    def become(path: str, words: list[str]) -> None:
        assert words[0] == path == sys.executable
        raise KeyError(words[1:])

    monkeypatch.setattr(run.os, "execv", become)
    with pytest.raises(KeyError) as became:
        called("run", "--at", "3", "--every", "4", "--save", "kept", "torchrun", "--nproc-per-node", "2", "train.py")
    words = " ".join(became.value.args[0])
    assert "--nproc-per-node 2" in words
    assert f"--at 3 --steps-by first --every 4 --save {folder / 'kept'} train.py" in words
    with pytest.raises(KeyError) as became:
        called("run", "torchrun", "train.py")
    assert "--at 100 --steps-by first --save" in " ".join(became.value.args[0])
