"""Bad lines and bad cells in a real kernel: one message names the fault, and nothing has run."""

from __future__ import annotations

import pytest

from tests.magics.kernel import Kernel


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("%profile_step --steps 2.5 train()", "--steps must be a whole number, not '2.5'.\n"),
        (
            "%%profile_step --steps 5\nran = 1\nf(x",
            'the step is not valid Python.\n  File "Cell In[{n}]", line 2\n    f(x\n',
        ),
    ],
)
def test_a_bad_cell_has_one_message_and_does_not_run(kernel: Kernel, code: str, message: str) -> None:
    reply = kernel.run(code)

    assert (reply.status, reply.error, reply.traceback) == ("error", "UsageError", "")
    shown = f"{reply.message}\n"
    assert shown.startswith(message.format(n=kernel.value("len(In) - 1")))
    assert reply.text("stderr") == f"UsageError: {shown}"
    assert len(reply.outputs) == 1, "no progress, no traceback"
    assert kernel.inside("new_names()") == []
