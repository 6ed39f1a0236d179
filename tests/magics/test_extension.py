"""Loading and unloading the extension, its help, and completion of its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.magics.kernel import Kernel, started

pytestmark = pytest.mark.slow

HEAVY = ("torch", "pandas", "matplotlib", "ipywidgets", "anywidget", "pyarrow", "scipy")
OPTIONS = [
    "--budget",
    "--ddp",
    "--into",
    "--model",
    "--name",
    "--no-flops",
    "--no-memory",
    "--no-stacks",
    "--quiet",
    "--ranks",
]
OPTIONS += ["--recompile", "--split", "--stacks", "--steps", "--warmup", "--watch"]


@pytest.mark.slow
def test_load_reload_unload(tmp_path: Path) -> None:
    with started(tmp_path) as kernel:
        kernel.ok("import perfnb\n%load_ext perfnb")
        assert kernel.value(f"[name for name in {HEAVY} if name in __import__('sys').modules]") == []
        assert kernel.value("'perfnb' in __import__('sys').modules") is True
        assert kernel.completions("%%profile_step --ste") == ["--steps"]

        assert "already loaded" in kernel.ok("%load_ext perfnb").text()
        kernel.ok("%reload_ext perfnb")
        assert kernel.completions("%%profile_step --ste") == ["--steps"]
        assert len(kernel.value("[m.__name__ for m in get_ipython().Completer.custom_matchers]")) == 1
        assert (
            kernel.run("%profile_step --steps 0 f()").message == "--steps must be a whole number of at least 1, not 0."
        )

        kernel.ok("%unload_ext perfnb")
        assert kernel.run("%profile_step f()").message.startswith("Line magic function `%profile_step` not found")
        assert kernel.run("%%profile_step\nf()").message.startswith("Cell magic `%%profile_step` not found")
        assert "--steps" not in kernel.completions("%%profile_step --ste")
        assert kernel.value("get_ipython().Completer.custom_matchers") == []

        kernel.ok("%load_ext perfnb")
        assert kernel.completions("%profile_step --ste") == ["--steps"]
        reply = kernel.ok("%profile_step --steps 2 --warmup 1 sum(range(9))")
        assert len(reply.shown()) == 1, "also a step without torch and without a model"


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
        ("a = 1\n%profile_step --mo", ["--model"]),
        ("if True:\n    %profile_step --qu", ["--quiet"]),
    ],
)
def test_options_complete(kernel: Kernel, typed: str, offered: list[str]) -> None:
    assert kernel.completions(typed) == offered


@pytest.mark.parametrize(
    "typed",
    ["%%{} --into p for x, y in loa", "%{} trai", "%%{}\nmodel.requires_gra", "%%{}\nloss_fn.weig", "%%{}\n--st"],
)
def test_the_rest_completes_as_ever(kernel: Kernel, typed: str) -> None:
    assert kernel.completions(typed.format("profile_step")) == kernel.completions(typed.format("time"))


@pytest.mark.parametrize("typed", ["x = 1\n--st", "%%time --st", "%profile_steps --st"])
def test_no_options_elsewhere(kernel: Kernel, typed: str) -> None:
    assert "--steps" not in kernel.completions(typed)


@pytest.mark.parametrize("code", ["%%profile_step?", "%profile_step?"])
def test_help(kernel: Kernel, code: str) -> None:
    text = kernel.help(code)

    for option in OPTIONS:
        assert f"\n  {option} " in text
    assert "    %%profile_step --steps 20 --into p for x, y in loader\n    optimizer.zero_grad()\n" in text
    assert "    %profile_step train_step(batch)\n" in text
    assert "%%%" not in text
    assert max(len(line) for line in text.splitlines() if "File:" not in line) <= 120


def test_the_example_in_the_help_runs(kernel: Kernel) -> None:
    lines = kernel.help("%%profile_step?").splitlines()
    begin = lines.index("    %%profile_step --steps 20 --into p for x, y in loader")
    cell = "\n".join(line.strip() for line in lines[begin : begin + 5])
    kernel.ok(cell.replace("--steps 20", "--steps 2 --warmup 1 --quiet"))

    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []
