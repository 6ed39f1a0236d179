"""The optimizer: a loop over parameters where one call could update them all."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from perfnb.analysis.blocks import Kind
from perfnb.analysis.findings.facts import Facts
from perfnb.analysis.findings.finding import Finding, Row, many, part, time
from perfnb.analysis.labels import found
from perfnb.analysis.nesting import Bools
from perfnb.frames.text import TEXT

_WORTH = 0.05
#: Fewest operators of an update that make a loop.
_FEWEST = 40
_READ = re.compile("aten::_local_scalar")
_AT_ONCE = re.compile(r"aten::_(?:foreach|fused)_")
#: Bytes that an update moves for each byte of a parameter: read it and its gradient, write it; with two moments more.
_MOVED, _MOVED_WITH_STATE = 3, 7
#: What an update at once still costs for each parameter, in ops that do nothing (fused SGD and Adam of torch 2.13, on
#: 200 and 2,000 small parameters): torch's optimizers gather parameters, gradients and states in Python.
_PER_TENSOR, _PER_TENSOR_WITH_STATE, _BARE_NS = 1.5, 9.0, 650.0
_ADAM = re.compile(r"aten::(?:sqrt|addcdiv)_?$")


def optimizer_loop(facts: Facts) -> list[Finding]:
    """Many small operators in the optimizer's step, or after the last backward pass where the update is the user's."""
    ops = facts.ops
    own = ops[ops["outer"] & (ops["phase"] == "optimizer")]
    by_hand = own.empty
    phase_ms = facts.phases_ms["optimizer"]
    if by_hand:
        own, phase_ms = _after_backward(facts)
    own = own[~found(own["op"], _READ.match)]
    count = len(own) / max(facts.attribution.steps, 1)
    if count < _FEWEST or facts.share(phase_ms) < _WORTH:
        return []
    at_once = found(own["op"], _AT_ONCE.match)
    if float(own.loc[at_once, "whole_ns"].sum()) > 0.5 * float(own["whole_ns"].sum()):
        return []
    floor = _least_ms(facts, own)
    bound, waits = max(phase_ms - floor, 0.0), ""
    if facts.gpu is not None:
        # A busy GPU waits for no loop.
        idle = facts.gpu.late_ms(_blocks(facts, by_hand))
        bound, waits = min(bound, idle), f" The GPU was idle for {time(idle)} of it."
    if facts.share(bound) < _WORTH:
        return []
    known = facts.optimizer
    if known.get("class") == "LBFGS":  # its vectors hold all parameters already
        return []
    name = known.get("name") or "optimizer"
    tensors = f" over {known['tensors']:,} parameters" if known.get("tensors") else ""
    top = own.groupby("op", observed=True)["whole_ns"].sum().nlargest(3).index
    what = "The update by hand" if by_hand else f"{name}.step()" if known else "The optimizer"
    lever, code = _lever(facts, by_hand)
    return [
        Finding(
            "optimizer",
            f"{what} takes {time(phase_ms)}, {part(facts.share(phase_ms))} of the step, in {many(count, 'op')} one "
            f"after the other{tensors}; all at once it would take about {time(floor)}.{waits}",
            bound,
            lever,
            code,
            "medium",
            "The time of the phase is sure. What remains is estimated: the bytes that it must move, and what torch "
            "does for each parameter also where it updates all at once.",
            "Gradients that are clipped or synchronised in between count as the optimizer's. Parameters in one flat "
            "tensor would save what remains, too.",
            (Row("phase", "other" if by_hand else "optimizer"), *(Row("op", str(op)) for op in top)),
        )
    ]


def _lever(facts: Facts, by_hand: bool) -> tuple[str, str]:
    """What to change, and the line that makes the same optimizer update all at once."""
    known = {} if by_hand else facts.optimizer
    name, kind = known.get("name") or "optimizer", known.get("class") or "SGD"
    lever = "Update all parameters in one call instead of a loop over them."
    tables, share = _embeddings(facts)
    if share > 0.5:
        lever += (
            f" {part(share)} of the parameters are embeddings ({tables[0]}): with sparse=True, and SparseAdam or SGD "
            "for them, only the rows that a batch looked up are updated, which saves far more where these are few."
        )
    at_once = known.get("at_once", ["fused"])
    if not at_once or known.get("arguments", {}) is None:
        return lever, "torch._foreach_add_(parameters, updates, alpha=-lr)  # and alike for every line of the loop"
    argument = f"{at_once[0]}=True"
    if known.get("groups", 1) > 1:
        groups = f'[{{**group, "foreach": None, "{at_once[0]}": True}} for group in {name}.param_groups]'
        return lever, f"{name} = torch.optim.{kind}({groups}, {argument})"
    arguments = [f"{key}={_literal(value)}" for key, value in known.get("arguments", {}).items()]
    if not known:
        arguments = ["lr=lr"]
    whole = {int(count) for count in facts.recording.modules.loc[facts.recording.modules["parent"] < 0, "parameters"]}
    all_of_it = not known or whole == {known.get("elements")}
    parameters = f"{facts.model}.parameters()" if all_of_it else f'{name}.param_groups[0]["params"]'
    return lever, f"{name} = torch.optim.{kind}({', '.join([parameters, *arguments, argument])})"


def _literal(value: object) -> str:
    """As Python writes it; JSON knows no tuples."""
    return repr(tuple(value) if isinstance(value, list) else value)


def _embeddings(facts: Facts) -> tuple[list[str], float]:
    """The embeddings, the largest first, and their share of all parameters."""
    modules = facts.recording.modules
    tables = modules[modules["module"].astype(TEXT).isin(("Embedding", "EmbeddingBag"))]
    whole = float(modules.loc[modules["parent"] < 0, "parameters"].sum())
    names = tables.sort_values("parameters", ascending=False, kind="stable")["name"]
    return [str(name) for name in names], float(tables["parameters"].sum()) / whole if whole else 0.0


def _after_backward(facts: Facts) -> tuple[pd.DataFrame, float]:
    """Operators of the gap after each step's last backward pass, and the gap's time."""
    ops, after = facts.ops, _gaps_after_backward(facts)
    ns = float(facts.cells_ns[after].sum())
    chosen = ops[ops["outer"] & after[ops["block"].to_numpy()]]
    return chosen, facts.per_step(ns)


def _gaps_after_backward(facts: Facts) -> Bools:
    """Which blocks lie after their step's last backward pass."""
    blocks = facts.attribution.host.blocks
    kind = blocks["kind"].to_numpy()
    engines = blocks[kind == Kind.ENGINE].groupby("step")["end"].max()
    gaps = (kind == Kind.GAP) & (blocks["phase"] == "other").to_numpy()
    result: Bools = gaps & (blocks["start"].to_numpy() >= blocks["step"].map(engines).fillna(np.inf).to_numpy())
    return result


