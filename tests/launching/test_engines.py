"""Ranks on two engines of ipyparallel, which continue afterwards; and things that are not executors."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import perfnb
from perfnb.errors import CaptureError
from perfnb.launching import engine, job
from perfnb.launching.engine import run_on_engine
from perfnb.launching.engines import EngineJob, chosen_engines
from perfnb.launching.job_folder import ORDER, STOP, job_folder
from perfnb.launching.order import Order
from tests.launching.jobs import FAST, endless, failing, interrupt_soon, small
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


class FewEngines:
    """An executor without engines enough."""

    ids = (7,)

    def __getitem__(self, engine: int) -> Any:
        raise AssertionError("nothing is to be run")


@pytest.mark.parametrize(
    ("executor", "error", "said"),
    [
        (3, TypeError, "executor must be an ipyparallel Client or DirectView, not 3"),
        (FewEngines(), CaptureError, "Each of the 2 ranks needs its own engine, but the executor has 1 engine"),
    ],
)
def test_what_cannot_carry_a_job(executor: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        perfnb.profile_ranks(small, executor=executor)


def test_scripts_are_not_for_engines(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(TypeError, match="executor only applies to functions"):
        perfnb.profile_ranks(tmp_path / "train.py", executor=FewEngines())


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    package = pytest.importorskip("ipyparallel", reason="ipyparallel is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))  # where ipyparallel writes what it needs
        patch.setenv("PYTHONPATH", str(ROOT))
        cluster = package.Cluster(n=2, log_level=40)
        try:
            client = cluster.start_and_connect_sync(activate=False)
            try:
                yield client
            finally:
                client.close()
        finally:
            cluster.stop_cluster_sync()


def state() -> Any:
    """Return what an engine must have again afterwards."""
    import os
    import signal
    import sys
    import threading

    import torch

    threads = sorted(one.name for one in threading.enumerate() if one.name.startswith("perfnb"))
    hooks = torch.nn.modules.module._global_forward_hooks
    return (
        dict(os.environ),
        list(sys.path),
        list(sys.argv),
        torch.get_num_threads(),
        torch.distributed.is_initialized(),
        str(signal.getsignal(signal.SIGINT)),
        (threads, len(hooks)),
    )


class Engine:
    """An engine whose rank is ready after it was looked at a number of times, with an error or not at all."""

    def __init__(self, looks: float = 0, error: Exception | None = None) -> None:
        self._looks, self._error, self.given = looks, error, tuple[Any, ...]()

    def apply_async(self, *given: Any) -> Engine:
        self.given = given
        return self

    def ready(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def get(self) -> None:
        if self._error is not None:
            raise self._error


class Engines(dict[int, Engine]):
    @property
    def ids(self) -> list[int]:
        return list(self)


def test_engines_are_those_of_the_view_or_the_first_of_the_client() -> None:
    client = Engines({7: Engine(), 8: Engine(), 9: Engine()})
    view = lambda targets: SimpleNamespace(client=client, targets=targets)  # noqa: E731
    assert chosen_engines(client, 2) == (client, [7, 8])
    assert chosen_engines(view([9, 7]), 2) == (client, [9, 7])
    assert chosen_engines(view((9, 7)), 1) == (client, [9])
    assert chosen_engines(view(8), 1) == (client, [8])
    assert chosen_engines(view("all"), 3) == (client, [7, 8, 9])
    with pytest.raises(CaptureError, match=r"has 1 engine\.$"):
        chosen_engines(view(8), 2)


@pytest.fixture
def job_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., EngineJob]:
    """Return a function that starts a job on engines, where waiting takes no time."""
    waits: list[float] = []
    monkeypatch.setattr(job, "time", SimpleNamespace(sleep=waits.append, monotonic=lambda: sum(waits)))

    def start(*engines: Engine) -> EngineJob:
        numbered = Engines(enumerate(engines, start=7))
        return EngineJob(tmp_path, Order("function"), len(engines), {"COLOUR": "blue"}, "note", numbered)

    return start


def test_each_engine_runs_its_rank(job_of: Callable[..., EngineJob], tmp_path: Path) -> None:
    engines = [Engine(), Engine()]
    one = job_of(*engines)
    for rank, each in enumerate(engines):
        assert each.given == (run_on_engine, str(tmp_path), rank, 2, {**job.of_loopback(), "COLOUR": "blue"})
    one.end()
    assert not (tmp_path / STOP).exists()


@pytest.mark.parametrize(("looks", "left"), [(20, ""), (float("inf"), "8, 10")])
def test_engines_are_asked_to_stop(
    looks: float, left: str, job_of: Callable[..., EngineJob], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = job_of(Engine(), Engine(looks), Engine(float("inf")), Engine(looks))
    (tmp_path / "pid_2").write_text(str(2**30))  # this engine is gone
    one.end()
    assert (tmp_path / STOP).exists()
    said = capsys.readouterr().out
    assert said.startswith(f"perfnb: engine {left} did not stop within 10 seconds") if left else said == ""


def test_why_engines_ended(job_of: Callable[..., EngineJob], tmp_path: Path) -> None:
    waiting = Engine(float("inf"), ValueError("not yet"))
    assert job_of(Engine(), Engine())._how_it_ended() == "The engines ended before all profiles were complete."
    said = job_of(waiting, Engine(), Engine(error=ImportError("no torch")))._how_it_ended()
    assert said == "Engine 9 could not run rank 2 of 3: ImportError: no torch"
    (tmp_path / "pid_1").write_text(str(2**30))
    assert job_of(waiting, Engine())._how_it_ended() == "Engine 8, which ran rank 1 of 2, has ended."


class Group:
    """A fake process group that records a rank's calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there, self.calls = False, list[Any]()
        self.act: Callable[..., None] = lambda **_: None
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: self.there)
        monkeypatch.setattr(torch.distributed, "destroy_process_group", self._destroy)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: self.calls.append(("device", device)))
        monkeypatch.setattr(engine, "_LOOK_S", 0.001)
        monkeypatch.setattr(engine, "_AGAIN_S", 0.001)
        monkeypatch.setattr(engine, "_KEPT", ["of the job before"])
        monkeypatch.setattr("perfnb.launching.rank.profile_in_group", self._profile)

    def _destroy(self) -> None:
        self.there = False
        self.calls.append("destroyed")

    def _profile(self, order: Order, folder: Path, rank: int, ranks: int, meeting: Any, failed: Any, cm: Any) -> None:
        self.calls.append((order.kind, rank, ranks, os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["COLOUR"]))
        self.there = True
        self.act(folder=folder, stopping=meeting._stopping)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    """Yield a group, and leave this process unchanged afterwards."""
    before, handler = state(), signal.getsignal(signal.SIGINT)
    monkeypatch.setenv("COLOUR", "red")
    made = Group(monkeypatch)
    yield made
    monkeypatch.undo()
    assert (state()[1:], signal.getsignal(signal.SIGINT)) == (before[1:], handler)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield the folder of a job whose order changes what an engine must have again."""
    with job_folder() as made:
        order = Order("function", threads=torch.get_num_threads() + 1, gpus=2, path=["elsewhere"], argv=["train.py"])
        (made / ORDER).write_bytes(pickle.dumps(order))
        yield made


def test_an_engine_runs_its_rank_and_is_as_before(
    group: Group, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    before = state()

    def act(**_: Any) -> None:
        print("é\udce9")
        print("problem", file=sys.stderr)
        assert (sys.path, sys.argv, torch.get_num_threads()) == (["elsewhere"], ["train.py"], before[3] + 1)
        os.environ.update(NEW="1", HOME="changed")
        os.environ.pop("PATH")

    group.act = act
    run_on_engine(str(folder), 1, 2, {"COLOUR": "blue"})

    assert state() == before
    assert os.environ["COLOUR"] == "red"
    ran = ("function", 1, 2, "1", "2", "blue")
    assert group.calls == [("device", 1), ran, "destroyed", ("device", 5)]
    assert engine._KEPT == []
    assert (folder / "pid_1").read_text() == str(os.getpid())
    assert (folder / "output_1").read_bytes() == "é\\udce9\nproblem\n".encode()
    assert (folder / "done_1").read_text() == str((folder / "output_1").stat().st_size)
    assert not (folder / "failed_1").exists()
    assert capsys.readouterr() == ("", "")


def test_an_error_of_a_rank_on_an_engine_is_reported_and_its_group_is_kept(
    group: Group, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "group", SimpleNamespace(WORLD="the group"))
    monkeypatch.setattr(engine._Stopper, "hang_up", lambda self: group.calls.append("hung up"))

    def act(**_: Any) -> None:
        raise ValueError("broken")

    group.act = act
    run_on_engine(str(folder), 0, 2, {})

    assert json.loads((folder / "failed_0").read_text())["message"] == "broken"
    assert not (folder / "done_0").exists()
    assert group.calls == [("device", 0), ("function", 0, 2, "0", "2", "red"), "hung up", "destroyed"]
    assert engine._KEPT == ["the group"]
    assert folder.exists()


def test_what_an_engine_cannot_run(group: Group, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="An engine cannot access the job's folder"):
        run_on_engine(str(tmp_path), 0, 1, {})
    with ThreadPoolExecutor(1) as pool, pytest.raises(CaptureError, match="runs functions in a thread"):
        pool.submit(run_on_engine, str(folder), 0, 1, {}).result()
    group.there = True
    run_on_engine(str(folder), 0, 1, {})
    assert json.loads((folder / "failed_0").read_text())["message"].startswith("An engine already has a process group")
    assert (group.calls, group.there) == ([], True)


@pytest.mark.parametrize("asked", [True, False])
def test_a_rank_on_an_engine_stops_if_it_must(
    asked: bool, group: Group, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because this was asked for, or because nobody owns its folder any more, which is then removed."""
    stopped, hung_up_by = list[bool](), set[str]()
    monkeypatch.setattr(engine._Stopper, "hang_up", lambda _: hung_up_by.add(threading.current_thread().name))

    def act(folder: Path, stopping: threading.Event) -> None:
        assert not stopping.is_set()
        if asked:
            (folder / STOP).touch()
        else:
            (folder / "lock").unlink()
        try:
            time.sleep(60)
        finally:
            stopped.append(stopping.is_set())

    group.act = act
    run_on_engine(str(folder), 0, 1, {})

    assert stopped == [True]
    assert hung_up_by == {"perfnb-stopper", threading.current_thread().name}
    assert folder.exists() == asked
    if asked:
        assert json.loads((folder / "failed_0").read_text())["kind"] == "KeyboardInterrupt"


