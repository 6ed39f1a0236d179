"""What the checks read from a profile or from several ranks, by tables that are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb import Profile
from perfnb.labs import lab_07, lab_08, lab_12
from perfnb.labs.exercise import Facts, Hint
from perfnb.labs.ledger import exercise_of
from perfnb.results import ABTest, ArchitectureComparison, Journal, Ranks, Roofline
from tests.labs.judging import an_ab_test, hint
from tests.labs.lab_02_answers import all_inside_off, children_off


def made(kind: Any = Profile, **parts: Any) -> Any:
    """A result with these tables."""
    return object.__new__(type(f"Made{kind.__name__}", (kind,), parts))


def measured(number: str, answer: Any, **evidence: Any) -> Facts:
    facts: Facts = exercise_of(number).measure(answer, **evidence)
    return facts


def phases(forward: float = 10.0, backward: float = 20.0) -> pd.DataFrame:
    ms = [forward, backward, 5.0]
    return pd.DataFrame({"ms": ms, "share": [0.3, 0.57, 0.13]}, index=["forward", "backward", "optimizer"])


def test_ratios_of_layers_are_kept_in_addition_to_that_of_phases() -> None:
    layers = pd.DataFrame({"forward_ms": [8.0, 2.0], "backward_ms": [12.0, 8.0]}, index=["net", "net.0"])

    assert measured("2.2", 2.0, profile=made(phases=phases(), layers=layers)) == {
        "ratio": 2.0,
        "forward_ms": 10.0,
        "backward_ms": 20.0,
        "of_layers": [1.5, 2.0],
        "of_shares": [pytest.approx(1.9)],
    }
    nothing = phases().assign(share=[0.0, 0.8, 0.2])
    facts = measured("2.2", 2.0, profile=made(phases=nothing, layers=layers.assign(forward_ms=0.0)))
    assert facts["of_layers"] == facts["of_shares"] == []


LAYERS = pd.DataFrame(
    {
        "total_ms": [30.0, 20.0, 6.0],
        "self_ms": [4.0, 20.0, 6.0],
        "forward_ms": [10.0, 8.0, 2.0],
        "parameters": pd.array([100, 100, 0], "Int64"),
        "calls": [1.0, 1.0, 1.0],
        "share": [0.1, 0.5, 0.15],
    },
    index=["net", "net.up", "net.act"],
).rename_axis("layer")


def test_self_times_of_a_profile_and_of_a_second_tree() -> None:
    profile = made(layers=LAYERS)

    assert hint("2.3", children_off, profile=profile) == ""
    assert hint("2.3", lambda layers: pd.Series(children_off(layers)), profile=profile) == ""
    assert "In a second tree that you have not seen, the time of net is too small" in hint(
        "2.3", all_inside_off, profile=profile
    )
    assert "In your profile, the time of net still includes" in hint(
        "2.3", lambda layers: layers["total_ms"].to_dict(), profile=profile
    )
    assert "KeyError" in hint("2.3", lambda layers: layers["self_ms"].to_dict(), profile=profile)
    assert "too small" in hint(
        "2.3", lambda layers: children_off(layers.assign(total_ms=layers["forward_ms"])), profile=profile
    )
    assert "Return a dictionary" in hint("2.3", lambda layers: None, profile=profile)
    known = LAYERS["self_ms"].to_dict()
    assert "In a second tree that you have not seen, the time of net is too small" in hint(
        "2.3", lambda layers: known, profile=profile
    )


def test_the_two_trees_have_their_own_times() -> None:
    frames: list[pd.DataFrame] = []
    given = made(layers=LAYERS)
    first, second = measured("2.3", lambda rows: frames.append(rows) or children_off(rows), profile=given)["cases"]

    assert first["net"] == {"self": 4.0, "total": 30.0, "said": 4.0}
    assert second["net.body2"] == {"self": 0.0, "total": 30.0, "said": 0.0}
    assert all(row["said"] == row["self"] for row in second.values())
    assert (frames[1]["forward_ms"] + frames[1]["backward_ms"]).tolist() == pytest.approx(
        frames[1]["total_ms"].tolist()
    )
    assert "self_ms" not in frames[0].columns


def test_counts_of_two_layers() -> None:
    layers = pd.DataFrame(
        {"forward_flops": [100, 200], "backward_flops": [101, 400]}, index=["model.stem", "model.blocks.0.up"]
    )
    said = {"stem": 1.01, "up": 2.0}

    assert measured("2.4", said, profile=made(layers=layers)) == {
        "said": said,
        "flops": {"stem": [100, 101], "up": [200, 400]},
    }
    assert "has no model.stem and model.blocks.0.up" in hint("2.4", said, profile=made(layers=layers[:1]))


def frozen(*backward: float | None, calls: float = 2.2) -> Any:
    flops = {"forward_flops": [100, 200, 50], "backward_flops": backward}
    layers = pd.DataFrame(flops, index=["model.stem", "model.blocks", "model.head"])
    return made(layers=layers, ops=pd.DataFrame({"calls": {"torch::autograd::AccumulateGrad": calls}}))


def test_what_is_frozen_is_read_from_two_profiles() -> None:
    before, after = frozen(100, 400, 100), frozen(None, None, 50)

    assert measured("2.5", after, profile=before) == {
        "before": {"stem": [100, 100], "blocks": [200, 400], "head": [50, 100]},
        "after": {"stem": [100, 0], "blocks": [200, 0], "head": [50, 50]},
        "learned": 2,
    }
    assert hint("2.5", after, profile=before) == ""
    assert "stem still has" in hint("2.5", frozen(1, None, 50), profile=before)
    assert "has 0 layers named .stem" in hint("2.5", made(layers=LAYERS, ops=after.ops), profile=before)


def test_a_suspect_is_a_called_layer_without_parameters() -> None:
    rows = {
        "net": (100, 1.0, 4.0, 0.1),
        "net.act": (0, 1.0, 6.0, 0.15),
        "net.norm": (None, 1.0, 3.0, 0.1),
        "net.never": (0, None, 2.0, 0.2),
        "net.unknown": (0, 1.0, None, None),
    }
    layers = pd.DataFrame.from_dict(rows, "index", columns=["parameters", "calls", "self_ms", "share"])
    profile = made(layers=layers, phases=phases(), timing=SimpleNamespace(median_ms=40.0))

    assert measured("2.6", {"layer": "net.act", "at_most": 1.2}, profile=profile) == {
        "layer": "net.act",
        "at_most": 1.2,
        "names": list(rows),
        "self_ms": {"net.act": 6.0, "net.norm": 3.0},
        "shares": {"net.act": 0.15, "net.norm": 0.1},
        "steps_ms": [35.0, 15.0, 40.0],
    }


def moved(batch: int, inputs: int, outputs: int) -> int:
    return 4 * (batch * inputs + inputs * outputs + batch * outputs)


def linear_layers() -> pd.DataFrame:
    """Two linear layers, of which the first one's input needs no gradient, and their activation."""
    rows = {
        "net": ("Sequential", 9000, 20_000, None),
        "net.0": ("Linear", 2 * 8 * 32 * 16, 2 * 8 * 32 * 16, 2 * moved(8, 32, 16) + 4 * (16 + 8 * 16 + 16)),
        "net.1": ("ReLU", 0, 0, 512),
        "net.2": ("Linear", 2 * 8 * 16 * 4, 4 * 8 * 16 * 4, 3 * moved(8, 16, 4) + 4 * (4 + 8 * 4 + 4)),
        "net.3": ("Linear", None, None, None),
    }
    columns = ["module", "forward_flops", "backward_flops", "moved_bytes"]
    return pd.DataFrame.from_dict(rows, "index", columns=columns)


