"""Every rule that is written is asked, and has words for its verdict: of steps, of runs and of jobs.

Which words a rule chooses is tested here if it depends on a few facts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.attribution.blocks import Kind
from perfnb.findings import proposed_code, rules
from perfnb.findings.finding import Rule
from perfnb.findings.gpu_facts import HELD, Copies
from perfnb.findings.rules import bound, communication, double, fusion, host, optimizer, transfers
from perfnb.loop import run_rules
from perfnb.ranks import findings as job_rules
from perfnb.recording.text import TEXT
from perfnb.trace_names import LAYER_SPAN

NAMES = [path.stem for path in sorted(Path(rules.__file__).parent.glob("*.py")) if path.stem != "__init__"]
OF_STEPS = [__import__(f"{rules.__name__}.{name}", fromlist=["_"]) for name in NAMES]


@pytest.mark.parametrize(
    ("modules", "asked"),
    [(OF_STEPS, rules.RULES), ([run_rules], run_rules.RULES), ([job_rules], (*job_rules.RULES, *job_rules.IN_ALL))],
)
def test_every_rule_of_a_module_is_asked(modules: list[ModuleType], asked: Sequence[Rule]) -> None:
    written = {id(value) for module in modules for value in vars(module).values() if isinstance(value, Rule)}

    assert written == {id(rule) for rule in asked}


@pytest.mark.parametrize("asked", [rules.RULES, run_rules.RULES, (*job_rules.RULES, *job_rules.IN_ALL)])
def test_rules_of_one_name_say_the_same(asked: Sequence[Rule]) -> None:
    by_name = {rule.name: rule for rule in asked}
    for rule in asked:
        same = by_name[rule.name]
        assert (rule.headline, rule.saving, rule.ceiling) == (same.headline, same.saving, same.ceiling)
        assert rule.headline or not rule.explained
        assert rule.idle_cause in ("", *HELD)


@pytest.mark.parametrize(
    ("rule", "known"),
    [
        (optimizer.gradient_clipping, {"uses_torch": False, "gpu": None}),
        (optimizer.gradient_clipping, {"uses_torch": True, "gpu": "a GPU"}),
        (fusion.elementwise_chains, {"gpu": "a GPU"}),
        (communication.exposed_on_host, {"gpu": "a GPU", "collectives": [1], "phases_ms": {"communication": 9.0}}),
        (communication.exposed_on_host, {"gpu": None, "collectives": [], "phases_ms": {"communication": 9.0}}),
    ],
)
def test_rules_that_do_not_apply_find_nothing_and_ask_no_further(rule: Rule, known: dict[str, Any]) -> None:
    assert list(rule.search(SimpleNamespace(**known))) == []


LARGE, SMALL, NO_COPIES = 2.0**24, 2.0**16 - 1, Copies(0, 0, 0, None, 0.0)


@pytest.mark.parametrize(
    ("to_device", "to_host", "says"),
    [
        (NO_COPIES, NO_COPIES, "Find the calls that copy"),
        (NO_COPIES, Copies(2, 2, 0, SMALL, 0.1), "Read results less often"),
        (NO_COPIES, Copies(2, 2, 0, SMALL + 1, 0.1), "Copy less data back to the host"),
        (NO_COPIES, Copies(2, 2, 0, None, 0.1), "Copy less data back to the host"),
        (Copies(2, 0, 2, SMALL, 0.1), Copies(2, 0, 2, LARGE, 0.1), "Copy less data back to the host"),
        (Copies(2, 0, 2, SMALL, 0.2), Copies(2, 0, 2, LARGE, 0.1), "Create these small tensors on the device"),
        (Copies(2, 0, 2, LARGE, 0.1), NO_COPIES, "already come from pinned memory"),
        (Copies(2, 1, 1, LARGE, 0.1), NO_COPIES, "Copy batches asynchronously from pinned memory"),
        (Copies(2, 0, 2, LARGE, 0.0), NO_COPIES, "already come from pinned memory"),
    ],
)
@pytest.mark.parametrize("torch", [True, False])
def test_advice_on_copies(to_device: Copies, to_host: Copies, says: str, torch: bool) -> None:
    facts: Any = SimpleNamespace(for_torch=lambda words: words if torch else "")
    gpu: Any = SimpleNamespace(to_device=to_device, to_host=to_host)

    said = transfers._advice(facts, gpu)

    assert said.startswith(says) or says in said.partition(".")[0]
    assert any(word in said for word in ("non_blocking", "device=...")) == (
        torch and not says.startswith(("Find", "Read"))
    )


def test_the_copies_of_each_direction_are_counted() -> None:
    gpu: Any = SimpleNamespace(to_device=Copies(8, 3, 5, 2.0**20, 1.0), to_host=Copies(1, 0, 1, None, 1.0))
    assert transfers._moved(gpu) == (
        "; 8 copies to the device of 1.00 MiB, 3 of them using pageable memory; 1 copy to the host"
    )
    gpu.to_device = NO_COPIES
    assert transfers._moved(gpu) == "; 1 copy to the host"


@pytest.mark.parametrize(
    ("classes", "on_gpu", "says"),
    [
        (["AdamW"], False, ": construct torch.optim.AdamW with fused=True"),
        (["Adam", "AdamW"], True, ": construct torch.optim.Adam and torch.optim.AdamW with fused=True"),
        (["RMSprop"], True, ": construct torch.optim.RMSprop with foreach=True"),
        (["Adagrad"], False, ": construct torch.optim.Adagrad with fused=True"),
        (["Adagrad"], True, ": construct torch.optim.Adagrad with foreach=True"),
        (["AdamW", "RMSprop"], False, ": most of torch's optimizers accept fused=True or foreach=True"),
        (["AdamW", "Mine"], False, ": most of torch's optimizers accept fused=True or foreach=True"),
        (["Mine", "Yours"], False, ": torch._foreach_add_ and similar functions accept lists of tensors"),
        ([], False, ": most of torch's optimizers accept fused=True or foreach=True"),
    ],
)
def test_how_an_optimizer_updates_all_at_once(classes: list[str], on_gpu: bool, says: str) -> None:
    facts: Any = SimpleNamespace(gpu=object() if on_gpu else None)
    assert optimizer._how(facts, classes) == says


def test_a_line_switches_as_many_optimizers_as_it_names() -> None:
    assert optimizer._switched("fused_optimizer", ["opt"]) == (
        ": this line switches the existing optimizer to fused=True"
    )
    assert optimizer._switched("foreach_optimizer", ["a", "b"]) == (
        ": this line switches the existing optimizers to foreach=True"
    )


@pytest.mark.parametrize(
    ("changes", "bound_ms"),
    [
        ({}, 5 - 0.12),  # 100 parameters, each as long as 1.2 empty ops
        ({"ops": ["add_"] * 79 + ["_local_scalar_dense"] * 9}, None),  # less than 40 in a step
        ({"updates": 2.0}, None),
        ({"updates": 2.0, "ops": ["add_"] * 160}, 5 - 0.24),
        ({"ops": ["add_"] * 79 + ["sqrt"]}, 5 - 0.55),  # two moments
        ({"ops": ["add_"] * 40 + ["mul_"] * 60, "optimizers": [{"class": "SGD"}]}, 5 - 0.036),  # 30 of one kind
        ({"bare_op_ns": 0.0}, 5 - 0.078),
        ({"bandwidth": 1e9}, 5 - 0.12 - 3.0),
        ({"bandwidth": 1e9, "ops": ["add_"] * 79 + ["sqrt"], "updates": 1.0, "phase_ms": 9.0}, 9 - 0.55 - 7.0),
        ({"phase_ms": 0.1}, 0.0),
        ({"ops": ["_foreach_add_"] * 40 + ["add_"] * 40}, 5 - 0.12),
        ({"ops": ["_foreach_add_"] * 41 + ["add_"] * 39}, None),  # most of the time is spent on all at once
        ({"optimizers": [{"class": "LBFGS", "tensors": 100}]}, None),
        ({"uses_torch": False}, None),
        ({"gpu": SimpleNamespace(late_ms=lambda blocks: 1.0 * len(blocks))}, 2.0),
    ],
)
def test_a_loop_over_parameters_could_save_all_but_one_update_of_all(
    changes: dict[str, Any], bound_ms: float | None
) -> None:
    ops = [f"aten::{name}" for name in changes.pop("ops", ["add_"] * 80)]
    frame = pd.DataFrame({"op": pd.Categorical(ops), "outer": True, "phase": "optimizer", "whole_ns": 10.0})
    other = pd.DataFrame({"op": "aten::add_", "outer": [False, True], "phase": ["optimizer", "loss"], "whole_ns": 9.0})
    phase_ms, bandwidth = changes.pop("phase_ms", 5.0), changes.pop("bandwidth", None)
    blocks = pd.DataFrame({"phase": ["optimizer"] * 3 + ["loss"], "main": [True, True, False, True]})
    modules = pd.DataFrame({"name": "net", "parent": [-1, 0], "parameters": 5, "parameter_bytes": 10**6})
    known: dict[str, Any] = {
        **{"uses_torch": True, "phases_ms": {"optimizer": phase_ms}, "updates": 1.0, "steps": 2, "gpu": None},
        **{"optimizers": [{"name": "o", "class": "SGD", "tensors": 100}], "optimizer_classes": [], "bare_op_ns": 1e3},
        **{"own_tables": frozenset(), "variables": {"o"}, "heaviest_ops": lambda ops: ["a"]},
        "ops": pd.concat([frame, other.astype({"op": frame["op"].dtype})], ignore_index=True),
        "shown_share": lambda phase: 0.5,
        "figures": SimpleNamespace(
            phases=pd.DataFrame({"ms": [phase_ms]}, index=["optimizer"]),
            roofline=bandwidth and SimpleNamespace(bandwidth=bandwidth),
        ),
        "recording": SimpleNamespace(modules=modules),
        "attribution": SimpleNamespace(host=SimpleNamespace(blocks=blocks)),
    }
    found = list(optimizer.optimizer_loop.search(SimpleNamespace(**known | changes)))

    assert [one.bound_ms for one in found] == ([] if bound_ms is None else [pytest.approx(bound_ms)])
    for one in found:
        assert one.evidence.startswith(f"{'The optimizer' if 'optimizers' in changes else 'o.step()'} takes 50 % of")
        assert (" in 2 updates. Updating" in one.evidence) == (changes.get("updates") == 2.0)
        assert ("The GPU was idle for" in one.evidence) == ("gpu" in changes)


def test_rates_of_products_are_compared_if_both_were_measured() -> None:
    assert "run 2.5 times as fast in float32" in double._rates(2e9, 5e9)
    assert "was not measured" in double._rates(0.0, 5e9)
    assert "was not measured" in double._rates(2e9, 0.0)


@pytest.mark.parametrize(
    ("units", "says"),
    [
        ({"bfloat16": True}, 'forward and loss under torch.autocast("cuda", dtype=torch.bfloat16)'),
        ({"bfloat16": None}, "dtype=torch.bfloat16) if the GPU has units for it"),
        ({"bfloat16": False, "float16": True}, "dtype=torch.float16), with torch.amp.GradScaler for the gradients"),
        ({"bfloat16": False, "float16": False}, ""),
    ],
)
def test_the_format_that_a_gpu_has_units_for(
    units: dict[str, bool | None], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bound, "has_units", lambda recording, what: units[what])
    facts: Any = SimpleNamespace(recording=None, uses_torch=True, gpu=object())

    said = bound._lower_precision(facts)

    assert said.endswith(says)
    assert bool(said) == bool(says)


@pytest.mark.parametrize(
    ("change", "note", "code"),
    [
        ({}, "", "import torch; net = torch.compile(net)"),
        ({"uses_torch": False}, "", ""),
        ({"compiled": ["net"]}, "already compiled", ""),
        ({"compiled": ["net.fc"]}, "already compiled", ""),
        ({"compiled": ["nets", "other.net"]}, "", "import torch; net = torch.compile(net)"),
        ({"units": False}, "it needs compute capability 7.0 or higher", ""),
        ({"units": None}, "", "import torch; net = torch.compile(net)"),
        ({"units": False, "gpu": None}, "", "import torch; net = torch.compile(net)"),
        ({"variable": None}, "", ""),
        ({"called": False}, "torch.compile(net) alone would not compile anything", ""),
    ],
)
def test_when_compiling_is_proposed(
    change: dict[str, Any], note: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[str, Any] = {"uses_torch": True, "compiled": [], "units": True, "gpu": object()}
    known |= {"variable": "net", "called": True}
    known |= change
    names = ["net", "net.fc", "nets", "other.net"]
    modules = pd.DataFrame({"name": names, "compiled": [name in known["compiled"] for name in names]})
    monkeypatch.setattr(proposed_code, "has_units", lambda recording, what: known["units"])
    facts: Any = SimpleNamespace(
        uses_torch=known["uses_torch"],
        recording=SimpleNamespace(modules=modules),
        gpu=known["gpu"],
        root=lambda layer: "net",
        variable=lambda layer: known["variable"],
        is_called=lambda layer: known["called"],
        variables={"net"},
    )

    said, line = proposed_code.compiling(facts, ["net.fc"])

    assert note in said
    assert bool(note) == bool(said)
    assert proposed_code.shown(line, {"net"}) == code


@pytest.mark.parametrize(
    ("python_ms", "ops_ms", "pauses_ms", "share"),
    [
        ((0.1, 0.1, 0.3), (0.0, 0.0, 0.0), (0.0,), 0.02),
        ((0.1, 0.099, 0.3), (0.0, 0.0, 0.0), (0.0,), 0.0),  # less than 0.2 ms in the first step
        ((0.1, 0.1, 0.3), (0.2, 0.0, 0.1), (0.0,), 0.06),  # ops take three times as long
        ((0.9, 0.1, 0.3), (0.0, 0.0, 0.0), (0.05, 0.05, 7.0), 0.025),
    ],
)
def test_the_host_s_own_work_could_be_named_if_each_traced_step_has_some(
    python_ms: Any, ops_ms: Any, pauses_ms: Any, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cells in the first of two traced steps, and one in the second; a fourth one does not count."""
    python_ns, ops_ns = (1e6 * np.array([*each, 99.0]) for each in (python_ms, ops_ms))
    work = host.HostTime(python_ns, ops_ns, np.array([True, True, True, False]))
    monkeypatch.setattr(host, "host_time", lambda facts, phases: work)
    facts: Any = SimpleNamespace(
        attribution=SimpleNamespace(cells=pd.DataFrame({"step": [0, 0, 1, 1]})),
        **{"live": True, "steps": 2, "gpu": None, "pauses_ms": np.array(pauses_ms), "share": lambda ms: ms / 10},
        **{"between_ops_ms": lambda ns: ns / 2e6, "per_step": lambda ns: 3 * ns / 2e6},
    )
    assert host.unnamed_share(facts) == pytest.approx(share)
    facts.gpu = SimpleNamespace(idle_by={"host": 3.0, "launches": 2.0})
    assert host.unnamed_share(facts) == 0.3
    facts.steps = 1
    assert host.unnamed_share(facts) == 0.0
    facts.live, facts.steps = False, 2
    assert host.unnamed_share(facts) == 0.0


