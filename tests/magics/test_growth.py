"""Many profiles in one kernel: nothing piles up."""

from __future__ import annotations

import pytest

from tests.magics.kernel import Kernel

pytestmark = pytest.mark.slow

MIB = 2**20


@pytest.mark.deep
@pytest.mark.parametrize("count", [5, pytest.param(10, marks=pytest.mark.simulation)])
def test_several_profiles(kernel: Kernel, count: int) -> None:
    cell = "%%profile_step --steps 5 --warmup 2 --into p for x, y in loader\ntrain()"
    for _ in range(2):
        kernel.ok(cell)
    before = kernel.inside("size()")

    sizes = []
    for _ in range(count):
        kernel.ok(cell)
        sizes.append(kernel.inside("size()"))

    grown = [size["rss"] / MIB - before["rss"] / MIB for size in sizes]
    print(f"resident memory after each of {count} profiles, MiB above the first: {[round(mib, 1) for mib in grown]}")
    for what in ("files", "threads", "hooks"):
        held = [before[what]] + [size[what] for size in sizes]
        # What an earlier test left to the garbage collector may go meanwhile, so the counts may fall.
        assert held == sorted(held, reverse=True), what
    assert grown[-1] < 6 * count
    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []


@pytest.mark.deep
def test_a_profile_that_is_forgotten_is_freed(kernel: Kernel) -> None:
    kernel.ok("%profile_step --steps 2 --warmup 1 --quiet --into p train()\n0")
    kernel.ok("import gc, weakref\nseen = weakref.ref(p)\ndel p")
    kernel.ok("gc.collect();")

    assert kernel.value("seen() is None")


def test_a_failed_step_keeps_no_batches(kernel: Kernel) -> None:
    kernel.ok(
        "import gc, weakref\nclass Rows(list): pass\nmade = []\n"
        "def fresh():\n    rows = Rows(loader)\n    made.append(weakref.ref(rows))\n    return rows"
    )
    kernel.run("%%profile_step --steps 2 --warmup 1 --quiet --into p for x, y in fresh()\ntrain()")
    kernel.ok("gc.collect();")

    assert kernel.value("[made_one() is None for made_one in made]") == [True] * 4


@pytest.mark.parametrize("magic", ["profile_step --steps 2 --warmup 1 --quiet --into p", "try_levers --quiet"])
@pytest.mark.parametrize("error", ["RuntimeError('failed')", "MemoryError()"])
@pytest.mark.parametrize("at", [1, 6])
def test_a_failed_step_keeps_no_variables(kernel: Kernel, magic: str, error: str, at: int) -> None:
    kernel.ok(
        "import gc, weakref\nlarge = nn.Linear(8, 8)\nseen = weakref.ref(large)\nruns = 0\n"
        "def once():\n    global runs\n    runs += 1\n    large(torch.ones(2, 8)).sum().backward()\n"
        f"    if runs >= {at}:\n        raise {error}"
    )

    assert kernel.run(f"%%{magic}\nonce()").status == "error"

    kernel.ok("del large\ngc.collect();")
    assert kernel.value("seen() is None")
