"""The suite of `make test-gpu`: promises about live GPUs, checked on one. It may judge times, unlike `make test`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("gpu")
            item.add_marker(pytest.mark.filterwarnings("default"))  # torch there is any, and compiling warns of TF32


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Start each test with nothing left of others in the allocator, and with fresh peaks."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield
    torch.cuda.synchronize()


@pytest.fixture(scope="session")
def cycles_per_ms() -> float:
    """Return how many cycles of ``torch.cuda._sleep`` take a millisecond, at the clock of a busy GPU."""
    torch.cuda.init()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(200_000_000)
    begin.record()
    torch.cuda._sleep(200_000_000)
    end.record()
    end.synchronize()
    return 200_000_000 / begin.elapsed_time(end)


@pytest.fixture
def sleep(cycles_per_ms: float) -> Callable[[float], None]:
    """Keep the GPU busy for some milliseconds; the host continues at once."""
    return lambda ms: torch.cuda._sleep(round(ms * cycles_per_ms))
