"""The extension's help, completion of its options, and what was loaded before it; `test_shells` loads it."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core import completer

from perfnb.magics import MAGICS, register, unregister
from tests.magics.kernel import Kernel

OPTIONS = [
    *("--budget", "--ddp", "--into", "--model", "--name", "--no-flops", "--no-memory", "--no-stacks", "--quiet"),
    *("--ranks", "--recompile", "--split", "--stacks", "--steps", "--warmup", "--watch"),
]


@pytest.fixture
def completion() -> Any:
    """Return the module that completes options, which older versions of IPython cannot."""
    if not hasattr(completer, "context_matcher"):
        pytest.skip("this version of IPython completes no options")
    return importlib.import_module("perfnb.magics.completion")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("%%profile_step --ste", ["--steps"]),
        ("%profile_step --ste", ["--steps"]),
        ("%%profile_step --", OPTIONS),
        ("%%profile_step -", OPTIONS),
        ("%%profile_step --steps 5 --in", ["--into"]),
        ("p = %profile_step --war", ["--warmup"]),
        ("p=%profile_step --war", ["--warmup"]),
        ("%gpuwatch --", ["--interval", "--into", "--metrics"]),
        ("%%gpuwatch --interval 1 --me", ["--metrics"]),
        ("  %profile_step --mo", ["--model"]),
    ],
)
def test_options_complete(typed: str, offered: list[str], completion: Any) -> None:
    found: Any = completion.match_options(SimpleNamespace(text_until_cursor=typed))
    assert sorted(one.text for one in found["completions"]) == offered
    assert (found["matched_fragment"], found["suppress"]) == (typed.split()[-1], True)
    assert {one.type for one in found["completions"]} == {"param"}


@pytest.mark.parametrize(
    "typed",
    [
        *(
            "%%profile_step --into p for x, y in loa",
            "%%profile_step trai",
            "%%profile_step--st",
            "%%profile_steps --st",
        ),
        *("loss_fn.weig", "--st", "%%time --st", "profile_step --st", "x %profile_step --st"),
    ],
)
def test_everything_else_completes_as_ever(typed: str, completion: Any) -> None:
    assert completion.match_options(SimpleNamespace(text_until_cursor=typed)) == {"completions": []}


class Shell:
    """A shell with magics of its own and of perfnb, one of which is watching."""

    def __init__(self, completion: Any) -> None:
        self.ended: list[str] = []
        watching = SimpleNamespace(end=lambda: self.ended.append("watching"))
        magics = {kind: {"time": 1, **dict.fromkeys(MAGICS, 2)} for kind in ("line", "cell")}
        self.magics_manager = SimpleNamespace(registry={"GpuWatchMagics": watching, "Other": 3}, magics=magics)
        self.Completer = SimpleNamespace(custom_matchers=[len, completion.match_options])
        self.registered: list[str] = []

    def register_magics(self, *holders: type) -> None:
        assert self.ended == ["watching"]  # the ones that were there are gone
        self.registered = [holder.__name__ for holder in holders]


def test_what_was_loaded_before_is_removed_first(completion: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(completion)
    register(shell)
    assert shell.registered == ["ProfileStepMagics", "GpuWatchMagics", "TryLeversMagics", "LatencyMagics"]
    assert shell.Completer.custom_matchers == [len, completion.match_options]
    assert shell.magics_manager.magics == {"line": {"time": 1}, "cell": {"time": 1}}
    unregister(shell)
    assert (shell.ended, shell.magics_manager.registry) == (["watching"], {"Other": 3})
    assert shell.Completer.custom_matchers == [len]

    monkeypatch.delattr("IPython.core.completer.context_matcher")  # as in IPython 7
    old = Shell(completion)
    register(old)
    assert old.Completer.custom_matchers == [len]
    old.Completer = SimpleNamespace()
    unregister(old)
    assert old.registered == shell.registered


@pytest.mark.slow
@pytest.mark.parametrize("code", ["%%profile_step?", "%profile_step?"])
def test_help(kernel: Kernel, code: str) -> None:
    text = kernel.help(code)

    for option in OPTIONS:
        assert f"\n  {option} " in text
    assert "    %%profile_step --steps 20 --into p for x, y in loader\n    optimizer.zero_grad()\n" in text
    assert "    %profile_step train_step(batch)\n" in text
    assert "%%%" not in text
    assert max(len(line) for line in text.splitlines() if "File:" not in line) <= 120


@pytest.mark.slow
def test_the_example_in_the_help_runs(kernel: Kernel) -> None:
    lines = kernel.help("%%profile_step?").splitlines()
    begin = lines.index("    %%profile_step --steps 20 --into p for x, y in loader")
    cell = "\n".join(line.strip() for line in lines[begin : begin + 5])
    kernel.ok(cell.replace("--steps 20", "--steps 2 --warmup 1 --quiet"))

    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []
