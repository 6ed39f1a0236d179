"""Ranks on two engines of ipyparallel, which continue afterwards; and things that are not executors."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import perfnb
from perfnb.errors import CaptureError
from tests.launching.jobs import FAST, endless, interrupt_soon, small
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
@pytest.mark.parametrize("inside", ["setting up", "a step"])
def test_an_exception_of_a_rank_on_an_engine(engines: Any, inside: str) -> None:
    def fail() -> None:
        if torch.distributed.get_rank() == 1:
            {}["gone"]

    def set_up() -> Any:
        if inside == "setting up":
            fail()
        step, batches = small()

        def failing(batch: Any) -> None:
            if inside == "a step":
                fail()
            step(batch)

        return failing, batches

    with pytest.raises(KeyError, match="gone") as caught:
        perfnb.profile_ranks(set_up, executor=engines, **FAST)

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
def test_an_engine_with_a_process_group(engines: Any) -> None:
    def join() -> None:
        import torch

        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    engines[1].apply_sync(join)
    try:
        with pytest.raises(CaptureError, match="An engine already has a process group"):
            perfnb.profile_ranks(small, executor=engines, **FAST)
    finally:
        engines[1].apply_sync(torch.distributed.destroy_process_group)


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
