"""Lines and cells of magics, parsed and compiled without a kernel."""

from __future__ import annotations

import argparse
import linecache
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.compilerop import CachingCompiler
from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import TransformerManager

from perfnb.magics.cell import clause_of, compile_body, run_body, step_in
from perfnb.magics.line import refuse_short, require_name, split_line
from perfnb.magics.try_levers import TryLeversMagics
from perfnb.remedies.try_levers import LeverRequest


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("%%profile_step", add_help=False)
    made.add_argument("--steps", type=int)
    made.add_argument("--budget", type=float, metavar="SECONDS")
    made.add_argument("--into")
    made.add_argument("--quiet", action="store_true")
    return made


@pytest.mark.parametrize(
    ("line", "options", "rest"),
    [
        ("", {}, ""),
        ("for x in y", {}, "for x in y"),
        ("  --steps 5 --quiet  for x in y  ", {"steps": 5, "quiet": True}, "for x in y"),
        ("--steps=5 --budget 2.5 f(a, '--steps')", {"steps": 5, "budget": 2.5}, "f(a, '--steps')"),
        ("--into 'p' g()", {"into": "p"}, "g()"),
        ('--into="a b"', {"into": "a b"}, ""),
        ('--into="it\'s" f("c  d")', {"into": "it's"}, 'f("c  d")'),
        ("--into '' f()", {"into": ""}, "f()"),
        ("--into -x f()", {"into": "-x"}, "f()"),
        ("-x", {}, "-x"),
        ("f(a) --steps 5", {}, "f(a) --steps 5"),
        ("--into --quiet f()", None, "--into requires a value: --into INTO"),
        ("--Steps 5", None, "there is no option --Steps: did you mean --steps?"),
        ("--quiet --x", None, "there is no option --x: the options are --budget, --into, --quiet, --steps."),
        ("--step 5", None, "there is no option --step: did you mean --steps?"),
        ("--help", None, "there is no option --help: %%profile_step? shows the help."),
        ("-h", None, "there is no option -h: %%profile_step? shows the help."),
        ("--steps", None, "--steps requires a value: --steps STEPS"),
        ("--budget --quiet", None, "--budget requires a value: --budget SECONDS"),
        ("--steps five", None, "--steps must be a whole number, not 'five'."),
        ("--budget much", None, "--budget must be a number, not 'much'."),
        ("--into 'p", None, "the value of --into has no closing quote: 'p"),
        ("--into '", None, "the value of --into has no closing quote: '"),
        ("--quiet=yes", None, "--quiet does not take a value."),
        ("--quiet,x", None, "--quiet does not take a value."),
    ],
)
def test_options_come_first_and_the_rest_is_left_alone(line: str, options: dict[str, Any] | None, rest: str) -> None:
    made = parser()
    if options is None:
        with pytest.raises(UsageError) as raised:
            split_line(line, made)
        assert str(raised.value) == rest
        return
    found, left = split_line(line, made)
    usual = {"steps": None, "budget": None, "into": None, "quiet": False}
    assert (vars(found), left) == (usual | options, rest)


def test_an_option_of_one_dash_is_refused_with_the_one_that_is_meant() -> None:
    made = argparse.ArgumentParser("%latency", add_help=False)
    for name in ("--steps", "--stacks", "--quiet"):
        made.add_argument(name)
    refuse_short("for x in y", made)
    refuse_short("- 1", made)
    for clause, hint in (
        ("-q for x in y", "there is no option -q: did you mean --quiet?"),
        ("-st 5", "there is no option -st: the options are --quiet, --stacks, --steps."),
        ("-z", "there is no option -z: the options are --quiet, --stacks, --steps."),
    ):
        with pytest.raises(UsageError) as raised:
            refuse_short(clause, made)
        assert str(raised.value) == hint


@pytest.mark.parametrize(("name", "fine"), [(None, True), ("p", True), ("a b", False), ("for", False), ("1", False)])
def test_into_takes_the_name_of_a_variable(name: str | None, fine: bool) -> None:
    if fine:
        require_name(name)
        return
    with pytest.raises(UsageError, match=f"^--into requires a variable name, not '{name}'"):
        require_name(name)


@pytest.fixture
def shell() -> Any:
    """As much of IPython as compiles cells."""
    return SimpleNamespace(
        compile=CachingCompiler(),
        transform_cell=TransformerManager().transform_cell,
        transform_ast=lambda tree: tree,
        user_ns={},
        execution_count=3,
        displayhook=SimpleNamespace(exec_result=None),
    )


def test_a_body_is_compiled_once_and_its_source_is_known(shell: Any) -> None:
    code = compile_body(shell, "def f():\n    return 5\nx = f()\n%time 1")
    assert linecache.getline(code.co_filename, 2) == "    return 5\n"
    exec(compile_body(shell, "x = 7"), shell.user_ns)
    assert shell.user_ns["x"] == 7


