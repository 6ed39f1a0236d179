"""Find the lines of user code that take most of a phase's time, provided that stacks were sampled."""

from __future__ import annotations

import math
from collections.abc import Collection

from perfnb import quantities as fmt
from perfnb.findings.facts import Facts
from perfnb.recording.text import TEXT

#: At most this many functions are named, each of which must have at least this share of the time.
_MOST_NAMED, NAMED = 3, 0.1
#: Maximum length of a name and of a line of code.
_LONGEST, _LONGEST_CODE = 60, 80


def lines_in_words(facts: Facts, phases: Collection[str], bound_ms: float) -> str:
    """Name the user's functions with most of the sampled time in some phases, each with its heaviest line.

    Times are expressed as shares, because sampled and timed steps have different durations. They never exceed the share
    of the finding's bound. The result is empty if stacks were not sampled, or if no sample from these phases contains a
    user function.
    """
    table = facts.lines_of_code
    table = table[table["process"] == "step"]
    chosen = table[table["phase"].isin(list(phases))]
    whole, step_ms = float(chosen["self_ms"].sum()), float(table["self_ms"].sum())
    if whole <= 0:
        return ""
    chosen = chosen.assign(**{name: chosen[name].fillna("").astype(TEXT) for name in ("file", "function")})
    functions = chosen.groupby(["file", "function"], sort=False)["self_ms"].sum()
    functions = functions[functions >= NAMED * whole].sort_values(ascending=False, kind="stable").head(_MOST_NAMED)
    parts, most = [], facts.share(bound_ms)
    for (file, function), ms in zip(functions.index.tolist(), functions.tolist(), strict=True):
        mine = chosen[(chosen["file"] == file) & (chosen["function"] == function)]
        line = mine.iloc[int(mine["self_ms"].to_numpy().argmax())]
        where = fmt.place(short(file), int(line["line"]))
        if isinstance(line["code"], str) and line["code"]:
            where += f": {_cut(line['code'], _LONGEST_CODE)}"
        parts.append(f"{fmt.share(min(ms / step_ms, most))} of the step in {short(function)} ({where})")
    return f" Sampled: {', '.join(parts)}."


def not_below_samples(facts: Facts, phases: Collection[str], ms: float) -> float:
    """Return the time of work in some phases, or its sampled time if that is longer.

    `ms` is the time in the trace. Traced steps are corrected for tracing overhead, but with thousands of short ops, the
    overhead is about as large as the time of the ops themselves. Samples need no correction, because the work has the
    same share of the sampled phases as of the traced phases. The bound is based on the upper end of the 95 % interval
    for this share.
    """
    table = facts.lines_of_code
    table = table[table["process"] == "step"]
    whole = float(table["self_ms"].sum())
    traced_ms = sum(facts.typical_ms(phase) for phase in phases)
    if whole <= 0 or traced_ms <= 0:
        return ms
    share = min(float(table.loc[table["phase"].isin(list(phases)), "self_ms"].sum()) / whole, 1.0)
    samples = max(int(facts.meta.get("python", {}).get("samples", 0)), 1)
    share = min(share + 1.96 * math.sqrt(share * (1 - share) / samples), 1.0)
    return max(ms, share * facts.step_ms * min(ms / traced_ms, 1.0))


def short(name: str) -> str:
    """Return a function's name, with the beginning truncated if it is long."""
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
