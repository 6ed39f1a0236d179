"""What the magic binds, returns and shows, in a real kernel."""

from __future__ import annotations

import pytest

from tests.magics.kernel import WIDGET_VIEW, Kernel

pytestmark = pytest.mark.slow

SHORT = "--steps 5 --warmup 2 --no-stacks"
TRAIN = "optimizer.zero_grad()\nloss = loss_fn(model(x), y)\nloss.backward()\noptimizer.step()"


def passes(kernel: Kernel, profile: str = "p") -> dict[str, int]:
    return dict(kernel.value(f"{profile}.steps['pass'].value_counts().to_dict()"))


def test_a_cell_with_batches(kernel: Kernel) -> None:
    reply = kernel.ok(f"%%profile_step {SHORT} --into p for x, y in loader\n{TRAIN}")

    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []
    assert passes(kernel) == {"warmup": 2, "timed": 5, "lead_in": 2, "traced": 3, "counted": 2}
    assert kernel.inside("new_names()") == ["loss", "p"]
    assert kernel.value("x is loader[10 % 3][0]"), "the targets keep the last of the eleven batches"
    assert kernel.value("bool((p.steps['data_ms'] > 0).all())")
    assert reply.text("stderr") == ""


def test_the_profile_is_the_cells_value(kernel: Kernel) -> None:
    reply = kernel.ok(f"%%profile_step {SHORT} --into p\ntrain()")

    assert kernel.value("_ is p and Out[max(Out)] is p")
    (report,) = reply.shown()
    assert "ran 14 times" in report
    assert len(reply.shown("text/html")) == len(reply.shown(WIDGET_VIEW)) == 1


def test_without_a_clause_the_cell_is_the_step(kernel: Kernel) -> None:
    kernel.ok("ran = 0")
    kernel.ok(f"%%profile_step {SHORT} --into p\nran += 1\nresult = forward()")

    assert kernel.value("ran") == 14
    assert kernel.value("result.shape == torch.Size([])")
    assert kernel.value("float(p.phases.loc['data', 'ms'])") == 0.0


@pytest.mark.parametrize(
    ("clause", "check"),
    [
        ("for i, (x, y) in enumerate(loader)", "seen == [(n % 3) for n in range(14)] and x is loader[1][0]"),
        ("for i, (x, *rest) in enumerate(loader)", "rest[0] is loader[1][1]"),
        ("for place['x'], y in loader", "place['x'] is loader[1][0]"),
        ("for holder.x, holder.y in loader", "holder.y is loader[1][1]"),
        ("for [x, y] in loader:", "x is loader[1][0]"),
        ("for batch in [loader[2]]", "batch is loader[2]"),
        ("for x, y in (pair for pair in loader * 4)", "x is loader[1][0]"),
        ("for holder.rows[len(seen) % 2] in loader", "holder.rows[1] is loader[1]"),
    ],
)
def test_targets(kernel: Kernel, clause: str, check: str) -> None:
    kernel.ok(
        "import types\nseen, place, i = [], {}, None\n"
        "holder = types.SimpleNamespace(x=None, y=None, rows=[None, None])\nx, y = loader[0]"
    )
    kernel.inside("look()")

    kernel.ok(f"%%profile_step {SHORT} --quiet --into p {clause}\nseen.append(i)\nforward()")

    assert kernel.value(check)
    assert set(kernel.inside("new_names()")) <= {"p", "rest", "batch"}


def test_a_line(kernel: Kernel) -> None:
    reply = kernel.ok(f"%profile_step {SHORT} train()")
    assert len(reply.shown()) == 1
    assert kernel.value("repr(_)").startswith("<perfnb.Profile 'step'")

    reply = kernel.ok(f"p = %profile_step {SHORT} train()")
    assert reply.shown() == []
    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []


def test_a_line_in_a_cell_and_a_function(kernel: Kernel) -> None:
    reply = kernel.ok(f"def profiled():\n    %profile_step {SHORT} --quiet --into p train()\nprofiled()\nprint('on')")

    assert reply.text() == "on\n"
    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []


def test_a_cell_that_prints_shows_its_first_lines(kernel: Kernel) -> None:
    reply = kernel.ok(f"%%profile_step {SHORT} --quiet --into p\nfor line in range(9): print(line)\ntrain()")

    first, last = reply.text().splitlines()[:10], reply.text().splitlines()[10:]
    assert first == [*map(str, range(9)), "0"]
    assert len(last) == 1
    assert last[0].endswith("more lines printed by the step]")
    assert kernel.ok("print('on')").text() == "on\n"


@pytest.mark.parametrize("code", ["%%profile_step {0}\ntrain();", "%profile_step {0} train();"])
def test_a_semicolon_silences(kernel: Kernel, code: str) -> None:
    reply = kernel.ok(code.format(f"{SHORT} --into p"))

    assert reply.shown() == reply.shown(WIDGET_VIEW) == []
    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []


def test_braces_and_dollars_are_the_users(kernel: Kernel) -> None:
    kernel.ok(f"%profile_step {SHORT} --quiet --into p text = '{{x}} $x $$'; train()")

    assert kernel.value("text") == "{x} $x $$"
