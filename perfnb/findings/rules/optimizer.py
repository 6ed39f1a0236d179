"""Find optimizers or gradient clipping that loop over parameters although one call could update them all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.blocks import Kind
from perfnb.findings.facts import Facts, shared
from perfnb.findings.finding import Finding, rows, rule
from perfnb.findings.proposed_code import shown, update_line
from perfnb.recording.nesting import Bools
from perfnb.recording.text import found
from perfnb.trace_names import FUSED, FUSED_ON_CPU

#: Minimum number of operators in an update that count as a loop.
_FEWEST = 40
_READ = re.compile("aten::_local_scalar")
#: Minimum number of gradients that are changed in place, one by one, to count as clipping in a loop; and the ops that
#: change them.
_FEWEST_CLIPPED = 20
_CLIPS = re.compile(r"aten::(?:mul|div|clamp|clamp_min|clamp_max|clip|copy)_$")
_AT_ONCE = re.compile(r"aten::_(?:foreach|fused)_")
#: Bytes moved per byte of a parameter: the parameter and its gradient are read, and the parameter is written. With two
#: moments, more is moved.
_MOVED, _MOVED_WITH_STATE = 3, 7
#: The cost per parameter that remains when updating all at once, in ops that do nothing (fused SGD and Adam of torch
#: 2.13, at least, with 40 and 120 parameters of up to 16 KiB: 0.8 and 3.6 µs): torch's optimizers collect parameters,
#: gradients and states in Python.
_PER_TENSOR, _PER_TENSOR_WITH_STATE, _BARE_NS = 1.2, 5.5, 650.0
#: torch's optimizers that accept foreach=True but not fused=True.
_FOREACH = ("ASGD", "Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")
_ADAM = re.compile(r"aten::(?:sqrt|addcdiv)_?$")


@rule("optimizer", "Bound by the optimizer's loop over parameters", "updating all parameters at once", worth=0.05)
def optimizer_loop(facts: Facts) -> Iterator[Finding]:
    """Find many small operators in the optimizer's step."""
    if not facts.uses_torch:
        return
    ops, phase_ms, updates = facts.ops, facts.phases_ms["optimizer"], facts.updates
    own = ops[ops["outer"] & (ops["phase"] == "optimizer") & ~found(ops["op"], _READ.match)]
    count = len(own) / facts.steps
    if count / updates < _FEWEST:
        return
    at_once = found(own["op"], _AT_ONCE.match)
    if float(own.loc[at_once, "whole_ns"].sum()) > 0.5 * float(own["whole_ns"].sum()):
        return
    floor = _least_ms(facts, own, updates)
    bound, waits = max(phase_ms - floor, 0.0), ""
    if facts.gpu is not None:
        # A busy GPU does not wait for the loop.
        blocks = facts.attribution.host.blocks
        idle = facts.gpu.late_ms(blocks[(blocks["phase"] == "optimizer") & blocks["main"]])
        bound, waits = min(bound, idle), f" The GPU was idle for {fmt.duration(idle)} of that."
    known = facts.optimizers
    classes = list(dict.fromkeys(str(part["class"]) for part in known if part.get("class"))) or facts.optimizer_classes
    if classes == ["LBFGS"]:  # its vectors already contain all parameters
        return
    tensors = sum(int(part.get("tensors") or 0) for part in known)
    over = f" over {tensors:,} parameters" if tensors else ""
    over += f" in {updates:,.3g} updates" if updates > 1 else ""
    lever, names = lever_for(facts, known, classes), [str(part["name"]) for part in known if part.get("name")]
    line = shown(update_line(lever, names), facts.variables) if lever and known and len(names) == len(known) else ""
    yield Finding(
        f"{f'{names[0]}.step()' if len(known) == len(names) == 1 else 'The optimizer'} takes "
        f"{fmt.share(facts.shown_share('optimizer'))} of the step "
        f"({fmt.duration(facts.figures.phases['ms']['optimizer'])} as traced) and runs {fmt.counted(count, 'op')} one "
        f"by one{over}. Updating all parameters at once would take about {fmt.duration(floor)}.{waits}",
        bound,
        "Update all parameters in one call instead of looping over them"
        f"{_switched(lever, names) if line else _how(facts, classes)}.{_sparse(facts)}",
        "medium",
        "The phase's time was measured. The remaining time is an estimate based on the bytes that an update must move "
        "and on the work that torch does for each parameter even if it updates all of them at once.",
        "Gradient clipping or synchronisation in between counts as part of the optimizer. Keeping all parameters in "
        "one flat tensor would also save the remaining time.",
        rows("phase", ["optimizer"]) + rows("op", facts.heaviest_ops(own)),
        code=line,
        remedy=lever,
    )


@rule("gradient clipping", "Bound by clipping gradients one by one", "clipping all gradients at once", worth=0.05)
def gradient_clipping(facts: Facts) -> Iterator[Finding]:
    """Find many small operators between the last backward pass and the optimizer, most of them in place."""
    if not facts.uses_torch or facts.gpu is not None:
        return
    own, count = _clipping(facts)
    if count < _FEWEST_CLIPPED:
        return
    blocks = np.unique(own["block"].to_numpy())
    bare = facts.bare_op_ns or _BARE_NS
    floor = 2 * count * _PER_TENSOR * bare / 1e6  # a norm and a product
    taken = min(facts.per_step(float(facts.cells_ns[blocks].sum())), facts.shown_ms("other"))
    yield Finding(
        f"Between the backward pass and the optimizer, {fmt.counted(len(own) / facts.steps, 'op')} run one by one and "
        f"take {facts.of_step(taken)}: {fmt.counted(count, 'gradient')} are modified in place, each separately.",
        max(taken - floor, 0.0),
        "Clip all gradients in one call: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, foreach=True), "
        "or clip_grad_value_. The first function clips by the norm of all gradients together, so keep the loop if it "
        "clips each gradient by its own norm.",
        "medium",
        "The time was measured. These ops are assumed to clip gradients because of where they run and because they "
        "work in place.",
        "Which norm the loop uses, and what else runs between the backward pass and the optimizer.",
        rows("phase", ["other"]) + rows("op", facts.heaviest_ops(own)),
    )


