"""The process's memory, read so that what is kept shows and what is free does not."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

from perfnb.step.memory import _malloc_trim, footprint

MIB = 2**20
HOLDS = 64 * MIB


class _Ring:
    """Garbage that only the collector can free."""

    def __init__(self) -> None:
        self.me = self
        self.array = np.ones(HOLDS // 8)


#: Many small blocks with one kept at the top: without a trim the freed ones would stay resident.
KEEPS_ONE = f"""
import numpy as np
from perfnb.step.memory import footprint
with footprint() as read:
    before = read()
    blocks = [np.ones(4096) for _ in range({HOLDS} // (4096 * 8))]
    top = np.ones(4096)
    held = read()
    del blocks
    print(held - before, read() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(_malloc_trim() is None, reason="needs glibc")
def test_what_is_kept_shows_and_what_was_freed_does_not() -> None:
    # In a process of its own: one that ran other tests has free pages, which new blocks take first.
    told = subprocess.run([sys.executable, "-c", KEEPS_ONE], capture_output=True, text=True, check=True).stdout
    held, after = map(int, told.split())
    assert held == pytest.approx(HOLDS, rel=0.1)
    assert after < HOLDS / 10


@pytest.mark.slow
@pytest.mark.usefixtures("thawed")
def test_reference_cycles_are_collected() -> None:
    with footprint() as read:
        before = read()
        _Ring()
        assert read() - before < HOLDS / 2


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left", "thawed")
def test_the_collector_is_left_as_it_was() -> None:
    frozen, on = gc.get_freeze_count(), gc.isenabled()
    with pytest.raises(KeyboardInterrupt), footprint():
        raise KeyboardInterrupt
    assert (gc.get_freeze_count(), gc.isenabled()) == (frozen, on)


@pytest.mark.slow
@pytest.mark.usefixtures("thawed")
def test_what_a_user_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with footprint() as read:
            read()
        # A few of what was frozen may end meanwhile, in other threads.
        assert frozen - 100 < gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()
