"""Pressing *Try it*: the kernel's part, without a browser."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import pickle
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import pytest
from torch import nn

from perfnb.profile import kept_step, trying
from perfnb.profile.kept_step import KeptStep, kept_call, kept_cell
from perfnb.profile.report import report_document
from perfnb.profile.trying import Trying
from tests.findings import findings_samples as samples

KEPT = KeptStep(lambda: {"step": print}, {})
Trier = Callable[[Mapping[str, Any], str, Any], dict[str, Any]]


class Told:
    """Every state that the report received."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []

    def __call__(self, state: str) -> None:
        self.states.append(json.loads(state))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def trier(monkeypatch: pytest.MonkeyPatch) -> Callable[[Trier], None]:
    """Return a function that replaces the code that tries a lever."""
    return lambda function: monkeypatch.setattr(trying, "resolve_name", lambda name: function)


def test_a_press_tells_progress_and_the_answer(told: Told, trier: Callable[[Trier], None]) -> None:
    def try_one(parts: Mapping[str, Any], lever: str, line: Any) -> dict[str, Any]:
        assert parts["step"] is print
        line.update("trial", 3, 20, "")
        return {"said": f"{lever} helps"}

    trier(try_one)
    assert Trying(KEPT, ["compile"], told).press("compile", 0)

    assert [state["running"] for state in told.states] == ["compile", "compile", "compile", None]
    words = [state["words"] for state in told.states[:3]]
    assert words == ["waiting for the running cell", "starting", "trial: step 3 of 20"]
    assert (told.states[2]["done"], told.states[2]["total"]) == (3, 20)
    assert told.states[-1]["count"] == 1
    assert told.states[-1]["answers"] == {"compile": {"said": "compile helps"}}


def test_a_second_press_is_refused_while_one_runs(told: Told, trier: Callable[[Trier], None]) -> None:
    pressed: list[bool] = []

    def try_one(*_: Any) -> dict[str, Any]:
        pressed.append(tries.press("threads", 0))
        return {}

    trier(try_one)
    tries = Trying(KEPT, ["compile", "threads"], told)
    tries.press("compile", 0)
    pressed.append(tries.press("threads", 0))  # made meanwhile, but delivered when the first had ended

    assert pressed == [False, False]
    assert list(told.states[-1]["answers"]) == ["compile"]
    assert tries.press("threads", 1)
    assert list(told.states[-1]["answers"]) == ["compile", "threads"]


@pytest.mark.parametrize("lever", ["threads", "no_such_lever", None, 3, ["compile"]])
def test_only_levers_of_the_findings_are_tried(told: Told, trier: Callable[[Trier], None], lever: Any) -> None:
    trier(lambda *_: pytest.fail("it was tried"))
    assert not Trying(KEPT, ["compile"], told).press(lever, 0)
    assert told.states == []


def test_an_error_is_one_sentence_in_its_place(told: Told, trier: Callable[[Trier], None]) -> None:
    def try_one(*_: Any) -> dict[str, Any]:
        raise ValueError("no\nsecond line")

    trier(try_one)
    Trying(KEPT, ["compile"], told).press("compile", 0)

    assert told.states[-1]["running"] is None
    assert told.states[-1]["answers"] == {"compile": {"error": "It could not be tried: ValueError: no"}}


def test_a_step_that_is_gone_is_reported(told: Told) -> None:
    tries = Trying(KeptStep(lambda: None, {}), ["compile"], told)
    tries.press("compile", 0)

    assert not tries.possible
    assert told.states[-1]["answers"]["compile"]["error"].startswith("The step of this profile no longer exists")


def test_the_stop_button_ends_what_runs_and_nothing_else(told: Told, trier: Callable[[Trier], None]) -> None:
    def try_one(*_: Any) -> dict[str, Any]:
        tries.stop()
        return {}

    trier(try_one)
    tries = Trying(KEPT, ["compile"], told)
    tries.stop()  # nothing runs: an interrupt would end this test
    tries.press("compile", 0)

    assert told.states[-1]["answers"] == {"compile": {"error": "Stopped. Everything was restored."}}


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.default_int_handler])
def test_an_interrupt_ends_it(told: Told, trier: Callable[[Trier], None], before: Any) -> None:
    def try_one(*_: Any) -> dict[str, Any]:
        signal.raise_signal(signal.SIGINT)
        return {}

    trier(try_one)
    earlier = signal.signal(signal.SIGINT, before)
    try:
        Trying(KEPT, ["compile"], told).press("compile", 0)
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, earlier)

    assert told.states[-1]["running"] is None
    assert told.states[-1]["answers"]["compile"]["error"] == "Stopped. Everything was restored."


