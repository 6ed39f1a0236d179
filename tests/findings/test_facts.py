"""What is known about a step, and how its verdict is worded, from facts made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.attribution.blocks import Kind
from perfnb.findings.doubts import doubt_of, held_up, too_few_steps
from perfnb.findings.facts import Facts, facts_of
from perfnb.findings.finding import Finding, deciding
from perfnb.findings.gpu_facts import Doing
from perfnb.findings.rules import BY_NAME, host
from perfnb.findings.verdict import _bound_by, _of_finding, _without_finding, verdict_of
from tests.findings.findings_recordings import facts as facts_from
from tests.gpu.test_gpu import gpu_step

PHASES = ("data", "host_to_device", "forward", "loss", "backward", "optimizer", "communication", "other")
#: A loader whose batches exist already.
AT_HAND = {"loader": {"name": "batches", "class": "list"}}


def made(
    timed_ms: tuple[float, ...] = (10.0,) * 4,
    waits_ms: tuple[float, ...] | None = None,
    pauses_ms: tuple[float, ...] | None = None,
    traced_ms: tuple[float, ...] = (10.0, 10.0),
    shares: dict[str, float] | None = None,
    cells_ms: dict[str, float] | None = None,
    slowdown: float | None = None,
    ci_ms: Any = (9.0, 11.0),
    median_ms: float | None = 10.0,
    modules: list[tuple[str, int, int]] | None = None,
    is_op: bool = True,
    uses_torch: bool = True,
    meta: dict[str, Any] | None = None,
    **changes: Any,
) -> Facts:
    """Return facts about a step of 10 ms on the CPU that was traced twice. Nothing is wrong with it."""
    cells_ms = cells_ms or {"forward": 10.0}
    rows = pd.DataFrame(modules or [], columns=["name", "parent", "parameters"])
    known_shares = {"forward": 1.0} if shares is None else shares
    recording: Any = SimpleNamespace(
        meta={"parts": AT_HAND} | (meta or {}),
        steps=pd.DataFrame({"pass": "traced", "wall_ms": traced_ms}),
        uses_torch=uses_torch,
        modules=rows,
    )
    attribution: Any = SimpleNamespace(
        steps=len(traced_ms),
        cells=pd.DataFrame({"phase": list(cells_ms), "direction": "forward"}),
        host=SimpleNamespace(is_op=np.array([is_op])),
    )
    share = pd.Series(known_shares, dtype=float).reindex(PHASES)
    figures: Any = SimpleNamespace(
        timing=SimpleNamespace(steps=len(timed_ms), ci_ms=ci_ms, median_ms=median_ms),
        slowdown=slowdown,
        roofline=None,
        phases=pd.DataFrame({"share": share, "ms": 10 * share}),
    )
    zeros = (0.0,) * len(timed_ms)
    given: dict[str, Any] = {"step_ms": 10.0, "scale": 1.0, "gpu": None} | changes
    return Facts(
        recording=recording,
        attribution=attribution,
        figures=figures,
        timed_ms=np.array(timed_ms),
        waits_ms=np.array(waits_ms or zeros),
        pauses_ms=np.array(pauses_ms or zeros),
        cells_ns=np.array([ms * 1e6 for ms in cells_ms.values()]),
        **given,
    )


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({}, True),
        ({"scale": 2.5}, False),
        ({"timed_ms": ()}, False),
        ({"gpu": SimpleNamespace()}, False),
        ({"meta": {"parts": {"loader": {"name": "x", "class": "DataLoader", "num_workers": 2}}}}, False),
        ({"meta": {"parts": {"loader": {"name": "x", "class": "DataLoader", "num_workers": 0}}}}, True),
        ({"meta": {"parts": AT_HAND, "compilations": [[1, "f", "a.py:3", "", 5.0]]}}, False),
    ],
)
def test_timed_steps_were_held_up_if_nothing_explains_their_time(changes: dict[str, Any], held: bool) -> None:
    assert held_up(made(**{"scale": 2.51, **changes})) == held


@pytest.mark.parametrize(
    ("count", "ci_ms", "said"),
    [
        (1, None, "Low confidence: 1 timed step is too few for a 95 % interval."),
        (3, None, "Low confidence: 3 timed steps are too few for a 95 % interval."),
        (3, (1.0, 2.0), ""),
        (0, None, ""),
    ],
)
def test_steps_without_an_interval_are_too_few(count: int, ci_ms: Any, said: str) -> None:
    assert too_few_steps(made((10.0,) * count, ci_ms=ci_ms)) == said


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scale": 1.51}, "timed steps took longer than traced ones minus tracing overhead"),
        ({"scale": 1.51, "slowdown": 1.0}, "timed steps took longer than traced ones minus tracing overhead"),
        ({"scale": 1.51, "slowdown": 0.5}, "timed steps took 2 times as long as traced ones, which do more work"),
        ({"scale": 1.5}, ""),
        (
            {"timed_ms": (10.0, 10.0, 10.0, 34.0)},
            "the timed steps' own work takes 16.0 ms on average but mostly 10.0 ms",
        ),
        ({"scale": 0.66}, "traced steps took longer than timed ones by more than tracing adds"),
        ({"scale": 0.66, "slowdown": 1.0}, "traced steps took longer than timed ones by more than tracing adds"),
        ({"scale": 0.66, "slowdown": 2.5}, "traced steps took 2.5 times as long as timed ones, more than tracing adds"),
        ({"scale": 0.67}, ""),
        ({"scale": 0.0}, ""),
        ({"scale": 0.66, "meta": {"parts": AT_HAND, "stacks": True}}, ""),
        ({"traced_ms": (10.0, 15.1)}, "the traced steps disagree (10, 15.1 ms)"),
        ({"traced_ms": (10.0, 15.0)}, ""),
        ({"meta": {"noise": {"load_after": 5.0, "cpus": 4}}}, "the CPU was busy with other work"),
        ({"meta": {"noise": {"load_before": 5.0, "cpus": 4}}}, "the CPU was busy with other work"),
        ({"meta": {"noise": {"load_before": 4.0, "cpus": 4}}}, ""),
        ({"meta": {"noise": {"load_before": 5.0}}}, ""),
    ],
)
def test_why_bounds_may_be_far_off(changes: dict[str, Any], reason: str) -> None:
    said = f"Low confidence: {reason}. Bounds can be off by half or more." if reason else ""
    assert doubt_of(made(**changes)) == said
    assert doubt_of(made(**{**changes, "timed_ms": ()})) == ""
    assert doubt_of(made(**{**changes, "gpu": SimpleNamespace()})) == ""


def test_workers_explain_why_timed_steps_take_longer_but_not_why_traced_ones_do() -> None:
    meta = {"parts": {"loader": {"name": "x", "class": "DataLoader", "num_workers": 2}}}
    assert doubt_of(made(scale=1.6, meta=meta)) == ""
    assert doubt_of(made(scale=0.6, meta=meta)).startswith("Low confidence: traced steps took longer")


def test_several_reasons_for_doubt_are_one_sentence() -> None:
    both = made((10.0,) * 3, traced_ms=(10.0, 20.0), scale=0.5, ci_ms=None)
    assert doubt_of(both) == (
        "Low confidence: traced steps took longer than timed ones by more than tracing adds; the traced steps disagree "
        "(10, 20 ms); 3 timed steps are too few for a 95 % interval. Bounds can be off by half or more."
    )
    assert doubt_of(made((10.0,) * 3, ci_ms=None)) == ""


@pytest.mark.parametrize(
    ("threads", "scale", "load", "advised"),
    [(2, 1.6, 0.0, True), (2, 1.0, 5.0, True), (2, 0.6, 0.0, False), (1, 1.6, 5.0, False), (None, 1.6, 5.0, False)],
)
def test_one_thread_is_advised_if_others_may_lack_a_core(
    threads: int | None, scale: float, load: float, advised: bool
) -> None:
    meta = {"noise": {"load_after": load, "cpus": 4}, "environment": {"threads": threads}}
    doubt = doubt_of(made(scale=scale, meta=meta))
    assert doubt
    assert ("set_num_threads(1)" in doubt) == advised


@pytest.mark.parametrize(
    ("compiled", "said"),
    [
        ([[0, "f", "/home/a.py:3"], [0, "g", "a.py:4"], [1, "f", "a.py:3"]], "compiled f (a.py:3) in 2 of 2 traced"),
        ([[1, "", ""]], "compiled code in 1 of 2 traced"),
    ],
)
def test_traced_steps_that_compiled_show_the_compiler(compiled: list[Any], said: str) -> None:
    assert said in doubt_of(made(meta={"traced_compilations": compiled}))
    assert doubt_of(made((), meta={"traced_compilations": compiled})) == ""


def test_steps_whose_own_work_is_uneven() -> None:
    assert made((10.0, 10.0, 10.0, 30.0)).uneven == ""  # the mean is 1.5 times the median
    uneven = made((12.0, 12.0, 12.0, 33.0), waits_ms=(1.0,) * 4, pauses_ms=(1.0,) * 4)
    assert uneven.uneven == "the timed steps' own work takes 15.2 ms on average but mostly 10.0 ms"
    assert made((12.0, 12.0, 12.0, 34.0), waits_ms=(2.0, 2.0, 2.0, 24.0)).uneven == ""
    assert made((0.0, 0.0, 0.0, 30.0)).uneven == ""
    assert made(()).uneven == ""


def test_the_time_of_a_compilation_is_at_least_what_its_step_took_more() -> None:
    rows = [
        [1, "f", "a.py:3", "", 4.0],
        [1, "g", "a.py:4", "", 3.0],
        [2, "f", "a.py:3", "", 90.0],
        [9, "f", "", "", 1.0],
    ]
    known = made(
        (10.0, 30.0, 50.0, 12.0), waits_ms=(0.0, 2.0, 0.0, 0.0), pauses_ms=(0, 0, 0, 1.0), meta={"compilations": rows}
    )
    # Without compilations, steps take 10.0 ms and 11.0 ms: 28 - 10.5 is more than 7, and 50 less than 90.
    assert known.compiling_ms.tolist() == [0.0, 17.5, 50.0, 0.0]
    assert known.compilations["step"].tolist() == [1, 1, 2]
    alone = made((30.0, 20.0), meta={"compilations": [[0, "f", "", "", 4.0], [1, "f", "", "", 25.0]]})
    assert alone.compiling_ms.tolist() == [4.0, 20.0]
    assert made().compiling_ms.tolist() == [0.0] * 4


def test_times_are_shares_of_the_step() -> None:
    known = made()
    assert (known.share(2.5), made(step_ms=0.0).share(2.5)) == (0.25, 0.0)
    assert known.of_step(2.0) == "2.00 ms (20 % of the step)"
    assert known.of_step(20.0) == "10.0 ms (100 % of the step)"
    assert made(scale=0.5).per_step(8e6) == 2.0  # of two traced steps
    assert made(traced_ms=()).steps == 1


@pytest.mark.parametrize(
    ("median_ms", "words"), [(None, "10.0 ms"), (10.01, "10.0 ms"), (9.0, "a mean step of 10.0 ms")]
)
def test_a_step_is_called_a_mean_one_unless_the_headline_has_its_time(median_ms: float | None, words: str) -> None:
    assert made(median_ms=median_ms).step_words == words


def test_phases_take_no_more_than_they_are_shown_to() -> None:
    known = made(cells_ms={"forward": 12.0, "backward": 6.0, "data": 8.0}, shares={"forward": 0.5, "backward": 0.4})
    shown = {name: ms for name, ms in known.phases_ms.items() if ms}
    assert shown == {"forward": 5.0, "backward": 3.0}
    waits = made(waits_ms=(2.0, 4.0, 0.0, 0.0), shares={"data": 0.7, "forward": 0.3})
    assert waits.phases_ms["data"] == 1.5
    assert made((), shares={"data": 0.7}).phases_ms["data"] == 7.0
    assert made(shares={"data": 0.7}).phases_ms["data"] == 7.0


@pytest.mark.parametrize(
    ("bare_ns", "tiny_ns"), [(0.0, 10_000.0), (100.0, 8_000.0), (1_000.0, 15_000.0), (9e9, 30_000.0)]
)
def test_an_op_is_tiny_by_what_an_empty_one_takes(bare_ns: float, tiny_ns: float) -> None:
    assert made(meta={"bare_cost": {"op_ns": bare_ns}}).tiny_ns == tiny_ns


def test_cores_are_those_that_the_process_may_use() -> None:
    known = [made(meta={"environment": each}).cores for each in ({}, {"cpus": 8}, {"cpus": 8, "cpu_limit": 1.5})]
    assert known == [None, 8.0, 1.5]
    assert made(meta={"environment": {"cpus": 0, "cpu_limit": 2}}).cores == 2.0


def test_a_layer_belongs_to_the_model_whose_name_it_starts_with() -> None:
    modules = [("a", -1, 10), ("a.b", -1, 5), ("big", -1, 20), ("a.b.c", 1, 1)]
    models = [{"name": "a", "called": True}, {"name": "a.b", "called": False}, {"name": "x y", "called": True}]
    known = made(modules=modules, meta={"parts": {"models": models, "refused": ["compile"]}})
    layers = ("a", "a.c", "a.b", "a.b.c", "a.bc", "other", None)
    assert [known.root(layer) for layer in layers] == ["a", "a", "a.b", "a.b", "a", None, "big"]
    assert [known.variable(layer) for layer in layers] == ["a", "a", "a.b", "a.b", "a", None, None]
    assert [known.is_called(layer) for layer in layers] == [True, True, False, False, True, False, False]
    assert made().root() is None
    assert (known.applicable("compile"), known.applicable("autocast")) == ("", "autocast")
    assert made((), meta={"parts": {"refused": ["compile"]}}).applicable("compile") == "compile"
    assert made(uses_torch=False).for_torch("words") == ""
    assert made().for_torch("words") == "words"


def test_the_heaviest_ops_and_named_layers_are_those_with_the_most_time_in_sum() -> None:
    layers = ["a", "b", "c", "d", "", "(loss)", None, "a"]
    names = pd.Categorical(["add", "mul", "div", "sub", "neg", "exp", "exp", "add"])
    ns = [3.0, 5.0, 4.0, 2.0, 9.0, 9.5, 9.5, 3.0]
    ops = pd.DataFrame({"op": names, "layer": np.array(layers, dtype=object), "whole_ns": ns})
    assert made().heaviest_ops(ops).tolist() == ["exp", "neg", "add"]
    assert made().heaviest_ops(ops, 1).tolist() == ["exp"]
    assert made().heaviest_layers(ops) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("scale", "left_ms", "between_ms"),
    [
        (0.5, 10.0, 1.5),  # as long as in the traced steps, if all of it fits into a timed step of 5 ms
        (0.5, 10.1, 0.75),
        (2.0, 10.0, 3.0),
    ],
)
def test_code_between_ops_is_as_slow_as_traced_unless_it_exceeds_the_step(
    scale: float, left_ms: float, between_ms: float
) -> None:
    known = made(cells_ms={"forward": 20.0}, scale=scale)
    vars(known)["left_ns"] = np.array([left_ms * 1e6])
    assert known.between_ops_ms(3e6) == between_ms


@pytest.mark.parametrize(
    ("starts", "optimizers", "updates"), [([0, 399, 250], 1, 1.5), ([0, 399] * 3, 2, 1.5), ([-1, 150, 400], 0, 1.0)]
)
def test_updates_in_the_traced_steps_are_counted_for_each_optimizer(
    starts: list[int], optimizers: int, updates: float
) -> None:
    known = made(meta={"parts": {"optimizers": [{"name": "o", "class": "SGD"}] * optimizers}})
    names = pd.Categorical(["Optimizer.step#SGD.step"] * len(starts) + ["aten::mm"])
    vars(known.recording)["events"] = pd.DataFrame({"name": names, "start_ns": [*starts, 110]})
    blocks = {"kind": [Kind.STEP, Kind.STEP, Kind.ENGINE], "start": [100, 300, 300], "end": [200, 400, 900]}
    vars(known.attribution.host)["blocks"] = pd.DataFrame(blocks)
    assert known.updates == updates


def test_what_starts_while_compiled_code_runs_on_its_thread_is_inside_of_it() -> None:
    spans = [(1, 10, 20), (1, 12, 15), (1, 40, 50), (2, 0, 100), (1, 60, 70)]
    names = ["Torch-Compiled Region: 0/0", "CompiledFunction", "TorchDynamo Cache Lookup", "## Call CompiledFxGraph a"]
    known = made()
    vars(known.recording)["events"] = pd.DataFrame({"name": pd.Categorical([*names, "aten::mm"])})
    thread, starts, ends = (np.array(column) for column in zip(*spans, strict=True))
    vars(known.attribution.host).update(rows=np.arange(5), thread=thread, starts=starts, ends=ends)
    asked = {(1, 9): 0, (1, 10): 1, (1, 16): 1, (1, 20): 0, (1, 39): 0, (1, 40): 1, (1, 65): 0, (2, 5): 1, (3, 5): 0}
    inside = known.in_compiled(*(np.array(column) for column in zip(*asked, strict=True)))
    assert inside.tolist() == [bool(one) for one in asked.values()]


def test_a_step_without_ops_has_no_verdict() -> None:
    live, trace = made(is_op=False), made((), is_op=False)
    assert _without_finding(live, False).verdict == "No verdict: the step did not run any torch operator."
    assert _without_finding(trace, False).verdict == "No verdict: the trace contains no operators."
    assert "ProfilerActivity.CPU" in _without_finding(trace, False).next
    assert "torch" not in _without_finding(made((), is_op=False, uses_torch=False), False).next


@pytest.mark.parametrize(
    ("smaller", "uses_torch", "advice"),
    [
        (True, True, "See the findings for smaller savings; to go faster, use a smaller model, lower precision, or a "),
        (False, True, "To go faster, use a smaller model, lower precision, or a faster machine."),
        (False, False, "To go faster, do less work, or use a faster machine."),
    ],
)
def test_what_to_do_if_nothing_stands_out(smaller: bool, uses_torch: bool, advice: str) -> None:
    gpu = SimpleNamespace(busy_ms=5.0)
    found = _without_finding(made(uses_torch=uses_torch, gpu=gpu), smaller)
    assert found.verdict == "Nothing stands out. The step is bound by work on the GPU."
    assert found.why == "The GPU is busy for 50 % of the step (5.00 ms of 10.0 ms)."
    assert found.next.startswith(advice)


@pytest.mark.parametrize(
    ("busy_ms", "dependency_ms", "what"),
    [
        (5.0, 5.0, "work on the GPU"),
        (4.9, 2.56, "gaps between kernels that were launched in time"),
        (4.9, 2.55, "no single thing: the GPU is idle for most of it"),
    ],
)
def test_what_a_step_on_a_gpu_is_bound_by(busy_ms: float, dependency_ms: float, what: str) -> None:
    gpu = SimpleNamespace(busy_ms=busy_ms, idle_ms=5.1, idle_by={"dependency": dependency_ms})
    assert _bound_by(made(gpu=gpu))[0] == what


def finding(**changes: Any) -> Finding:
    given: dict[str, Any] = {"bottleneck": "dispatch overhead", "bound_ms": 2.0}
    given |= {"evidence": "It is.", "advice": "Do it.", "confidence": "high", "why": "", "blind": ""}
    return Finding(**given | changes)


def test_a_verdict_says_which_step_its_bound_is_a_share_of() -> None:
    def said(**changes: Any) -> str:
        return _of_finding(made(), [finding(**changes)], 0).verdict.partition(" could save up to ")[2]

    assert said() == "2.00 ms of 10.0 ms (20 %)."
    assert said(of_ms=10.0) == "2.00 ms of 10.0 ms (20 %)."
    assert said(of_ms=20.0) == "2.00 ms of a mean step of 20.0 ms (10 %)."
    assert said(bound_ms=None) == ""
    unknown = _of_finding(made(), [finding(bound_ms=None)], 0)
    assert (unknown.why, unknown.next, unknown.finding) == ("It is.", "Do it.", 0)


IDLE = "unexplained idle time"
UNEXPLAINED = "The GPU is idle for another 3.00 ms, and the trace does not show why."


@pytest.mark.parametrize(
    ("bottlenecks", "place", "verdict", "why"),
    [
        (
            ["dispatch overhead", "host code"],
            0,
            "Bound by dispatch overhead: fewer and larger ops could save up to 3.00",
            "It is.",
        ),
        (["dispatch overhead", IDLE, "host code"], 0, "Bound by dispatch overhead", f"It is. {UNEXPLAINED}"),
        (["host code", "dispatch overhead", IDLE], 1, "Bound by dispatch overhead", f"It is. {UNEXPLAINED}"),
        ([IDLE, "host code"], 0, "The GPU is idle for 30 % of the step (3.00 ms of 10.0 ms), and the trace", "It is."),
        (["compute"], 0, "Compute-bound: doing this work faster, or less of it, could save at most 3.00", "It is."),
        (
            ["host-device copies"],
            0,
            "The GPU is idle for 22 % of the step (2.20 ms of 10.0 ms) while the host is blocked by copies between",
            "It is.",
        ),
        (["allocator"], 0, "Bound by memory allocation: avoiding it could save up to 3.00 ms of 10.0 ms", "It is."),
    ],
)
def test_how_a_verdict_on_a_step_on_a_gpu_is_worded(bottlenecks: list[str], place: int, verdict: str, why: str) -> None:
    gpu = SimpleNamespace(is_unsure=lambda cause: cause == "copies", held_ms=lambda cause: 2.2)
    listed = [finding(bottleneck=bottleneck, bound_ms=3.0) for bottleneck in bottlenecks]

    said = _of_finding(made(gpu=gpu), listed, place)

    assert said.verdict.startswith(verdict)
    assert (said.why, said.finding) == (why, place)


NOTHING, HELD_UP = "Nothing stands out.", "No verdict: something held up the timed steps."
FEW = "Low confidence: 3 timed steps are too few for a 95 % interval."
LONGER = "Low confidence: timed steps took longer than traced ones minus tracing overhead"


@pytest.mark.parametrize(
    ("changes", "found", "place", "verdict", "doubt"),
    [
        ({}, {"bound_ms": 1.0}, 0, "", ""),
        ({}, {"bound_ms": 0.99}, None, NOTHING, ""),
        ({}, None, None, NOTHING, ""),
        ({"ci_ms": None}, {}, 0, "", FEW),
        ({"ci_ms": None}, None, None, NOTHING, FEW),
        ({"scale": 2.5}, {}, 0, "", LONGER),
        ({"scale": 2.51}, {}, None, HELD_UP, LONGER),
        ({"scale": 2.51}, {"bottleneck": "input pipeline"}, 0, "Input-bound", ""),  # timed steps alone show it
        ({"scale": 2.51, "ci_ms": None}, {"bottleneck": "input pipeline"}, 0, "Input-bound", FEW),
        ({"scale": 2.51}, {"bottleneck": "activation memory", "urgency": 1, "bound_ms": None}, 0, "", ""),
        ({"scale": 2.51}, {"bound_ms": 0.5}, None, HELD_UP, LONGER),
        ({"ci_ms": None}, {"why": f"{FEW} And so on."}, 0, "", ""),  # the finding has it already
    ],
)
def test_what_a_verdict_rests_on(
    changes: dict[str, Any], found: dict[str, Any] | None, place: int | None, verdict: str, doubt: str
) -> None:
    listed = [] if found is None else [finding(**found)]

    said = verdict_of(made((10.0,) * 3, **changes), listed)

    assert said.finding == place
    assert said.verdict.startswith(verdict)
    assert place is None or not said.verdict.startswith((NOTHING, HELD_UP))
    assert ("Low confidence" in said.why) == bool(doubt)
    assert doubt in said.why


HOST, COMPUTE = "host code", "compute"


@pytest.mark.parametrize(
    ("listed", "place"),
    [
        ([], None),
        ([(HOST, 0.99, "high")], None),
        ([(HOST, 1.0, "low")], 0),
        ([(HOST, 6.0, "low"), (COMPUTE, 2.0, "high")], 1),  # surer, and at least a third as large
        ([(HOST, 6.0, "low"), (COMPUTE, 1.99, "high")], 0),
        ([(HOST, 6.0, "low"), (COMPUTE, 2.5, "low"), (COMPUTE, 2.0, "medium")], 2),
        ([(HOST, 5.0, "medium"), (COMPUTE, 4.0, "high")], 0),
        ([(HOST, 2.7, "low"), (COMPUTE, 0.99, "high")], 0),  # not large enough to decide
        ([(IDLE, 5.0, "low"), (HOST, 1.0, "high")], 1),
        ([(IDLE, 5.1, "low"), (HOST, 1.0, "high")], 0),
        ([(IDLE, 2.0, "low"), (HOST, 0.5, "high")], 0),
        ([(HOST, 3.0, "low"), (IDLE, 2.9, "low")], 0),
    ],
)
def test_the_largest_finding_decides_unless_a_surer_one_is_not_much_smaller(
    listed: list[tuple[str, float, Any]], place: int | None
) -> None:
    found = [finding(bottleneck=name, bound_ms=ms, confidence=sure) for name, ms, sure in listed]
    assert deciding(found, BY_NAME, 10.0, 0.1) == place


def derived(
    cells_ms: dict[str, float],
    traced_ms: tuple[float, ...] = (10.0, 10.0),
    timed_ms: tuple[float, ...] = (),
    waits_ms: tuple[float | None, ...] = (),
    meta: dict[str, Any] | None = None,
) -> Facts:
    """Return the facts of two traced steps, whose parts take these times in sum, and of timed steps."""
    steps = pd.DataFrame(
        {
            "pass": ["timed"] * len(timed_ms) + ["traced"] * len(traced_ms),
            "wall_ms": [*timed_ms, *traced_ms],
            "data_ms": pd.Series([*(waits_ms or (0.0,) * len(timed_ms)), *(None for _ in traced_ms)], dtype="Float64"),
        }
    )
    count = len(cells_ms)
    cells = pd.DataFrame(
        {"phase": list(cells_ms), "corrected_ns": [ms * 1e6 for ms in cells_ms.values()], "kernels": 0}
    )
    cells["step"] = 0
    blocks = pd.DataFrame({"start": range(count), "kind": 0})
    host = SimpleNamespace(blocks=blocks, forest=SimpleNamespace(depth=np.zeros(count)))
    recording: Any = SimpleNamespace(steps=steps, meta=meta or {}, is_from_trace=not timed_ms)
    attribution: Any = SimpleNamespace(cells=cells, host=host, steps=len(traced_ms))
    figures: Any = None
    return facts_of(recording, attribution, figures)


@pytest.mark.parametrize(
    ("cells_ms", "span_ms", "step_ms", "scale"),
    [
        ({"forward": 30.0, "backward": 10.0}, None, 10.0, 0.5),
        ({"forward": 20.0}, None, 10.0, 1.0),
        ({"forward": 10.0}, None, 10.0, 1.0),  # parts are never scaled up to the whole
        ({"forward": 0.0}, None, 10.0, 1.0),
        ({"forward": 20.0}, 9.0, 10.0, 1.0),
        ({"forward": 20.0}, 12.0, 12.0, 1.0),
    ],
)
def test_a_step_of_a_trace_takes_its_mean_or_the_time_of_the_gpu(
    cells_ms: dict[str, float], span_ms: float | None, step_ms: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = None if span_ms is None else SimpleNamespace(span_ms=span_ms)
    monkeypatch.setattr("perfnb.findings.facts.gpu_facts", lambda *_: gpu)
    known = derived(cells_ms, traced_ms=(8.0, 12.0))
    assert (known.step_ms, known.scale, known.gpu, known.live) == (step_ms, scale, gpu, False)


def test_a_timed_step_takes_its_own_median_and_the_mean_of_its_waits() -> None:
    known = derived({"forward": 8.0}, timed_ms=(10.0, 12.0, 20.0), waits_ms=(None, 3.0, 30.0))
    assert known.waits_ms.tolist() == [0.0, 3.0, 20.0]  # never longer than the step
    assert known.step_ms == 9.0 + 23.0 / 3
    assert known.scale == 9.0 / 4.0  # 4 ms in each of two traced steps
    assert known.live


@pytest.mark.parametrize(("waits_ms", "scale"), [((1.0, 0.0), 9.5 / 8.0), ((0.0, 0.0), 1.0)])
def test_a_wait_that_was_timed_apart_is_not_scaled(waits_ms: tuple[float, ...], scale: float) -> None:
    known = derived({"forward": 16.0, "data": 4.0}, timed_ms=(10.0, 10.0), waits_ms=waits_ms)
    assert known.scale == scale


@pytest.mark.parametrize("cells_ms", [{"forward": 0.0}, {"data": 4.0}])
def test_a_step_without_other_parts_is_not_scaled(cells_ms: dict[str, float]) -> None:
    assert derived(cells_ms, timed_ms=(10.0, 10.0), waits_ms=(5.0, 5.0)).scale == 1.0
    assert derived({"forward": 4.0}, timed_ms=(10.0, 10.0), waits_ms=(10.0, 10.0)).scale == 1.0


def test_pauses_count_in_the_step_that_they_interrupt() -> None:
    pauses = [[0, 1.0], [0, 2.0], [1, 6.0], [2, 5.0], [3, 1.0], [4, 9.0], [-1, 9.0]]
    meta = {"noise": {"gc_pauses": pauses}, "compilations": [[3, "f", "a.py:1", "", 2.0], [7, "f", "a.py:1", "", 2.0]]}
    known = derived({"forward": 4.0}, timed_ms=(10.0,) * 4, waits_ms=(0.0, 5.0, 5.0, 0.0), meta=meta)
    assert known.pauses_ms.tolist() == [3.0, 0.0, 5.0, 0.0]
    # The steps' own work takes 7, 5, 0 and 10 ms.
    assert known.step_ms == 6.0 + 10.0 / 4 + 8.0 / 4


def gpu_of(**changes: Any) -> Any:
    """Return a GPU that was idle for 4 ms of a step, all of it while the host did other things."""
    causes = ("launches", "host", "dependency", "awaited", "other", "unknown", "data", "copies")
    doing = Doing({"calls": 0.0, "ops": 0.0, "functions": 0.0}, {"calls": "", "ops": "", "functions": ""})
    idle_by = dict.fromkeys(causes, 0.0) | {"host": 4.0} | changes.pop("idle_by", {})
    given = {"call_us": 5.0, "kernel_us": 20.0, "short_share": 0.25, "graph_share": 0.0, "kernels": 1200.0}
    given |= {"idle_share": 0.5, "doing": doing, "late_ops": ["a", "b", "c", "d"], "busy_ms": 6.0, "idle_ms": 4.0}
    unexplained_ms = sum(idle_by[why] for why in ("awaited", "other", "unknown"))
    return SimpleNamespace(**(given | changes), idle_by=idle_by, unexplained_ms=unexplained_ms)


def doing(calls: float, ops: float, functions: float) -> Doing:
    shares = {"calls": calls, "ops": ops, "functions": functions}
    return Doing(shares, {"calls": "cudaMalloc", "ops": "aten::nonzero", "functions": "a.py(3): f"})


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ((0.0, 0.0, 0.0), "The trace does not show its work."),
        ((0.009, 0.0, 0.0), "The trace does not show its work."),
        (
            (0.25, 0.5, 0.25),
            "It spent 1.00 ms in calls to the GPU's runtime (most in cudaMalloc), 2.00 ms in ops (most in "
            "aten::nonzero), 1.00 ms in Python functions (most in a.py(3): f).",
        ),
        (
            (0.0, 0.5, 0.0),
            "It spent 2.00 ms in ops (most in aten::nonzero); for 2.00 ms, the trace does not show its work.",
        ),
        ((0.0, 0.995, 0.0), "It spent 3.98 ms in ops (most in aten::nonzero)."),
    ],
)
def test_where_the_host_was_while_the_gpu_waited(shares: tuple[float, float, float], said: str) -> None:
    assert host._seen(gpu_of(doing=doing(*shares))) == said


@pytest.mark.parametrize(
    ("shares", "start"),
    [
        ((0.5, 0.0, 0.5), "Look at cudaMalloc: on first use"),
        ((0.49, 0.01, 0.5), "Look at cudaMalloc: it runs on the host for a long time"),
        ((0.2, 0.3, 0.5), "Look at aten::nonzero: it runs on the host for a long time"),
        ((0.2, 0.29, 0.5), "Take this function off the critical path"),
        ((0.2, 0.29, 0.49), "Find out how the host spends that time"),
    ],
)
def test_what_to_do_about_the_host_s_work(shares: tuple[float, float, float], start: str) -> None:
    known: Any = SimpleNamespace(recording=SimpleNamespace(is_foreign=True))
    assert host._advice(known, gpu_of(doing=doing(*shares)))[0].startswith(start)


@pytest.mark.parametrize(
    ("foreign", "python", "live", "words", "has_code"),
    [
        (True, True, True, "mark its parts with ranges", False),
        (False, True, True, "none of the recorded ops", False),
        (False, False, True, "profile with stacks=True", False),
        (False, False, False, "record Python functions too", True),
    ],
)
def test_how_to_see_what_the_host_does(foreign: bool, python: bool, live: bool, words: str, has_code: bool) -> None:
    known: Any = SimpleNamespace(recording=SimpleNamespace(is_foreign=foreign), records_python=python, live=live)
    advice, code = host._advice(known, gpu_of())
    assert words in advice
    assert bool(code) == has_code


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "1,200 kernels, 25 % of them shorter than their launch. A launch takes 5.00 µs on the host, a kernel 20"),
        ({"short_share": None}, "1,200 kernels. A launch takes "),
        ({"call_us": None}, "25 % of them shorter than their launch"),
        ({"kernel_us": None}, "25 % of them shorter than their launch"),
    ],
)
def test_words_of_late_launches(changes: dict[str, Any], said: str) -> None:
    gpu = gpu_of(idle_by={"launches": 3.0}, graph_share=0.5, **changes)
    (late,) = host.launch_overhead(made(gpu=gpu))
    assert "idle for 3.00 ms (30 % of the step)" in late.evidence
    assert said in late.evidence
    assert ("A launch takes" in late.evidence) == ("A launch takes" in said)
    assert (late.bound_ms, late.confidence, late.remedy) == (3.0, "medium", "")
    assert "graphs" not in late.advice  # they launch half of the work already
    assert [row.name for row in late.rows] == ["a", "b", "c"]
    assert host.launch_overhead(made(gpu=gpu_of(idle_by={"launches": 0.9}, graph_share=0.5))) == []


@pytest.mark.parametrize(
    ("shares", "idle_share", "confidence"),
    [((0.0, 0.5, 0.0), 0.51, "high"), ((0.0, 0.5, 0.0), 0.5, "medium"), ((0.0, 0.4, 0.09), 0.9, "medium")],
)
def test_host_work_is_sure_if_most_of_it_is_seen(
    shares: tuple[float, float, float], idle_share: float, confidence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "lines_in_words", lambda *_: "")
    monkeypatch.setattr(host, "_advice", lambda *_: ("Look.", ""))
    (work,) = host.host_work(made(gpu=gpu_of(doing=doing(*shares), idle_share=idle_share)))
    assert (work.bound_ms, work.confidence) == (4.0, confidence)
    assert host.host_work(made()) == []


def test_idle_time_without_a_cause_is_described_by_what_is_known() -> None:
    known = made(gpu=gpu_of(idle_by={"awaited": 1.0, "other": 0.99, "unknown": 0.02}))
    vars(known.recording)["is_foreign"], vars(known)["records_python"] = True, True
    (idle,) = host.unexplained_idle(known)
    assert idle.bound_ms == pytest.approx(2.01)
    assert "for 1.00 ms the next work had been launched, and its stream waited" in idle.evidence
    assert "for 0.990 ms the next work had been launched, and nothing shows" in idle.evidence
    assert "the launch of the next work" not in idle.evidence  # below a hundredth


def test_layers_on_a_gpu_run_while_one_of_their_kernels_does() -> None:
    known = facts_from(gpu_step(2).recording())
    # a: 160 to 260 and 790 to 890; b: 260 to 470 and 490 to 790. The GPU's 1070 µs shrink to a timed step of 1000.
    for layers, ms in ((["model.a"], 0.2), (["model.b"], 0.51), (["model.a", "model.b"], 0.71), (["model"], 0.0)):
        assert known.layers_on_gpu_ms(layers) == pytest.approx(ms / 1.07)


@pytest.mark.parametrize(
    ("left_us", "ops", "flops", "rounds", "ms"),
    [
        (2.0, 5, 0, 4, 0.9015),  # three quarters of forward, what comes before the last call, and freeing
        (9.0, 5, 0, 4, 0.90375),  # freeing takes no longer than 1 µs for each op
        (2.0, 5, 4 * 10**8, 4, 0.5015),
        (2.0, 5, 2 * 10**9, 4, 0.0),
        (2.0, 5, 0, 1, 0.0),
    ],
)
def test_calls_to_a_model_could_save_all_but_one_round_and_the_arithmetic(
    left_us: float, ops: int, flops: int, rounds: int, ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = pd.DataFrame({"step": [0, 0, 1], "end": [40, 100, 300]})
    monkeypatch.setattr(host, "model_calls", lambda facts: calls)
    phases = ["forward", "other", "other", "optimizer", "other", "other"]
    cells = pd.DataFrame({"step": [0, 0, 0, 0, 1, 7], "phase": phases})
    blocks = pd.DataFrame({"start": [0, 99, 100, 120, 299, 0]})
    known: Any = SimpleNamespace(
        attribution=SimpleNamespace(host=SimpleNamespace(blocks=blocks), cells=cells),
        left_ns=1000 * np.array([50.0, 60.0, left_us, 70.0, 80.0, 0.0]),
        cells_ns=1000 * np.array([1000.0, 120.0, 999.0, 999.0, 80.0, 999.0]),
        ops=pd.DataFrame({"outer": [True] * ops + [False]}),
        per_step=lambda ns: ns / 1e6,
        figures=SimpleNamespace(roofline=SimpleNamespace(flops=flops, peaks={"float32": 1e12, "float64": 1e11})),
    )

    assert host._together_ms(known, rounds) == pytest.approx(ms)
    known.figures.roofline = None
    assert host._together_ms(known, rounds) == pytest.approx(ms if flops == 0 else 0.9015)
