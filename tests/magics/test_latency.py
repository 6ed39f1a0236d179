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


def test_an_error_in_the_cell_comes_through(kernel: Kernel) -> None:
    reply = kernel.run("%%latency --budget 0.3 for size in [1, 2]\n1 / 0")

    assert (reply.status, reply.error) == ("error", "ZeroDivisionError")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--rate 0 for x in [1]",
            "rate_per_s must be a number of requests per second that is above 0 and at most 1e6, not 0.0.",
        ),
        ("--budget -1 for x in [1]", "budget_s must be a number of seconds above 0, not -1.0."),
        ("--into 3 for x in [1]", "--into requires a variable name, not '3'."),
        ("--rates 3 for x in [1]", "there is no option --rates: did you mean --rate?"),
        ("", "%%latency needs requests: write for NAME in REQUESTS after it."),
        ("x in [1]", "cannot read 'x in [1]': write for TARGET in ITERABLE, as in a for loop."),
        ("for x in []", "requests is empty: latency needs at least one."),
    ],
)
def test_a_bad_line(kernel: Kernel, line: str, message: str) -> None:
    reply = kernel.run(f"%%latency {line}\npass")

    assert reply.status == "error"
    assert reply.message.startswith(message)