@shared
def _clipping(facts: Facts) -> tuple[pd.DataFrame, float]:
    """Return the operators between the last backward pass and the optimizer of each step.

    Also return how many of them work in place, per step.
    """
    blocks, ops = facts.attribution.host.blocks, facts.ops
    optimizers = blocks[(blocks["kind"] == Kind.OPTIMIZER) & blocks["main"]].groupby("step")["start"].max()
    before = (blocks["start"] < blocks["step"].map(optimizers).fillna(-np.inf)).to_numpy()
    between = gaps_after_backward(facts) & before
    own = ops[ops["outer"] & between[ops["block"].to_numpy()]]
    return own, float(found(own["op"], _CLIPS.match).sum()) / facts.steps


@shared
def clips_gradients(facts: Facts) -> Bools:
    """Return the blocks that `gradient_clipping` explains."""
    result = np.zeros(len(facts.cells_ns), dtype=bool)
    if gradient_clipping(facts):
        result[np.unique(_clipping(facts)[0]["block"].to_numpy())] = True
    return result


def _switched(lever: str, names: list[str]) -> str:
    """Describe the effect of the line of code on existing optimizers."""
    existing = "optimizer" if len(names) == 1 else "optimizers"
    return f": this line switches the existing {existing} to {lever.removesuffix('_optimizer')}=True"


def _how(facts: Facts, classes: list[str]) -> str:
    """Describe how to make the optimizer update all parameters at once, for cases without a line of code."""
    arguments = {_argument(facts, kind) for kind in classes}
    if arguments == {None}:
        return ": torch._foreach_add_ and similar functions accept lists of tensors"
    if len(arguments) == 1:
        return f": construct {' and '.join(f'torch.optim.{kind}' for kind in classes)} with {arguments.pop()}=True"
    return ": most of torch's optimizers accept fused=True or foreach=True"


def _argument(facts: Facts, kind: str) -> str | None:
    """Return the argument that makes a torch optimizer update all parameters at once; ``None`` for other classes."""
    fused = kind in FUSED or (kind in FUSED_ON_CPU and facts.gpu is None)
    return "fused" if fused else "foreach" if kind in _FOREACH else None


def lever_for(facts: Facts, known: list[Mapping[str, Any]], classes: list[str]) -> str:
    """Return the lever that applies to all these optimizers; empty if there is none.

    On a GPU, a fused update requires the optimizers' state to be on the device.
    """
    words = ("foreach", "fused") if facts.gpu is not None else ("fused", "foreach")
    accepted = [part.get("at_once") or () for part in known] or [[_argument(facts, kind)] for kind in classes]
    return next((f"{word}_optimizer" for word in words if accepted and all(word in each for each in accepted)), "")


def _sparse(facts: Facts) -> str:
    """Return advice on embeddings if they make up most of the parameters, because a batch looks up only a few rows.

    The gradient of a table that is shared with another layer, such as the output layer, remains dense.
    """
    modules = facts.recording.modules
    whole = float(modules.loc[modules["parent"] < 0, "parameters"].sum())
    tables = modules[modules["name"].isin(facts.own_tables)]
    share = float(tables["parameters"].sum()) / whole if whole else 0.0
    if share <= 0.5:
        return ""
    first = tables.sort_values("parameters", ascending=False, kind="stable")["name"].iloc[0]
    return (
        f" {fmt.share(share)} of the parameters are embeddings ({first}) that no other layer shares. If their weights "
        "are used only for look-ups, construct them with sparse=True and give them their own optimizer "
        "(torch.optim.SparseAdam, or SGD without weight decay). Then only the rows that a batch looked up are updated."
    )


@shared
def gaps_after_backward(facts: Facts) -> Bools:
    """Return which blocks come after their step's last backward pass."""
    blocks = facts.attribution.host.blocks
    engines = blocks[blocks["kind"] == Kind.ENGINE].groupby("step")["end"].max()
    after = blocks["start"] >= blocks["step"].map(engines).fillna(np.inf)
    return np.asarray((blocks["kind"] == Kind.GAP) & (blocks["phase"] == "other") & after)


def _least_ms(facts: Facts, own: pd.DataFrame, updates: float) -> float:
    """Return the minimum time that these updates take if each updates all parameters at once.

    It consists of the time for memory traffic and a cost per parameter.
    """
    moments = bool(found(own["op"], _ADAM.match).any())
    known = sum(int(part.get("tensors") or 0) for part in facts.optimizers)
    tensors = known * updates or float(own["op"].value_counts().max()) / facts.steps
    bare = facts.bare_op_ns or _BARE_NS
    least = tensors * bare / 1e6 * (_PER_TENSOR_WITH_STATE if moments else _PER_TENSOR)
    roofline, modules = facts.figures.roofline, facts.recording.modules
    if roofline is not None and roofline.bandwidth:
        held = float(modules.loc[modules["parent"] < 0, "parameter_bytes"].sum())
        least += updates * held * (_MOVED_WITH_STATE if moments else _MOVED) / roofline.bandwidth * 1e3
    return least
