"""Bad lines and bad cells: one message names the fault, and nothing has run."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError

from perfnb.magics.line import split_line
from perfnb.magics.profile_step import ProfileStepMagics
from tests.magics.kernel import Kernel

PARSER = ProfileStepMagics.profile_step.parser

LINES = [
    ("--stpes 5 train()", "there is no option --stpes: did you mean --steps?"),
    ("--step 5 train()", "there is no option --step: did you mean --steps?"),
    ("--Steps 5 train()", "there is no option --Steps: did you mean --steps?"),
    (
        "--zzz train()",
        "there is no option --zzz: the options are --budget, --ddp, --into, --model, --name, --no-flops, "
        "--no-memory, --no-stacks, --quiet, --ranks, --split, --stacks, --steps, --warmup, --watch.",
    ),
    ("--help", "there is no option --help: %profile_step? shows the help."),
    ("-h", "there is no option -h: %profile_step? shows the help."),
    ("--steps", "--steps requires a value: --steps N"),
    ("--steps --warmup 2 train()", "--steps requires a value: --steps N"),
    ("--steps many train()", "--steps must be a whole number, not 'many'."),
    ("--steps 2.5 train()", "--steps must be a whole number, not '2.5'."),
    ("--steps 0 train()", "--steps must be a whole number of at least 1, not 0."),
    ("--warmup -1 train()", "--warmup must be a whole number of at least 0, not -1."),
    ("--budget -3 train()", "--budget must be a number of seconds above 0, not -3.0."),
    ("--budget nan train()", "--budget must be a number of seconds above 0, not nan."),
    ("--budget soon train()", "--budget must be a number, not 'soon'."),
    ("--into a.b train()", "--into requires a variable name, not 'a.b'."),
    ("--into for train()", "--into requires a variable name, not 'for'."),
    ('--name "two words train()', 'the value of --name has no closing quote: "two'),
    ("--quiet=3 train()", "--quiet does not take a value."),
    (
        "--model lost train()",
        "--model 'lost' is not a torch module in this notebook: name 'lost' is not defined.",
    ),
    (
        "--model model,x train()",
        "--model 'x' is not a torch module in this notebook: "
        "model must be a torch module, a list of modules or a dict of names to modules, not Tensor.",
    ),
    (
        '--model "model x" train()',
        "--model 'model x' cannot be read: write names separated by commas, such as a,b.",
    ),
    ("", "there is nothing to profile: write a statement after %profile_step."),
    ("--steps 3", "there is nothing to profile: write a statement after %profile_step."),
]
CLAUSES = ["for x", "x in loader", "for x in", "while x", "loader", "for x in loader: pass", "for f() in loader",
           "for x in loader for y in x", "for x in await g()", "async for x in loader", "for x in loader]"]  # fmt: skip
AWAITS = "the step cannot use await at its top level: put it into a function."
BODIES = [
    ("   \n\n", "the step is empty, so there is nothing to profile."),
    ("# only a comment\n", "the step is empty, so there is nothing to profile."),
    ("await g()", AWAITS),
    ("async with g(): pass", AWAITS),
    ("if True:\n    a = [await g()]", AWAITS),
    ("ran = 1\nf(x", 'the step is not valid Python.\n  File "Cell In[{n}]", line 2\n    f(x\n'),
    ("ran = 1\nreturn 1", 'the step is not valid Python.\n  File "Cell In[{n}]", line 2\nSyntaxError: '),
    ("  a = 1\n b = 2", 'the step is not valid Python.\n  File "Cell In[{n}]"'),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("line", "message"), LINES)
def test_a_bad_line(kernel: Kernel, line: str, message: str) -> None:
    reply = kernel.run(f"%profile_step {line}")

    assert (reply.status, reply.error) == ("error", "UsageError")
    assert reply.message == message
    assert reply.text("stderr") == f"UsageError: {message}\n"
    assert len(reply.outputs) == 1, "no progress, no traceback"


@pytest.mark.slow
@pytest.mark.parametrize("clause", CLAUSES)
def test_a_bad_clause(kernel: Kernel, clause: str) -> None:
    reply = kernel.run(f"%%profile_step --steps 5 {clause}\nran = True")

    assert (reply.status, reply.error) == ("error", "UsageError")
    assert reply.message == f"cannot read {clause!r}: write for TARGET in ITERABLE, as in a for loop."
    assert kernel.inside("new_names()") == []


@pytest.mark.slow
def test_options_behind_the_clause(kernel: Kernel) -> None:
    reply = kernel.run("%%profile_step for x in loader --into p\nran = True")

    assert reply.message == "cannot read 'for x in loader --into p': options go before for."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-q for x in loader", "there is no option -q: did you mean --quiet?"),
        ("-steps 5 for x in loader", "there is no option -steps: did you mean --steps?"),
        ("-z", "there is no option -z: the options are --budget,"),
    ],
)
def test_options_of_one_dash(kernel: Kernel, line: str, message: str) -> None:
    reply = kernel.run(f"%%profile_step --warmup 1 {line}\nran = True")

    assert reply.message.startswith(message)


@pytest.mark.slow
@pytest.mark.parametrize(("body", "message"), BODIES)
def test_a_bad_body(kernel: Kernel, body: str, message: str) -> None:
    reply = kernel.run(f"%%profile_step --steps 5\n{body}")

    assert (reply.status, reply.error, reply.traceback) == ("error", "UsageError", "")
    assert reply.message.startswith(message.format(n=kernel.value("len(In) - 1")))
    assert kernel.inside("new_names()") == []


@pytest.mark.slow
def test_quiet_wants_a_name(kernel: Kernel) -> None:
    reply = kernel.run("%%profile_step --quiet\ntrain()")

    assert reply.message == "with --quiet, there is no report, so a cell also requires --into NAME."


@pytest.mark.slow
def test_an_empty_cell(kernel: Kernel) -> None:
    reply = kernel.run("%%profile_step --steps 5\n")

    assert reply.error == "UsageError"
    assert "the cell body is empty" in reply.message


@pytest.mark.parametrize(
    ("line", "options", "rest"),
    [
        ("--steps 20 --into p for x, y in loader", {"steps": 20, "into": "p"}, "for x, y in loader"),
        ("  --quiet   f(--x)", {"quiet": True}, "f(--x)"),
        ("--name 'a  b' f('c  d')", {"name": "a  b"}, "f('c  d')"),
        ('--name="it\'s" f()', {"name": "it's"}, "f()"),
        ("--name '' f()", {"name": ""}, "f()"),
        ("--name --quiet f()", None, "--name requires a value"),
        ("--name -x f()", {"name": "-x"}, "f()"),
        ("--warmup=0 --budget=1e2 f()", {"warmup": 0, "budget": 100.0}, "f()"),
        ("-x", {}, "-x"),
        ("f(a) --steps 5", {}, "f(a) --steps 5"),
        ("--quiet", {"quiet": True}, ""),
        ("--model a,b f()", {"model": "a,b"}, "f()"),
    ],
)
def test_options_end_where_python_begins(line: str, options: dict[str, object] | None, rest: str) -> None:
    if options is None:
        with pytest.raises(UsageError, match=rest):
            split_line(line, PARSER)
        return
    found, code = split_line(line, PARSER)

    assert code == rest
    assert {name: value for name, value in vars(found).items() if name in options} == options