def test_bytes_are_compared_with_a_profile() -> None:
    evidence: dict[str, Any] = {"profile": made(layers=linear_layers()), "network": (8, (32, 16, 4))}
    layers = measured("3.4", moved, **evidence)["layers"]

    assert [(each["name"], each["sizes"], each["products"]) for each in layers] == [
        ("net.0", [8, 32, 16], 2),
        ("net.2", [8, 16, 4], 3),
    ]
    assert hint("3.4", moved, **evidence) == ""
    assert "net.2 of your profile, (8, 16, 4)" in hint(
        "3.4", lambda *sizes: moved(*sizes) + 4 * (sizes == (8, 16, 4)), **evidence
    )
    for wrong in ({"network": (8, (32, 16))}, {"network": (8, (32, 16, 16))}, {"network": (4, (32, 16, 4))}):
        assert "not of that network's training step" in hint("3.4", moved, **evidence | wrong)
    for wrong in ({"network": 8}, {"network": (8, (32, 16), 4)}, {"profile": "p"}):
        assert "profile=p, network=(BATCH, WIDTHS)" in hint("3.4", moved, **evidence | wrong)


def test_points_under_a_roof_are_tried_as_well() -> None:
    points = pd.DataFrame(
        [
            (1e6, 2e5, 1e10, "float32"),
            (4e6, 2e5, 2e10, "float32"),
            (1e6, 2e5, 1e10, "float64"),
            (0.0, 2e5, 1e10, "float32"),
            (1e6, None, 1e10, "float32"),
        ],
        columns=["flops", "bytes", "attainable_flops_per_s", "dtype"],
    )
    roofline = made(Roofline, points=points, peaks={"float32": 2e10}, bandwidth=2e9)
    cases = measured("3.5", lambda f, b, peak, bandwidth: max(f / peak, b / bandwidth), roofline=roofline)["cases"]

    assert [(case["sizes"], case["wanted"]) for case in cases[4:]] == [
        ([1e6, 2e5, 2e10, 2e9], 1e-4),
        ([4e6, 2e5, 2e10, 2e9], 2e-4),
    ]
    assert [case["wanted"] for case in cases[:4]] == pytest.approx([0.01, 1.0, 2e-4, 0.01])
    many = made(Roofline, points=pd.concat([points[:1].assign(flops=float(n)) for n in range(1, 31)]),
                peaks={"float32": 2e10}, bandwidth=2e9)  # fmt: skip
    assert len(measured("3.5", lambda f, b, peak, bandwidth: 1.0, roofline=many)["cases"]) == 24
    unknown = made(Roofline, points=points, peaks={"float32": 2e10}, bandwidth=None)
    assert len(measured("3.5", lambda f, b, peak, bandwidth: 1.0, roofline=unknown)["cases"]) == 4


