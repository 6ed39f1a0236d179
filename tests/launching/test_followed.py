"""What a job makes of the files that its ranks leave: progress, output, failures and ends."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfnb.errors import CaptureError
from perfnb.launching import job
from perfnb.launching.job import FollowedRanks, Job, RankTraceback
from perfnb.launching.job_folder import PROGRESS
from perfnb.launching.rank import _replace_in

#: No process has this number.
GONE = 2**30


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waiting takes no time; how long it would have taken."""
    waited: list[float] = []
    monkeypatch.setattr(job, "time", SimpleNamespace(sleep=waited.append, monotonic=lambda: sum(waited)))
    return waited


class Ranks(FollowedRanks):
    """Two ranks that have ended."""

    ended = True

    def _have_ended(self) -> bool:
        return self.ended

    def _how_it_ended(self) -> str:
        return "Nobody knows."


def followed(folder: Path) -> tuple[list[Any], list[str]]:
    """Return what is shown of ranks, until they end."""
    progress: list[Any] = []
    shown: list[str] = []
    Ranks(folder, "order", 2, "gloo").follow(lambda *told: progress.append(told), shown.append)  # type: ignore[arg-type]
    return progress, shown


def failed(folder: Path, rank: int, at: float, message: str = "boom", error: BaseException | None = None) -> None:
    told = {"rank": rank, "at": at, "kind": "ValueError", "message": message, "traceback": f"traceback {rank}"}
    (folder / f"failed_{rank}").write_text(json.dumps(told))
    if error is not None:
        (folder / f"raised_{rank}").write_bytes(pickle.dumps(error))


def test_progress_and_whole_lines_are_shown_up_to_the_last_word(tmp_path: Path) -> None:
    first, second = b"one\n[Gloo] Rank 0 is connected\ntwo\n", b"\xff" + b"x" * 3000 + b"\nnot whole"
    (tmp_path / "output_0").write_bytes(first + b"later\n")
    (tmp_path / "output_1").write_bytes(second)
    (tmp_path / "done_0").write_text(str(len(first)))
    (tmp_path / "done_1").write_text(str(len(second)))
    (tmp_path / PROGRESS).write_text(json.dumps(["timed", 3, 20, ""]))
    progress, shown = followed(tmp_path)
    assert progress == [("timed", 3, 20, "2 ranks · gloo")]
    assert shown == ["[rank 0] one\n", "[rank 0] two\n", "[rank 1] " + "\ufffd" + "x" * 1999 + "\n"]


def test_a_note_of_the_ranks_comes_before_what_the_job_is(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "order", 1, "nccl")  # type: ignore[arg-type]
    assert pickle.loads((tmp_path / "order").read_bytes()) == "order"
    told: list[Any] = []
    ranks._show_progress(lambda *one: told.append(one))
    (tmp_path / PROGRESS).write_text(json.dumps(["timed", 1, None, "a note"]))
    ranks._show_progress(lambda *one: told.append(one))
    (tmp_path / PROGRESS).write_text("half")
    ranks._show_progress(lambda *one: told.append(one))
    assert told == [("starting ranks", 0, None, "1 rank · nccl"), ("timed", 1, None, "a note")]


def test_lines_are_shown_once_they_are_whole(tmp_path: Path) -> None:
    ranks, shown = Ranks(tmp_path, "order", 2, "gloo"), list[str]()  # type: ignore[arg-type]
    for text in ("o", "on", "one\nt", "one\ntwo\n"):
        (tmp_path / "output_1").write_text(text)
        ranks._show_output(shown.append)
    assert shown == ["[rank 1] one\n", "[rank 1] two\n"]


def test_the_rank_that_failed_first_is_named_with_its_traceback(tmp_path: Path) -> None:
    failed(tmp_path, 0, 5.0, error=ValueError("late"))
    failed(tmp_path, 1, 4.0, error=ValueError("boom"))
    with pytest.raises(ValueError, match=r"^boom") as raised:
        followed(tmp_path)
    assert raised.value.__notes__ == ["perfnb: raised by rank 1 of 2; its traceback is above."]
    assert isinstance(raised.value.__cause__, RankTraceback)
    assert str(raised.value.__cause__) == "\ntraceback 1"


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_a_failure_that_cannot_be_raised_again_is_reported(error: BaseException | None, tmp_path: Path) -> None:
    failed(tmp_path, 0, 5.0, error=error)
    with pytest.raises(CaptureError, match=r"^Rank 0 of 2 ended with ValueError: boom$") as raised:
        followed(tmp_path)
    assert not hasattr(raised.value, "__notes__")


def test_a_refusal_of_perfnb_needs_no_note(tmp_path: Path) -> None:
    failed(tmp_path, 0, 5.0, error=CaptureError("No."))
    with pytest.raises(CaptureError, match=r"^No\.$") as raised:
        followed(tmp_path)
    assert not hasattr(raised.value, "__notes__")


def test_ranks_that_ended_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "done_0").write_text("0")
    with pytest.raises(CaptureError, match=r"^Nobody knows\.$"):
        followed(tmp_path)


def test_ranks_are_waited_for_until_they_are_done_and_have_ended(tmp_path: Path, waits: list[float]) -> None:
    class Slow(Ranks):
        def _have_ended(self) -> bool:
            if len(waits) == 2:
                for rank in (0, 1):
                    (tmp_path / f"done_{rank}").write_text("0")
            return len(waits) == 5

    Slow(tmp_path, "order", 2, "gloo").follow(lambda *_: None, lambda line: None)  # type: ignore[arg-type]
    assert waits == [job._LOOK_S] * 5


def test_a_rank_that_failed_earlier_may_report_it_a_little_later(tmp_path: Path, waits: list[float]) -> None:
    class Slow(Ranks):
        def _have_ended(self) -> bool:
            if len(waits) == 3:
                failed(tmp_path, 1, 4.0, error=ValueError("first"))
                (tmp_path / "output_1").write_text("last words\n")
            return False

    failed(tmp_path, 0, 5.0, error=ValueError("second"))
    shown = list[str]()
    with pytest.raises(ValueError, match="first"):
        Slow(tmp_path, "order", 2, "gloo").follow(lambda *_: None, shown.append)  # type: ignore[arg-type]
    assert (waits, shown) == ([job._LOOK_S] * 5, ["[rank 1] last words\n"])


@pytest.mark.parametrize(("other", "most_s"), [("gone", 0.1), ("alive", 3.2), ("failed", 0.1)])
def test_a_rank_that_lost_another_one_is_not_to_blame(
    other: str, most_s: float, tmp_path: Path, waits: list[float]
) -> None:
    failed(tmp_path, 0, 5.0, "Connection closed by peer", ValueError("lost"))
    (tmp_path / "pid_0").write_text(str(GONE))  # it has given its reason
    (tmp_path / "pid_1").write_text(str(os.getpid() if other == "alive" else GONE))
    if other == "failed":
        failed(tmp_path, 1, 6.0)
    blamed = other == "gone"
    with pytest.raises(CaptureError if blamed else ValueError, match=r"^Nobody knows\.$" if blamed else r"^lost"):
        followed(tmp_path)
    assert most_s - 0.2 < sum(waits) < most_s  # another rank may still end


@pytest.fixture
def of_processes(tmp_path: Path) -> Callable[..., str]:
    """Return how a job of processes says that it ended, by the exit codes of its ranks."""

    def ended(*codes: int | None, log: str = "") -> str:
        made = Job.__new__(Job)
        FollowedRanks.__init__(made, tmp_path, "order", len(codes) or 2, "gloo")  # type: ignore[arg-type]
        (tmp_path / "launcher").write_text(log)
        for rank, code in enumerate(codes):
            (tmp_path / f"pid_{rank}").write_text(str(GONE))
            if code is not None:
                (tmp_path / f"exit_{rank}").write_text(str(code))
                os.utime(tmp_path / f"exit_{rank}", (1000 - rank, 1000 - rank))
        return made._how_it_ended()

    return ended


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ((0,), "Rank 0 of 1 ended before its profile was complete."),
        ((3, None), "Rank 0 of 2 ended before its profile was complete."),
        ((-9,), "Rank 0 of 1 was terminated by SIGKILL. The system sends this signal if memory runs out."),
        ((-9, -11), "Rank 1 of 2 was terminated by SIGSEGV."),  # the first
        ((-200,), "Rank 0 of 1 was terminated by signal 200."),
    ],
)
def test_how_a_rank_ended(codes: tuple[int | None, ...], said: str, of_processes: Callable[..., str]) -> None:
    assert of_processes(*codes) == said


def test_how_a_rank_ended_may_be_known_a_little_later(
    of_processes: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(job.time, "sleep", lambda s: (tmp_path / "exit_1").write_text("-9"))
    assert of_processes(None, None).startswith("Rank 1 of 2 was terminated by SIGKILL.")


def test_ranks_that_never_started(of_processes: Callable[..., str]) -> None:
    assert of_processes() == of_processes(None) == "The ranks could not be started"
    assert of_processes(log="some\nlast line\n") == "The ranks could not be started: last line"


def test_ranks_get_this_environment_without_another_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "PERFNB_JOB_X"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("KEPT", "8")
    monkeypatch.setenv("PYTHONPATH", "there")
    made = job._environment(3, {"OWN": "9", "MKL_NUM_THREADS": "1"})
    assert not {"RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "PERFNB_JOB_X"} & made.keys()
    assert (made["KEPT"], made["OWN"], made["OMP_NUM_THREADS"], made["MKL_NUM_THREADS"]) == ("8", "9", "3", "1")
    here, rest = made["PYTHONPATH"].split(os.pathsep)
    assert (Path(here) / "perfnb" / "launching").is_dir()
    assert rest == "there"
    monkeypatch.delenv("PYTHONPATH")
    assert job._environment(3, {})["PYTHONPATH"] == here
    assert set(job.of_loopback()) == {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
    assert job.of_loopback().items() <= made.items()


a_global: Any = object()


def uses_the_global() -> Any:
    return a_global


def test_values_are_replaced_in_all_that_a_step_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    old, other, new = torch.nn.Linear(1, 1), object(), torch.nn.Linear(1, 1)
    monkeypatch.setitem(globals(), "a_global", old)
    in_closure: Any = old

    def inner() -> Any:
        return in_closure, other, uses_the_global(), inner

    class Trainer:
        def step(self) -> Any:
            return inner()

    _replace_in(Trainer().step, {id(old): new})
    closed, kept, of_globals, _ = inner()
    assert (closed, kept, of_globals) == (new, other, new)
    assert a_global is new
    _replace_in(3, {id(old): new})  # what is no function has nothing to replace
