"""Find calls to a trained model whose results no backward pass uses.

Such calls repeat a forward pass that the step computes anyway.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.attribution import layer_of_spans
from perfnb.attribution.backward_links import makers
from perfnb.attribution.blocks import Kind
from perfnb.findings.facts import Facts, shared
from perfnb.findings.finding import Finding, rows, rule
from perfnb.recording.nesting import NONE, innermost, subtree_sums

#: Calls to a model are considered equal if each has at least this share of the ops of the largest call.
_ALIKE = 0.5
#: The time that may pass after a call for using and freeing its results, as a share of the call.
_USING = 0.1


@rule(
    "repeated forward",
    "Bound by a forward pass that is computed again",
    "keeping the outputs of the first one",
    worth=0.05,
)
def repeated_forward(facts: Facts) -> Iterator[Finding]:
    """Find a model that the step trains and also calls without a backward pass.

    Both calls must have the same number of ops.
    """
    if facts.gpu is not None:
        return
    calls = model_calls(facts)
    most = calls.groupby("layer")["ops"].transform("max")
    again = calls[(calls["ops"] >= _ALIKE * most) & ~calls["trained"]]
    trained = calls.loc[calls["trained"], ["step", "layer"]].drop_duplicates()
    again = again.merge(trained, on=["step", "layer"])
    bound = facts.per_step(float((again["ns"] + np.minimum(again["after_ns"], _USING * again["ns"])).sum()))
    if again.empty:
        return
    layer = int(again["layer"].to_numpy()[again.groupby("layer")["ns"].transform("sum").to_numpy().argmax()])
    name = str(facts.recording.modules["name"].iloc[layer])
    number, every = len(again) / facts.steps, (calls["layer"] == layer).sum() / facts.steps
    yield Finding(
        f"{name} is called {fmt.counted(every, 'time')} per step, including "
        f"{fmt.counted(number, 'call')} without a backward pass, which takes {facts.of_step(bound)}.",
        bound,
        "If both calls get the same inputs, keep the outputs of the trained call and compute metrics from them. "
        "If not, the second call is not wasted: run code that only evaluates under torch.no_grad(), and less often if "
        "possible.",
        "low",
        "Calls and backward passes were counted. It is not known whether both calls get the same inputs.",
        "The inputs of the calls.",
        rows("layer", [name]),
    )


@shared
def model_calls(facts: Facts) -> pd.DataFrame:
    """Return one row for each call that the step itself makes to a model.

    The columns are ``step``, ``layer`` (its row among the modules), ``end``, ``ops`` inside, ``ns`` (including
    children), ``after_ns`` (the time right after it), and ``trained`` (whether a backward pass runs through it).
    """
    host, cells = facts.attribution.host, facts.attribution.cells
    layer, blocks = layer_of_spans(facts.recording, host), host.blocks
    is_span = ((blocks["kind"] == Kind.SPAN) & ~blocks["in_backward"]).to_numpy() & (layer != NONE)
    outermost = is_span & blocks["main"].to_numpy() & (innermost(host.forest, is_span) == NONE)
    above = np.where(outermost, np.arange(len(blocks)), innermost(host.forest, outermost))
    made_by = makers(facts.recording.events, host)
    inside = np.append(np.append(above, NONE)[host.block], NONE)[made_by[made_by != NONE]]
    trained = np.zeros(len(blocks) + 1, dtype=bool)
    trained[inside] = True
    trained[NONE] = False
    place, end = np.flatnonzero(outermost), blocks["end"].to_numpy()
    gaps = ((blocks["kind"] == Kind.GAP) & blocks["main"]).to_numpy()
    after = pd.Series(facts.cells_ns[gaps], index=blocks["start"].to_numpy()[gaps])
    after = after[~after.index.duplicated()]
    return pd.DataFrame(
        {
            "step": cells["step"].to_numpy()[place],
            "layer": layer[place],
            "end": end[place],
            "after_ns": after.reindex(end[place]).fillna(0.0).to_numpy(),
            "ops": subtree_sums(host.forest, cells["ops"].to_numpy(dtype=float))[place],
            "ns": subtree_sums(host.forest, facts.cells_ns)[place],
            "trained": trained[place],
        }
    )
