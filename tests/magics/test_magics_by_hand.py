"""What the magics pass on, in as much of IPython as compiles cells: nothing is measured, and no kernel runs."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.compilerop import CachingCompiler
from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import TransformerManager
from torch import nn

from perfnb.inference.serving import USES
from perfnb.magics.gpuwatch import GpuWatchMagics
from perfnb.magics.latency import LatencyMagics
from perfnb.magics.profile_step import ProfileStepMagics
from perfnb.magics.try_levers import TryLeversMagics


@pytest.fixture
def shell() -> Any:
    space: dict[str, Any] = {"__name__": "__main__", "net": nn.Linear(1, 1), "loader": [1, 2], "seen": [], "_i": "x"}
    return SimpleNamespace(
        compile=CachingCompiler(),
        transform_cell=TransformerManager().transform_cell,
        transform_ast=lambda tree: tree,
        user_ns=space,
        user_ns_hidden={"_i": "x"},
        ev=lambda text: eval(text, space),
        execution_count=3,
        displayhook=SimpleNamespace(exec_result=None),
    )


class Called:
    """Stands in for a function and keeps what it was called with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, value: Any = None) -> None:
        self.given: list[tuple[Any, ...]] = []
        self.options: list[dict[str, Any]] = []
        self.value = value
        monkeypatch.setattr(name, self)

    def __call__(self, *given: Any, **options: Any) -> Any:
        self.given.append(given)
        self.options.append(options)
        return self.value


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Called:
    return Called(monkeypatch, "perfnb.profile.profiling.run_profile", "a profile")


def test_a_line_is_profiled_with_the_options_and_names_of_the_notebook(shell: Any, ran: Called) -> None:
    magic = ProfileStepMagics(shell).profile_step
    line = "--steps 3 --warmup 2 --budget 9 --name 'a title' --no-memory --into p seen.append(net)"

    assert magic(line) == shell.user_ns["p"] == "a profile"

    [(step, batches)], [options] = ran.given, ran.options
    step()
    assert shell.user_ns["seen"] == [shell.user_ns["net"]]
    assert batches is None
    plan = options["plan"]
    assert (plan.steps, plan.warmup, plan.budget_s, plan.memory, plan.flops, plan.recompile) == (
        *(3, 2, 9.0),
        *(False, True, False),
    )
    assert (options["name"], options["stacks"], options["watch"], options["quiet"]) == ("a title", "auto", False, False)
    assert options["models"] is None
    assert options["namespace"]["loader"] == [1, 2]
    assert "_i" not in options["namespace"]
    assert set(options["used"]) == {"seen", "net"}
    assert options["kept"].call == {"magic": "line"}


def test_a_cell_is_profiled_with_its_batches(shell: Any, ran: Called) -> None:
    magic = ProfileStepMagics(shell).profile_step

    assert magic("--no-flops --recompile --stacks --watch for x in loader", "seen.append(x)") == "a profile"

    [(step, batches)], [options] = ran.given, ran.options
    for batch in batches():
        step(batch)
    assert shell.user_ns["seen"] == [1, 2]
    assert (options["plan"].memory, options["plan"].flops, options["plan"].recompile) == (True, False, True)
    assert (options["plan"].budget_s, options["plan"].steps, options["plan"].warmup) == (30.0, None, None)
    assert (options["name"], options["stacks"], options["watch"]) == ("step", True, True)
    assert options["kept"].call == {"magic": "cell"}


def test_a_quiet_cell_has_no_value_but_a_quiet_line_has(shell: Any, ran: Called) -> None:
    magic = ProfileStepMagics(shell).profile_step
    assert magic("--quiet --into p", "1") is None
    assert shell.user_ns["p"] == "a profile"
    assert magic("--quiet 1 + 1") == "a profile"
    assert magic("--no-stacks", "1") == "a profile"
    assert [one["quiet"] for one in ran.options] == [True, True, False]
    assert [one["stacks"] for one in ran.options] == ["auto", "auto", False]


