"""``%%try_levers`` in a real kernel: what it binds and shows, what it refuses, and that an interrupt leaves nothing."""

from __future__ import annotations

import pytest

from tests.magics.kernel import Kernel

pytestmark = pytest.mark.slow

TRAIN = "optimizer.zero_grad()\nloss = loss_fn(model(x), y)\nloss.backward()\noptimizer.step()"
STATE = "[p.detach().clone() for p in model.parameters()], torch.get_rng_state(), torch.get_num_threads()"
SAME = "all(map(torch.equal, before[0], after[0])) and torch.equal(before[1], after[1]) and before[2] == after[2]"


def test_a_cell_with_batches_leaves_the_model_as_it_was(kernel: Kernel) -> None:
    kernel.ok(f"before = {STATE}")
    reply = kernel.ok(f"%%try_levers --levers threads,fused_optimizer --budget 30 --into t for x, y in loader\n{TRAIN}")
    kernel.ok(f"after = {STATE}")

    assert kernel.value("list(t.table.index)") == ["threads", "fused_optimizer"]
    assert kernel.value(SAME)
    [text] = reply.shown()
    assert text.startswith("perfnb · levers · step\n")
    assert len(reply.shown("text/html")) == 1
    assert reply.text("stderr") == ""


def test_an_error_in_the_cell_comes_through(kernel: Kernel) -> None:
    kernel.ok(f"before = {STATE}")
    reply = kernel.run("%%try_levers --levers threads --budget 2 for x, y in loader\nmodel(x).sum().backward()\n1 / 0")
    kernel.ok(f"after = {STATE}")

    assert (reply.status, reply.error) == ("error", "ZeroDivisionError")
    assert kernel.value(SAME)