def _blocks(facts: Facts, by_hand: bool) -> pd.DataFrame:
    """The blocks of the update that lie in no other of them."""
    blocks = facts.attribution.host.blocks
    if by_hand:
        return blocks[_gaps_after_backward(facts)]
    chosen = blocks[(blocks["phase"] == "optimizer") & blocks["main"]].sort_values(["start", "end"])
    reach = chosen["end"].cummax().shift(fill_value=np.iinfo(np.int64).min)
    return chosen[chosen["end"] > reach]


def _least_ms(facts: Facts, own: pd.DataFrame) -> float:
    """How long the update takes at least where it is done at once: its traffic, and what each parameter costs."""
    moments = bool(found(own["op"], _ADAM.match).any())
    steps = max(facts.attribution.steps, 1)
    tensors = facts.optimizer.get("tensors") or float(own["op"].value_counts().max()) / steps
    bare = float(facts.meta.get("bare_cost", {}).get("op_ns", 0.0)) or _BARE_NS
    # The bare cost is the least of many; steps are slower than their least by what else the machine does.
    rest = facts.timed_ms - facts.waits_ms - facts.pauses_ms
    busy = float(np.median(rest) / rest.min()) if len(rest) and rest.min() > 0 else 1.0
    least = tensors * bare / 1e6 * busy * (_PER_TENSOR_WITH_STATE if moments else _PER_TENSOR)
    roofline, modules = facts.summary.roofline, facts.recording.modules
    if roofline is not None and roofline.bandwidth:
        held = float(modules.loc[modules["parent"] < 0, "parameter_bytes"].sum())
        least += held * (_MOVED_WITH_STATE if moments else _MOVED) / roofline.bandwidth * 1e3
    return least
