"""The fixture `nothing_left` fails a test for each kind of thing it can leave, and only then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

from perfnb.step.environment import Conditions
from tests import surroundings

pytest_plugins = ["pytester"]

LEAVES_SOMETHING = """
import signal, subprocess, sys, tempfile, threading
import psutil
import pytest
import torch

pytestmark = pytest.mark.usefixtures("nothing_left")
kept = []
SERVER = "import subprocess, sys; sys.stdin.read(); c = subprocess.Popen(['sleep', '60']); print('up', flush=True)"

@pytest.fixture(scope="session")
def server():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SERVER + "; c.wait()"], stdin=pipe, stdout=pipe) as process:
        yield process
        for child in psutil.Process(process.pid).children():
            child.kill()

def test_leaves_nothing():
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *a: None)
    handle.remove()
    thread = threading.Thread(target=print)
    thread.start()
    thread.join()

def test_hook():
    torch.nn.modules.module.register_module_forward_hook(lambda *a: None, always_call=True)

def test_pre_hook():
    torch.nn.modules.module.register_module_forward_pre_hook(lambda *a: None)

def test_thread():
    threading.Thread(target=threading.Event().wait, daemon=True, name="sampler").start()

def test_process():
    kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))

def test_children_of_a_process_that_was_there(server):
    server.stdin.write(b"go")
    server.stdin.close()
    assert server.stdout.read(2) == b"up"

def test_file():
    kept.append(tempfile.NamedTemporaryFile(prefix="perfnb-"))

def test_signal():
    signal.signal(signal.SIGINT, lambda *a: None)

def test_profiler():
    profiler = torch.profiler.profile()
    profiler.start()
    kept.append(profiler)

def test_end():
    kept[-1].stop()
    kept[0].kill()
    kept[0].wait()
    kept[1].close()
"""


@pytest.mark.deep
@pytest.mark.slow
def test_each_leftover_is_reported(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(__file__).parent
    monkeypatch.setenv("TMPDIR", str(pytester.path))  # where nobody else has files
    tests = pytester.mkdir("tests")
    for name in ("conftest.py", "surroundings.py"):
        (tests / name).write_text((here / name).read_text())
    (tests / "test_it.py").write_text(LEAVES_SOMETHING)

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-o", "pythonpath=.", "tests")

    result.assert_outcomes(passed=10, errors=7)
    for what in ("torch hook in _global_forward_hooks", "torch hook in _global_forward_pre_hooks", "thread sampler"):
        result.stdout.fnmatch_lines(f"*left behind: {what}*")
    for what in ("process *", "file perfnb-*", "SIGINT handler *", "a running torch profiler"):
        result.stdout.fnmatch_lines(f"*left behind: {what}*")


def test_processes_by_the_kernels_lists_are_those_that_psutil_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = "sleep 60 & echo up; wait"
    with subprocess.Popen(["sh", "-c", f"sh -c '{waits}' & wait"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        listed = surroundings._children()
        monkeypatch.setattr(surroundings, "_LISTS", Path("/nowhere"))
        found = surroundings._children()
        tree = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
        for pid in tree:  # from the top: a shell ends by itself once its child has
            psutil.Process(pid).kill()

    assert len(tree) == 3
    assert {key for key in listed if key[0] in tree} == {key for key in found if key[0] in tree}  # others come and go
    assert {pid for pid, _ in listed} >= set(tree)
    for key in (key for key in listed if key[0] in tree):
        above = set(tree[: tree.index(key[0])])
        assert listed[key].above & set(tree) == found[key].above & set(tree) == above


def test_callbacks_hooks_of_optimizers_and_the_switch_interval_are_seen() -> None:
    before = surroundings.Surroundings.now()
    conditions, interval = Conditions(), sys.getswitchinterval()
    hook = register_optimizer_step_post_hook(lambda *_: None)
    with conditions:
        sys.setswitchinterval(2 * interval)
        left = surroundings.Surroundings.now().changed_since(before)
        sys.setswitchinterval(interval)
    hook.remove()
    assert left == [
        "torch hook in _global_optimizer_post_hooks",
        "a callback of the garbage collector",
        f"a switch interval of {2 * interval} s",
    ]
    assert surroundings.Surroundings.now().changed_since(before) == []
