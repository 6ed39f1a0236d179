"""Implement ``perfnb compare``: compare two profiles, traces, runs or timings, with a check for scripts and CI.

A (the baseline) and B (the candidate) are two profiles, traces, runs, host profiles, or saved step
times. perfnb compares their median step times, and reports a 95 % interval for the ratio.

--fail-if-slower PERCENT fails if the whole interval is above the limit. For example, 5 fails if the
lower bound of the interval is above 1.05, so changes that can be explained by noise do not fail.
The interval covers the noise within each run, but not changes to the machine between the runs.
Choose a limit that leaves room for such changes. A and B must each have at least six timed steps,
or six traced steps if A or B is a trace.

examples:
  perfnb compare before.perfnb after.perfnb
  perfnb compare main.perfnb branch.perfnb --fail-if-slower 5
  perfnb compare v100.json.gz mi300.json.gz --html compared.html

exit codes: 0 compared, and not slower than allowed; 1 slower than allowed; 2 A or B cannot be
read or compared, or has too few steps for --fail-if-slower
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfnb import quantities as fmt
from perfnb.command.output import add_page_options, say, say_document, sentences, write_page
from perfnb.command.sub_command import FAILED, SubCommand, WrongUse

if TYPE_CHECKING:
    from perfnb.draw.documented import Documented


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="The baseline.")
    parser.add_argument("b", metavar="B", help="The candidate, compared with the baseline.")
    parser.add_argument(
        "--fail-if-slower",
        metavar="PERCENT",
        type=_percent,
        help="Exit with code 1 if B's steps are definitely slower by more than this percentage.",
    )
    add_page_options(parser)


def _percent(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e6:
        raise ValueError
    return value


_percent.__name__ = "percentage"  # argparse uses this name in its error message


@dataclass(frozen=True)
class _Compared:
    """The result of a comparison, and the ratio of the step times."""

    result: Documented
    ratio_ci: tuple[float, float] | None
    too_few: str  # the reason why there is no interval


def _run(options: argparse.Namespace) -> int:
    from perfnb.diff.step_times import slower_by_more_than

    compared, limit = _compared(options.a, options.b), options.fail_if_slower
    slower = None if limit is None else slower_by_more_than(compared.ratio_ci, limit)
    if limit is not None and slower is None:
        raise WrongUse(f"--fail-if-slower requires an interval for the ratio: {compared.too_few}.")
    if options.html is not None:
        say(f"Written to {write_page(compared.result, options.html)}.")
    else:
        document = compared.result._document()
        facts = (*document.facts, f"baseline: {options.a}", f"candidate: {options.b}")
        limits = {} if limit is None else {"fail_if_slower_percent": limit, "failed": slower}
        say_document(replace(document, facts=facts), options.json, **limits)
    if compared.ratio_ci is not None and limit is not None and not options.json:
        say(sentences(_judged(compared.ratio_ci, limit, bool(slower))))
    return FAILED if slower else 0


def _compared(a: str, b: str) -> _Compared:
    from perfnb.diff.comparison import StepComparison
    from perfnb.diff.step_times import StepChange, step_change, step_change_of
    from perfnb.flame.host_profile import HostProfile
    from perfnb.loop.run import RunSummary
    from perfnb.profile.loading import load
    from perfnb.profile.profile import Profile
    from perfnb.profile.timing import Timing

    def of_steps(result: Documented, change: StepChange) -> _Compared:
        counts = f"{change.a.steps:,} and {change.b.steps:,}"
        too_few = f"this takes at least 6 {change.kind} steps on each side, and there are {counts}"
        return _Compared(result, None if change.found is None else change.found.ratio_ci, too_few)

    first, second = load(a), load(b)
    if isinstance(first, Profile) and isinstance(second, Profile):
        return of_steps(first.compare(second), step_change_of(first.steps, second.steps))
    if isinstance(first, Timing) and isinstance(second, Timing):
        change = step_change(first, second)
        return of_steps(StepComparison(change, (Path(a).name, Path(b).name)), change)
    if isinstance(first, RunSummary) and isinstance(second, RunSummary):
        runs = first.compare(second)
        return _Compared(runs, runs.ratio_ci, "the runs have too few steps")
    if isinstance(first, HostProfile) and isinstance(second, HostProfile):
        return _Compared(first.compare(second), None, "host profiles have no steps")
    kinds = " and ".join(f"{Path(path).name} ({type(result).__name__})" for path, result in ((a, first), (b, second)))
    hint = " Compare individual ranks." if "Ranks" in kinds else ""
    raise WrongUse(f"A and B must be two profiles, traces, runs or timings, not {kinds}.{hint}")


def _judged(ratio_ci: tuple[float, float], limit: float, slower: bool) -> str:
    interval = f"the ratio's 95 % interval is {fmt.relative(ratio_ci[0])} to {fmt.relative(ratio_ci[1])}"
    if slower:
        return f"Failed: slower by more than {limit:g} %: {interval}, entirely above {1 + limit / 100:g}."
    return f"Passed: not shown to be slower by more than {limit:g} %: {interval}, and the limit is {1 + limit / 100:g}."


COMMAND = SubCommand(
    name="compare",
    summary="Show the changes between two profiles, traces or runs, and optionally fail if the second is slower.",
    usage="perfnb compare A B [--fail-if-slower PERCENT] [--html OUT] [--json]",
    more=__doc__,
    add_options=_options,
    run=_run,
)
