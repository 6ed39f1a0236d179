"""Passes that are not part of every profile: steps watched for leaks, failures, and steps that look like loops."""

from __future__ import annotations

import gc
import json
import os
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from perfnb.errors import CaptureError
from perfnb.step import pass_order
from perfnb.step import tracer as tracer_module
from perfnb.step.arithmetic import OpCall
from perfnb.step.budget import Plan
from perfnb.step.capture import Capture
from perfnb.step.data_waits import ExecutedStep
from perfnb.step.layers import Layer, LayerSpans
from perfnb.step.memory import Known, WatchedMemory
from perfnb.step.pass_order import _named, _runs_compiled, capture_step, count_step, loop_passes, watch_steps
from perfnb.step.session import MOST_STEPS, FirstStep, Session
from perfnb.step.steps import Passes, StepRunner
from perfnb.step.to_recording import _steps_of_trace, recording_of, with_later
from perfnb.step.tracer import Costs, Tracer, measure_costs, quiet_kineto
from perfnb.trace import kineto
from perfnb.trace_names import DATA_SPAN, MARK_SPAN, STEP_SPAN
from tests.fake_clock import FakeClock

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("grows", [True, False])
def test_watched_steps_run_twice_and_a_third_time_if_the_process_grew(grows: bool) -> None:
    model, born, seen = nn.Linear(2, 2), weakref.WeakSet[nn.Module](), list[tuple[int, int]]()

    def step() -> None:
        made = nn.Tanh()
        born.add(made)
        made(model(torch.ones(1, 2)))

    def judged(process_bytes: list[int]) -> bool:
        gc.collect()
        seen.append((len(process_bytes), len(born)))
        return grows

    capture, process_bytes, recorded, later = watch_steps(
        step, steps=3, warmup=2, grows=judged, namespace={"model": model}
    )
    expected = ["warmup"] * 2 + ["process"] * 3 + ["counted"] * 3 + ["process"] * 3 * grows
    assert [each.pass_name for each in capture.steps] == expected
    assert (len(process_bytes), recorded, len(later)) == (3, 3, 3 * grows)
    assert min(process_bytes) > 2**20
    assert seen == [(3, 0)]  # the steps' own modules are not kept
    assert [(layer.name, layer.module) for layer in capture.layers] == [("model", "Linear"), ("Tanh", "Tanh")]
    capture.close()


def failing(at: set[int], said: list[str]) -> Any:
    """Return a step that runs out of memory at these calls."""
    model, calls = nn.Linear(2, 2), 0

    def step() -> None:
        nonlocal calls
        calls += 1
        said.append(f"call {calls}")
        model(torch.ones(1, 2))
        if calls in at:
            raise torch.OutOfMemoryError(f"at call {calls}\nwith details")

    return step


def captured(at: set[int], **options: Any) -> tuple[Capture, list[str]]:
    said: list[str] = []
    return capture_step(failing(at, said), plan=Plan(warmup=1, steps=1, traced=1, flops=False, **options)), said


@pytest.mark.parametrize(("at", "failed_in"), [((2, 3), "timed"), ((5,), "lead_in"), ((6,), "counted")])
def test_a_step_that_runs_out_of_memory_is_run_again_unless_its_memory_was_watched(
    at: tuple[int, ...], failed_in: str
) -> None:
    capture, said = captured({*at})
    assert said == [f"call {number}" for number in range(1, at[-1] + 1)]
    assert capture.meta["failed_in"] == failed_in
    assert capture.meta["failure"] == f"OutOfMemoryError: at call {at[-1]}"
    assert capture.memory is not None
    capture.close()


def test_a_failure_that_does_not_come_again_is_reported_with_its_first_error() -> None:
    capture, said = captured({2})
    assert said == ["call 1", "call 2", "call 3"]
    assert capture.meta["failure"] == "OutOfMemoryError: at call 2"
    assert capture.failure is not None
    (note,) = capture.failure.__notes__
    assert note.startswith("The step was run again and did not run out of memory. The first error:\nTraceback")
    capture.close()


def test_without_the_memory_pass_the_error_is_the_callers() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="at call 2"):
        captured({2}, memory=False)


@pytest.mark.parametrize(("times", "looped"), [(MOST_STEPS, False), (MOST_STEPS + 1, True), (MOST_STEPS + 3, True)])
def test_a_step_that_calls_an_optimizer_often_looks_like_a_loop(times: int, looped: bool) -> None:
    sgd, once = (torch.optim.SGD([nn.Parameter(torch.ones(1))]) for _ in range(2))
    told: list[str] = []
    with FirstStep(told.append, {"x" * 61: sgd, "sgd": sgd, "once": once}) as first:
        once.step()
        for _ in range(times):
            sgd.step()
    sgd.step()  # outside
    assert first.looped == ({"optimizer": "sgd", "times": times} if looped else None)
    message = "your step has called sgd.step() 9 times already: profile one iteration, not the whole loop"
    assert told == [message] * looped
    with FirstStep(told.append, {"x" * 61: sgd}) as unnamed:
        for _ in range(times):
            sgd.step()
    assert looped == (unnamed.looped is not None and unnamed.looped["optimizer"] == "SGD")