@pytest.mark.parametrize(
    ("changes", "bound_ms", "said", "confidence"),
    [
        ({}, 4.5, "outside model, loss and optimizer: Python, or another library, 1.00 ms of it in ops.", "medium"),
        ({"pauses_ms": [4.56]}, None, "", ""),
        ({"python_ms": [9.75, 3.0, 9.0]}, 13.25, "around the loss: Python, or another library.", "medium"),
        ({"after_ms": [0.25, 1.0, 9.0]}, 3.5, "outside model", "medium"),
        ({"after_ms": [9.0, 1.0, 9.0]}, 2.75, "outside model", "medium"),
        ({"loop_ms": [0.0, 1.0, 0.0]}, 3.5, "outside model", "medium"),  # where reads loop, their loop counts
        ({"loop_ops_ms": [0.25, 0.0, 0.0]}, 4.0, "0.500 ms of it in ops.", "medium"),
        ({"chosen": [False, False, False]}, None, "", ""),
        ({"peak_bytes": 2**28 + 1}, 4.5, "outside model", "low"),
        ({"peak_bytes": 2**28 + 1, "named": " Sampled."}, 4.5, "of it in ops. Sampled.", "medium"),
    ],
)
def test_the_host_s_own_code_takes_what_neither_reads_nor_pauses_explain(
    changes: dict[str, Any], bound_ms: float | None, said: str, confidence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sampled(facts: Any, phases: Any, ms: float) -> float:
        assert phases == [["loss", "other"][place] for place in np.flatnonzero(known["chosen"])]
        return ms

    known: dict[str, Any] = {"python_ms": [1.0, 3.0, 9.0], "chosen": [True, True, False], "peak_bytes": None}
    known |= {"after_ms": [0.25, 0.0, 9.0], "loop_ms": [0.0] * 3, "loop_ops_ms": [0.0] * 3, "named": ""}
    known |= {"pauses_ms": [0.25, 0.25, 9.0]} | changes
    after, loop, loop_ops = (1e6 * np.array(known[name]) for name in ("after_ms", "loop_ms", "loop_ops_ms"))
    ops = 1e6 * np.array([0.5, 0.0, 9.0])
    work = host.HostTime(1e6 * np.array(known["python_ms"]), ops, np.array(known["chosen"]))
    reads = SimpleNamespace(looped=loop > 0, after_ns=after, loop_python_ns=loop, loop_ops_ns=loop_ops)
    monkeypatch.setattr(host, "host_time", lambda facts, phases: work)
    monkeypatch.setattr(host, "reads_of", lambda facts: reads)
    monkeypatch.setattr(host, "not_below_samples", sampled)
    monkeypatch.setattr(host, "lines_in_words", lambda facts, phases, ms: known["named"])
    peak = known["peak_bytes"]
    facts: Any = SimpleNamespace(
        attribution=SimpleNamespace(cells=pd.DataFrame({"phase": ["loss", "other", "forward"]})),
        figures=SimpleNamespace(memory=peak and SimpleNamespace(peak_bytes=peak)),
        **{"lines_of_code": [], "pauses_ms": np.array(known["pauses_ms"]), "of_step": lambda ms: f"{ms:g} ms"},
        **{"between_ops_ms": lambda ns: ns / 1e6, "per_step": lambda ns: 2 * ns / 1e6},
    )
    found = list(host.host_code.search(facts))
    assert [one.bound_ms for one in found] == ([] if bound_ms is None else [pytest.approx(bound_ms)])
    for one in found:
        assert said in one.evidence
        assert one.confidence == confidence
        assert ("stacks=True" in one.advice, "Which function ran." in one.blind) == (not known["named"],) * 2
        assert ("were sampled" in one.why) == bool(known["named"])


@pytest.mark.parametrize(
    ("calls", "engines", "rounds"),
    [([0] * 16 + [3] * 4, 8, 8.0), ([0] * 16 + [3] * 4, 9, 0.0), ([0] * 4 + [3] * 6, 1, 3.0), ([], 0, 0.0)],
)
def test_a_model_is_called_in_rounds_unless_its_calls_have_their_own_backward_passes(
    calls: list[int], engines: int, rounds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "model_calls", lambda facts: pd.DataFrame({"layer": calls}))
    blocks = pd.DataFrame({"kind": [Kind.ENGINE] * engines + [Kind.GAP] * 50})
    facts: Any = SimpleNamespace(attribution=SimpleNamespace(host=SimpleNamespace(blocks=blocks)), steps=2)
    assert host._rounds(facts) == rounds


@pytest.mark.parametrize(("busy", "scale", "ms"), [(False, 1.0, 192.5), (True, 1.0, 170.0), (False, 2.0, 215.0)])
def test_calls_cost_no_more_than_two_tiny_ops_around_each_of_them(busy: bool, scale: float, ms: float) -> None:
    """Tiny ops take 10 ms. In forward, there are a cell with two ops and a block, and one without either."""
    phases = ["forward", "backward", "other", "loss"]
    facts: Any = SimpleNamespace(
        attribution=SimpleNamespace(cells=pd.DataFrame({"phase": phases})),
        ops=pd.DataFrame({"outer": [True, True, False, True], "block": [0, 0, 0, 2]}),
        lines=np.arange(4),
        blocks_inside=np.array([1.0, 0, 5, 0]),
        left_ns=1e6 * np.array([300.0, 15, 900, 900]),
        **{"busy": busy, "tiny_ns": 10e6, "scale": scale, "steps": 2},
    )
    chosen = np.array([True, True, True, False])
    # At most 80 ms around the first four calls, and 20 around the other one.
    small_ns = 1e6 * np.array([*[9.0] * 30, 5.0, 15.0, 5.0])
    assert host._calling_ms(facts, small_ns, chosen) == pytest.approx(ms)


@pytest.mark.parametrize(
    ("kernels", "torch", "says"),
    [
        (["gemm", "ncclDevKernel_AllReduce_RING"], True, "bucket_cap_mb"),
        (["ncclDevKernel_ReduceScatter_RING"], True, "prefetching"),
        (["ncclDevKernel_AllReduce", "ncclDevKernel_AllGather"], True, "prefetching"),
        (["ncclDevKernel_AllGather"], False, "start communication earlier"),
    ],
)
def test_buckets_are_for_gradients_that_are_reduced_and_not_for_shards(
    kernels: list[str], torch: bool, says: str
) -> None:
    gpu = SimpleNamespace(communication_ms=4.0, exposed_ms=1.0, kernel_names=pd.Series(kernels, dtype=TEXT))
    facts: Any = SimpleNamespace(gpu=gpu, uses_torch=torch, of_step=lambda ms: f"{ms:g} ms")

    (found,) = transfers.exposed_communication.search(facts)

    ways = {"bucket_cap_mb", "prefetching", "start communication earlier"}
    assert {way for way in ways if way in found.advice} == {says}
    assert "communicates for 4.00 ms per step. For 1 ms, it computes nothing" in found.evidence
    assert "75 % of the communication is hidden" in found.evidence
    assert found.bound_ms == 1.0
    assert [row.name for row in found.rows] == [kernel for kernel in kernels if "nccl" in kernel]
    gpu.communication_ms = 0.0
    assert list(transfers.exposed_communication.search(facts)) == []


def test_a_layer_s_own_code_is_named_in_words() -> None:
    assert host._short(LAYER_SPAN) == "the code of a layer"
