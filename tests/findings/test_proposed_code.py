"""Advice applies to the step at hand: code in the user's own names or none, and no lever that could not work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from perfnb.findings.proposed_code import (
    _LINES,
    _UPDATES,
    EXPANDABLE,
    LOADER_WORDS,
    NEEDS,
    RECORD_MORE,
    has_units,
    is_own_line,
    lever_line,
    loader_line,
    root_of,
    shown,
    update_line,
    workers_line,
)
from perfnb.findings.rules.bound import compute, low_precision
from perfnb.recording.recording import Recording
from perfnb.step.namespace import _LOADER_DEFAULTS
from tests.findings.findings_recordings import PARTS, found, live_cpu, live_gpu, loaded, obeys_the_laws, one_layer
from tests.findings.findings_recordings import facts as facts_from
from tests.findings.test_findings import STEPS
from tests.recordings import ByHand
from tests.written_traces import Written, training


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("net", "net"),
        ("nets['a'].body", "nets"),
        ("self.parts[-1]", "self"),
        ("obj.0", None),
        ("make()", None),
        ("a if b else c", None),
        ("net; import os", None),
        ("class", None),
        ("'net'", None),
        ("", None),
        ("\u202eevil", None),
        (r"a['\d']", None),
        (None, None),
        ("a" + ".b" * 5000, None),
        ("modèle['ü'].body", "modèle"),
        ("nets[-1]", "nets"),
        ("o #", None),
        ("data # import os; os.system('x')", None),
        ("-data", None),
        ("-o", None),
        ("(-o).body", None),
        ("__debug__", None),
        ("torch", None),
        ("torch.os.data", None),
        ("os.environ", None),
        ("data.__class__", None),
        ("\uff44\uff41\uff54\uff41", None),  # full-width letters
        ("net.\uff42", None),
        ("5[net]", None),
        (" net", None),
    ],
)
def test_only_a_variable_and_what_it_holds_may_stand_in_a_line(name: str | None, variable: str | None) -> None:
    assert root_of(name) == variable


def test_a_line_imports_what_it_needs_and_is_not_shown_with_an_unknown_name() -> None:
    assert shown("net = torch.compile(net)", {"net", "torch"}) == "net = torch.compile(net)"
    assert shown("net = torch.compile(net)", {"net"}) == "import torch; net = torch.compile(net)"
    assert shown("net = torch.compile(net)", {"torch"}) == ""
    assert shown("", set()) == ""
    groups = 'opt = torch.optim.SGD([{**group, "fused": True} for group in opt.param_groups])'
    assert shown(groups, {"opt", "torch"}) == groups
    assert shown("x = torch.ones(3); y = x + z", {"torch"}) == ""
    assert shown("x = gc; y = x; x.collect(y)", set()) == "import gc; x = gc; y = x; x.collect(y)"
    assert shown("for x in gc: x.y()", {"gc"}) == "for x in gc: x.y()"
    assert shown("for x in gc: x.y()\nx.z()", {"gc"}) == ""
    assert shown("x = torch.ones(x)", {"torch"}) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["live_cpu", "live_gpu", "loaded", "loaded_cpu"])
def test_each_line_of_every_sample_is_python_in_names_that_are_known(name: str, tmp_path: Path) -> None:
    made = {
        "live_cpu": live_cpu,
        "live_gpu": live_gpu,
        "loaded": lambda: loaded(tmp_path),
        "loaded_cpu": lambda: loaded(tmp_path, looping("AdamW")),
    }
    assert obeys_the_laws(made[name]())


def test_a_line_that_is_not_python_is_not_shown() -> None:
    assert shown("-data = torch.compile(-data)", {"data", "torch"}) == ""
    assert shown("o # = torch.compile(o #)\n  x", {"o", "torch"}) == ""


def test_a_loader_s_line_repeats_only_arguments_of_a_loader() -> None:
    loader = {"name": "data", "same": ["batch_size", "__class__", "dataset", 5, ["sampler"]]}
    assert loader_line(loader) == "data = torch.utils.data.DataLoader(data.dataset, batch_size=data.batch_size)"
    every = {"batch_size", "drop_last", "batch_sampler", "sampler", *_LOADER_DEFAULTS}
    assert set(LOADER_WORDS) == every


@pytest.mark.parametrize("name", ["-data", "data # import os; os.system('x')", "torch", "data.__class__"])
def test_an_edited_name_ends_up_in_no_line(name: str) -> None:
    loader, optimizer = ({**PARTS["loader"], "name": name}, {**PARTS["optimizers"][0], "name": name})
    parts = {"models": [{"name": name, "called": True}], "loader": loader, "optimizers": [optimizer]}
    codes = found(unnamed(LIVE_CPU, **parts), "input pipeline", "memory bandwidth", "optimizer")["code"]
    assert codes.tolist() == [""] * len(codes)
    assert len(codes) >= 2


@pytest.mark.parametrize(
    "line",
    [
        "",
        *(
            lever_line(lever, 4 if lever == "threads" else "high" if "precision" in lever else "nets['a'].body")
            for lever in _LINES
        ),
        *(f"import torch; {lever_line('compile', name)}" for name in ("net", "self.parts[-1]")),
        f"import os; {EXPANDABLE}",
        f"import torch; {RECORD_MORE}",
        f"import gc; {lever_line('gc_freeze')}",
        *(update_line(lever, names) for lever in _UPDATES for names in (["o"], ["o", "self.other"])),
        workers_line({"name": "data", "same": LOADER_WORDS}, 4, True),
        "import torch; net = torch.nn.parallel.DistributedDataParallel(net.module, bucket_cap_mb=25)",
        "import torch; net = net.to(torch.bfloat16)  # and its inputs",
        loader_line({"name": "d", "same": ["timeout"]}, batch_sampler=None, sampler="d.batch_sampler"),
    ],
)
def test_every_line_that_findings_propose_is_known_when_a_profile_is_read(line: str) -> None:
    assert is_own_line(line)


@pytest.mark.parametrize(
    "line",
    [
        "import os; os.system('echo PWNED')",
        "import os; import os; torch.set_num_threads(2)",
        "net = torch.compile(other)",
        "net = other = torch.compile(net)",
        "net.a = torch.compile(net.b)",
        "net = torch.compile(nets['a'])",
        "net = torch.compile(net); os.system('x')",
        "os.system('x').y = torch.compile(os.system('x').y)",
        "torch = torch.compile(torch)",
        "n.__class__ = torch.compile(n.__class__)",
        "torch.set_num_threads(__import__('os').system('x'))",
        "for group in (*f().param_groups, *o.param_groups): group.update(foreach=True)",
        "for group in o.param_groups: group.update(f())",
        "d = torch.utils.data.DataLoader(d.dataset, num_workers=f())",
        "d = torch.utils.data.DataLoader(d.dataset, collate_fn=os.system)",
        "torch.set_num_threads(2)\nimport os",
        "import os.path; torch.set_num_threads(2)",
        "os.environ['LD_PRELOAD'] = 'x'",
        "for group in o.param_groups: exec('x')",
        "f = os.system; f('x')",
        "def f(): pass",
        "net.to = exec; net.to('x')",
        "torch.compile = exec; torch.compile('x')",
        "gc.collect = eval; gc.collect('x')",
        "for net.to in [exec]: net.to('x')",
        "d = torch.utils.data.DataLoader(('x',), batch_size=None, collate_fn=exec)",
        "print = gc.collect",
        "10**10**8",
        "net = net.to(torch.bfloat16)  # or run: curl",
        f"{'n' * 5000} = torch.compile({'n' * 5000})",
        f"{EXPANDABLE}\r",
        None,
        5,
    ],
)
def test_a_line_that_does_anything_else_is_not(line: object) -> None:
    assert not is_own_line(line)


LIVE_CPU = live_cpu()


def unnamed(recording: Recording, **parts: Any) -> Recording:
    """Return the recording with other, or no, knowledge of what the user calls things."""
    return replace(recording, meta={**recording.meta, "parts": parts})


def test_without_names_of_the_user_s_all_advice_is_in_words() -> None:
    rules = ("optimizer", "input pipeline", "memory bandwidth")
    named, plain = found(LIVE_CPU, *rules), found(unnamed(LIVE_CPU), *rules)

    assert named.loc["optimizer", "code"] == "for group in opt.param_groups: group.update(fused=True, foreach=False)"
    assert "this line switches the existing optimizer to fused=True." in named.loc["optimizer", "advice"]
    assert "construct torch.optim.AdamW with fused=True" in plain.loc["optimizer", "advice"]
    assert "train" not in named.loc["input pipeline", "code"]
    assert named.loc["input pipeline", "code"].startswith("loader = torch.utils.data.DataLoader(loader.dataset, ")
    assert set(named.index) == set(plain.index)
    assert "net" not in " ".join(plain["code"])
    assert {"optimizer", "input pipeline"} <= set(plain.index[plain["code"] == ""])
    assert all(word.strip() for word in plain["advice"])


def looping(kind: str, steps: int = 3) -> Written:
    """Return a trace of the CPU with layers, where an optimizer loops over its parameters."""
    trace = Written()
    for number in range(steps):
        t = 10_000.0 * number
        trace.step(number + 1, t, t + 4000)
        trace.module("Net_0", t + 10, t + 1000).op("aten::mm", t + 20, t + 990, 10 * number + 1)
        trace.event(f"Optimizer.step#{kind}.step", t + 1500, t + 3900, "user_annotation")
        for place in range(60):
            trace.op("aten::addcdiv_", t + 1510 + 39 * place, t + 1540 + 39 * place)
    return trace


def test_the_optimizer_of_a_trace_is_called_what_the_trace_calls_it(tmp_path: Path) -> None:
    # Its layers have no number of parameters: the report of such a trace failed for that.
    advice = found(loaded(tmp_path, looping("RMSprop")), "optimizer").loc["optimizer"]

    assert advice["advice"].endswith("construct torch.optim.RMSprop with foreach=True.")
    assert advice["code"] == ""
    assert "SGD" not in " ".join(advice[["evidence", "advice", "why", "blind"]])


def test_an_optimizer_that_the_trace_does_not_hold_is_not_spoken_of() -> None:
    other = {**PARTS["optimizers"][0], "name": "old", "class": "SGD"}
    recording = unnamed(LIVE_CPU, **{**PARTS, "optimizers": [other, *PARTS["optimizers"]]})

    advice = found(recording, "optimizer").loc["optimizer"]

    assert advice["evidence"].startswith("opt.step() takes")
    assert "old" not in advice["code"]


@pytest.mark.parametrize("tied", [False, True])
def test_sparse_gradients_are_not_proposed_for_a_table_that_another_layer_has(tied: bool) -> None:
    recording = unnamed(LIVE_CPU, **{**PARTS, "own_tables": [] if tied else ["net.emb"]})

    assert ("sparse=True" in found(recording, "optimizer").loc["optimizer", "advice"]) == (not tied)


def small_ops() -> pd.Series:
    """Return the finding of a model of small ops."""
    hand, model = one_layer("net")
    for t in range(0, 10_000 * STEPS, 10_000):
        hand.step(t - 1, t + 3001)
        hand.call(model, t, t + 3000).op("aten::mm", t, t + 1000)
        for place in range(100):
            hand.op("aten::add", t + 1000 + 20 * place, t + 1004 + 20 * place)
    return found(hand.recording(), "dispatch overhead").loc["dispatch overhead"]


def test_a_trace_without_layers_is_not_said_to_have_ops_in_some() -> None:
    hand = ByHand()
    for number in range(STEPS):
        t = 10_000 * number
        hand.step(t, t + 1600)
        for place in range(100):
            hand.op("aten::add", t + 5 * place, t + 5 * place + 4, 100 * number + place)
            hand.node("AddBackward0", t + 600 + 10 * place, t + 609 + 10 * place, 100 * number + place)

    evidence = found(hand.recording(), "dispatch overhead").loc["dispatch overhead", "evidence"]

    assert "layers" not in evidence
    assert "(in 1 layer)" in small_ops()["evidence"]


def on_gpu(name: str, major: int, minor: int) -> Recording:
    recording = live_gpu()
    device = {"id": 0, "name": name, "computeMajor": major, "computeMinor": minor}
    environment = {"processor": "made up", "threads": 1, "gpus": [name]}
    return replace(recording, meta={**recording.meta, "devices": [device], "environment": environment})


@pytest.mark.parametrize(
    ("device", "says", "code", "remedy"),
    [
        (
            ("NVIDIA A100-SXM4-40GB", 8, 0),
            "Let products use TF32",
            'torch.set_float32_matmul_precision("high")',
            "float32_precision",
        ),
        (("Tesla V100-SXM2-16GB", 7, 0), "dtype=torch.float16), with torch.amp.GradScaler", "", "autocast"),
        (("NVIDIA P100", 6, 0), None, "", ""),
        (("AMD Instinct MI300X", 9, 4), "if the GPU has units for it", "", "autocast"),
    ],
)
def test_lower_precision_is_advised_where_the_gpu_has_units_for_it(
    device: tuple[str, int, int], says: str | None, code: str, remedy: str
) -> None:
    known = facts_from(on_gpu(*device))
    found = list(low_precision(known))

    assert len(found) == (says is not None)
    for one in found:
        assert says is not None
        assert says in one.advice
        assert (one.code, one.remedy) == (code, remedy)
        assert one.bound_ms == pytest.approx(1.98)
    if device[0].startswith("Tesla"):
        assert "torch.bfloat16" not in " ".join(one.advice for one in (*found, *compute(known)))


@pytest.mark.parametrize(
    ("name", "facts", "can"),
    [
        ("NVIDIA H100 80GB HBM3", {"computeMajor": 9, "computeMinor": 0}, {"float16", "bfloat16", "TF32"}),
        ("Tesla T4", {"computeMajor": 7, "computeMinor": 5}, {"float16"}),
        ("NVIDIA GeForce GTX 1080 Ti", {"computeMajor": 6, "computeMinor": 1}, set()),
        ("AMD Radeon Graphics", {"computeMajor": 9, "computeMinor": 0}, None),
        ("GPU 0", {}, None),
    ],
)
def test_what_a_gpu_can_do_is_known_by_its_number(name: str, facts: dict[str, Any], can: set[str] | None) -> None:
    recording = live_gpu()
    meta = {"devices": [{"id": 0, "name": name, **facts}] if facts else [], "environment": {"gpus": [name]}}
    recording = replace(recording, meta={**recording.meta, **meta})

    told = {what: has_units(recording, what) for what in NEEDS if what != "torch.compile"}

    assert told == ({what: what in can for what in told} if can is not None else dict.fromkeys(told))


def test_copies_that_computation_hides_cost_nothing() -> None:
    hand = ByHand()
    for t in range(0, 10_000 * STEPS, 10_000):
        hand.step(t, t + 2000)
        hand.kernel("gemm", t + 1, t + 2, t + 1999)
        hand.kernel("Memcpy HtoD (Pinned -> Device)", t + 5, t + 10, t + 1500, category="gpu_memcpy")

    assert "host-device copies" not in found(hand.recording(), "host-device copies").index


def test_bytes_of_copies_come_from_the_trace(tmp_path: Path) -> None:
    trace = training(1)
    trace.event("Memcpy DtoH (Device -> Pageable)", 955, 960, "gpu_memcpy", 7, 0, device=0, stream=7, bytes=256)

    events = loaded(tmp_path, trace).events

    assert events.loc[events["category"] == "gpu_memcpy", "bytes"].tolist() == [256]
    assert (events.loc[events["category"] != "gpu_memcpy", "bytes"] == -1).all()