@pytest.mark.parametrize("job", [None, {"rank": 3, "world_size": 4}])
def test_a_recording_has_its_rank_and_its_job(job: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.step.to_recording.place_in_job", lambda: job)
    plan = Plan(warmup=0, steps=1, traced=1, memory=False, flops=False)
    meta = recording_of(capture_step(lambda: torch.ones(2).sum(), plan=plan, namespace={}), "step").meta
    assert (meta["rank"], meta.get("job")) == (3 if job else 0, job)


def driven(passes: Passes[Capture], step: Callable[[], Any]) -> list[str]:
    """Run the passes, and return the pass of each step."""
    capture = StepRunner(step, None).drive(passes)
    capture.close()
    return [each.pass_name for each in capture.steps]


@pytest.mark.parametrize(
    ("workers", "options", "last"),
    [
        (False, {}, ["watch_memory", "count_arithmetic", "measure_ceilings"]),
        (True, {"flops": False}, ["sample_stacks", "watch_memory"]),
        (False, {"memory": False}, ["count_arithmetic", "measure_ceilings"]),
        (False, {"memory": False, "flops": False}, []),
    ],
)
def test_a_profile_runs_the_passes_that_were_chosen_in_order(
    workers: bool, options: dict[str, bool], last: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[Any, ...]] = []

    def recorded(name: str, result: Any) -> Any:
        def run(self: Session, *args: Any) -> Passes[Any]:
            ran.append((name, *args))
            yield from ()
            return result

        return run

    for name, result in (("warm_up", [1]), ("time", [2]), *((name, None) for name in ("try_threads", "trace", *last))):
        monkeypatch.setattr(Session, name, recorded(name, result))
    monkeypatch.setattr(Session, "measure_ceilings", lambda _: ran.append(("measure_ceilings",)))
    stacks: Any = object() if workers else None
    assert list(pass_order._measure(Session(Plan(**options)), stacks)) == []
    first = [("warm_up",), ("time", [1]), ("try_threads", [2]), ("trace", [2], workers)]
    assert ran == first + [(name, *([[2], stacks] if name == "sample_stacks" else [])) for name in last]


@pytest.mark.parametrize(
    ("batches", "stacks", "failure", "worth", "sampled"),
    [
        *((None, False, None, bool, True), ([1, 2], False, None, bool, True)),
        (iter([1, 2]), False, None, bool, False),  # they could run out
        *((None, True, None, bool, False), (None, False, MemoryError(), bool, False), (None, False, None, None, False)),
    ],
)
def test_stacks_are_sampled_unasked_after_a_whole_capture_whose_batches_last(
    batches: Any, stacks: bool, failure: Exception | None, worth: Any, sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(session: Session, workers: object) -> Passes[None]:
        assert (workers is not None) == stacks
        session.capture.failure = failure
        yield from session._run("timed", 1)

    judged: list[Any] = []
    monkeypatch.setattr("perfnb.step.pass_order._measure", measure)
    monkeypatch.setattr(Session, "sample_if", lambda _, worth: judged.append(worth) or iter(()))
    capture_step(gc.isenabled if batches is None else int, batches, plan=Plan(), stacks=stacks, worth_sampling=worth)
    assert judged == [bool] * sampled


class Wrapper(nn.Module):
    """Stands for what torch.compile makes of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model

    def forward(self, x: Any) -> Any:
        return self._orig_mod(x)


def compiled_in_place() -> nn.Module:
    model = nn.Linear(2, 2)
    model._compiled_call_impl = model.forward
    return model


@pytest.mark.parametrize(
    ("make", "options", "last"),
    [
        (lambda: nn.Linear(2, 2), {}, ["lead_in", "counted", "counted"]),
        (lambda: nn.Linear(2, 2), {"memory": False}, ["counted"]),
        (lambda: nn.Linear(2, 2), {"flops": False, "memory": False}, []),
        (lambda: Wrapper(nn.Linear(2, 2)), {"memory": False}, []),
        (compiled_in_place, {"memory": False}, []),
    ],
)
def test_a_loop_runs_the_passes_that_were_chosen_and_counts_no_compiled_code(
    make: Callable[[], nn.Module], options: dict[str, bool], last: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfnb.step.session.measure_ceilings", lambda *_, only_kept: {"known": only_kept})
    monkeypatch.setattr("perfnb.step.session.compilations", lambda steps: steps)
    plan, model = Plan(warmup=2, steps=1, traced=2, **options), make()
    passes = loop_passes(plan=plan, namespace=lambda: {"net": model}, batches=[1, 2])
    capture = StepRunner(lambda: model(torch.ones(1, 2)), None).drive(passes)
    capture.close()

    names = [each.pass_name for each in capture.steps]
    assert names == ["warmup", "warmup", "timed", "lead_in", "traced", "traced", *last]
    assert (capture.layers[0].name, capture.meta["parts"]["loader"]["class"]) == ("net", "list")
    for key, name in (("compilations", "timed"), ("traced_compilations", "traced")):
        of_pass = [step for step in capture.steps if step.pass_name == name]
        assert capture.meta[key] == [(step.begin_ns, step.begin_ns + step.wall_ns) for step in of_pass]
    assert capture.meta.get("ceilings") == ({"on": "cpu", "known": True} if "counted" in last else None)


def test_a_compiled_function_in_a_variable_is_compiled_code() -> None:
    def function() -> None: ...

    with Session(Plan(), None) as session:
        assert not _runs_compiled(session, {"f": function})
        assert _runs_compiled(session, {"uncalled": nn.Sequential(compiled_in_place())})
        function._torchdynamo_orig_callable = print  # type: ignore[attr-defined]
        assert _runs_compiled(session, {"f": function})
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        assert not _runs_compiled(session, {"f": function})


def test_the_code_that_was_called_is_that_of_forward_methods_and_of_compiled_functions() -> None:
    def function() -> None: ...

    def original() -> None: ...

    compiled, again = (FunctionType(function.__code__, {}) for _ in range(2))
    compiled._torchdynamo_orig_callable = again._torchdynamo_orig_callable = original
    modules = [nn.Linear(1, 1), nn.Linear(2, 2), Wrapper(nn.Tanh()), torch.jit.ScriptModule()]
    found = pass_order._code_of(modules, {"plain": function, "compiled": compiled, "again": again})
    assert len(found) == 3
    assert {*found} == {nn.Linear.forward.__code__, nn.Tanh.forward.__code__, original.__code__}


@pytest.mark.parametrize("collects", [True, False])
def test_counted_steps_run_without_the_garbage_collector(collects: bool) -> None:
    seen: list[tuple[bool, bool]] = []
    model, was = nn.Linear(2, 2), gc.isenabled()

    def step(batch: torch.Tensor) -> None:
        seen.append((gc.isenabled(), before() is None))
        model(batch)

    (gc.enable if collects else gc.disable)()
    cycle = nn.Tanh()
    cycle.itself = [cycle]
    before = weakref.ref(cycle)
    del cycle
    try:
        capture = count_step(step, [torch.ones(1, 2)], warmup=2, namespace={"model": model})
        after = gc.isenabled()
    finally:
        (gc.enable if was else gc.disable)()
    capture.close()

    passes = [each.pass_name for each in capture.steps]
    assert passes == ["warmup", "warmup", "lead_in", "traced", "lead_in", "counted", "counted"]
    assert (seen, after) == ([(False, True)] * 7, collects)
    assert [layer.name for layer in capture.layers] == ["model"]
    assert capture.arithmetic is not None
    assert sum(call.flops or 0 for call in capture.arithmetic[0]) == 2 * 2 * 2


def test_models_that_were_recompiled_are_named_if_they_were_called() -> None:
    model, other, called = Wrapper(nn.Linear(2, 2)), nn.Tanh(), nn.ReLU()
    for recompile in (True, False):
        with Session(Plan(recompile=recompile), None) as session:
            session.calls.records += [(0, model, None), (1, called, None)]
            session.recompiled = [model, other, called]
            meta = _named(session, {"net": model}).meta
        assert meta.get("recompiled") == (["net", "ReLU"] if recompile else None)


@pytest.mark.parametrize(
    ("calls", "asked"),
    [
        ([(8, "float32", "cpu")], ("cpu", ["float32", "bfloat16"])),
        ([(8, "float64", "cpu"), (4, "float16", "cpu")], ("cpu", ["float64", "float16", "float32"])),
        ([(8, "float16", "cpu"), (None, "int64", "cpu"), (0, "float32", "cpu")], ("cpu", ["float16"])),
        ([(3, "float16", "cpu"), (3, "float16", "cpu"), (5, "float16", "cuda")], ("cpu", ["float16"])),
        ([(3, "float16", "cpu"), (4, "float16", "cuda")], ("cuda", ["float16"])),
        ([(8, "float32", "mps")], None),
        ([], ("cpu", [])),
    ],
)
def test_ceilings_are_measured_where_most_of_the_arithmetic_is(
    calls: list[tuple[int | None, str, str]], asked: tuple[str, list[str]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfnb.step.session.lower_precision", lambda _: "bfloat16")
    monkeypatch.setattr(
        "perfnb.step.session.measure_ceilings",
        lambda dtypes, device, only_kept: {"asked": (device, list(dtypes)), "kept": only_kept},
    )
    said: list[Any] = []
    with Session(Plan(), None, progress=lambda *words: said.append(words)) as session:
        of_calls = [OpCall(0, "aten::mm", flops, 0, dtype, device) for flops, dtype, device in calls]
        session.capture.arithmetic = (of_calls, Tracer())
        session.measure_ceilings()
        found = session.capture.meta.get("ceilings")
    assert found == (None if asked is None else {"on": asked[0], "asked": asked, "kept": False})
    assert said == ([] if asked is None else [("ceilings", 0, None)])


def test_a_long_second_step_of_the_warm_up_counts_as_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "steps_are_long", lambda *_: True)
    said, calls = list[Any](), list[int]()

    def passes() -> Passes[Capture]:
        with Session(Plan(warmup=2, steps=3), None, progress=lambda *words: said.append(words)) as session:
            warm = yield from session.warm_up()
            assert len(warm) == 1
            assert len({step.begin_ns for step in session.capture.steps}) == 2
            assert len((yield from session.time(warm))) == 3
            noise = session.capture.meta["noise"]
            assert {step for step, _ in noise["gc_pauses"]} >= {2}
            assert 0 < noise["gc_share"] <= 1
            assert not session.capture.meta["timed_cut_short"]
            return session.capture

    def step() -> None:
        calls.append(len(calls))
        if len(calls) == 4:
            gc.collect()

    assert driven(passes(), step) == ["warmup", "timed", "timed", "timed"]
    assert [words[:3] for words in said] == [("warmup", 1, 2), ("warmup", 2, 2), ("timed", 1, 2), ("timed", 2, 2)]


def test_an_automatic_warm_up_and_timed_steps_are_an_error_if_the_clock_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def passes(plan: Plan) -> Passes[Capture]:
        with Session(plan) as session:
            yield from session.warm_up()
            return session.capture

    monkeypatch.setattr(time, "perf_counter", lambda: 5.0)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 5 * 10**9)
    calls = iter(range(100))
    with pytest.raises(CaptureError, match="stood still for 6 steps"):
        driven(passes(Plan()), lambda: next(calls))
    assert next(calls) == 6
    assert driven(passes(Plan(warmup=8)), gc.isenabled) == ["warmup"] * 8
    with Session(Plan(steps=3)) as session, pytest.raises(CaptureError, match="stood still for 3 steps"):
        StepRunner(gc.isenabled, None).drive(session.time([]))


def test_layers_are_named_after_calls_before_the_counted_step_and_hidden_ones_inside_it() -> None:
    model, hidden, loss = nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh()), nn.MSELoss()
    session = Session(Plan())
    session.calls.records += [(0, model, None), (1, model, None), (2, model[0], None), (3, hidden, None)]
    session.calls.records += [(4, hidden[0], 3), (5, loss, None), (6, hidden, None)]
    session.calls.begins, session.calls.loss = [0, 1], {5}
    assert session.watched_calls() is session.calls
    session._uncompiled_from = 1
    found = session.watched_calls()
    assert (found.records, found.begins, found.loss) == ([(0, model, None)], [0], {5})
    assert [id(module) for module in found.hidden] == [id(hidden)]


def test_a_first_step_that_looks_like_a_loop_is_reported_with_its_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "why_longer", lambda *_: "it takes long")
    session = Session(Plan(), None)
    session._first_step_ended(None, 1.0)
    assert session._notes == ["it takes long"]
    assert "optimizer_steps" not in session.capture.meta
    session._first_step_ended({"optimizer": "sgd", "times": 1234}, 1.0)
    (note,) = session._notes
    assert note.startswith("your step calls sgd.step() 1,234 times: ")
    assert note.endswith("; it takes long")
    assert session.capture.meta["optimizer_steps"] == {"optimizer": "sgd", "times": 1234}


def executed(
    name: str, begin_ms: int, wall_ms: int, data_ms: int | None = None, tokens: int | None = None, batches: int = 1
) -> ExecutedStep:
    data_ns = None if data_ms is None else data_ms * 10**6
    return ExecutedStep(name, begin_ms * 10**6, wall_ms * 10**6, data_ns, 4, tokens, batches)


def test_a_recording_of_steps_alone_has_their_times_tokens_and_batches() -> None:
    steps = [
        *(executed("warmup", 5_000, 7, 1, 100), executed("timed", 6_000, 3, 2, 10, 2), executed("timed", 6_500, 4)),
        *(executed("timed", 6_750, 4, 0, 20, 2), executed("traced", 7_000, 5, 3), executed("traced", 8_000, 6)),
    ]
    for place, tokens, batches in ((6, None, 2), (2, 10, 2), (1, None, None)):
        recording = recording_of(Capture(steps=steps[:place]), "some")
        assert (recording.meta.get("tokens"), recording.meta.get("batches")) == (tokens, batches)
        assert (recording.meta["name"], recording.meta["rank"], len(recording.events)) == ("some", 0, 0)
    found = recording_of(Capture(steps=steps), "some").steps
    assert found["pass"].tolist() == ["warmup", *["timed"] * 3, *["traced"] * 2]
    assert found["start_s"].tolist() == [0.0, 1.0, 1.5, 1.75, 2.0, 3.0]
    assert found["wall_ms"].tolist() == [7.0, 3.0, 4.0, 4.0, 5.0, 6.0]
    assert found["data_ms"].fillna(-1).tolist() == [1.0, 2.0, -1.0, 0.0, 3.0, -1.0]
    assert found["step"].fillna(-1).tolist() == [-1, -1, -1, -1, 0, 1]
    assert found["samples"].tolist() == [4] * 6


@pytest.mark.parametrize("regions", [["0/0"], []])
def test_a_recording_says_what_hides_compiled_layers(regions: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        *(("region_ids", regions), ("missing_names", ["torch.a.b", "torch.c"]), ("objects_are_frozen", True)),
        *(("compiled_code", []), ("compiled_graphs", [])),
    ):
        monkeypatch.setattr(f"perfnb.step.to_recording.{name}", lambda *_, value=value: value)
    meta = recording_of(Capture(steps=[executed("timed", 0, 1)]), "some").meta
    assert (meta.get("compiler_lacks"), meta.get("frozen")) == (("torch.a.b", True) if regions else (None, None))


def test_telemetry_begins_with_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("perfnb.step.to_recording.watch_record", lambda *args: seen.append(args))
    watcher: Any = SimpleNamespace(columns=lambda: "columns", zero_ns=7_500_000_000, meta={"every": 1})
    for steps, shift in (([executed("timed", 6_000, 3)], 1.5), ([], 7.5)):
        recording = recording_of(Capture(steps=[executed("timed", 6_000, 3)]), "some")
        assert with_later(recording, Capture(steps=steps), watcher).meta["watch"] == {"every": 1}
        assert seen.pop() == ("columns", [], shift)


def test_the_outermost_calls_are_sampled_with_whether_they_are_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inner, loss = nn.Linear(2, 2), nn.Tanh(), nn.MSELoss()
    given: list[Any] = []

    class Sampler:
        def __init__(self, outermost: Any) -> None:
            given.extend(outermost)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exc_info: object) -> None: ...

        def step(self) -> Any:
            return nullcontext()

    monkeypatch.setattr("perfnb.step.session.StackSampler", Sampler)
    wanted: list[bool] = []

    def passes(worth: bool, affordable: int) -> Passes[Capture]:
        with Session(Plan(warmup=1, steps=2), None) as session:
            yield from session.time((yield from session.warm_up()))
            session.calls.records += [(0, model, None), (1, inner, 0), (2, loss, None), (3, model, None)]
            session.calls.loss.add(2)
            monkeypatch.setattr(Plan, "briefly_sampled_steps", lambda *_: affordable)
            yield from session.sample_if(lambda capture: wanted.append(worth) or worth)
            assert (session.capture.sampler is None) == (not worth or not affordable)
            return session.capture

    timed = ["warmup", "timed", "timed"]
    assert driven(passes(True, 2), gc.isenabled) == [*timed, "sampled", "sampled"]
    assert given == [(model, False), (loss, True)]
    assert driven(passes(False, 2), gc.isenabled) == driven(passes(True, 0), gc.isenabled) == timed
    assert wanted == [True, False]


def profiled(error: type[BaseException] | None) -> bool:
    """Run a profiler inside a session of perfnb's, whose step may fail."""
    with Tracer():
        with torch.profiler.profile():
            torch.ones(2)
        if error is not None:
            raise error
    return True


def test_a_profiler_inside_the_step_is_refused_unless_the_step_failed() -> None:
    with pytest.raises(CaptureError, match="profilers do not nest"):
        profiled(None)
    with pytest.raises(KeyError):
        profiled(KeyError)
    with torch.profiler.profile(), pytest.raises(CaptureError, match="profilers do not nest"), Tracer():
        pass


@pytest.mark.parametrize("memory", [True, False])
def test_a_session_that_records_memory_spends_the_warning_and_frees_its_blocks(
    memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[int] = []
    monkeypatch.setattr(tracer_module, "_spend_warning", lambda blocks: spent.append(len(blocks)))
    with Tracer(memory=memory) as tracer:
        pass
    with pytest.raises(CaptureError), Tracer(memory=memory) as ended, torch.profiler.profile():
        pass
    assert spent == [2000, 2000] * memory  # the warning comes with every thousandth block
    assert tracer._blocks == ended._blocks == []


@pytest.mark.parametrize(("error", "kept"), [(None, True), (KeyError, True), (ValueError, False)])
def test_the_events_of_a_session_are_freed_after_an_error_unless_it_keeps_them(
    error: type[Exception] | None, kept: bool
) -> None:
    tracer = Tracer(keeps=lambda error: isinstance(error, KeyError))
    with nullcontext() if error is None else pytest.raises(error), tracer:
        if error is not None:
            raise error
    assert (tracer._profile is not None) == kept


def test_backward_nodes_of_a_thread_that_was_not_recorded_have_no_sequence_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [("cpu_op", "node", 5, 3, {"Sequence number": 7, "Fwd thread id": thread}) for thread in (0, 1, 2)]
    tracer = Tracer()
    monkeypatch.setattr(tracer_module, "_decoded", lambda _: Traced(*nodes).trace)
    monkeypatch.setattr(Tracer, "_threads", lambda _: {1})
    assert tracer.read().sequence.tolist() == [7, 7, -1]
    assert tracer.read() is tracer.read()


def test_a_trace_that_cannot_be_exported_exactly_lacks_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with Tracer(memory=True) as tracer, torch.profiler.record_function("grün"):
        kept = torch.ones(1000)
    del kept
    changes = tracer.memory_changes()
    assert (4000, "cpu") in {(size, device) for _, size, device in changes}
    assert changes == sorted(changes)

    def old(self: Any, path: str, **options: Any) -> None:
        if options:
            raise TypeError("no such option")
        Path(path).write_text('{"traceEvents": [%s]}' % ('"' if broken else EVENT))

    monkeypatch.setattr("torch.profiler._KinetoProfile.export_chrome_trace", old)
    broken = False
    assert tracer_module._decoded(tracer).names == ["unknown"]
    broken = True
    with pytest.raises(CaptureError, match="cannot export this trace"):
        tracer.export(exact=True)
    with pytest.raises(CaptureError, match="cannot export this trace"):
        tracer_module._decoded(tracer)
    tracer.close()


EVENT = '{"ph": "X", "cat": "user_annotation", "name": "unknown", "pid": 1, "tid": 1, "ts": 5, "dur": 3}'


def test_costs_are_the_least_of_each_beyond_the_bare_ones_and_never_negative() -> None:
    assert Costs(3.0, 8.0).least(Costs(4.0, 5.0)) == Costs(3.0, 5.0)
    assert Costs(3.0, 8.0).beyond(Costs(4.0, 5.5)) == Costs(0.0, 2.5)


@pytest.mark.parametrize(
    ("bare", "count", "lead_in", "least"),
    [(None, 2, True, (4.0, 50.0)), (Costs(3.0, 70.0), 1, False, (3.0, 50.0))],
)
def test_the_cost_of_tracing_is_the_least_of_two_measurements_beyond_those_without_the_tracer(
    bare: Costs | None, count: int, lead_in: bool, least: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = iter([Costs(5.0, 50.0), Costs(9.0, 99.0), Costs(8.0, 120.0), Costs(4.0, 60.0)])
    asked: list[float] = []
    monkeypatch.setattr("perfnb.step.session.measure_costs", lambda *_: next(costs))
    monkeypatch.setattr(Plan, "traced_steps", lambda *args: asked.append(args[2]) or (count, lead_in))

    def passes() -> Passes[Capture]:
        with Session(Plan(traced=2)) as session:
            session._bare = bare
            yield from session.trace([4 * 10**9, 10**9, 3 * 10**9, 2 * 10**9], False)
            meta = session.capture.meta
            assert meta["cost"] == {"op_ns": 4.0, "call_ns": 49.0}
            assert tuple(meta["bare_cost"].values()) == least
            assert (meta["stacks"], meta["traced_cut_short"]) == (False, count == 1)
            return session.capture

    assert driven(passes(), gc.isenabled) == ["lead_in"] * lead_in + ["traced"] * count
    assert asked == [3.0]  # the higher of the two in the middle


def test_a_step_is_expected_to_take_as_long_as_the_last_one(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def goes_on(self: Plan, done: int, wanted: int, spent_s: float, step_s: float) -> bool:
        asked.append((done, round(step_s, 3)))
        return done < 2

    monkeypatch.setattr(Plan, "goes_on_timing", goes_on)
    for already, warm_s, first_s in (([], [], 0.0), ([], [1, 3], 3.0), ([5 * 10**9], [3], 5.0)):
        asked, session, done = list[tuple[int, float]](), Session(Plan(steps=7)), len(already)
        session._timed_already = already
        runner = StepRunner(lambda: clock.pass_exactly(2000), None)
        times = runner.drive(session.time([s * 10**9 for s in warm_s]))
        assert [round(ns, -6) for ns in times] == [*already, *[2 * 10**9] * (2 - done)]
        assert asked == [(done, first_s), *((count, 2.0) for count in range(done + 1, 3))]
        assert session.capture.meta["timed_cut_short"]


def test_costs_are_found_with_hooks_of_others_too_and_these_hear_nothing() -> None:
    heard: list[nn.Module] = []
    with torch.profiler.profile(), LayerSpans() as spans:
        handle = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: heard.append(module))
        beside = measure_costs(spans)
        handle.remove()

    assert heard == []
    assert min(*beside, *measure_costs()) > 0


@pytest.mark.parametrize("own", [None, "3"])
def test_the_profiler_is_quiet_unless_the_user_wants_lines(own: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    if own:
        monkeypatch.setenv("KINETO_LOG_LEVEL", own)
    with quiet_kineto():
        assert os.environ["KINETO_LOG_LEVEL"] == (own or "99")
    assert os.environ.get("KINETO_LOG_LEVEL") == own


@pytest.mark.parametrize("affords", [True, False])
def test_a_lead_in_is_run_if_the_latest_step_was_short_enough(affords: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(Plan, "affords_lead_in", lambda self, spent_s, step_s: asked.append(step_s) or affords)

    def passes() -> Passes[Capture]:
        with Session(Plan()) as session:
            session.capture.steps += [executed("timed", 0, 2000), executed("traced", 5000, 3500)]
            yield from session.watch_memory()
            return session.capture

    assert driven(passes(), lambda: None) == ["timed", "traced", *["lead_in"] * affords, "counted"]
    assert asked == [3.5]


def test_steps_that_run_recompiled_code_come_before_the_traced_ones_and_are_not_in_the_budget(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, spent, inside = nn.Tanh(), list[float](), list[bool]()

    class Again:
        models = (model,)

        def __enter__(self) -> Any:
            inside.append(True)
            return self

        def __exit__(self, *exc_info: object) -> None:
            inside.clear()

    def trace(session: Session, timed_ns: list[int], stacks: bool) -> Passes[None]:
        spent.append(session._spent_s())
        assert (timed_ns, stacks, inside) == ([5], True, [True])
        yield from session._run("traced", 1)

    monkeypatch.setattr("perfnb.step.session.CompilesAgain", Again)
    monkeypatch.setattr(Session, "_trace", trace)

    def passes(recompile: bool) -> Passes[Capture]:
        with Session(Plan(recompile=recompile)) as session:
            session._begin -= 7.0
            yield from session.trace([5], True)
            assert [*session.recompiled] == [model]
            return session.capture

    assert driven(passes(True), lambda: clock.pass_exactly(1000)) == ["recompiled", "recompiled", "traced"]
    assert spent == [pytest.approx(7.0, abs=0.01)]
    assert inside == []


def test_a_skipped_step_does_not_count_and_the_next_one_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[str] = []
    monkeypatch.setattr("perfnb.step.session.function_span", lambda name: nullcontext(spans.append(name)))
    with Session(Plan()) as session:
        passes = session._run("traced", 2, session._numbered())
        turn, running = next(passes), list[bool]()
        for answer in (None, executed("traced", 0, 1), None, executed("traced", 5, 3)):
            with turn.around(), turn.data():
                running.append(session._conditions.running)
            try:
                turn = passes.send(answer)
            except StopIteration as end:
                times = end.value
            running.append(session._conditions.running)
        assert (times, [step.wall_ns for step in session.capture.steps]) == ([10**6, 3 * 10**6],) * 2
        assert next(session._run("timed", 1)).data is nullcontext
    assert spans == [name for number in (0, 0, 1, 1) for name in (f"{STEP_SPAN}{number}", DATA_SPAN)]
    assert running == [True, False] * 4


@pytest.mark.parametrize(
    ("wanted", "grown_bytes", "recorded"),
    [(3, 2**28, 3), (17, 2**28, 15), (17, 2**28 - 1, 17)],
)
def test_a_recording_of_allocations_ends_when_it_is_too_large_for_more_than_an_interval(
    wanted: int, grown_bytes: int, recorded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[int] = []
    readings = iter([100, *[100 + grown_bytes] * 100])

    def passes() -> Passes[Capture]:
        with Session(Plan()) as session, monkeypatch.context() as patched:
            process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=next(readings)))
            patched.setattr("psutil.Process", lambda: process)
            count = yield from session.record_allocations(wanted, lambda: ends.append(len(session.capture.steps)))
            assert count == recorded
            assert session.capture.memory is not None
            return session.capture

    assert driven(passes(), gc.isenabled) == ["counted"] * recorded
    assert ends == [*range(recorded)]  # at the end of each step, before it counts


def test_lines_of_others_on_standard_error_are_kept_when_the_profilers_warning_is_not(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Blocks(list[Any]):
        def pop(self, *_: Any) -> None:
            super().pop()
            if len(self) == 2:
                os.write(2, b"one\nit was allocated before the profiling started\ntwo\n")

    blocks, opened, closed_ = Blocks(range(5)), list[int](), list[int]()
    with monkeypatch.context() as patched:
        dup, close = os.dup, os.close
        patched.setattr(os, "dup", lambda fd: (opened.append(dup(fd)), opened[-1])[1])
        patched.setattr(os, "close", lambda fd: (closed_.append(fd), close(fd))[1])
        tracer_module._spend_warning(blocks)
    os.write(2, b"three\n")
    assert (len(blocks), capfd.readouterr().err) == (2, "one\ntwo\nthree\n")
    assert opened == closed_

    def closed(_: int) -> int:
        raise OSError("no standard error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "dup", closed)
        tracer_module._spend_warning(blocks)
    assert (len(blocks), capfd.readouterr().err) == (2, "")


class Traced:
    """Stands for a tracer whose trace has these events, each a category, a name, a begin and a duration in µs."""

    def __init__(self, *events: tuple[str, str, int, int, dict[str, int]], more: Sequence[Any] = ()) -> None:
        rows = [
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": begin, "dur": length, "args": args}
            for cat, name, begin, length, args in events
        ]
        facts = {"traceEvents": [*rows, *more], "baseTimeNanoseconds": 77, "deviceProperties": [{"id": 0}]}
        self.trace = kineto.decode(json.dumps(facts).encode())
        self.allocator, self.closed = {"cuda:0": {}}, False

    def read(self) -> Any:
        return self.trace

    def close(self) -> None:
        self.closed = True


def test_a_recording_has_the_events_of_the_traced_steps_and_the_times_of_their_marks() -> None:
    tracer: Any = Traced(
        *[("cpu_op", f"{STEP_SPAN}{number}", begin, 20, {}) for number, begin in ((0, 100), (0, 200), (1, 300))],
        *[("cpu_op", f"op{begin}", begin, 2, {}) for begin in (105, 205, 250, 319, 320)],  # 0 was first skipped
        *[("cuda_runtime", "launch", 210, 1, {"correlation": 5}), ("kernel", "k", 400, 9, {"correlation": 5})],
        ("kernel", "of an earlier launch", 215, 9, {"correlation": 6}),
    )
    layers = [Layer(name, "M", parent, 3, 12, False) for name, parent in (("a", None), ("a.b", 0), ("a.b.c", 1))]
    steps = [ExecutedStep("traced", 10**9, wall_ns, 0, None) for wall_ns in (15_000, 60_000)]

    recording = recording_of(Capture(steps=steps, tracer=tracer, layers=layers, meta={"own": 1}), "step")

    names = recording.events["name"].astype(str).tolist()
    assert sorted(names) == ["k", "launch", "op205", "op319", f"{STEP_SPAN}0", f"{STEP_SPAN}1"]
    assert recording.steps["wall_ms"].tolist() == [0.02, 0.06]
    assert recording.modules["depth"].tolist() == [0, 1, 2]
    known = {"own": 1, "name": "step", "rank": 0, "base_ns": 77, "devices": [{"id": 0}]}
    assert recording.meta == known
    assert tracer.closed


def change(at: int, address: int, size: int, kind: int = 0, device: int = -1) -> dict[str, Any]:
    """Return an event of torch's allocator, where 500 bytes are allocated and 900 are reserved."""
    args = {"Addr": address, "Bytes": size, "Device Type": kind, "Device Id": device}
    args |= {"Total Allocated": 500, "Total Reserved": 900}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "args": args}


def test_recorded_memory_has_its_events_owners_and_times() -> None:
    blocks = [(95, 1, 8), (115, 2, 64), (150, 3, 32, 1, 2), (155, 4, -32, 1), (160, 5, 1, 99)]
    spans = [(f"{STEP_SPAN}0", 100, 100), ("op", 110, 80), (f"{MARK_SPAN}0", 120, 1), (f"{MARK_SPAN}2", 130, 1)]
    tracer: Any = Traced(*(("cpu_op", *span, {}) for span in spans), more=[change(*each) for each in blocks])
    model = nn.Linear(1, 1)
    known = [
        *((0, Known(2, 64, "cpu", "parameters", id(model), "weight")), (1, Known(9, 9, "cpu", "lost mark"))),
        (2, Known(3, 32, "cuda:2", "inputs")),
    ]
    watched = WatchedMemory(known=known, step_begins=[5_000_000], resident=[(5_000_700, 77)])

    record = recording_of(Capture(memory=(watched, tracer), places={id(model): 4}), "step").memory

    assert record is not None
    assert record.resident.to_numpy().tolist() == [[100_700, 77]]
    found = record.changes
    names = record.events["name"].astype(str).tolist()
    assert [names[event] if event >= 0 else "" for event in found["event"]] == ["", *["[memory]"] * 4]
    assert found["time_ns"].tolist() == [95_000, 115_000, 150_000, 155_000, 160_000]
    assert found[["address", "bytes"]].to_numpy().tolist() == [[1, 8], [2, 64], [3, 32], [4, -32], [5, 1]]
    assert found["device"].tolist() == ["cpu", "cpu", "cuda:2", "cuda:0", "device of type 99:0"]
    assert found["allocated"].tolist() == [-1, -1, 500, 500, 500]
    assert found["reserved"].tolist() == [-1, -1, 900, 900, 900]
    assert record.known.astype(object).where(record.known.notna(), None).to_numpy().tolist() == [
        [120_000, 2, 64, "cpu", "parameters", 4, "weight"], [130_000, 3, 32, "cuda:2", "inputs", -1, None],
    ]  # fmt: skip
    at = record.events[record.events["name"] == "[memory]"]
    assert at["start_ns"].tolist() == [115_000, 150_000, 155_000, 160_000]
    assert set(at["duration_ns"]) == {0}


def test_a_trace_without_steps_is_an_error_that_says_what_to_do() -> None:
    trace = kineto.decode(f'{{"traceEvents": [{EVENT}]}}'.encode())
    with pytest.raises(CaptureError, match=r"^The trace does not contain any of the traced steps"):
        _steps_of_trace(trace)