@pytest.fixture
def no_loop() -> Iterator[None]:
    """Have no event loop run in this thread, even if a browser's tests before left one running."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(running)


@pytest.mark.usefixtures("no_loop")
def test_a_message_in_a_thread_is_carried_out_by_the_main_one(told: Told, trier: Callable[[Trier], None]) -> None:
    ran_in: list[threading.Thread] = []

    def try_one(*_: Any) -> dict[str, Any]:
        ran_in.append(threading.current_thread())
        return {}

    async def kernel() -> None:
        tries = Trying(KEPT, ["compile"], told)
        thread = threading.Thread(target=tries.press, args=("compile", 0))
        thread.start()
        thread.join()
        assert ran_in == []  # the main thread was busy
        assert told.states[-1]["words"] == "waiting for the running cell"
        while not ran_in:
            await asyncio.sleep(0)

    trier(try_one)
    asyncio.run(kernel())
    assert ran_in == [threading.main_thread()]


@pytest.mark.usefixtures("no_loop")
def test_without_a_loop_a_thread_is_refused(told: Told, trier: Callable[[Trier], None]) -> None:
    trier(lambda *_: pytest.fail("it was tried"))
    tries, said = Trying(KEPT, ["compile"], told), []
    thread = threading.Thread(target=lambda: said.extend([tries.possible, tries.press("compile", 0)]))
    thread.start()
    thread.join()
    assert said == [False, False]


class Batches:
    """Can be held weakly, as a loader."""


def test_a_profile_keeps_no_model_alive() -> None:
    def made() -> tuple[KeptStep, weakref.ref[nn.Module]]:
        model = nn.Linear(2, 2)

        def step(batch: Any) -> None:
            model(batch)

        batches = Batches()
        kept = kept_call(step, batches, [model], {"net": model})
        found = kept.find()
        assert found is not None
        assert (found["step"], found["batches"], found["models"]) == (step, batches, [model])
        assert found["namespace"]["model"] is found["namespace"]["net"] is model
        return kept, weakref.ref(model)

    kept, model = made()
    gc.collect()
    assert model() is None
    assert kept.find() is None


LOADER = [1, 2]


def whole_step(batch: Any) -> None:
    """A step without a closure."""


def test_a_function_and_a_list_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = kept_call(whole_step, LOADER, None, {})
    found = kept.find()

    assert found is not None
    assert (found["step"], found["batches"], found["models"]) == (whole_step, LOADER, None)
    assert kept.call == {"step": "whole_step", "batches": "LOADER", "imported": False}
    assert kept_call(lambda: None, None, None, {}).find() is not None
    assert kept_call(lambda: None, None, None, {}).call == {}  # no variable holds it
    assert kept_call(whole_step, [1], None, {}).find() is None  # nor these batches
    assert kept_call(whole_step, [1], None, {}).call == {}
    monkeypatch.setitem(globals(), "perfnb", sys.modules["perfnb"])
    assert kept_call(whole_step, None, None, {}).call == {"step": "whole_step", "batches": None, "imported": True}


def test_a_step_is_lost_with_any_of_its_models() -> None:
    models, body = [nn.Linear(2, 2), nn.Tanh()], compile("0", "cell", "exec")
    call = kept_call(whole_step, None, models, {"net": models[0]})
    cell = kept_cell(whole_step, body, {"x": 1}, LOADER, models, "cell")
    everything = {"step": whole_step, "batches": LOADER, "models": models, "namespace": {}}
    assert cell.find() == everything
    assert (call.find() or {})["namespace"]["net"] is models[0]
    everything.clear()
    del models[1]
    gc.collect()
    assert call.find() is cell.find() is None


def test_a_function_is_kept_alive_only_if_it_refers_to_nothing() -> None:
    def refs() -> Iterator[Callable[[], Any]]:
        model = nn.Tanh()
        for function in (lambda: 0, lambda: model, lambda x=model: x, lambda *, x=model: x, model.forward):
            ref = kept_step._ref(function)
            assert ref() == function
            yield ref

    found = list(refs())
    gc.collect()
    assert [ref() is not None for ref in found] == [True, False, False, False, False]


def test_a_cell_runs_with_the_variables_as_they_are_by_then() -> None:
    variables = {"model": 1}
    body = compile("model", "cell", "exec")
    kept = kept_cell(FunctionType(body, variables), body, variables, None, None, "cell")
    variables["model"] = 2
    found = kept.find()

    assert found is not None
    assert found["namespace"] == {"model": 2}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda kept: pickle.loads(pickle.dumps(kept))])
def test_a_copy_of_a_profile_has_no_step(copied: Callable[[KeptStep], KeptStep | None]) -> None:
    assert copied(KEPT) is None


def test_the_widget_says_whether_it_can_try_and_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    widgets = pytest.importorskip("perfnb.profile.widget", reason="needs anywidget")
    monkeypatch.setattr(trying, "resolve_name", lambda name: lambda parts, lever, line: {"said": lever})
    sent: list[Any] = []

    def widget(kept: KeptStep | None) -> Any:
        made = widgets.ReportWidget(report_document(samples.with_findings(samples.with_remedy())), "a", kept=kept)
        monkeypatch.setattr(made, "send", lambda content, buffers=None: sent.append(content))
        return made

    loaded = widget(None)
    loaded._handle_custom_msg({"try": None}, [])
    loaded._handle_custom_msg({"try": "compile", "after": 0}, [])
    assert (sent, loaded.tried) == ([], "")

    live = widget(KEPT)
    live._handle_custom_msg({"try": None}, [])
    assert sent == [{"try": "ready"}]
    live._handle_custom_msg({"try": "compile", "after": 0}, [])
    assert json.loads(live.tried)["answers"] == {"compile": {"said": "compile"}}
    live.close()
    live._handle_custom_msg({"try": None}, [])
    assert len(sent) == 1
