"""Errors reach the notebook, profilers do not nest, and in either case the next profile is whole."""

from __future__ import annotations

import pytest

from tests.magics.kernel import Kernel, client_of, notebook_of
from tests.tracebacks import frames_of_perfnb

pytestmark = pytest.mark.slow

SHORT = "--steps 3 --warmup 1 --quiet --into p"
BROKEN = """
class Boom(RuntimeError):
    pass

count = 0

def due():
    global count
    count += 1
    if count == {at}:
        raise Boom('in ' + '{where}')

class Forward(nn.Module):
    def forward(self, x):
        due()
        return x * 2

class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        due()
        return gradient

class Rows(list):
    def __iter__(self):
        for row in list.__iter__(self):
            due()
            yield row
"""
STEPS = {
    "forward": ("", "nn.Sequential(nn.Linear(8, 8), Forward())(loader[0][0])"),
    "backward": ("", "Backward.apply(model(loader[0][0])).sum().backward()"),
    "loader": ("for x, y in Rows(loader)", "model(x)"),
    "hook": ("", "model(loader[0][0])"),
    "optimizer": ("", "train()"),
}
PREPARE = {
    "hook": "handle = model[1].register_forward_hook(lambda *_: due())",
    "optimizer": "handle = optimizer.register_step_pre_hook(lambda *_: due())",
}
WARM_UP, TIMED, TRACED = 1, 3, 6


@pytest.mark.parametrize(
    ("where", "at"),
    [
        *((where, TRACED) for where in STEPS),
        *((where, at) for where in ("forward", "loader") for at in (WARM_UP, TIMED)),
    ],
)
def test_an_error_reaches_the_notebook(kernel: Kernel, where: str, at: int) -> None:
    clause, body = STEPS[where]
    kernel.ok(BROKEN.format(at=at, where=where) + PREPARE.get(where, "handle = None"))
    failing = kernel.send(f"%%profile_step {SHORT} {clause}\n{body}")
    queued = kernel.send("after = True")
    reply = kernel.wait(failing)

    assert (reply.status, reply.error, reply.message) == ("error", "Boom", f"in {where}")
    assert frames_of_perfnb(reply.traceback) == []
    assert kernel.wait(queued).status == "aborted"
    assert kernel.value("'after' in globals() or 'p' in globals()") is False
    assert kernel.value("count") == at

    kernel.ok("if handle: handle.remove()")
    kernel.ok(f"%profile_step {SHORT} train()")
    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []


def test_out_of_memory_shows_the_profile_up_to_it_and_the_error(kernel: Kernel) -> None:
    reply = kernel.run("%%profile_step --steps 3 --warmup 1 --into p\ntrain()\ntorch.empty(2**60)")

    assert (reply.status, reply.error) == ("error", "RuntimeError")
    assert "allocate memory" in reply.message
    assert reply.traceback.rstrip().endswith("the incomplete profile up to here is shown above.")
    assert frames_of_perfnb(reply.traceback) == []
    assert any("This profile is incomplete: memory ran out" in text for text in reply.shown())
    assert any("<strong>Memory</strong>" in page for page in reply.shown("text/html"))
    assert kernel.value("'p' in globals()") is False

    kernel.ok(f"%profile_step {SHORT} train()")
    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []


def test_run_all_stops(kernel: Kernel) -> None:
    sources = ["before = 1", f"%%profile_step {SHORT}\ntrain()\n1 / 0", "after = 1"]
    from nbclient.exceptions import CellExecutionError

    notebook = notebook_of(*sources)
    client = client_of(notebook, kernel)

    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        client.execute()

    assert [cell["execution_count"] is not None for cell in notebook["cells"]] == [True, True, False]
    assert kernel.inside("new_names()") == ["before"]


NESTED = [
    (f"%%profile_step {SHORT}\n%profile_step train()", "A step is already being profiled"),
    (f"%%profile_step {SHORT}\nimport perfnb\nperfnb.profile_step(train)", "A step is already being profiled"),
    (
        f"with torch.profiler.profile() as profiler:\n    %profile_step {SHORT} train()",
        "A torch profiler is already running",
    ),
    (
        f"%%profile_step {SHORT}\nwith torch.profiler.profile() as profiler:\n    train()",
        "The step runs a torch profiler of its own",
    ),
    (
        f"%%profile_step {SHORT}\nprofiler = torch.profiler.profile()\nprofiler.start()\ntrain()\nprofiler.stop()",
        "The step runs a torch profiler of its own",
    ),
]


@pytest.mark.parametrize(("cell", "message"), NESTED)
def test_profilers_do_not_nest(kernel: Kernel, cell: str, message: str) -> None:
    reply = kernel.run(cell)

    assert reply.status == "error"
    assert reply.error in ("NestedProfilerError", "CaptureError")
    assert reply.message.startswith(message)
    assert reply.message.count(". ") == 0, "one sentence"
    assert reply.traceback == f"{reply.error}: {reply.message}"

    kernel.ok(f"%profile_step {SHORT} train()")
    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []


AROUND = f"""
with torch.profiler.profile() as profiler:
    train()
    try:
        %profile_step {SHORT} train()
    except Exception as error:
        seen = str(error)
    train()
"""


def test_the_profiler_around_a_refused_profile_works(kernel: Kernel) -> None:
    kernel.ok(AROUND)

    assert kernel.value("seen").startswith("A torch profiler is already running")
    assert kernel.value("sum(event.name == 'aten::addmm' for event in profiler.events())") == 4


@pytest.mark.deep
def test_a_profiler_that_the_step_leaves_running(kernel: Kernel) -> None:
    kernel.ok("profiler = torch.profiler.profile()\nstarted = False")
    reply = kernel.run(f"%%profile_step {SHORT}\nif not started:\n    started = True\n    profiler.start()\ntrain()")

    assert (reply.status, reply.error) == ("error", "CaptureError")
    kernel.ok("profiler.stop()")
    kernel.ok(f"%profile_step {SHORT} train()")
    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []
