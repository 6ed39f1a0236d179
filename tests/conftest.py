"""Fixtures for all tests, which provide the same random numbers each time and check that nothing is left behind."""

from __future__ import annotations

import gc
import getpass
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
from hypothesis import settings

from perfnb.draw import document
from tests.fake_clock import FakeClock
from tests.surroundings import Surroundings

# pytest-xdist sets this variable in each of the processes that share the tests.
SHARED = "PYTEST_XDIST_WORKER" in os.environ
TESTS = Path(__file__).parent
#: The variable with the folder for compiled code, which all processes of this run share.
COMPILED = "PERFNB_TESTS_COMPILED"
#: The variable that `make test-fast` sets to get cheaper text in frames, and the packages that still use Arrow.
QUICK = "PERFNB_TESTS_QUICK"
ARROW = ("recording", "attribution", "profile")
#: If a test adds at least this many modules, it has imported a large package.
MANY_MODULES = 100
# No test asserts an absolute speed, because other programs also use the cores.
settings.register_profile("perfnb", settings.default, deadline=None)
settings.load_profile("perfnb")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Use the same random numbers and one thread in each test. Torch is only configured if a test has loaded it.

    With two threads, a thread that waits for a core keeps the other one busy, so a small convolution takes ten times as
    long. Without an accelerator, `torch.manual_seed` would format three tracebacks per test, in case one is used later.
    """
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        if torch.accelerator.is_available():
            torch.manual_seed(0)
        else:
            torch.default_generator.manual_seed(0)
        torch.set_num_threads(1)


@pytest.fixture
def two_threads(_seeded: None) -> None:
    """Make torch compute with two threads in this test, as it does on most users' machines."""
    import torch

    torch.set_num_threads(2)


@pytest.fixture(autouse=True, scope="session")
def _documents_agree_and_are_as_wide_everywhere() -> Iterator[None]:
    """Make it an error if a document contradicts itself, and make the width of texts independent of the terminal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document, "strict", True)
        patch.setenv("COLUMNS", "100")
        yield


@pytest.fixture(autouse=True, scope="module")
def _little_to_collect() -> None:
    """Exclude objects left by the imports of earlier tests from garbage collections and captures."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _imports_to_collect(request: pytest.FixtureRequest) -> Iterator[None]:
    """Exclude objects left by a large import in a test, such as torch's compiler, from collections in later tests."""
    before = len(sys.modules)
    yield
    if len(sys.modules) > before + MANY_MODULES and "thawed" not in request.fixturenames:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _text_of_python_objects(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use Python objects for text in small frames in the quick tests, which takes two thirds of the time of Arrow.

    All other test runs use Arrow, like users do. So do the tests of packages that create, type, save and load frames.
    """
    if QUICK not in os.environ or request.path.parent.name in ARROW or int(pd.__version__.partition(".")[0]) < 3:
        yield
        return
    with pd.option_context("mode.string_storage", "python"):
        yield


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the tests' measurements of the machine separate from those that are cached for the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFNB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _temporary_files_of_its_own() -> Iterator[None]:
    """Use a separate temporary folder. Otherwise, `nothing_left` would find temporary files of other processes."""
    folder = tempfile.mkdtemp()  # a short path, because names of sockets must not exceed about a hundred characters
    # In the first compilation, torch's compiler spends most of the time on headers and on testing the C++ compiler.
    with suppress(KeyError, OSError):  # if the user has no name, each process compiles its own code
        Path(folder, f"torchinductor_{getpass.getuser()}").symlink_to(os.environ[COMPILED])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
    shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_finish() -> None:
    """Freeze the objects created by the tests' own imports, of which there are about 600,000.

    A capture iterates over all objects several times and collects garbage, which would take up nearly all of its time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def thawed() -> Iterator[None]:
    """Unfreeze all objects while a test runs, so that the garbage collector handles them as usual."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


#: A thread that ends shortly after the queue of a loader's worker was closed.
_FEEDER = "thread QueueFeederThread"


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail the test if it leaves a hook, profiler, thread, process, signal handler or temporary file behind."""
    before = Surroundings.now()
    yield
    left = Surroundings.now().changed_since(before)
    until = time.monotonic() + 60.0
    while left and set(left) == {_FEEDER} and time.monotonic() < until:
        time.sleep(0.05)
        left = Surroundings.now().changed_since(before)
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture
def failed(request: pytest.FixtureRequest) -> Callable[[], bool]:
    """Return a function that reports whether the test has failed, for fixtures that clean up shared objects."""
    return lambda: bool(request.node.stash.get(_FAILED, False))


@pytest.fixture
def feeders_end(nothing_left: None) -> Iterator[None]:
    """Wait for the threads that feed a loader's workers. multiprocessing ends them shortly after the workers."""
    yield
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(5)


@pytest.fixture
def workers() -> Callable[[], list[psutil.Process]]:
    """Return a function that lists the processes started by the test. Others, such as a browser, may already exist."""
    before = {process.pid for process in psutil.Process().children()}
    return lambda: [process for process in psutil.Process().children() if process.pid not in before]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    """Replace the clock with one that only advances when the test sleeps, without waiting.

    Results are therefore the same on every machine. Garbage is only collected when the test requests it, because each
    collection reads the clock.
    """
    clock = FakeClock()
    clock.install(monkeypatch)
    thresholds = gc.get_threshold()
    gc.set_threshold(0)  # instead of gc.disable(), because levers check whether the collector is enabled
    yield clock
    gc.set_threshold(*thresholds)


def pytest_configure(config: pytest.Config) -> None:
    if COMPILED not in os.environ:
        os.environ[COMPILED] = tempfile.mkdtemp()
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(COMPILED), ignore_errors=True))
    # Background processes of a shell ignore interrupts, and Python does not change this.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


