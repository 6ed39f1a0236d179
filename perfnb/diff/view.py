"""Create documents that show two profiles, traces or step times side by side, with everything that changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.diff.layers import PLACE, ProfileDiff, layer_tree
from perfnb.diff.step_times import StepChange
from perfnb.diff.traces import ONLY_A, ONLY_B, TraceDiff
from perfnb.draw import palette
from perfnb.draw.document import (
    Bar,
    Bars,
    Cell,
    Column,
    Document,
    Effect,
    Effects,
    Figure,
    Nesting,
    Part,
    Section,
    State,
    Table,
    Verdict,
)
from perfnb.gpu.tab import shape_words

#: If less than this share of either trace's time is in operators that both have in common, the traces may not be from
#: the same model.
_ALIKE = 0.5
_VERDICTS: dict[str, tuple[State, str]] = {
    "faster": ("good", "Faster"),
    "slower": ("bad", "Slower"),
    "same": ("none", "No difference that matters"),
    "inconclusive": ("open", "No clear difference"),
}
_SIDES = (("baseline", "a"), ("candidate", "b"))
_FIGURES = {
    "total": "from first work to last",
    "busy": "busy",
    "computation": "computing",
    "communication": "communicating",
    "memcpy": "copying",
    "idle": "idle",
}
_HOST = Column("on the host", "ms", 3, help="change in the row's own host time")
_CHANGE = (
    *(Column(side, "ms") for side, _ in _SIDES),
    Column("change", "ms", help="candidate minus baseline"),
    Column("ratio", "ratio", priority=1, help="candidate divided by baseline"),
)
#: A kernel's name, after its return type, its namespaces and a mangled prefix, and before its arguments. Templates with
#: generic names (``Kernel``, ``Kernel2``) are named by their first argument.
_KERNEL = re.compile(
    r"(?:void )?(?:(?:\w+|\(anonymous namespace\))::)*(?:_ZN?[A-Za-z0-9_]*?\d+(?=[a-z]))?(?:Kernel\d*<)?([^<(>,]+)"
)


def step_verdict(change: StepChange) -> Verdict:
    """Return a verdict on the change in step time, which was not measured in pairs."""
    found, step = change.found, "a traced step" if change.kind == "traced" else "a step"
    if found is None:
        return Verdict("none", "Nothing to compare: at least one side has no step times")
    effect = fmt.with_interval(fmt.ratio(found.ratio), found.ratio, found.ratio_ci)
    percent = f"{fmt.share(abs(found.ratio - 1))} {'less' if found.ratio < 1 else 'more'}"
    effect = f"{step} takes {effect} the baseline's time, {percent}, not measured in pairs"
    if found.ratio_ci is None:
        few = f"An interval needs 6 {change.kind} steps of each."
        counts = f"The baseline has {change.a.steps:,}, and the candidate has {change.b.steps:,}."
        return Verdict("open", f"No verdict: {effect}", f"{few} {counts}")
    why = "Traced steps include the overhead of the profiler." if change.kind == "traced" else ""
    pairs = "The machine may have drifted in between. To be sure, measure both in pairs with perfnb.ab_test."
    state, word = _VERDICTS[found.verdict]
    return Verdict(state, f"{word}: {effect}", why, pairs)


def step_document(change: StepChange, names: tuple[str, str]) -> Document:
    """Return a document about two step times, which contains only a verdict and figures."""
    return Document(
        "comparison of step times",
        " against ".join(reversed(names)),
        verdict=step_verdict(change),
        figures=tuple(_step_figures(change)),
        sections=tuple(_effects(change)),
    )


def _step_figures(change: StepChange) -> Iterator[Figure]:
    for (side, _), times in zip(_SIDES, (change.a, change.b), strict=True):
        basis = f"median of {fmt.counted(times.steps, f'{change.kind} step')}"
        yield Figure(f"{side} step", times.median_ms, "ms", times.ci_ms, basis, times.samples_ms)


def comparison_document(diff: ProfileDiff, traces: TraceDiff | None = None) -> Document:
    """Return a document with the verdict, the phases, the layers and, if both have traced steps, the operators."""
    verdict = Verdict("none", "") if diff.step is None else _with_phase(step_verdict(diff.step), diff.phases)
    figures = [] if diff.step is None else list(_step_figures(diff.step))
    peaks = diff.a_peak_bytes, diff.b_peak_bytes
    if None not in peaks:
        figures += [Figure(f"{side} peak memory", peak, "bytes") for (side, _), peak in zip(_SIDES, peaks, strict=True)]
    return Document(
        "comparison of profiles",
        f"{diff.b_name} against {diff.a_name}",
        verdict=verdict,
        figures=tuple(figures),
        facts=tuple(_facts(diff, traces)),
        sections=tuple(_sections(diff, traces)),
        notes=() if traces is None else tuple(_notes(traces)),
    )


def _with_phase(verdict: Verdict, phases: pd.DataFrame) -> Verdict:
    """Add the phase that changed the most to the verdict."""
    changes = phases["grew_ms"].dropna().abs()
    if changes.empty or not changes.max() > 0:
        return verdict
    phase = str(changes.idxmax())
    row, word = phases.loc[phase], palette.mark(phase).word
    most = f"The phase that changed most is {word}: {fmt.duration(row['ms_a'])} → {fmt.duration(row['ms_b'])}."
    return replace(verdict, why=f"{verdict.why} {most}".strip())


def _facts(diff: ProfileDiff, traces: TraceDiff | None) -> Iterator[str]:
    lacking = [int(diff.layers[side].isna().sum()) for side in ("b", "a")]
    if any(lacking):
        yield f"{fmt.counted(lacking[0], 'layer')} only in the baseline, {lacking[1]:,} only in the candidate"
    if traces is not None:
        a, b = traces.steps
        yield f"{fmt.counted(a, 'traced step')} of the baseline and {b:,} of the candidate; all times are per step"


def _sections(diff: ProfileDiff, traces: TraceDiff | None) -> Iterator[Section]:
    gpu = None if traces is None else traces.gpu_time
    busy = (None, None) if gpu is None else gpu.loc["busy", ["ms_a", "ms_b"]]
    yield from _effects(diff.step, ("peak memory", diff.a_peak_bytes, diff.b_peak_bytes), ("GPU busy", *busy))
    sides = [(side, diff.phases[f"ms_{letter}"].dropna()) for side, letter in _SIDES]
    bars = [
        Bar(side, tuple(Part(palette.mark(str(name)), float(ms)) for name, ms in phases.items() if ms > 0))
        for side, phases in sides
    ]
    yield Bars("Phases of a traced step, on the host", "ms", tuple(bars))
    yield _layers(diff)
    if traces is not None:
        yield _operators(traces)
    if gpu is not None:
        rows = [(_FIGURES[str(name)], *_changed(row["ms_a"], row["ms_b"])) for name, row in gpu.iterrows()]
        known = [row for row in rows if row[1] or row[2]]
        yield Table("One GPU", (Column("figure"), *_CHANGE), known, noun="figure")
    yield _findings(diff.findings)


def _effects(change: StepChange | None, *others: tuple[str, Any, Any]) -> Iterator[Effects]:
    rows = list[Effect]()
    if change is not None and (found := change.found):
        rows.append(Effect("step time", found.ratio, found.ratio_ci, found.verdict if found.ratio_ci else ""))
    for label, a, b in others:
        before, after = fmt.known(a), fmt.known(b)
        if before and after is not None:
            rows.append(Effect(label, after / before))
    if rows:
        yield Effects("Candidate against baseline", tuple(rows), head="figure", key="effects")


def _layers(diff: ProfileDiff) -> Table:
    """Return all layers as a tree, with the largest changes first."""
    table = diff.layers
    both, own = ("gpu_ms", "grew_gpu_ms") if diff.on_gpu else ("total_ms", "grew_ms")
    parents, weights = layer_tree(diff)
    rows, names = list[Any](), list[str]()
    for parent, row in zip(parents, table.to_dict("records"), strict=True):
        known = [str(row[side]) for side in ("a", "b") if not pd.isna(row[side])]
        above = "" if parent < 0 else names[parent]
        names.append(known[0])
        lacking = next((side for side in ("a", "b") if pd.isna(row[side])), "")
        rows.append(
            (
                _arrow(name.removeprefix(f"{above}.") for name in known),
                *_changed(row[f"{both}_a"], row[f"{both}_b"], lacking),
                fmt.known(row[own]),
                fmt.known(row["grew_ms"]) if diff.on_gpu else None,
                "by place" if row["matched"] == PLACE else "",
            )
        )
    own_change = Column("own change", "ms", 2, help="without the layers inside")
    return Table(
        f"Layers, {'GPU' if diff.on_gpu else 'host'} time, largest changes first",
        (Column("layer"), *_CHANGE, own_change, _HOST, Column("matched", priority=4)),
        rows,
        Nesting(parents, weights),
        noun="layer",
        names=names,
        key="layers",
    )


def _changed(a: Any, b: Any, lacking: str = "") -> tuple[Cell, ...]:
    """Return the cells for two times and their change. A part that is missing on one side took no time there."""
    times = fmt.known(a), fmt.known(b)
    before, after = (time or 0.0 for time in times)
    change = None if times == (None, None) else after - before
    shown = ("none" if side == lacking else time for side, time in zip(("a", "b"), times, strict=True))
    return (*shown, change, after / before if None not in times and before > 0 else "")


def _operators(diff: TraceDiff) -> Table:
    what = "gpu_ms" if diff.on_gpu else "host_ms"
    rows, details = list[Any](), list[str]()
    calls = [diff.operators[f"calls_{side}"].astype("Float64").fillna(0.0) for side in ("a", "b")]
    changed = (diff.operators["grew_ms"].fillna(0.0) != 0) | ((calls[0] - calls[1]).abs() > 1e-9)
    for row in diff.operators[changed].to_dict("records"):
        op = _arrow(str(row[f"op_{side}"]) for side in ("a", "b") if not pd.isna(row[f"op_{side}"])) or str(row["op"])
        lacking = {ONLY_A: "b", ONLY_B: "a"}.get(str(row["matched"]), "")
        times = _changed(row[f"{what}_a"], row[f"{what}_b"], lacking)
        on_host = fmt.known(row["grew_host_ms"]) if diff.on_gpu else None
        rows.append((f"{op} {shape_words(row['shapes'])}".strip(), *times, on_host))
        kernels = [[*dict.fromkeys(map(_short_kernel, row[f"kernels_{side}"]))] for side in ("a", "b")]
        named = _arrow(fmt.named(names) or "none" for names in kernels) if any(kernels) else ""
        details.append(" · ".join(filter(None, (_where(row), named))))
    return Table(
        f"Ops by change in {'GPU' if diff.on_gpu else 'host'} time, summed over all layers",
        (Column("op and input shapes"), *_CHANGE, _HOST),
        rows,
        details=details,
        noun="op",
        key="ops",
    )


def _where(row: Any) -> str:
    calls = _arrow(fmt.count(row[f"calls_{side}"]) for side in ("a", "b") if not pd.isna(row[f"calls_{side}"]))
    layers = int(fmt.known(row["layers"]) or 0)
    words = f"{calls} call{'s' * (calls != '1')}" if calls else ""
    return f"{words} in {fmt.counted(layers, 'layer')}".strip() if layers else words


def _findings(table: pd.DataFrame) -> Table:
    """Return the findings of both profiles, and show which findings are new in the candidate and which are gone."""
    words = {(True, True): "in both", (True, False): "gone", (False, True): "new"}
    rows = [
        (str(name), words[bool(row["in_a"]), bool(row["in_b"])], fmt.known(row["ms_a"]), fmt.known(row["ms_b"]))
        for name, row in table.iterrows()
    ]
    columns = (Column("finding"), Column("in the candidate"), *(Column(f"{side}, up to", "ms") for side, _ in _SIDES))
    return Table("Findings, and the most that removing each could save", columns, rows, noun="finding", key="findings")


def _notes(diff: TraceDiff) -> Iterator[str]:
    if any(share is not None and share < _ALIKE for share in diff.alike):
        first, second = map(fmt.share, diff.alike)
        yield (
            f"Only {first} of the baseline's and {second} of the candidate's time is in ops that the other has in the "
            "same layer or with the same input shapes. The two do not seem to run the same model on the same input, "
            "so the differences may not be meaningful."
        )
    if diff.on_gpu:
        yield "Op times are GPU times, which are the sums of all kernels, copies and memsets launched inside the ops."
    elif len(diff.kernels):
        yield "Op times are host times, because only one of the two traces contains GPU work."
    for lacking, things, rest in (
        (diff.unmarked, "marked steps", "such a trace counts as one step"),
        (diff.without_shapes, "input shapes", "ops are matched by name, layer and order"),
        (diff.without_layers, "layers", "ops are matched by name, shapes and order"),
    ):
        if any(lacking):
            who = "Neither has" if all(lacking) else f"The {'baseline' if lacking[0] else 'candidate'} has no"
            yield f"{who} {things}: {rest}."


def _arrow(words: Iterable[str]) -> str:
    """Return ``first → second``, or a single word if both are equal."""
    return " → ".join(dict.fromkeys(words))


def _short_kernel(name: object) -> str:
    found = _KERNEL.match(str(name)[:1000])  # a malicious name may be very long
    return (found[1] if found else str(name)).strip()[:40]
