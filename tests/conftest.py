"""What every test may ask for: the same random numbers each time, and proof that nothing was left behind."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.surroundings import Surroundings


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Same random numbers and two threads for each test. Torch is set only where a test has loaded it."""
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
        torch.set_num_threads(2)


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the tests measure of the machine is neither kept for the user nor taken from there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFNB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail the test if it leaves a hook, profiler, thread, process, signal handler or temporary file behind."""
    before = Surroundings.now()
    yield
    left = Surroundings.now().changed_since(before)
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


def pytest_configure() -> None:
    # A shell starts what it puts in the background with interrupts ignored, and Python keeps it so.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--overwrite-golden", action="store_true", help="write the golden texts anew, then read the diff")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the file of that name in the folder `golden` beside the test."""

    def same(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if request.config.getoption("--overwrite-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
        assert text == path.read_text("utf-8")

    return same
