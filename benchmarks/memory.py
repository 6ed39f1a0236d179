"""Measure how much a kernel's resident memory grows over 50 profiles that are released or remain displayed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

_FIRST, _MORE = 5, 50
# Freed pages are returned to the system before each reading, so that only used memory counts.
_SETUP = """
%load_ext perfnb
import ctypes, gc, psutil, torch
from benchmarks.models import gpt
step = gpt()
def resident():
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)
    return psutil.Process().memory_info().rss
"""
_PROFILE = "%%profile_step --warmup 1 --steps 2 --into p\nstep()"


def run() -> Iterator[str]:
    """Yield one line for profiles that are released, and one for displayed profiles that the notebook's Out retains."""
    for words, code in (("released", _PROFILE + ";"), ("displayed and kept in Out", _PROFILE)):
        first, middle, last = (size / 2**20 for size in _sizes(code))
        yield (
            f"memory: {_MORE} profiles, {words}, added {last - first:.1f} MiB to the kernel "
            f"({middle - first:+.1f}, then {last - middle:+.1f}; {last:.0f} MiB in total)"
        )


def _sizes(code: str) -> list[int]:
    """Return the resident bytes of a new kernel after the first profiles, after half of the others, and at the end."""
    manager = KernelManager()
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        _execute(client, _SETUP)
        sizes = []
        for count in (_FIRST, _MORE // 2, _MORE // 2):
            for _ in range(count):
                _execute(client, code)
            sizes.append(int(_execute(client, "resident()")))
        return sizes
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _execute(client: BlockingKernelClient, code: str) -> str:
    """Run a cell and return its value as text."""
    value = [""]

    def take(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "execute_result":
            value[0] = content["data"]["text/plain"]
        elif message["msg_type"] == "error":
            raise RuntimeError("\n".join(content["traceback"]))

    client.execute_interactive(code, timeout=300, output_hook=take)
    return value[0]