def memory(**columns: list[float]) -> pd.DataFrame:
    names = ("parameters", "gradients", "optimizer_state", "activations", "inputs", "temporaries", "other")
    rows = {name: [10, 10, 10, 10] for name in names} | {"activations": [0, 500, 300, 0], "gradients": [0, 0, 400, 400]}
    frame = pd.DataFrame(rows).assign(total=lambda rows: rows.sum(axis=1))
    return frame.assign(t_ms=[0.0, 1.5, 2.5, 4.0], process=[5000, 6000, 7000, 6500]).assign(**columns)


def test_a_peak_and_the_phase_where_it_is() -> None:
    made_at = pd.DataFrame({"start_ns": [1_500_000, 2_500_000], "phase": ["forward", "backward"]})
    answer = {"most": 750, "sum_of_most": 950, "phase": "backward"}

    assert measured("4.1", answer, profile=made(memory=memory(), allocations=made_at)) == {
        **answer,
        "total": [750, 50, 450],
        "sum": 950,
        "at": "backward",
        "process": 7000,
    }
    unknown = made(memory=memory(process=[np.nan] * 4), allocations=made_at[:1])
    facts = measured("4.1", answer, profile=unknown)
    assert facts["process"] is facts["at"] is None
    assert "recorded without memory" in hint("4.1", answer, profile=made(memory=memory()[:0]))


def test_the_price_of_checkpoints_is_read_from_two_profiles() -> None:
    def profile(*flops: int, other: list[float]) -> Any:
        columns = ["depth", "forward_flops", "backward_flops", "recompute_flops"]
        layers = pd.DataFrame([(0, *flops), (1, 7, 7, 7), (0, 1, 2, 3)], columns=columns)
        return made(memory=memory(total=[50, 540, 750, 450], other=other), layers=layers)

    plain = profile(100, 200, 0, other=[10, 10, 300, 10])
    light = profile(100, 200, 90, other=[10, 10, 350, 10])
    answer = {"memory": 0.4, "arithmetic": 1.3, "time": 1.2}
    test = an_ab_test(ratio=1.2)

    assert measured("4.6", answer, plain=plain, checkpointed=light, test=test) == {
        "said": answer,
        "time": 1.2,
        "check": "",
        "plain": {"peak": 530, "with_others": 750, "flops": [101, 202, 3]},
        "checkpointed": {"peak": 530, "with_others": 750, "flops": [101, 202, 93]},
    }