def test_a_rank_is_only_interrupted_while_its_job_runs(tmp_path: Path) -> None:
    with job_folder() as folder, engine._Stopper(folder) as stopper:
        signal.raise_signal(signal.SIGINT)
        stopper.armed = True
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert not stopper.armed


def test_a_rank_that_must_stop_is_interrupted_until_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopper, did = engine._Stopper(tmp_path), list[Any]()
    monkeypatch.setattr(engine, "is_abandoned", lambda folder: False)
    monkeypatch.setattr(engine.signal, "pthread_kill", lambda *given: did.append(given))
    stopper.hang_up = lambda: did.append("hung up")  # type: ignore[method-assign]
    over: Any = SimpleNamespace(is_set=lambda: did.count("hung up") == 2)
    stopper._over = over

    def wait(s: float) -> bool:
        did.append((s, stopper.stopping.is_set()))
        if did == [(engine._LOOK_S, False)] * 2:
            (tmp_path / STOP).touch()
        return False

    over.wait = wait
    stopper._watch()
    interrupt = (threading.main_thread().ident, signal.SIGINT)
    assert did == [(engine._LOOK_S, False)] * 2 + [interrupt, "hung up", (engine._AGAIN_S, True)] * 2


def test_only_the_connections_of_the_group_are_shut_down(tmp_path: Path) -> None:
    stopper = engine._Stopper(tmp_path)
    with ExitStack() as stack:
        pair = lambda: [stack.enter_context(one) for one in socket.socketpair()]  # noqa: E731
        before = pair()
        with stopper.watched_connections():
            group, replaced, listener = pair(), socket.socketpair(), stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            listener.listen()
        number = replaced[0].fileno()
        for one in replaced:
            one.close()
        later = pair()
        assert number in {one.fileno() for one in later}

        stopper.hang_up()

        assert [one.recv(1) for one in group] == [b"", b""]
        for first, second in (before, later):
            first.send(b"x")
            assert second.recv(1) == b"x"
        stack.enter_context(socket.create_connection(listener.getsockname()))


