"""``%%latency`` in a real kernel: what it binds and shows, and what it refuses."""

from __future__ import annotations

import pytest

from tests.magics.kernel import Kernel

pytestmark = pytest.mark.slow


def test_a_cell_serves_requests(kernel: Kernel) -> None:
    kernel.ok("served = []")
    reply = kernel.ok("%%latency --rate 200 --budget 0.3 --into found for size in [1, 2]\nserved.append(size)")

    assert kernel.value("set(served)") == {1, 2}
    assert kernel.value("set(found.samples['run'])") == {"closed", "open"}
    [text] = reply.shown()
    assert text.startswith("perfnb · latency · ")
    assert len(reply.shown("text/html")) == 1
    assert reply.text("stderr") == ""


def test_a_model_in_training_mode_is_noticed_in_a_cell(kernel: Kernel) -> None:
    kernel.ok("import torch\nserved, idle = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)")
    cell = "%%latency --budget 0.2 for x in [torch.ones(2)]\nserved(x)"

    assert "The model was in training mode" in kernel.ok(cell).shown()[0]
    kernel.ok("served.eval()")
    assert "training mode" not in kernel.ok(cell).shown()[0]