def test_attention_s_share_is_that_of_the_longest_block() -> None:
    def block(name: str, *flops: tuple[int | None, int | None]) -> Any:
        index = [name, f"{name}.attention", f"{name}.attention.qkv", f"{name}.mlp"]
        return made(layers=pd.DataFrame([*flops], index, columns=["forward_flops", "backward_flops"], dtype=float))

    rows = [("64", "kind", 0.5), ("512", "kind", 0.8), ("512", "layer", 0.1)]
    shares = pd.DataFrame(rows, columns=["name", "by", "share"]).assign(part="attention")
    shares.loc[len(shares)] = ["512", "kind", 0.2, "linear"]
    profiles = {
        "512": block("512", (100, 180), (60, 130), (20, 50), (40, None)),
        "64": block("64", (10, 20), (5, 5), (1, 1), (2, 2)),
    }
    answer = {"time": 0.8, "arithmetic": 0.7, "per_flop": 1.7}

    assert measured("5.4", answer, comparison=made(ArchitectureComparison, profiles=profiles, shares=shares)) == {
        "said": answer,
        "longest": "512",
        "shares": {"64": 0.5, "512": 0.8},
        "arithmetic": 190 / 280,
        "products": 120 / 280,
        "forward": 60 / 280,
    }


def test_copies_are_those_of_samples_in_the_step() -> None:
    rows = [
        ("data", 10, 4096),
        ("data", 20, 4096),
        ("data", 30, 8192),
        ("data", 40, 2048),
        ("data", 50, 1023),
        ("data", -10, 16_384),
        ("data", None, 16_384),
        ("forward", 60, 65_536),
    ]
    allocations = pd.DataFrame(rows, columns=["phase", "start_ns", "bytes"])
    answer = {"batch_bytes": 8192, "written": 2}

    assert measured("6.4", answer, profile=made(allocations=allocations)) == {
        "said": answer,
        "batch_bytes": 8192,
        "all_bytes": 16_384,
    }
    smallest = pd.DataFrame([("data", 0, 1024)], columns=allocations.columns)
    assert measured("6.4", answer, profile=made(allocations=smallest))["all_bytes"] == 1024
    assert "no batch made from samples" in hint("6.4", answer, profile=made(allocations=allocations[4:]))
    assert "without --no-memory" in hint("6.4", answer, profile=made(allocations=allocations[:0]))


def test_a_report_is_read_with_what_it_tested() -> None:
    class Fused:
        pass

    table = pd.DataFrame({"a": [1.0]}, index=[lab_07.LOSS])
    parts: dict[str, Any] = {"ratio": 0.8, "ratio_ci": (0.75, 0.85), "decision": "accept", "table": table}
    reports = {"fused": made(ABTest, **parts), "few": made(ABTest, **parts | {"ratio_ci": None, "table": table[:0]})}

    assert lab_07.report_facts(reports, "fused", {"fused": Fused}, Fused) == {
        "of_this": True,
        "ratio": 0.8,
        "ratio_ci": [0.75, 0.85],
        "decision": "accept",
        "quality": True,
    }
    other = type("Other", (), {"step": lambda self: 1})
    found = lab_07.report_facts(reports, "fused", {"fused": other}, Fused)
    assert found is not None
    assert found["of_this"] is False
    for made_of, answer in ((None, Fused), ({}, Fused), ({"fused": Fused}, None)):
        unknown = lab_07.report_facts(reports, "fused", made_of, answer)
        assert unknown is not None
        assert unknown["of_this"] is None
    few = lab_07.report_facts(reports, "few")
    assert few is not None
    assert (few["ratio_ci"], few["quality"]) == (None, False)
    assert lab_07.report_facts(reports, "bf16") is lab_07.report_facts(None, "fused") is None
    with pytest.raises(Hint, match=r"must be the result of perfnb.ab_test, not a float"):
        lab_07.report_facts({"fused": 0.8}, "fused")


def test_earlier_decisions_leave_out_the_last_one() -> None:
    rows = [("fused", "reject"), ("bf16", "accept"), ("fused", "inconclusive"), ("fused", "accept")]
    journal = SimpleNamespace(history=pd.DataFrame(rows, columns=["change", "decision"]))

    assert lab_07.earlier_decisions(journal, "fused") == ["reject", "inconclusive"]
    assert lab_07.earlier_decisions(journal, "bf16") == lab_07.earlier_decisions(journal, "int8") == []
    assert lab_07.earlier_decisions(None, "fused") == []
    assert lab_07.earlier_decisions(SimpleNamespace(history=pd.DataFrame()), "fused") == []


