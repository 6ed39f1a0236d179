"""Find problems with compiled code: graph breaks, compilation in timed steps, and regions that are too small."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.compiled.runs import RegionRuns, region_runs
from perfnb.compiled.tables import place_in_words
from perfnb.findings.facts import Facts, shared, typical
from perfnb.findings.finding import Finding, Row, rows, rule
from perfnb.findings.proposed_code import lever_line
from perfnb.findings.rules.repeated import model_calls
from perfnb.recording.compiled_layers import CompiledCode, region_ids
from perfnb.recording.nesting import NONE, Bools, Floats, Ints
from perfnb.recording.text import TEXT
from perfnb.trace_names import REGION

#: Share of a region's work in kernels above which the time of entering it is comparable to that work.
_COMPARABLE = 0.5
#: Nanoseconds between regions below which there is hardly any user code.
_SHORT_NS = 200_000
#: The number of places and functions that are named.
_MOST = 3
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
_WARM_UP = "Run more steps before the timed ones, so that all code has been compiled by then."
_COMPILE_ONCE = (
    "Call torch.compile only once, before the steps, and do not discard its code, for example with "
    f"torch.compiler.reset. If no step does either of these: {_WARM_UP[0].lower()}{_WARM_UP[1:]}"
)
_NUMBER = re.compile(r"^[0-9]{1,9}/[0-9]{1,9}: ")
_OTHER_GUARD = "Make sure that the value checked by this guard is the same in every step."


@dataclass(frozen=True)
class _Runs:
    """The compiled regions in the traced steps on the CPU, with median times over steps that did the same work."""

    found: RegionRuns
    #: For each run: the location and the reason of its graph break, which are empty if there is none, and its function.
    broke_at: np.ndarray
    broke: np.ndarray
    function: np.ndarray
    kernels_known: bool

    def ns(self, name: str) -> Floats:
        """Return a column of the runs, with 0 for unknown values."""
        runs = self.found.runs
        values = runs[name].fillna(0.0).to_numpy(dtype=float)
        return typical(values, runs["step"].to_numpy(), pd.factorize(runs["region"])[0])


@shared
def _runs(facts: Facts) -> _Runs | None:
    record = facts.recording.compiled
    if record is None or facts.gpu is not None:
        return None
    found = region_runs(facts.recording, record)
    code = record.code.drop_duplicates("region").set_index("region").reindex(found.runs["region"])
    at, broke, function = (code[name].fillna("").to_numpy(dtype=object) for name in ("broke_at", "broke", "function"))
    return _Runs(found, at, broke, function, len(record.kernels) > 0) if len(found.runs) else None


class _Costs(NamedTuple):
    """The cost of the seams between regions, in milliseconds of a timed step."""

    code: float
    entering: float
    #: Generated kernels on both sides of a seam.
    kernels: float

    @property
    def whole(self) -> float:
        return sum(self)


def _costs(facts: Facts, chosen: Bools, code: Floats, entering: Floats, kernels: Floats) -> _Costs:
    """Return the costs of some runs, given nanoseconds by run.

    Tracing slows down torch's own code but hardly affects Python code and kernels. A short gap between regions contains
    only torch's own code.
    """
    short = code < _SHORT_NS
    cost = _Costs(
        facts.between_ops_ms(float(code[chosen & ~short].sum())) + facts.per_step(float(code[chosen & short].sum())),
        facts.per_step(float(entering[chosen].sum())),
        facts.between_ops_ms(float(kernels[chosen].sum())),
    )
    return _Costs(*(part * min(facts.step_ms / cost.whole, 1.0) for part in cost)) if cost.whole else cost


@rule("graph breaks", "Slowed by graph breaks", "compiling across them", worth=0.03)
def graph_breaks(facts: Facts) -> Iterator[Finding]:
    """Find regions that would be part of a single region if there were no graph breaks."""
    runs, left = _runs(facts), _left_uncompiled(facts)
    if len(left):
        yield _uncompiled(facts, left)
    if runs is None:
        return
    frame, broken = runs.found.runs, (runs.broke_at != "") & ~np.isin(runs.broke_at, left["broke_at"])
    if not broken.any():
        return
    chosen = np.isin(frame["group"], frame["group"][broken])
    group, ends = _without_breaks(facts, frame, chosen)
    following = _following(group, chosen & frame["has_graph"].to_numpy())
    code = np.where(ends, runs.ns("rest_ns"), runs.ns("gap_ns")) + np.where(
        following != NONE, runs.ns("back_gap_ns"), 0.0
    )
    # One of the regions must be entered in any case.
    entering = np.where(np.isin(np.arange(len(group)), following), runs.ns("enter_ns") + runs.ns("back_enter_ns"), 0.0)
    kernels = runs.found.beside_ns(following)
    by_group = pd.Series(runs.broke_at, dtype=TEXT).where(broken).groupby(group)
    at = by_group.ffill().fillna(by_group.bfill()).to_numpy(dtype=object)
    by_place = {
        place: _costs(facts, chosen & (at == place), code, entering, kernels).whole
        for place in map(str, set(at[chosen]))
    }
    places = sorted(by_place, key=by_place.__getitem__, reverse=True)
    reasons = {place: str(runs.broke[runs.broke_at == place][0]) for place in places}
    cost, groups = _costs(facts, chosen, code, entering, kernels), len(np.unique(group[chosen])) / facts.steps
    each = len(places) > 1 and runs.kernels_known
    named = "; ".join(
        f"{place_in_words(place)} ({reasons[place]}){f', up to {fmt.duration(by_place[place])}' if each else ''}"
        for place in places[:_MOST]
    )
    more = f"; and at {fmt.counted(len(places) - _MOST, 'more place')}" if len(places) > _MOST else ""
    split = f"{fmt.counted(chosen.sum() / facts.steps, 'compiled region')} per step run in place of {groups:,.0f}"
    parts = (
        f": {fmt.duration(cost.code)} in the code between them, {fmt.duration(cost.entering)} in entering them, and "
        f"{fmt.duration(cost.kernels)} in generated kernels next to a break, which could be fused across it."
    )
    ask = " To find out how much this costs, call perfnb.compile_for_profiling() before the code is compiled."
    yield Finding(
        f"Graphs break at {named}{more}. Therefore {split}"
        + (f", which costs up to {facts.of_step(cost.whole)}{parts}" if runs.kernels_known else "."),
        cost.whole if runs.kernels_known else None,
        " ".join(f"At {place_in_words(place)}: {_cure(reasons[place])}." for place in places[:_MOST])
        + ("" if runs.kernels_known else ask),
        "medium",
        "The code between regions and the time to enter them were measured while they were traced. It is not known how "
        "much faster the kernels next to a break would be without it.",
        "How much kernels further from a break would gain, and how much the code between regions would cost inside a "
        "graph.",
        rows("op", [f"{REGION}{name}" for name in frame["region"][broken].unique()[:_MOST]]),
    )


def _left_uncompiled(facts: Facts) -> pd.DataFrame:
    """Return the functions that torch left uncompiled on the CPU because it cannot resume after a graph break.

    If regions in the steps end at the same break, the break is attributed to them: in that case torch does resume there
    and leaves only the enclosing functions uncompiled.
    """
    record = facts.recording.compiled
    code = pd.DataFrame(columns=CompiledCode._fields) if record is None or facts.gpu is not None else record.code
    ran = code["region"].isin(region_ids(facts.recording.events))
    resumed = code["broke_at"].isin(code.loc[ran & (code["broke"] != ""), "broke_at"])
    left: pd.DataFrame = code[(code["broke"] != "") & code["guards"].isna() & ~ran & ~resumed]
    return left


def _uncompiled(facts: Facts, left: pd.DataFrame) -> Finding:
    """Describe functions that torch left uncompiled.

    Only the functions that they call are compiled, as small regions.
    """
    small, first = _small(facts), left.drop_duplicates("broke_at").head(_MOST)
    named = "; ".join(
        f"{row['function']} ({place_in_words(row['line'])}), because its graph breaks at "
        f"{place_in_words(row['broke_at'])} ({row['broke']})"
        for _, row in first.iterrows()
    )
    parts = f" The functions that it calls are compiled in parts: {small.evidence}" if small is not None else ""
    return Finding(
        "torch.compile leaves a function uncompiled if it cannot resume after a graph break, such as in a loop or a "
        f"with block: {named}.{parts}",
        None if small is None else small.cost.whole,
        " ".join(f"At {place_in_words(row['broke_at'])}: {_cure(row['broke'])}." for _, row in first.iterrows()),
        "medium",
        "torch reported the break. Regions and kernels were measured while they were traced, which makes entering a "
        "region slower.",
        "How much compiling the rest of the function would save.",
        () if small is None else small.rows,
    )


def _without_breaks(facts: Facts, frame: pd.DataFrame, broken: Bools) -> tuple[Ints, Bools]:
    """Return, for each run, the number of its region if there were no graph breaks, and whether it is the last one.

    If a graph breaks in a function that torch cannot resume, torch leaves this function and the enclosing functions
    uncompiled. Groups with breaks within one call to a model therefore belong together. Other groups belong together if
    the gap between them is not longer than the groups themselves.
    """
    group, call_ends = frame["group"].to_numpy(), np.sort(model_calls(facts)["end"].to_numpy())
    call = np.searchsorted(call_ends, frame["start"].to_numpy(), side="right")
    in_call = (call[1:] == call[:-1]) & (call[1:] < len(call_ends))
    took = (frame["lookup_ns"] + frame["own_ns"]).groupby(group).transform("sum").to_numpy()
    close = in_call | (frame["apart_ns"].to_numpy()[:-1] <= took[1:] + took[:-1])
    joined = broken[1:] & broken[:-1] & frame["gap_ns"].notna().to_numpy()[:-1] & close
    ends = np.append((group[1:] != group[:-1]) & ~joined, True)
    return np.append(0, np.cumsum(ends[:-1])), ends


def _following(group: Ints, has: Bools) -> Ints:
    """Return, for each run, the next run in the same group; `NONE` if there is none."""
    following, rows = np.full(len(group), NONE), np.flatnonzero(has)
    same = group[rows[1:]] == group[rows[:-1]]
    following[rows[:-1][same]] = rows[1:][same]
    return following


def _cure(reason: str) -> str:
    return next((cure for pattern, cure in _CURES if re.search(pattern, reason)), _OTHER_CURE)


class _Small(NamedTuple):
    """Regions that are too small to be worth compiling."""

    evidence: str
    cost: _Costs
    #: Whether several of them could be compiled as one.
    joined: bool
    rows: tuple[Row, ...]


@shared
def _small(facts: Facts) -> _Small | None:
    """Return the regions without graph breaks that take about as long to enter as their kernels take."""
    runs = _runs(facts)
    if runs is None or not runs.kernels_known:
        return None
    frame = runs.found.runs
    group = frame["group"].to_numpy()
    alone = (np.bincount(group, minlength=len(frame))[group] == 1) & (runs.broke_at == "")
    forward, work = runs.ns("lookup_ns") + runs.ns("own_ns"), runs.ns("kernel_ns") + runs.ns("back_kernel_ns")
    entering = runs.ns("lookup_ns") + runs.ns("enter_ns") + runs.ns("rest_ns") + runs.ns("back_enter_ns")
    small = alone & (work > 0) & (entering > _COMPARABLE * work)
    if not small.any():
        return None
    # Two regions could be compiled as one if the code between them takes no longer than the regions themselves.
    apart, behind = runs.ns("apart_ns"), np.append(np.arange(1, len(frame)), NONE)
    close = frame["apart_ns"].notna().to_numpy() & (apart <= forward + forward[behind])
    joined = close & alone & alone[behind] & (small | small[behind])
    between = np.where(joined, np.maximum(apart, 0.0) + runs.ns("back_gap_ns"), 0.0)
    beside = runs.found.beside_ns(np.where(joined, behind, NONE))
    every = np.ones(len(frame), dtype=bool)
    cost = _costs(facts, every, between, np.where(small, entering, 0.0), beside)
    work_ms = facts.between_ops_ms(float(work[small].sum()))
    by_function = pd.Series(entering[small]).groupby(runs.function[small]).sum().nlargest(_MOST).index
    named = ", ".join(name for name in map(str, by_function) if name)
    seams = (
        f" Another {fmt.duration(cost.code)} is in the code between these regions, and {fmt.duration(cost.kernels)} in "
        "generated kernels that could be fused across it."
    )
    evidence = (
        f"{fmt.counted(small.sum() / facts.steps, 'compiled region')} per step{f' ({named})' if named else ''}: "
        f"{fmt.duration(work_ms)} in kernels, forward and backward, and {fmt.duration(cost.entering)} in "
        f"entering and leaving.{seams if joined.any() else ''}"
    )
    about = rows("op", [f"{REGION}{name}" for name in frame["region"][small].unique()[:_MOST]])
    return _Small(evidence, cost, bool(joined.any()), about)


def _words_of_small(facts: Facts) -> tuple[str, str]:
    small = _small(facts)
    if small is None or small.joined:
        return "Slowed by entering compiled regions", "entering fewer and larger ones"
    return "Slowed by entering a compiled region", "giving it more work per entry"


@rule("small regions", "Slowed by entering compiled regions", worth=0.1, words=_words_of_small)
def small_regions(facts: Facts) -> Iterator[Finding]:
    """Find regions that are too small to be worth compiling, unless they are small because of a graph break."""
    small = _small(facts)
    if small is None or len(_left_uncompiled(facts)):
        return
    yield Finding(
        small.evidence,
        small.cost.whole,
        "Compile the code that calls these regions, so that one larger region is entered instead of many."
        if small.joined
        else "Give the region more work per entry: larger batches, or more of the step. Otherwise, compare it with the "
        "uncompiled code, which may be just as fast.",
        "medium",
        "Regions and kernels were measured while they were traced, which makes entering a region slower.",
        "Whether the code that calls the regions can be compiled as a whole.",
        small.rows,
        code=_whole_model(facts) if small.joined else "",
    )


def _whole_model(facts: Facts) -> str:
    """Return the line that compiles a model if only parts of it are compiled.

    The result is empty if the line is unknown or would not apply.
    """
    modules = facts.recording.modules
    compiled = modules["compiled"].fillna(False).to_numpy(dtype=bool)
    roots = {facts.root(str(name)) for name in modules["name"][compiled]}
    own = set(modules["name"][compiled])
    known = [root for root in roots if root is not None and root not in own and facts.variable(root) == root]
    if len(roots) != 1 or not known or not facts.is_called(known[0]):
        return ""
    return lever_line("compile", known[0])


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
    others = f" {fmt.counted(len(by_cause) - 1, 'other compilation')} took less." if len(by_cause) > 1 else ""
    bound, once = float(per_step.mean()), len(steps) == 1
    took = f"On average over all steps, compiling took {fmt.duration(bound)}."
    yield Finding(
        f"In {len(steps)} of {len(per_step)} timed steps, torch.compile compiled {what} {why}{others} "
        + (f"This took {fmt.duration(float(per_step.sum()))}." if once else took),
        None if once else bound,
        next((cure for pattern, cure in _GUARD_CURES if re.search(pattern, guard)), _OTHER_GUARD)
        if guard
        else (_COMPILE_ONCE if len(steps) == len(per_step) else _WARM_UP),
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
