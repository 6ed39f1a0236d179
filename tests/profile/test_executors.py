"""Ranks are read by whatever executor the user has: threads, processes, Dask's and ipyparallel's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import psutil
import pytest

import perfnb
from perfnb.errors import TraceError
from tests.ranks.rank_traces import TABLES, rank_trace, written

pytestmark = pytest.mark.slow


@contextmanager
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@contextmanager
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        yield executor


@contextmanager
def dask() -> Iterator[Executor]:
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=40
        ) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as executor,
    ):
        yield executor


@contextmanager
def ipyparallel() -> Iterator[Executor]:
    package = pytest.importorskip("ipyparallel", reason="ipyparallel is not installed")
    cluster = package.Cluster(n=2, log_level=40)
    try:
        client = cluster.start_and_connect_sync(activate=False)
        try:
            yield client.executor()
        finally:
            client.close()
    finally:
        cluster.stop_cluster_sync()


def children() -> set[int]:
    """Return the processes of Python below this one; a browser that other tests keep open comes and goes as it
    likes.
    """
    found = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "python" in child.name():
                found.add(child.pid)
    return found


@pytest.mark.parametrize(
    "make", [threads, *(pytest.param(make, marks=pytest.mark.deep) for make in (processes, dask, ipyparallel))]
)
def test_an_executor_reads_ranks_as_one_process_does(
    make: Callable[[], Iterator[Executor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # where ipyparallel writes what it needs
    monkeypatch.setenv("PYTHONPATH", str(Path(perfnb.__file__).parents[1]))
    paths = written(tmp_path, [rank_trace(0), rank_trace(50), rank_trace(60)])
    bad = tmp_path / "bad_rank3.json"
    bad.write_text("[[[")
    alone, before = perfnb.load(paths), children()

    with make() as executor:  # type: ignore[attr-defined]
        ranks = perfnb.load(paths, executor=executor)
        with pytest.raises(TraceError) as caught:
            perfnb.load([*paths, bad], executor=executor)

    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(ranks, table), getattr(alone, table))
    with pytest.raises(TraceError) as here:
        perfnb.load(bad)
    assert str(caught.value) == str(here.value)
    deadline = time.monotonic() + 60
    while (left := children() - before - _trackers()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def _trackers() -> set[int]:
    """Python's own keeper of shared resources, which stays as long as the process."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if "multiprocessing.resource_tracker" in " ".join(child.cmdline()):
                found.add(child.pid)
        except psutil.Error:
            pass
    return found
