"""``perfnb compare``: what changed between two profiles, traces, runs or timings; and a check for scripts and CI.

A and B are two profiles, two traces, two runs, or two saved step times; B is usually the later
one. Step times are compared by their medians, with a 95 % interval of the ratio.

--fail-if-slower PERCENT fails if the whole interval is above the limit: with 5, if its lower bound
is above 1.05. A change that noise explains does not fail. The interval covers the noise within
each run, not what changed on the machine in between, so leave room for that. Both need at least
six steps: timed ones, or traced ones where A or B is a trace.

examples:
  perfnb compare before.perfnb after.perfnb
  perfnb compare main.perfnb branch.perfnb --fail-if-slower 5
  perfnb compare v100.json.gz mi300.json.gz --html compared.html

exit codes: 0 compared, and not slower than allowed; 1 slower than allowed; 2 A or B cannot be
read or compared, or has too few steps for --fail-if-slower
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfnb import quantities as fmt
from perfnb.command.output import add_page_options, columns, say, say_json, write_page
from perfnb.command.sub_command import FAILED, SubCommand, WrongUse

if TYPE_CHECKING:
    from perfnb.diff.step_times import StepChange


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="The first.")
    parser.add_argument("b", metavar="B", help="The second, which is compared with the first.")
    parser.add_argument(
        "--fail-if-slower",
        metavar="PERCENT",
        type=_percent,
        help="Exit with 1 if B's steps are slower by more than this, with confidence.",
    )
    add_page_options(parser)


def _percent(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e6:
        raise ValueError
    return value


_percent.__name__ = "percentage"  # as argparse names it in its error


@dataclass(frozen=True)
class _Compared:
    """Two things compared: the median step times, and the result, which shows itself; ``None`` for two timings."""

    result: Any
    steps: str  # which were compared, as the JSON names them
    a_ms: float | None = None
    b_ms: float | None = None
    ratio: float | None = None
    ratio_ci: tuple[float, float] | None = None
    verdict: str | None = None
    words: str = ""  # on the step times, if the result's own text does not say enough
    too_few: str = ""  # why there is no interval


def _run(options: argparse.Namespace) -> int:
    from perfnb.diff.step_times import slower_by_more_than

    compared, limit = _compared(options.a, options.b), options.fail_if_slower
    slower = None if limit is None else slower_by_more_than(compared.ratio_ci, limit)
    if limit is not None and slower is None:
        raise WrongUse(f"--fail-if-slower needs an interval of the ratio: {compared.too_few}.")
    if options.json:
        _say_json(compared, limit, slower)
        return FAILED if slower else 0
    if options.html is None:
        _say(compared, options.a, options.b)
    elif compared.result is None:
        raise WrongUse("--html needs two profiles, traces or runs: step times have no page.")
    else:
        say(f"Written to {write_page(compared.result, options.html, 'comparison')}.")
    if compared.ratio_ci is not None and limit is not None:
        _say_lines(_judged(compared.ratio_ci, limit, bool(slower)))
    return FAILED if slower else 0


def _compared(a: str, b: str) -> _Compared:
    from perfnb.diff.step_times import step_change, step_change_of
    from perfnb.flame.host_profile import HostProfile
    from perfnb.loop.run import RunSummary
    from perfnb.profile.loading import load
    from perfnb.profile.profile import Profile
    from perfnb.profile.timing import Timing

    first, second = load(a), load(b)
    if isinstance(first, Profile) and isinstance(second, Profile):
        return _of_steps(first.compare(second), step_change_of(first.steps, second.steps))
    if isinstance(first, Timing) and isinstance(second, Timing):
        return _of_steps(None, step_change(first, second))
    if isinstance(first, RunSummary) and isinstance(second, RunSummary):
        runs = first.compare(second)
        figures = first.median_ms, second.median_ms, runs.ratio, runs.ratio_ci, runs.verdict
        return _Compared(runs, "all", *figures, too_few="the runs have too few steps")
    if isinstance(first, HostProfile) and isinstance(second, HostProfile):
        return _Compared(first.compare(second), "none", too_few="host profiles have no steps")
    kinds = " and ".join(f"{Path(path).name} ({type(result).__name__})" for path, result in ((a, first), (b, second)))
    hint = " Compare one rank with one." if "Ranks" in kinds else ""
    raise WrongUse(f"these are not two profiles, traces, runs or timings: {kinds}.{hint}")


def _of_steps(result: Any, change: StepChange) -> _Compared:
    a, b, found = change.a, change.b, change.found
    too_few = f"at least 6 {change.kind} steps of each, and there are {a.steps:,} and {b.steps:,}"
    compared = _Compared(result, change.kind, a.median_ms, b.median_ms, words=change.words(), too_few=too_few)
    if found is None:
        return compared
    return replace(compared, ratio=found.ratio, ratio_ci=found.ratio_ci, verdict=found.verdict)


def _say(compared: _Compared, a: str, b: str) -> None:
    from perfnb.draw import escape

    text = "perfnb · two step times" if compared.result is None else compared.result._text(columns())
    title, _, rest = text.partition("\n")
    say(title)
    _say_lines(f"a: {escape.plain(a, 200)}, b: {escape.plain(b, 200)}")
    if compared.words:
        _say_lines(compared.words)
        rest = re.sub(r"\Astep [^;]*;\s+", "", rest)  # the same medians, without intervals
    if rest:
        say(rest)


def _say_lines(sentence: str) -> None:
    from perfnb.draw import escape

    say("\n".join(escape.wrapped(sentence, columns())))


def _judged(ratio_ci: tuple[float, float], limit: float, slower: bool) -> str:
    interval = f"the ratio's 95 % interval is {fmt.relative(ratio_ci[0])} to {fmt.relative(ratio_ci[1])}"
    if slower:
        return f"Failed: slower by more than {limit:g} %: {interval}, all of it above {1 + limit / 100:g}."
    return f"Passed: not shown to be slower by more than {limit:g} %: {interval}, the limit is {1 + limit / 100:g}."


def _say_json(compared: _Compared, limit: float | None, slower: bool | None) -> None:
    from perfnb.command.as_json import facts_of

    tables = {} if compared.result is None else facts_of(compared.result)
    if "step" in tables:  # of runs: what changed in a step, in detail
        tables["changes"] = tables.pop("step")
    low, high = compared.ratio_ci or (None, None)
    step = {name: getattr(compared, name) for name in ("steps", "a_ms", "b_ms", "ratio")}
    step |= {"ci_low": low, "ci_high": high, "verdict": compared.verdict}
    limits = {} if limit is None else {"fail_if_slower_percent": limit, "failed": slower}
    say_json({**tables, "kind": "comparison", "step": step, **limits})


COMMAND = SubCommand(
    name="compare",
    summary="Show what changed between two profiles, traces or runs, and fail if the second is slower.",
    usage="perfnb compare A B [--fail-if-slower PERCENT] [--html OUT] [--json]",
    more=__doc__,
    add_options=_options,
    run=_run,
)