#: Public traces that take seconds for each figure. They appear in the names of parametrized tests.
LARGE_TRACES = ("mi300_owlv2_large", "v100_resnet50_2021", "mi300_ddp_resnet18")
#: If a slow test has this many cases, `make test` only runs the first and the last, and `make test-all` runs all.
FEW = 2
#: The files that take the longest, in descending order: whole notebooks, kernels and browsers.
LONGEST = (
    *("labs/test_notebooks.py", "magics/test_interrupts.py", "docs/test_pages_run.py", "browser/test_quickstart.py"),
    *("magics/test_interrupted_steps.py", "magics/test_profile_step.py", "magics/test_growth.py"),
    *("browser/test_gpuwatch.py", "gpu/test_properties.py", "diff/test_traces.py"),
)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects tests by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that only `make test-all` runs as deep, and move the files that take long to the front.

    Deep tests are additional browser tests of a view, tests of large traces, and most cases of slow tests with many
    cases. Long files come first so that no process is still running one at the end.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("deep") and hasattr(item, "callspec"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for alike in cases.values():
        chosen = {round(number * (len(alike) - 1) / (FEW - 1)) for number in range(FEW)}
        for number, item in enumerate(alike):
            if number not in chosen:
                item.add_marker("deep")
    for item in items:
        if "shared_kernel" in getattr(item, "fixturenames", ()):
            item.add_marker("kernel")
        is_further_view = item.get_closest_marker("browser") and not item.get_closest_marker("smoke")
        if is_further_view or any(trace in item.name for trace in LARGE_TRACES):
            item.add_marker("deep")
    if SHARED:
        place = {TESTS / name: number for number, name in enumerate(LONGEST)}
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: (place.get(item.path, len(place)), item.path not in slow))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


LEFT_OUT = ("simulation", "accuracy", "deep", "browser", "slow")
_left_out: Counter[str] = Counter()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count the tests that are left out, by the first reason that applies."""
    for item in items:
        _left_out[next((f"marked {name}" for name in LEFT_OUT if item.get_closest_marker(name)), "not chosen")] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # this is one of several processes
        session.config.workeroutput["left_out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Use the counts of a single process, because all processes leave out the same tests."""
    if not _left_out:
        _left_out.update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _left_out:
        counts = ", ".join(f"{count:,} {reason}" for reason, count in _left_out.most_common())
        terminalreporter.write_line(f"Left out: {counts}.")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--overwrite-golden", action="store_true", help="write the golden texts again; check the diff afterwards"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a function that compares a text with a file in the folder `golden` next to the test."""

    def same(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if request.config.getoption("--overwrite-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
        assert text == path.read_text("utf-8")

    return same