def test_the_bounds_of_the_levers() -> None:
    """Figures are per step, of two steps."""
    profile = made(
        critical_path=pd.DataFrame({"device": [0.0, np.nan, 0.0], "duration_ns": [3e6, 9e6, 1e6]}),
        gpu_steps=pd.DataFrame({"communication_ms": [5.0, 7.0], "overlap_ms": [1.0, 3.0], "busy_ms": [20.0, 30.0]}),
        gpu_idle=pd.DataFrame({"host_ms": [6.0, 4.0]}),
        steps=pd.DataFrame({"wall_ms": [40.0, 50.0]}),
        events=pd.DataFrame(
            {
                "category": ["cuda_runtime", "cuda_runtime", "cuda_driver", "cpu_op"],
                "name": ["cudaMalloc", "cudaLaunchKernel", "cudaFree", "cudaMalloc"],
                "duration_ns": [2e6, 50e6, 4e6, 80e6],
            }
        ).astype({"name": lab_08.TEXT, "category": lab_08.TEXT}),
    )

    assert lab_08._bounds(profile) == {
        "faster kernels": 2.0,
        "fewer launches": 2.0,
        "no allocation": 3.0,
        "hidden communication": 4.0,
    }
    assert lab_08._not_busy_ms(profile) == 20.0
    profile.gpu_idle["host_ms"] = [1.0, 1.0]
    assert list(lab_08._bounds(profile).values()) == [2.0, 0.0, 1.0, 4.0]


def test_busy_time_is_a_union_of_spans() -> None:
    work = pd.DataFrame({"start_ns": [0, 1e6, 5e6, 2e6], "duration_ns": [4e6, 1e6, 2e6, 1e6]})

    assert lab_08._union_ms(work) == 6.0
    assert lab_08._union_ms(work[:3], latest=False) == 6.0
    assert lab_08._union_ms(work[[True, True, False, True]], latest=False) == 5.0


def test_what_ranks_wait() -> None:
    times = pd.DataFrame(
        {
            "rank": [0, 0, 1, 1, 2, 2],
            "step": [10, 11, 10, 11, 10, 11],
            "waiting_ms": [4.0, 2.0, 5.0, 9.0, 0.5, None],
            "communication_ms": [8.0, 6.0, 9.0, 15.0, 3.0, 5.0],
        }
    )
    answer = {"rank": 2, "waits_ms": 5.0}

    assert measured("10.7", answer, ranks=made(Ranks, times=times)) == {
        "said": answer,
        "waits": {"0": 3.0, "1": 7.0, "2": 0.25},
        "communicates": {"0": 7.0, "1": 12.0, "2": 4.0},
        "worst_step": {"0": 2.0, "1": 9.0, "2": 0.0},
        "steps": 2,
    }
    assert measured("8.6", answer, ranks=made(Ranks, times=times[:4], straggler=0)) == {
        "said": answer,
        "straggler": 0,
        "waiting_ms": {"0": [4.0, 2.0], "1": [5.0, 9.0]},
        "communication_ms": {"0": 7.0, "1": 12.0},
    }


def test_what_collectives_expose() -> None:
    collectives = pd.DataFrame(
        {
            "rank": [0, 0, 1, 1],
            "ms": [5.0, 7.0, 3.0, 4.0],
            "exposed_ms": [5.0, 1.0, 2.0, None],
            "waiting_ms": [2.0, None, 0.5, 0.25],
        }
    )
    answer = {"balance_ms": 2.0, "network_ms": 4.0}
    ranks = made(Ranks, collectives=collectives)

    assert measured("8.9", answer, ranks=ranks)["ranks"] == {
        "0": {"ms": 12.0, "exposed_ms": 6.0, "waiting_ms": 2.0},
        "1": {"ms": 7.0, "exposed_ms": 2.0, "waiting_ms": 0.75},
    }
    assert hint("8.9", answer, ranks=ranks) == ""


def recorded(calls: float = 2.0, backward: float = 20.0) -> Any:
    return made(
        layers=pd.DataFrame({"calls": [calls, 4.0], "total_ms": [50.0, 20.0]}, index=["reader", "reader.stem"]),
        findings=pd.DataFrame({"bottleneck": ["host code", "float64", "dtype"], "bound_ms": [30.0, 20.0, None]}),
        phases=phases(backward=backward),
    )


def a_journal(*entries: tuple[str, str, str, Any]) -> Any:
    """A journal of entries: kind, name, hypothesis, and what is loaded."""
    index = [str(place) for place in range(len(entries))]
    rows = [(kind, name, words, 10.0, 100.0) for kind, name, words, _ in entries]
    history = pd.DataFrame(rows, index, columns=["kind", "name", "hypothesis", "steps", "median_ms"])
    loads = {place: loaded for place, (*_, loaded) in zip(index, entries, strict=True)}

    def load(self: Any, place: str) -> Any:
        if loads[place] is None:
            raise ValueError("damaged")
        return loads[place]

    return made(Journal, history=history, load=load)


def test_profiles_are_described_as_the_journal_has_them() -> None:
    journal = a_journal(
        ("profile", "start", "the model takes most of it", recorded()),
        ("profile", "broken", "the model takes most of it", None),
        ("report", "test", "the model takes most of it", recorded()),
        ("profile", "", "", recorded(1.0, 0.0)),
        ("profile", "other", "", 3.0),
    )
    first, second = measured("12.2", journal)["profiles"]

    assert first == {
        "words": 6,
        "named": True,
        "steps": 10,
        "step_ms": 100.0,
        "calls": 2.0,
        "reader_ms": 50.0,
        "backward": True,
        "findings": {"host code": 30.0, "float64": 20.0},
    }
    assert (second["words"], second["named"], second["calls"], second["backward"]) == (0, False, 1.0, False)
    assert hint("12.2", journal) == ""
    none = recorded()
    type(none).layers = none.layers[:0]
    assert "has no layers" in hint("12.2", a_journal(("profile", "start", "the model takes most", none)))


def test_medians_have_a_ratio_if_both_are_known() -> None:
    assert [lab_12._ratio(*pair) for pair in ((1.0, 2.0), (None, 2.0), (1.0, None))] == [0.5, None, None]


def test_bounds_need_a_profile_with_a_hypothesis() -> None:
    waste = {"brightness": 201, "new_reader": 2, "right": 2, "padded": 2}
    answer = {"brightness": 30.0, "new_reader": 20.0, "right": 15.0, "padded": 28.0}
    right = a_journal(("profile", "start", "", recorded()), ("profile", "start", "the model takes most", recorded()))

    assert len(measured("12.4", answer, waste=waste, journal=right)["profiles"]) == 1
    assert hint("12.4", answer, waste=waste, journal=right) == ""

    def padded() -> None:
        """Stands for the script's method."""

    by_method = {padded if name == "padded" else name: ms for name, ms in answer.items()}
    assert hint("12.4", by_method, waste=waste, journal=right) == ""
    without = a_journal(("profile", "start", "", recorded()))
    assert "does not have a profile of the script" in hint("12.4", answer, waste=waste, journal=without)
    assert "is not in waste" in hint("12.4", answer | {"step": 1.0}, waste=waste, journal=right)
    assert "Solve the previous exercise" in hint("12.4", answer, waste={}, journal=right)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.125 of the time", [[0.125, 0.0005]]),
        ("8 times, 12.5 % or 12,5 %", [[8.0, 0.5], [12.5, 0.05], [12.5, 0.05]]),
        ("none", []),
    ],
)
def test_numbers_in_a_text_have_the_error_of_their_digits(text: str, numbers: list[list[float]]) -> None:
    assert lab_12._numbers(text) == [pytest.approx(each) for each in numbers]


@pytest.mark.parametrize(
    ("work", "wastes"),
    [
        ({}, set()),
        ({"reads": 36}, {"reads"}),
        ({"reads": 35}, set()),
        ({"float64": True}, {"float64"}),
        ({"boxes": 769}, {"passes"}),
        ({"boxes": 768}, set()),
        ({"longest": 129, "boxes": 774}, {"boxes"}),
        ({"longest": 256, "boxes": 3072}, {"passes", "boxes"}),
    ],
)
def test_wastes_that_a_script_still_has(work: Facts, wastes: set[str]) -> None:
    """Of three steps of two cards, with 29 cards that may be read besides."""
    least = {"reads": 6, "float64": False, "boxes": 768, "longest": 128, "steps": 3}

    assert lab_12._wastes(least | work, 29) == wastes
