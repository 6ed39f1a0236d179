"""GPUs that a stand-in for the driver's library plays, read by a process that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.telemetry.nvml_stand_in import Gpus, recent_driver, two_gpus


@pytest.fixture(scope="module")
def nvml_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpus]:
    """Yield a process that reads GPUs by the library of a recent driver."""
    yield from recent_driver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(nvml_process: Gpus) -> Iterator[Gpus]:
    """Provide two GPUs in their initial state."""
    yield from two_gpus(nvml_process)
