"""Find problems with compiled code: graph breaks, compilation in timed steps, and regions that are too small."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.compiled.runs import region_runs
from perfnb.compiled.tables import place_in_words
from perfnb.findings.facts import Facts, shared, typical
from perfnb.findings.finding import Finding, rows, rule
from perfnb.findings.rules.repeated import model_calls
from perfnb.recording.compiled_layers import CompiledCode, region_ids
from perfnb.recording.nesting import NONE, Bools, Floats, Ints
from perfnb.trace_names import REGION

#: Share of a region's work in kernels above which the time of entering it is comparable to that work.
_COMPARABLE = 0.5
#: Nanoseconds between regions below which there is hardly any user code.
_SHORT_NS = 200_000
#: The number of places and functions that are named.
_MOST = 3
_PARTS = "entering them, in the code between them, and in generated kernels that could be fused across it"
_MEASURED = "Regions and kernels were measured while they were traced, which makes entering a region slower."
#: The recommendation for the reason of a graph break or for its line; the first that fits.
_CURES = (
    (r"graph_break\(\)", "remove this call"),
    (r"\bprint\(|\blog(?:ger|ging)?\.", "print or log outside the compiled code"),
    (r"[Dd]ata-dependent", "choose between tensors with torch.where, or check the value outside the compiled code"),
    (r"Tensor\.(?:item|tolist|numpy)", "keep the value in a tensor until the compiled code has returned"),
    (
        r"skipped|disable|builtin|[Uu]nsupported|trace",
        "call this function outside the compiled code, or make it an operator with torch.library.custom_op",
    ),
)
_OTHER_CURE = (
    "rewrite this line so that torch.compile can trace it; with fullgraph=True, it raises an error with the full reason"
)
#: The recommendation for a failed guard; the first that fits.
_GUARD_CURES = (
    (
        r"size mismatch|\.size\(|shape|stride",
        "Give all batches the same shape (drop_last=True of a DataLoader, padding), or compile with dynamic=True.",
    ),
    (r"requires_grad|grad_mode|training", "Use the same mode in every step, or compile a separate copy for each mode."),
    (r"==", "Keep the changing value in a tensor, or outside the compiled code."),
)
_WARM_UP = (
    "Run more steps before the timed ones, so that all code has been compiled by then. If every step compiles code, "
    "call torch.compile only once, before the steps, and do not discard its code, for example with "
    "torch.compiler.reset."
)
_NUMBER = re.compile(r"^[0-9]{1,9}/[0-9]{1,9}: ")
_OTHER_GUARD = "Make sure that the value checked by this guard is the same in every step."


@shared
def _runs(facts: Facts) -> pd.DataFrame | None:
    """Return the compiled regions in the traced steps on the CPU, with the break that ends each of them.

    ``broke_at`` is empty for a region without a break. Times are medians over steps that did the same work, and 0 if
    they are unknown.
    """
    record = facts.recording.compiled
    if record is None or facts.gpu is not None:
        return None
    runs = region_runs(facts.recording, record)
    kind, step = pd.factorize(runs["region"])[0], runs["step"].to_numpy()
    for name in runs.columns[runs.columns.str.endswith("_ns")]:
        runs[name] = typical(runs[name].fillna(0.0).to_numpy(dtype=float), step, kind)
    code = record.code.drop_duplicates("region").set_index("region")[["broke_at", "broke", "function"]]
    runs = runs.join(code, on="region").fillna(dict.fromkeys(code.columns, ""))
    return runs if len(runs) else None


def _kernels_known(facts: Facts) -> bool:
    return facts.recording.compiled is not None and len(facts.recording.compiled.kernels) > 0


def _cost_ms(facts: Facts, runs: pd.DataFrame, group: Ints, code: Floats, entered: Bools) -> Floats:
    """Return the cost of each run in milliseconds of a timed step, compared with one region for each group of runs.

    It consists of the code around the run and between it and the next run in its group, of entering the run, and of the
    generated kernels next to the seams between the runs, because a single kernel could replace them.

    Parameters
    ----------
    group : ndarray
        The group of each run, or `NONE` for a run that is not in any group.
    code : ndarray
        The time of code in forward, in nanoseconds.
    entered : ndarray
        Whether a run must be entered in any case, even though it is not the first in its group.
    """
    following = _following(group, runs["has_graph"].to_numpy() & (group != NONE))
    seam, after = following != NONE, np.isin(np.arange(len(runs)), following)
    code = code + np.where(seam, runs["back_gap_ns"], 0.0)
    entering = np.where(after | entered, runs["enter_ns"] + runs["back_enter_ns"], 0.0)
    kernels = np.zeros(len(runs))
    for whole, last, first in (("kernel_ns", "tail_ns", "head_ns"), ("back_kernel_ns", "back_head_ns", "back_tail_ns")):
        before, behind = runs[last].to_numpy()[seam], runs[first].to_numpy()[following[seam]]
        fuses = (before > 0) & (behind > 0)
        own = np.zeros(len(runs))
        own[seam] += np.where(fuses, before, 0.0)
        own[following[seam]] += np.where(fuses, behind, 0.0)
        kernels += np.minimum(own, runs[whole])
    # Tracing slows down torch's own code, which is all that a short gap contains, but hardly Python code and kernels.
    slowed, plain = facts.per_step(1.0), facts.between_ops_ms(1.0)
    cost: Floats = code * np.where(code < _SHORT_NS, slowed, plain) + entering * slowed + kernels * plain
    return cost * min(facts.step_ms / cost.sum(), 1.0) if cost.any() else cost


def _following(group: Ints, has: Bools) -> Ints:
    """Return, for each run, the next run in the same group; `NONE` if there is none."""
    following, rows = np.full(len(group), NONE), np.flatnonzero(has)
    same = group[rows[1:]] == group[rows[:-1]]
    following[rows[:-1][same]] = rows[1:][same]
    return following


@rule("graph breaks", "Slowed by graph breaks", "compiling across them", worth=0.03)
def graph_breaks(facts: Facts) -> Iterator[Finding]:
    """Find regions that would be part of a single region if there were no graph breaks."""
    runs, left = _runs(facts), _left_uncompiled(facts)
    if len(left):
        yield _uncompiled(facts, left)
    if runs is None or not (broken := runs["broke_at"] != "").any():
        return
    chosen = runs["group"].isin(runs["group"][broken]).to_numpy()
    group = _without_breaks(facts, runs, chosen)
    ends = np.append(group[1:] != group[:-1], True)
    code = np.where(chosen, np.where(ends, runs["rest_ns"], runs["gap_ns"]), 0.0)
    cost = _cost_ms(facts, runs, np.where(chosen, group, NONE), code, np.zeros(len(runs), dtype=bool))
    at = runs["broke_at"].where(broken).groupby(group)
    by_place = pd.Series(cost[chosen]).groupby(at.ffill().fillna(at.bfill())[chosen].to_numpy()).sum()
    places = by_place.sort_values(ascending=False).index.tolist()
    reasons = runs[broken].drop_duplicates("broke_at").set_index("broke_at")["broke"]
    known = _kernels_known(facts)
    named = "; ".join(
        f"{place_in_words(place)} ({reasons[place]}"
        f"{f', up to {fmt.duration(by_place[place])}' if known and len(places) > 1 else ''})"
        for place in places[:_MOST]
    )
    more = f"; and at {fmt.counted(len(places) - _MOST, 'more place')}" if len(places) > _MOST else ""
    yield Finding(
        f"Graphs break at {named}{more}. Therefore {fmt.counted(chosen.sum() / facts.steps, 'compiled region')} per "
        f"step run in place of {len(np.unique(group[chosen])) / facts.steps:,.0f}"
        + (f", which costs up to {facts.of_step(cost.sum())} in {_PARTS}." if known else "."),
        float(cost.sum()) if known else None,
        _cures((place, reasons[place]) for place in places[:_MOST])
        + ("" if known else " To find out the cost, call perfnb.compile_for_profiling() before the code is compiled."),
        "medium",
        "The code between regions and the time to enter them were measured while they were traced. It is not known how "
        "much faster the kernels next to a break would be without it.",
        "How much kernels further from a break would gain, and how much the code between regions would cost inside a "
        "graph.",
        rows("op", [f"{REGION}{name}" for name in runs["region"][broken].unique()[:_MOST]]),
    )


def _without_breaks(facts: Facts, runs: pd.DataFrame, broken: Bools) -> Ints:
    """Return, for each run, the number of its region if there were no graph breaks.

    If a graph breaks in a function that torch cannot resume, torch leaves this function and the enclosing functions
    uncompiled. Groups with breaks within one call to a model therefore belong together.
    """
    group, call_ends = runs["group"].to_numpy(), np.sort(model_calls(facts)["end"].to_numpy())
    call = np.searchsorted(call_ends, runs["start"].to_numpy(), side="right")
    in_call = (np.diff(call) == 0) & (np.diff(runs["step"]) == 0) & (call[1:] < len(call_ends))
    joined = broken[1:] & broken[:-1] & in_call
    return np.append(0, np.cumsum((group[1:] != group[:-1]) & ~joined))


def _left_uncompiled(facts: Facts) -> pd.DataFrame:
    """Return the functions that torch left uncompiled on the CPU because it cannot resume after a graph break."""
    record = facts.recording.compiled
    if record is None or facts.gpu is not None:
        return pd.DataFrame(columns=CompiledCode._fields)
    code = record.code
    ran = code["region"].isin(region_ids(facts.recording.events))
    return code[(code["broke"] != "") & code["guards"].isna() & ~ran].drop_duplicates("broke_at").head(_MOST)


def _uncompiled(facts: Facts, left: pd.DataFrame) -> Finding:
    """Describe functions that torch left uncompiled. Only the functions that they call are compiled."""
    small = _small(facts)
    named = "; ".join(
        f"{function} ({place_in_words(line)}), because its graph breaks at {place_in_words(broke_at)} ({broke})"
        for function, line, broke_at, broke in left[["function", "line", "broke_at", "broke"]].itertuples(index=False)
    )
    parts = f" The functions that it calls are compiled in parts: {small.evidence}" if small is not None else ""
    return Finding(
        "torch.compile leaves a function uncompiled if it cannot resume after a graph break, such as in a loop or a "
        f"with block: {named}.{parts}",
        None if small is None else small.bound_ms,
        _cures(zip(left["broke_at"], left["broke"], strict=True)),
        "medium",
        f"torch reported the break. {_MEASURED}",
        "How much compiling the rest of the function would save.",
        () if small is None else small.rows,
    )


def _cures(breaks: Iterable[tuple[str, str]]) -> str:
    """Return the recommendations for graph breaks, given their places and reasons."""
    return " ".join(
        f"At {place_in_words(place)}: "
        f"{next((cure for pattern, cure in _CURES if re.search(pattern, reason)), _OTHER_CURE)}."
        for place, reason in breaks
    )


@shared
def _small(facts: Facts) -> Finding | None:
    """Describe the regions without graph breaks that take about as long to enter as their kernels take."""
    runs = _runs(facts)
    if runs is None or not _kernels_known(facts):
        return None
    alone = ((runs.groupby("group")["group"].transform("size") == 1) & (runs["broke_at"] == "")).to_numpy()
    work = (runs["kernel_ns"] + runs["back_kernel_ns"]).to_numpy()
    around = (runs["lookup_ns"] + runs["rest_ns"]).to_numpy()
    small = alone & (work > 0) & (around + runs["enter_ns"] + runs["back_enter_ns"] > _COMPARABLE * work).to_numpy()
    if not small.any():
        return None
    # Two regions could be compiled as one if the code between them takes no longer than the regions themselves.
    took, apart = (runs["lookup_ns"] + runs["own_ns"]).to_numpy(), runs["apart_ns"].to_numpy()[:-1]
    same_step = np.diff(runs["step"]) == 0
    joined = same_step & alone[:-1] & alone[1:] & (small[:-1] | small[1:]) & (apart <= took[:-1] + took[1:])
    between = np.append(np.where(joined, np.maximum(apart, 0.0), 0.0), 0.0)
    cost = _cost_ms(
        facts, runs, np.append(0, np.cumsum(~joined)), between + np.where(small, around, 0.0), entered=small
    )
    functions = runs[small].groupby("function")["rest_ns"].sum().nlargest(_MOST).index
    named = ", ".join(filter(None, functions))
    return Finding(
        f"{fmt.counted(small.sum() / facts.steps, 'compiled region')} per step{f' ({named})' if named else ''} "
        f"run kernels for {fmt.duration(facts.between_ops_ms(float(work[small].sum())))}, forward and backward, but "
        f"cost up to {fmt.duration(float(cost.sum()))} in {_PARTS}.",
        float(cost.sum()),
        "Compile the code that calls these regions, so that one larger region is entered instead of many. If there is "
        "only one, give it more work per entry, such as larger batches.",
        "medium",
        _MEASURED,
        "Whether the code that calls the regions can be compiled as a whole.",
        rows("op", [f"{REGION}{name}" for name in runs["region"][small].unique()[:_MOST]]),
    )


@rule("small regions", "Slowed by entering compiled regions", "entering fewer and larger ones", worth=0.1)
def small_regions(facts: Facts) -> Iterator[Finding]:
    """Find regions that are too small to be worth compiling, unless they are small because of a graph break."""
    if (small := _small(facts)) is not None and not len(_left_uncompiled(facts)):
        yield small


@rule("recompilation", "Slowed by recompilation", "compiling only once", timed_only=True, worth=0.02)
def recompilation(facts: Facts) -> Iterator[Finding]:
    """Find timed steps during which torch.compile compiled code."""
    known, per_step = facts.compilations, facts.compiling_ms
    steps = np.flatnonzero(per_step)
    if not len(steps):
        return
    again = known[known["guard"] != ""] if (known["guard"] != "").any() else known
    by_cause = again.groupby(["function", "line", "guard"], sort=False)["ms"].sum()
    function, line, guard = map(str, by_cause.index[int(by_cause.to_numpy().argmax())])
    what = f"{function} ({place_in_words(line)})" if function else "code"
    why = f"again, because a guard failed: {_guard(guard)}." if guard else "for the first time."
    bound, once = float(per_step.mean()), len(steps) == 1
    took = f"On average over all steps, compiling took {fmt.duration(bound)}."
    yield Finding(
        f"In {len(steps)} of {len(per_step)} timed steps, torch.compile compiled {what} {why} "
        + (f"This took {fmt.duration(float(per_step.sum()))}." if once else took),
        None if once else bound,
        next((cure for pattern, cure in _GUARD_CURES if re.search(pattern, guard)), _OTHER_GUARD)
        if guard
        else _WARM_UP,
        "low" if once else "high",
        "A single step with a compilation does not show how often it recurs."
        if once
        else "torch timed each compilation in the timed steps.",
        "Code that runs uncompiled because it has reached torch's limit of recompilations.",
        rows("step", steps[:5]),
        of_ms=max(facts.step_ms, float(facts.timed_ms.mean())),
    )


def _guard(text: str) -> str:
    """Return a guard without its region's number, for example ``k == 1 (h = h * k, model.py:11)``."""
    guard, *places = _NUMBER.sub("", text.partition(" (HINT")[0], count=1).split(" # ")
    where = ", ".join(place_in_words(place.partition(" in ")[0]) if place is places[-1] else place for place in places)
    return f"{guard.strip()} ({where.strip()})" if where else guard.strip()
