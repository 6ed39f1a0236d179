"""Python and torch, and what is reported about them."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from perfnb.system.read.host import build_readers, loaded_openmp, python_build
from perfnb.system.read.reading import SystemTree, read_all


def test_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("PYTHONMALLOC", "malloc_debug")
    read = read_all(build_readers(SystemTree("/", "linux")))

    assert read["torch"]["version"] == torch.__version__
    assert read["torch"]["mkl"] is torch.backends.mkl.is_available()
    assert f"BLAS_INFO={read['torch']['blas']}" in torch.__config__.show()
    assert read["python"]["malloc"] == "malloc_debug"
    assert read["python"]["debug"] in (True, False)
    assert read["environment"]["threads"] == torch.get_num_threads()
    assert read["thread_variables"]["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("trace", "profile", "debug", "arguments", "expected"),
    [
        (None, None, 0, "", (False, False, None)),
        (print, None, 0, "'--enable-optimizations' '--x'", (True, False, True)),
        (None, print, 1, "'--x'", (True, True, False)),
    ],
)
def test_what_slows_down_python_is_read(
    trace: Callable[..., None] | None, profile: Callable[..., None] | None, debug: int, arguments: str,
    expected: tuple[bool, bool, bool | None], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "gettrace", lambda: trace)
    monkeypatch.setattr(sys, "getprofile", lambda: profile)
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": arguments, "Py_DEBUG": debug}.get)
    read = python_build()
    assert (read["tracer"], read["debug"], read["optimized"]) == expected


def test_openmp_runtimes_are_known_by_their_files(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/maps").write_text(
        "7f0 r-xp 00000000 08:01 1 /opt/torch lib/libgomp-a34b3233.so.1\n7f1 r-xp 0 08:01 2 /opt/libiomp5.so\n"
        "7f2 rw-p 00000000 08:01 1 /opt/torch lib/libgomp-a34b3233.so.1\n7f3 r-xp 0 08:01 3 /opt/libompi_no.so\n"
    )
    runtimes = loaded_openmp(SystemTree(str(tmp_path), "linux"))
    assert runtimes == ["/opt/libiomp5.so", "/opt/torch lib/libgomp-a34b3233.so.1"]
