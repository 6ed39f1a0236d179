"""On whatever threads modules and backward nodes ran: layers add up to forward and backward, phases to the step."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import strategies as st

import perfnb
from tests.laws import holds_of
from tests.written_traces import BACKWARD, MAIN, NODE, Written

OTHER = 102


class Call(NamedTuple):
    """Something that runs, with what runs inside it, one after the other."""

    kind: str
    before: int
    inside: list[Call]
    after: int

    def write(self, trace: Written, begin: int, tid: int) -> int:
        """Write the call at `begin` and tell when it ends."""
        end = begin
        for call in self.inside:
            end = call.write(trace, end + call.before, tid)
        end += self.after
        if self.kind.startswith("aten::"):
            trace.op(self.kind, begin, end, sequence=len(self.inside), tid=tid)
        elif self.kind.startswith(NODE):
            numbers = {"Sequence number": len(self.inside), "Fwd thread id": 1}
            trace.event(self.kind, begin, end, tid=tid, **numbers)
        else:
            trace.event(
                self.kind, begin, end, "python_function" if "nn.Module" in self.kind else "user_annotation", tid
            )
        return end


KINDS = st.sampled_from(
    [
        *("nn.Module: Net_0", "nn.Module: Linear_0", "nn.Module: Linear_1", "nn.Module: MSELoss_0"),
        *("aten::mm", "aten::mse_loss", NODE + "MmBackward0", NODE + "torch::autograd::AccumulateGrad"),
        *("Optimizer.step#SGD.step", "enumerate(DataLoader)#_Iter.__next__"),
    ]
)
GAPS, LENGTHS = st.integers(0, 30), st.integers(1, 40)
CALLS = st.recursive(
    st.builds(Call, KINDS, GAPS, st.just([]), LENGTHS),
    lambda inside: st.builds(Call, KINDS, GAPS, st.lists(inside, max_size=3), LENGTHS),
    max_leaves=8,
)
THREADS = st.fixed_dictionaries(
    {thread: st.lists(CALLS, max_size=5) for thread in (MAIN, BACKWARD, OTHER)},
)


@holds_of(st.lists(st.integers(20, 400), min_size=1, max_size=3), THREADS, some=40, many=3000)
def test_layers_add_up_to_forward_and_backward_and_no_share_is_above_the_whole(
    steps: list[int], threads: dict[int, list[Call]]
) -> None:
    trace, begin = Written(), 0
    for number, length in enumerate(steps):
        trace.step(number, begin, begin + length)
        begin += length
    for thread, calls in threads.items():
        at = 0
        for call in calls:
            at = call.write(trace, at + call.before, thread)

    with TemporaryDirectory() as folder:
        profile = perfnb.load(trace.write(Path(folder) / "trace.json"))
    assert isinstance(profile, perfnb.Profile)
    phases, layers = profile.phases, profile.layers

    assert phases["ms"].sum() == pytest.approx(sum(steps) / len(steps) / 1000)
    assert (phases["ms"] >= 0).all()
    assert phases["share"].sum() == pytest.approx(1)
    assert layers["self_ms"].sum() == pytest.approx(phases["ms"]["forward"] + phases["ms"]["backward"], abs=1e-9)
    assert (layers["share"].dropna().between(0, 1 + 1e-9)).all()
    assert (layers["total_ms"].dropna() >= layers["self_ms"].dropna() - 1e-9).all()


def written_by_a_pool() -> Written:
    """In each step two other threads call a layer each, at the same time, and the step's own thread a third."""
    trace = Written()
    for number in (1, 2):
        t, n = 1000 * number, 10 * number
        trace.step(number, t, t + 1000)
        trace.module("Here_0", t + 10, t + 50).op("aten::mm", t + 20, t + 40, n + 1)
        for layer, tid in enumerate((OTHER, OTHER + 1)):
            trace.module(f"Apart_{layer}", t + 60, t + 460, tid)
            trace.module(f"Linear_{layer}", t + 70, t + 450, tid).op("aten::mm", t + 80, t + 440, n + 5, tid)
        numbers = {"Sequence number": n + 5, "Fwd thread id": 2}
        trace.event(NODE + "MmBackward0", t + 500, t + 800, **numbers)
        trace.node("MmBackward0", t + 800, t + 900, n + 1)
    return trace


def test_layers_that_other_threads_than_the_steps_call_are_not_available_and_named(tmp_path: Path) -> None:
    profile = perfnb.load(written_by_a_pool().write(tmp_path / "trace.json"))

    assert isinstance(profile, perfnb.Profile)
    layers, text = profile.layers, " ".join(str(profile).split())
    apart = ["Apart_0", "Apart_0.Linear_0", "Apart_1", "Apart_1.Linear_1"]
    assert sorted(layers.index) == ["(unattributed)", *apart, "Here_0"]
    assert (
        layers.loc[apart, ["calls", "forward_ms", "backward_ms", "total_ms", "self_ms", "share"]].isna().all(axis=None)
    )
    assert layers["total_ms"].dropna().to_dict() == pytest.approx({"Here_0": 0.14, "(unattributed)": 0.3})
    assert "Called only from other threads than the step's: Apart_0, Apart_1. Their forward" in text
    assert "its ops ran outside every module call on the step's own thread." in text


def test_what_backward_does_on_several_threads_at_once_shares_the_time_that_passed(tmp_path: Path) -> None:
    trace = Written().step(1, 0, 1000)
    trace.module("A_0", 10, 50).op("aten::mm", 20, 40, 1)
    trace.module("B_0", 60, 100).op("aten::mm", 70, 90, 2)
    trace.node("MmBackward0", 200, 600, 2, BACKWARD).node("MmBackward0", 200, 600, 1, OTHER)

    profile = perfnb.load(trace.write(tmp_path / "trace.json"))

    assert isinstance(profile, perfnb.Profile)
    assert profile.phases["ms"]["backward"] == pytest.approx(0.4)
    assert profile.layers["backward_ms"].to_dict() == pytest.approx({"A_0": 0.2, "B_0": 0.2})
    assert "share the elapsed time" in " ".join(str(profile).split())