@pytest.fixture
def engines(client: Any) -> Iterator[Any]:
    """Yield the engines' client; afterwards they are as before, and can run something."""
    before = client[:].apply_sync(state)
    folders = set(Path(tempfile.gettempdir()).glob("perfnb-job-*"))
    yield client
    assert client[:].apply_sync(state) == before
    assert set(Path(tempfile.gettempdir()).glob("perfnb-job-*")) == folders


@pytest.mark.deep
def test_a_function_on_engines(engines: Any, capsys: pytest.CaptureFixture[str]) -> None:
    engines[:].push({"mine": 3}, block=True)

    def set_up() -> Any:
        print("rank", torch.distributed.get_rank(), "of", os.environ["WORLD_SIZE"], os.environ["COLOUR"])
        return small()

    for executor in (engines, engines[[1, 0]]):
        ranks = perfnb.profile_ranks(set_up, threads=1, executor=executor, env={"COLOUR": "blue"}, **FAST)

        assert ranks.ranks == [0, 1]
        assert len(ranks[1].collectives) == 1
        assert [profile.meta["environment"]["threads"] for profile in ranks] == [1, 1]
        printed = capsys.readouterr().out
        assert "[rank 0] rank 0 of 2 blue\n" in printed
        assert "[rank 1] rank 1 of 2 blue\n" in printed
    assert engines[:].pull("mine", block=True) == [3, 3]


