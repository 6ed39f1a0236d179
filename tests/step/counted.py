"""A step counted and attributed as a profile does it, and what the mathematics says of its arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import nn

from perfnb.attribution.arithmetic import arithmetic_per_span, counted_ops
from perfnb.attribution.attribution import Attribution, attribute
from perfnb.recording.nesting import subtree_sums
from perfnb.recording.recording import Recording
from perfnb.step.budget import Plan
from perfnb.step.pass_order import capture_step
from perfnb.step.to_recording import recording_of


@dataclass(frozen=True)
class Counted:
    """The counted step of a recording, its operators, and the traced step next to it."""

    recording: Recording
    attribution: Attribution
    ops: pd.DataFrame

    def by_layer(self, amount: str = "flops") -> dict[str, dict[str, int]]:
        """Return sums of each layer's own operators, by direction; zeros are left out."""
        sums = self.ops.groupby(["layer", "direction"])[amount].sum()
        known: dict[str, dict[str, int]] = {}
        for (layer, direction), value in sums.items():
            if value > 0:
                known.setdefault(layer, {})[direction] = int(value)
        return known

    def with_children(self, layer: str, measure: str) -> int:
        """Return a measure summed over the spans of a layer and those inside them."""
        recording, blocks = self.recording, self.attribution.host.blocks
        place = list(recording.modules["name"]).index(layer)
        sums = subtree_sums(self.attribution.spans, arithmetic_per_span(self.attribution, self.ops)[measure])
        layers = recording.spans["layer"].reindex(blocks["span"], fill_value=-1).to_numpy()
        return int(sums[layers == place].sum())


def count(step: Callable[[], Any], *, traced: int = 1, **names: nn.Module) -> Counted:
    """Run a step through a capture with little else in it, and count its arithmetic; modules by their names."""
    plan = Plan(warmup=1, steps=1, traced=traced, memory=False)
    recording = recording_of(capture_step(step, plan=plan, namespace=names), "counted")
    assert recording.arithmetic is not None
    stepped = recording.with_events(recording.arithmetic.events)
    attribution = attribute(stepped)
    return Counted(recording, attribution, counted_ops(stepped, attribution, recording.arithmetic.calls))
