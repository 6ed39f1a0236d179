"""``perfnb compare``: what changed between two profiles, traces or timings; and a check for scripts and CI."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfnb import quantities as fmt
from perfnb.command.output import add_page_options, columns, require_one_form, say, say_json, write_page
from perfnb.command.sub_command import FAILED, SubCommand, WrongUse

if TYPE_CHECKING:
    from perfnb.diff.step_times import StepChange

_MORE = """\
A and B are two profiles, two traces, or two saved step times; B is usually the later one. Step
times are compared by their medians, with a 95 % interval of the ratio.

--fail-if-slower PERCENT fails if the whole interval is above the limit: with 5, if its lower bound
is above 1.05. A change that noise explains does not fail. The interval covers the noise within
each run, not what changed on the machine in between, so leave room for that. Both need at least
six steps: timed ones, or traced ones where A or B is a trace.

examples:
  perfnb compare before.perfnb after.perfnb
  perfnb compare main.perfnb branch.perfnb --fail-if-slower 5
  perfnb compare v100.json.gz mi300.json.gz --html compared.html

exit codes: 0 compared, and not slower than allowed; 1 slower than allowed; 2 A or B cannot be
read or compared, or has too few steps for --fail-if-slower"""


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


def _run(options: argparse.Namespace) -> int:
    require_one_form(options)
    compared, change = _compared(options.a, options.b)
    limit = options.fail_if_slower
    slower = None if limit is None else change.slower_by_more_than(limit)
    if limit is not None and slower is None:
        raise WrongUse(
            f"--fail-if-slower needs at least 6 {change.kind} steps of each for an interval: "
            f"{options.a} has {change.a.steps:,}, {options.b} has {change.b.steps:,}."
        )
    if options.html is not None:
        if compared is None:
            raise WrongUse("--html needs two profiles or traces: step times have no page.")
        say(f"Written to {write_page(compared, options.html, 'comparison')}.")
    elif options.json:
        _say_json(compared, change, limit, slower)
    else:
        _say(compared, change)
    if limit is not None and not options.json:
        _say_lines(_judged(change, limit, bool(slower)))
    return FAILED if slower else 0


def _compared(a: str, b: str) -> tuple[Any, StepChange]:
    """What `Profile.compare` gives, if there are layers to compare; and the change of the step time."""
    from perfnb.diff.step_times import step_change, step_change_of
    from perfnb.loop.run import RunSummary
    from perfnb.profile.loading import load
    from perfnb.profile.profile import Profile
    from perfnb.profile.timing import Timing

    first, second = load(a), load(b)
    if isinstance(first, Profile) and isinstance(second, Profile):
        return first.compare(second), step_change_of(first.steps, second.steps)
    if isinstance(first, RunSummary) and isinstance(second, RunSummary):
        runs = first.compare(second)
        return runs, runs._step_change
    if isinstance(first, Timing) and isinstance(second, Timing):
        return None, step_change(first, second)
    kinds = " and ".join(f"{Path(path).name} ({type(one).__name__})" for path, one in ((a, first), (b, second)))
    hint = " Compare one rank with one." if "Ranks" in kinds else ""
    raise WrongUse(f"these are not two profiles, two traces or two timings: {kinds}.{hint}")


def _say(compared: Any, change: StepChange) -> None:
    if compared is None:
        _say_lines(change.words())
        return
    title, _, rest = compared._text(columns()).partition("\n")
    say(title)
    _say_lines(change.words())
    say(rest)


def _say_lines(sentence: str) -> None:
    from perfnb.draw import escape

    say("\n".join(escape.wrapped(sentence, columns())))


def _judged(change: StepChange, limit: float, slower: bool) -> str:
    assert change.found is not None
    assert change.found.ratio_ci is not None
    low, high = change.found.ratio_ci
    allowed = 1 + limit / 100
    interval = f"the ratio's 95 % interval is {fmt.relative(low)} to {fmt.relative(high)}"
    if slower:
        return f"Failed: slower by more than {limit:g} %: {interval}, all of it above {allowed:g}."
    return f"Passed: not shown to be slower by more than {limit:g} %: {interval}, the limit is {allowed:g}."


def _say_json(compared: Any, change: StepChange, limit: float | None, slower: bool | None) -> None:
    from perfnb.command.as_json import facts_of

    found = change.found
    low, high = (None, None) if found is None or found.ratio_ci is None else found.ratio_ci
    step = {
        "steps": change.kind,
        "a_ms": change.a.median_ms,
        "b_ms": change.b.median_ms,
        "ratio": None if found is None else found.ratio,
        "ci_low": low,
        "ci_high": high,
        "verdict": None if found is None else found.verdict,
    }
    limits = {} if limit is None else {"fail_if_slower_percent": limit, "failed": slower}
    tables = {} if compared is None else facts_of(compared)
    say_json({**tables, "kind": "comparison", "step": step, **limits})


COMMAND = SubCommand(
    name="compare",
    summary="Show what changed between two profiles or traces, and fail if the second is slower.",
    usage="perfnb compare A B [--fail-if-slower PERCENT] [--html OUT] [--json]",
    more=_MORE,
    add_options=_options,
    run=_run,
)
