"""A cell's body means what it means in a cell: IPython syntax, strings, names, and where an error points to."""

from __future__ import annotations

import pytest

from tests.magics.kernel import Kernel
from tests.tracebacks import frames_of_perfnb

pytestmark = pytest.mark.slow

SHORT = "--steps 2 --warmup 1 --no-stacks --quiet --into p"
STEPS = 10  # with two lead-ins, three traced and two counted ones


def test_ipython_syntax(kernel: Kernel) -> None:
    reply = kernel.ok(f'%%profile_step {SHORT}\n!true\n%time train()\nhi = !echo "it\'s ("\n?len\nlen?')

    assert reply.text().count("Wall time") == 5  # two lines each, and of what steps print the first ten are shown
    assert f"[perfnb: {2 * STEPS - 10} more lines printed by the step]" in reply.text()
    assert kernel.value("list(hi)") == ["it's ("]
    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []


def test_strings_of_several_lines_stay(kernel: Kernel) -> None:
    kernel.ok(f"%%profile_step {SHORT}\ntext = '''one\n  %two\n!three\n\n    four?\n'''\nif True:\n\n    done = True\n")

    assert kernel.value("text") == "one\n  %two\n!three\n\n    four?\n"
    assert kernel.value("done") is True


def test_what_a_body_defines(kernel: Kernel) -> None:
    kernel.ok("n = 0")
    kernel.inside("look()")
    kernel.ok(
        f"%%profile_step {SHORT}\nglobal n\nimport math\nn += 1\ndef f(k=n): return k\n"
        "class C: m = n\nsquares = [f(i) * n for i in range(2)]\nasync def g(): await h()\n"
    )

    assert kernel.value("[n, f(), C.m, squares]") == [STEPS, STEPS, STEPS, [0, STEPS]]
    assert kernel.inside("new_names()") == sorted(["C", "f", "g", "math", "p", "squares"])


def test_a_body_is_indented_as_in_a_cell(kernel: Kernel) -> None:
    kernel.ok(f"%%profile_step {SHORT}\n\n    a = 1\n    a += 1\n")

    assert kernel.value("a") == 2


@pytest.mark.parametrize("store", [True, False])
def test_a_traceback_shows_the_cells_own_line(kernel: Kernel, store: bool) -> None:
    reply = kernel.run(
        f"%%profile_step {SHORT}\na = 1\nb = '''\n%two'''\n\n\nraise ValueError('boom')", store_history=store
    )
    number = kernel.value("get_ipython().execution_count") - (1 if store else 0)

    assert (reply.status, reply.error, reply.message) == ("error", "ValueError", "boom")
    assert f"Cell In[{number}], line 6\n" in reply.traceback
    assert "----> 6 raise ValueError('boom')" in reply.traceback
    without_frames_of_perfnb(reply.traceback)


def test_a_traceback_goes_through_the_users_functions_only(kernel: Kernel) -> None:
    kernel.ok("def inner():\n    return 1 / 0")
    reply = kernel.run(f"%profile_step {SHORT} inner()")

    assert reply.error == "ZeroDivisionError"
    assert "----> 2     return 1 / 0" in reply.traceback
    assert "----> 1 inner()" in reply.traceback
    without_frames_of_perfnb(reply.traceback)


@pytest.mark.parametrize(
    ("clause", "error", "message"),
    [
        ("for x, y, z in loader", "ValueError", "not enough values to unpack (expected 3, got 2)"),
        ("for x, y in lost", "NameError", "name 'lost' is not defined"),
        ("for x in 3", "UsageError", "'for x in 3' yields no batches: int is not iterable."),
    ],
)
def test_an_error_in_the_clause_shows_the_clause(kernel: Kernel, clause: str, error: str, message: str) -> None:
    reply = kernel.run(f"%%profile_step {SHORT} {clause}\nran = True")

    assert (reply.status, reply.error, reply.message) == ("error", error, message)
    if error != "UsageError":
        assert f"----> 1 {clause}" in reply.traceback
    assert "Could not get source" not in reply.traceback
    assert kernel.inside("new_names()") == []
    without_frames_of_perfnb(reply.traceback)


def test_batches_that_run_out(kernel: Kernel) -> None:
    reply = kernel.run("rows = iter(loader)")
    reply = kernel.run(f"%%profile_step {SHORT} for x, y in rows\ntrain()")

    assert reply.error == "BatchesExhaustedError"
    assert reply.traceback == f"BatchesExhaustedError: {reply.message}"
    assert "ran out after 3" in reply.message


def without_frames_of_perfnb(traceback: str) -> None:
    assert frames_of_perfnb(traceback) == []
    assert "__perfnb_batch__" not in traceback
    assert "__tracebackhide__" not in traceback
