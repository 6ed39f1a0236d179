"""Documents of `compiled`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perfnb import Profile, load
from perfnb.compiled.tab import compiled_document
from perfnb.compiled.tables import compiled_summary
from perfnb.draw.document import Document
from perfnb.recording.compiled_layers import CompiledCode, with_compiled_regions
from perfnb.recording.recording import Recording
from tests.recording.test_compiled_layers import (
    BACK,
    BLOCK,
    FORWARD,
    SHARED,
    backward,
    graph,
    net,
    of_one_step,
    one_region,
    operation,
    region,
)
from tests.recordings import ByHand
from tests.samples import HOSTILE


def _document(recording: Recording) -> Document:
    summary = compiled_summary(recording)
    assert summary is not None
    return compiled_document(summary)


def broken() -> Recording:
    """Return two regions of one function, the first of which was compiled again."""
    hand = ByHand().step(0, 500)
    root, *_ = net(hand)
    hand.call(root, 8, 290)
    region(hand, 10)
    region(hand, 150, sequence=6, name="1/0")
    backward(hand, 310, sequence=6)
    backward(hand, 400)
    first = CompiledCode("0/0", "forward", "model.py:7", 12, 3.2, "0/0: k == 1", "Call to print", "model.py:9")
    rest = CompiledCode("1/0", "resume_in_forward_at_9", "model.py:9", 8, 1.1)
    return with_compiled_regions(hand.recording(), [SHARED, BACK], [first, rest])


def hostile() -> Recording:
    hand = ByHand().step(0, 200)
    root, *_ = net(hand)
    hand.call(root, 8, 112)
    hand.op(f"Torch-Compiled Region: {HOSTILE}", 12, 100)
    hand.op(f"## Call CompiledFxGraph {FORWARD} ##", 16, 90)
    hand.op(f"graph_0_{HOSTILE}", 20, 60)
    named = operation("a", BLOCK, ("x",))._replace(op=HOSTILE, source=(HOSTILE, 7, HOSTILE))
    code = [CompiledCode(HOSTILE, HOSTILE, HOSTILE, 1, 1.0, HOSTILE, HOSTILE, HOSTILE)]
    return with_compiled_regions(hand.recording(), [graph(FORWARD, {HOSTILE: [named]}, operation("x"))], code)


def unknown() -> Recording:
    return with_compiled_regions(one_region().recording(), [], [CompiledCode("0/0")])


def on_gpu() -> Recording:
    """Return what perfnb captured of a compiled MLP on an NVIDIA H200."""
    loaded = load(Path(__file__).parents[1] / "captured" / "compiled_mlp")
    assert isinstance(loaded, Profile)
    return loaded._recording


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "compiled as one graph": lambda: _document(of_one_step()),
    "compiled with a graph break": lambda: _document(broken()),
    "compiled, kernels unknown": lambda: _document(unknown()),
    "compiled on a GPU": lambda: _document(on_gpu()),
    "hostile compiled code": lambda: _document(hostile()),
}
