"""What every test may ask for: the same random numbers each time, and proof that nothing was left behind."""

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

# Set by pytest-xdist in each process that shares the tests with others.
SHARED = "PYTEST_XDIST_WORKER" in os.environ
TESTS = Path(__file__).parent
#: The variable with the folder that all processes of this run have for what torch compiles.
COMPILED = "PERFNB_TESTS_COMPILED"
#: The variable by which `make test-fast` asks for cheaper text in frames, and the rooms whose text stays Arrow's.
QUICK = "PERFNB_TESTS_QUICK"
ARROW = ("recording", "attribution", "profile")
#: So many new modules in one test are a package's import.
MANY_MODULES = 100
# No test asserts an absolute speed, and other programs use the cores too.
settings.register_profile("perfnb", settings.default, deadline=None)
settings.load_profile("perfnb")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Same random numbers and one thread for each test. Torch is set only where a test has loaded it.

    With two threads, one that waits for a core keeps the other busy, and a small convolution takes ten times as long.
    Without an accelerator, `torch.manual_seed` would format three tracebacks per test, to seed one that may come later.
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
    """Torch computes with two threads in this test, as on the machines of most users."""
    import torch

    torch.set_num_threads(2)


@pytest.fixture(autouse=True, scope="session")
def _documents_agree_and_are_as_wide_everywhere() -> Iterator[None]:
    """Make a document that contradicts itself an error, and no text depend on the terminal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document, "strict", True)
        patch.setenv("COLUMNS", "100")
        yield


@pytest.fixture(autouse=True, scope="module")
def _little_to_collect() -> None:
    """What the imports of earlier tests left is not walked over in each collection and by each capture."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _imports_to_collect(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep what a large import in a test leaves, such as that of torch's compiler, from being walked over by the next
    tests.
    """
    before = len(sys.modules)
    yield
    if len(sys.modules) > before + MANY_MODULES and "thawed" not in request.fixturenames:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _text_of_python_objects(request: pytest.FixtureRequest) -> Iterator[None]:
    """In the quick tests alone, text in small frames is Python objects, which take two thirds of the time of Arrow.

    All other runs of the tests have Arrow, as users do, and so have the rooms that make, type, save and load frames.
    """
    if QUICK not in os.environ or request.path.parent.name in ARROW or int(pd.__version__.partition(".")[0]) < 3:
        yield
        return
    with pd.option_context("mode.string_storage", "python"):
        yield


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the tests' measurements of the machine apart from those kept for the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFNB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _temporary_files_of_its_own() -> Iterator[None]:
    """Beside other processes, these tests' or another user's, `nothing_left` would see their temporary files."""
    folder = tempfile.mkdtemp()  # short: the names of sockets in it must not exceed some hundred characters
    # torch's compiler spends most of its first compilation on headers and on trying the C++ compiler.
    with suppress(KeyError, OSError):  # without a name of the user, each process compiles for itself
        Path(folder, f"torchinductor_{getpass.getuser()}").symlink_to(os.environ[COMPILED])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
    shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_finish() -> None:
    """Set apart what the tests' own imports have made, some 600,000 objects.

    A capture walks over all objects several times and collects garbage: nearly all its time would go there.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def thawed() -> Iterator[None]:
    """Set nothing apart from the garbage collector while a test runs, as if nobody had asked for it."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


#: Ends by itself, a moment after the queue of a loader's worker was closed.
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
    """Show a fixture that tidies up whether the test has failed and may have left shared objects in pieces."""
    return lambda: bool(request.node.stash.get(_FAILED, False))


@pytest.fixture
def feeders_end(nothing_left: None) -> Iterator[None]:
    """Wait for the threads that feed a loader's workers: multiprocessing ends them a moment after the workers."""
    yield
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(5)


@pytest.fixture
def workers() -> Callable[[], list[psutil.Process]]:
    """Return the processes that the test has started: others, such as a browser's, may be there already."""
    before = {process.pid for process in psutil.Process().children()}
    return lambda: [process for process in psutil.Process().children() if process.pid not in before]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    """Time passes only where the test sleeps, and then without waiting: what is made of it is the same everywhere.

    Garbage is only collected where the test does so: each pause looks at the clock.
    """
    clock = FakeClock()
    clock.install(monkeypatch)
    thresholds = gc.get_threshold()
    gc.set_threshold(0)  # not gc.disable: levers ask whether it is on
    yield clock
    gc.set_threshold(*thresholds)


def pytest_configure(config: pytest.Config) -> None:
    if COMPILED not in os.environ:
        os.environ[COMPILED] = tempfile.mkdtemp()
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(COMPILED), ignore_errors=True))
    # A shell starts what it puts in the background with interrupts ignored, and Python keeps it so.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


#: Public traces of which each figure takes seconds: in the names of tests with parameters.
LARGE_TRACES = ("mi300_owlv2_large", "v100_resnet50_2021", "mi300_ddp_resnet18")
#: Of so many cases of a slow test, the first and the last, `make test` runs it; `make test-all` runs it of each.
FEW = 2
#: The files that take longest, the longest first: whole notebooks, kernels and browsers.
LONGEST = (
    *("labs/test_notebooks.py", "magics/test_interrupts.py", "docs/test_pages_run.py", "browser/test_quickstart.py"),
    *("magics/test_interrupted_steps.py", "magics/test_profile_step.py", "magics/test_growth.py"),
    *("browser/test_gpuwatch.py", "gpu/test_properties.py", "diff/test_traces.py"),
)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves tests out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as deep what `make test` leaves to `make test-all`; start with the files that take long.

    Deep are further browser tests of a view, tests of large traces, and of a slow test's many cases all but a few. No
    process is left with a long file at the end.
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
    """Count what the run leaves out, by the first reason that holds."""
    for item in items:
        _left_out[next((f"marked {name}" for name in LEFT_OUT if item.get_closest_marker(name)), "not chosen")] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # one of several processes
        session.config.workeroutput["left_out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what one process has left out; each leaves out the same."""
    if not _left_out:
        _left_out.update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _left_out:
        counts = ", ".join(f"{count:,} {reason}" for reason, count in _left_out.most_common())
        terminalreporter.write_line(f"Left out: {counts}.")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--overwrite-golden", action="store_true", help="write the golden texts anew, then read the diff")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the file of that name in the folder `golden` next to the test."""

    def same(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if request.config.getoption("--overwrite-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
        assert text == path.read_text("utf-8")

    return same