@pytest.mark.parametrize(
    ("line", "cell", "said"),
    [
        ("", None, "there is nothing to profile"),
        ("--stacks --no-stacks", "1", "--stacks and --no-stacks cannot be combined."),
        ("--ddp", "1", "--ddp requires --ranks N."),
        ("--split", "1", "--split requires --ranks N."),
        ("--quiet", "1", "with --quiet, there is no report, so a cell also requires --into NAME."),
        ("--budget 0", "1", "--budget must be a number of seconds above 0, not 0.0."),
        ("--budget nan", "1", "--budget must be a number of seconds above 0, not nan."),
        ("--steps 0", "1", "--steps must be a whole number of at least 1, not 0."),
        ("--warmup -1", "1", "--warmup must be a whole number of at least 0, not -1."),
        ("--into for", "1", "--into requires a variable name"),
        ("--ranks 2 1", None, "--ranks requires a cell"),
        ("--ranks 2 --watch", "1", "--watch applies to this process"),
        ("--ranks 2 --stacks", "1", "--stacks applies to this process"),
        ("--ranks 0", "1", "--ranks must be"),
        ("--ranks 2 --model nets['a']", "1", "with --ranks, --model accepts only names of variables."),
        ("--model seen", "1", "--model 'seen' is not a torch module in this notebook: it is empty."),
        ("--model missing", "1", "--model 'missing' is not a torch module in this notebook"),
        ("--model net,+", "1", "--model 'net,+' cannot be read"),
    ],
)
def test_wrong_use_of_profile_step_is_refused(
    line: str, cell: str | None, said: str, shell: Any, ran: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.user_ns["nets"] = {"a": nn.Linear(1, 1)}
    started = Called(monkeypatch, "perfnb.launching.profile_ranks.run_ranks")
    with pytest.raises(UsageError) as raised:
        ProfileStepMagics(shell).profile_step(line, cell)
    assert str(raised.value).startswith(said)
    assert ran.given == started.given == []


def test_chosen_models_have_the_names_of_the_line(shell: Any, ran: Called) -> None:
    a, b = nn.Linear(1, 1), nn.Linear(1, 1)
    shell.user_ns |= {"nets": {"a": a, "b": b}, "pair": [a, b]}
    magic = ProfileStepMagics(shell).profile_step
    magic("--model net,nets 1")
    magic("--model pair 1")

    first, second = ran.options
    assert first["models"] == [shell.user_ns["net"], a, b]
    assert list(first["namespace"])[:3] == ["net", "nets['a']", "nets['b']"]
    assert list(second["namespace"])[:2] == ["pair[0]", "pair[1]"]


def test_a_cell_for_ranks_is_sent_with_its_variables(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Called(monkeypatch, "perfnb.launching.profile_ranks.run_ranks", "ranks")
    magic = ProfileStepMagics(shell).profile_step

    assert magic("--ranks 2 --split --steps 3 --name x --model net for x in loader", "seen.append(x)") == "ranks"

    [(order, ranks)], [options] = started.given, started.options
    assert (ranks, order.kind, order.split, order.ddp, order.name) == (2, "cell", True, False, "x")
    assert (order.plan["steps"], options["quiet"]) == (3, False)
    sent = pickle.loads(order.payload)
    assert set(sent.variables) == {"loader", "seen", "net"}
    assert sent.models == ["net"]
    assert sent.clause is not None
    magic("--ranks 2", "seen.append(1)")
    sent = pickle.loads(started.given[1][0].payload)
    assert (set(sent.variables), sent.models, sent.clause) == ({"seen"}, None, None)


def test_requests_are_measured_with_the_options_of_the_line(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Called(monkeypatch, "perfnb.inference.latency.latency", "found")
    magic = LatencyMagics(shell).latency

    assert magic("--into l --rate 20 --bound 100 --quantile 0.9 --price 3 --budget 5 for x in loader", "seen.append(x)")

    [(serve, served)] = measured.given
    for one in served:
        serve(one)
    assert (shell.user_ns["l"], shell.user_ns["seen"]) == ("found", [1, 2])
    assert measured.options == [
        {"rate_per_s": 20.0, "bound_ms": 100.0, "quantile": 0.9, "price_per_hour": 3.0, "budget_s": 5.0}
    ]
    assert any(one is shell.user_ns["seen"] for one in vars(serve)[USES]())
    magic("for x in loader", "1")
    usual = {"rate_per_s": None, "bound_ms": None, "quantile": 0.99, "price_per_hour": None, "budget_s": 30.0}
    assert measured.options[1] == usual
    for line, said in (
        ("--rate 3", "needs requests"),
        ("--into 3 for x in loader", "variable name"),
        ("x in loader", "cannot read"),
    ):
        with pytest.raises(UsageError, match=said):
            magic(line, "1")


@pytest.mark.parametrize("word", ["rate_per_s", "bound_ms", "quantile", "price_per_hour", "budget_s", "its own"])
def test_only_wrong_options_of_latency_are_wrong_use(word: str, shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ValueError(f"{word} must be more.")

    monkeypatch.setattr("perfnb.inference.latency.latency", fails)
    with pytest.raises(ValueError if word == "its own" else UsageError, match="must be more"):
        LatencyMagics(shell).latency("for x in loader", "1")


def test_a_loader_that_feeds_a_cell_is_known_to_the_trial(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Called(monkeypatch, "perfnb.remedies.try_levers.run_trials", "tried")
    magic = TryLeversMagics(shell).try_levers
    magic("--quiet for x in loader", "net(x)")
    magic("net(loader)")
    magic("net(1)")

    spaces = [set(one["namespace"]) for one in tried.options]
    assert spaces == [{"loader", "net"}, {"loader", "net"}, {"net"}]
    assert [one["quiet"] for one in tried.options] == [True, False, False]
    listed = magic("--list")
    assert (list(listed.index[:2]), listed.columns[-1]) == (["threads", "compile"], "answers")
    assert len(tried.given) == 3


class Watching:
    """A watch that records what is asked of it."""

    def __init__(self) -> None:
        self.running, self.shown, self.options = True, 0, (0.0, None)

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return "A watch."

    def stop(self) -> None:
        self.running = False

    def _ipython_display_(self) -> None:
        self.shown += 1


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> list[Watching]:
    made: list[Watching] = []

    def watch(interval_s: float, metrics: str | None) -> Watching:
        if interval_s <= 0:
            raise ValueError("interval_s must be more than 0.")
        made.append(Watching())
        made[-1].options = interval_s, metrics
        return made[-1]

    monkeypatch.setattr("perfnb.watching.watch.watch", watch)
    return made


def test_a_watch_is_started_shown_and_stopped(shell: Any, watches: list[Watching], capsys: Any) -> None:
    magics = GpuWatchMagics(shell)
    magics.gpuwatch("--into w")
    magics.gpuwatch("start --interval 2 --metrics cpu,power")
    first, second = watches
    assert (first.options, second.options) == ((0.5, None), (2.0, "cpu,power"))
    assert (first.running, first.shown, second.running, second.shown) == (False, 1, True, 1)
    assert shell.user_ns["w"] is first
    assert capsys.readouterr().out == "The previous watch was stopped.\n"
    magics.gpuwatch("stop --into w")
    assert not second.running
    assert shell.user_ns["w"] is second
    with pytest.raises(UsageError, match="no watch is running"):
        magics.gpuwatch("stop")
    magics.gpuwatch("")
    magics.end()
    assert not watches[2].running


def test_a_cell_is_watched_to_its_end_and_keeps_its_value(shell: Any, watches: list[Watching]) -> None:
    assert GpuWatchMagics(shell).gpuwatch("--into w", "seen.append(w.running)\n5") == 5
    assert shell.user_ns["seen"] == [True]
    assert (watches[0].running, watches[0].shown) == (False, 1)


@pytest.mark.parametrize(
    ("all_watches", "more"),
    [(1, ""), (2, " 1 started by perfnb.watch() is running."), (3, " 2 started by perfnb.watch() are running.")],
)
def test_the_status_tells_the_own_watch_from_others(
    all_watches: int, more: str, shell: Any, watches: list[Watching], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfnb.telemetry.watcher.running", lambda: all_watches)
    magics = GpuWatchMagics(shell)
    magics.gpuwatch("start")
    magics.gpuwatch("status")
    assert capsys.readouterr().out == f"A watch.{more}\n"
    magics.gpuwatch("stop")
    monkeypatch.setattr("perfnb.telemetry.watcher.running", lambda: all_watches - 1)
    capsys.readouterr()
    magics.gpuwatch("status")
    assert capsys.readouterr().out == f"No watch started by %gpuwatch is running.{more}\n"


@pytest.mark.parametrize(
    ("line", "cell", "said"),
    [
        ("begin", None, "%gpuwatch accepts start, stop or status, not 'begin'"),
        ("start now", None, "%gpuwatch accepts start, stop or status, not 'now start'"),
        ("start", "1", "%%gpuwatch accepts only options, not 'start'."),
        ("--interval 0", None, "--interval must be more than 0."),
        ("--into 3", None, "--into requires a variable name, not '3'."),
        ("--intervall 3", None, "there is no option --intervall: did you mean --interval?"),
        ("", "# nothing", "the cell is empty, so there is nothing to watch."),
        ("", "f(", "the cell is not valid Python."),
    ],
)
def test_wrong_use_of_gpuwatch_is_refused(
    line: str, cell: str | None, said: str, shell: Any, watches: list[Watching]
) -> None:
    with pytest.raises(UsageError) as raised:
        GpuWatchMagics(shell).gpuwatch(line, cell)
    assert str(raised.value).startswith(said)
    assert watches == []