@pytest.mark.deep
def test_an_exception_of_a_rank_on_an_engine(engines: Any) -> None:
    with pytest.raises(KeyError, match="gone") as caught:
        perfnb.profile_ranks(failing, executor=engines, **FAST)

    assert caught.value.__notes__ == ["perfnb: raised by rank 1 of 2; its traceback is above."]
    assert '{}["gone"]' in str(caught.value.__cause__)
    assert perfnb.profile_ranks(small, executor=engines, **FAST).ranks == [0, 1]


@pytest.mark.deep
def test_an_interrupt_while_engines_run_a_job(engines: Any, tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_until(lambda: len(list(tmp_path.glob("rank_*"))) == 2, 120)
        interrupt_soon(0.3)()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            perfnb.profile_ranks(endless(tmp_path), executor=engines, steps=100_000, budget_s=600.0)
    finally:
        thread.join()

    assert perfnb.profile_ranks(small, executor=engines, **FAST).ranks == [0, 1]


@pytest.mark.deep
def test_an_engine_that_is_killed(client: Any, tmp_path: Path) -> None:
    """The last test: the cluster has one engine less afterwards."""

    def kill() -> None:
        wait_until(lambda: len(list(tmp_path.glob("rank_*"))) == 2, 120)
        time.sleep(0.3)
        os.kill(int((tmp_path / "rank_1").read_text()), signal.SIGKILL)

    first = client.ids[0]
    before = client[first].apply_sync(state)
    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with pytest.raises(CaptureError, match=r"Engine \d+, which ran rank 1 of 2, has ended"):
            perfnb.profile_ranks(endless(tmp_path), executor=client, steps=100_000, budget_s=600.0)
    finally:
        thread.join()

    assert client[first].apply_sync(state) == before
    assert perfnb.profile_ranks(small, 1, executor=client[[first]], **FAST).ranks == [0]