def test_a_cell_has_the_value_of_its_last_expression(shell: Any) -> None:
    run = run_body(shell, "x = 2\nx + 3")
    assert (run(), run(), shell.user_ns["x"]) == (5, 5, 2)
    assert run_body(shell, "1\nx = 9")() is None
    assert shell.user_ns["x"] == 9


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("# nothing", "the step is empty, so there is nothing to profile."),
        ("await f()", "the step cannot use await at its top level: put it into a function."),
        ("if x:\n    async for y in z: pass", "the step cannot use await at its top level: put it into a function."),
        ("x = [", "the step is not valid Python.\n  Cell In[3]"),
        ("async with f(): pass", "the step cannot use await at its top level: put it into a function."),
        ("  a = 1\n b = 2", "the step is not valid Python.\n  Cell In[3]"),
        ("return 5", "the step is not valid Python.\n  Cell In[3]"),
    ],
)
def test_a_body_that_cannot_run_is_refused(body: str, said: str, shell: Any) -> None:
    with pytest.raises(UsageError) as raised:
        compile_body(shell, body)
    assert str(raised.value).lstrip().replace('  File "', "  ").startswith(said[:30])
    with pytest.raises(UsageError, match=r"^the cell "):
        run_body(shell, body)


def test_await_in_a_function_is_not_an_await_of_the_body(shell: Any) -> None:
    compile_body(shell, "async def f():\n    await g()\nasync def h():\n    async for x in y: pass")


def test_the_number_of_the_running_cell_is_known(shell: Any) -> None:
    shell.displayhook.exec_result = SimpleNamespace(execution_count=8)
    with pytest.raises(UsageError, match=r"Cell In\[8\]"):
        compile_body(shell, "x = [")


def test_a_clause_feeds_the_cell(shell: Any) -> None:
    shell.user_ns |= {"loader": [(1, 2), (3, 4)], "total": 0}
    step, batches, body = step_in(shell, "for a, b in loader", "total += a * b", parser())
    assert batches is not None
    for batch in batches():
        step(batch)
    assert (shell.user_ns["total"], shell.user_ns["a"]) == (14, 3)
    assert body.co_names == ("total", "a", "b")
    alone, none, _ = step_in(shell, "", "total = 5", parser())
    alone()
    assert (none, shell.user_ns["total"]) == (None, 5)
    line, none, _ = step_in(shell, "total = 6", None, parser())
    line()
    assert (none, shell.user_ns["total"]) == (None, 6)
    with pytest.raises(UsageError, match="there is no option -q"):
        step_in(shell, "-q for a in b", "pass", parser())
    step, batches, _ = step_in(shell, "for x in total:", "pass", parser())
    assert batches is not None
    with pytest.raises(UsageError, match="yields no batches: int is not iterable"):
        batches()


@pytest.mark.parametrize(
    "clause",
    [
        *(
            "x in y",
            "for x of y",
            "for x in y; z()",
            "for x in",
            "while x",
            "for f() in y",
            "for x",
            "for x in y: pass",
        ),
        *("for x in y for y in x", "for x in await g()", "async for x in y", "for x in y]"),
    ],
)
def test_other_clauses_are_refused(clause: str, shell: Any) -> None:
    with pytest.raises(UsageError) as raised:
        clause_of(shell, clause)
    assert str(raised.value) == f"cannot read {clause!r}: write for TARGET in ITERABLE, as in a for loop."
    with pytest.raises(UsageError, match=r"options go before for\.$"):
        clause_of(shell, f"{clause} --into p")


def test_levers_are_those_that_the_line_lists_or_all(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[LeverRequest] = []

    def tried(step: Any, batches: Any, request: LeverRequest, **_: Any) -> str:
        asked.append(request)
        return "tried"

    monkeypatch.setattr("perfnb.remedies.try_levers.run_trials", tried)
    magic = TryLeversMagics(shell).try_levers
    assert magic("--into t train()") == "tried"
    assert shell.user_ns["t"] == "tried"
    magic("--levers threads,compile --budget 5 --goal memory train()")
    assert [(one.levers, one.goal, one.budget_s) for one in asked] == [
        ("auto", "time", 120.0),
        (["threads", "compile"], "memory", 5.0),
    ]
    for line, said in (
        ("--budget 0 train()", "--budget must be a number of seconds above 0, not 0.0."),
        ("--budget 1e9 train()", "--budget must be"),
        ("--levers threads,,compile train()", "--levers requires names separated by commas, without spaces"),
        ("--levers compil train()", '--levers must be "auto" or a list of these: threads, compile,'),
        ("--into 3 train()", "--into requires a variable name, not '3'."),
        ("", "there is nothing to speed up: write a statement after %try_levers."),
    ):
        with pytest.raises(UsageError) as raised:
            magic(line)
        assert str(raised.value).startswith(said)
    assert len(asked) == 2
