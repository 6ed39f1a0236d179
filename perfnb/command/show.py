"""Implement ``perfnb show``: show the report about anything that `perfnb.load` reads.

FILE is a torch.profiler trace, a result that perfnb saved (a profile, ranks, a watch, a performance
report, step times), a folder with the traces of one job, a CUDA memory snapshot, or any other file
that perfnb.load can read. No code in the file is executed. If a folder contains several saved runs
or profiles, perfnb shows its journal, like perfnb journal. If it contains traces from different
jobs, they are listed with their verdicts, newest first.

examples:
  perfnb show trace.json.gz
  perfnb show runs/
  perfnb show step.perfnb --html step.html
  perfnb show trace.json.gz --open
  perfnb show report.sqlite --steps iteration
  perfnb show job.perfnb --rank 3
  perfnb show step.perfnb --json | jq '.figures[0].value'

exit codes: 0 shown; 2 FILE cannot be read
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from perfnb.command.output import add_page_options, say, say_profiles, say_result, write_page
from perfnb.command.sub_command import SubCommand, WrongUse

if TYPE_CHECKING:
    from perfnb.draw.documented import Documented


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="The file or folder to show.")
    parser.add_argument(
        "--steps", metavar="NAME", type=_name, help="Name of the range that marks the steps in a trace."
    )
    parser.add_argument("--rank", metavar="N", type=int, help="Only show this rank, if FILE contains several.")
    add_page_options(parser)
    parser.add_argument("--open", action="store_true", help="Open the page in a browser, with or without --html.")


def _name(word: str) -> str:
    if not word:
        raise argparse.ArgumentTypeError("it must be the name of a range, such as iteration")
    return word


def _run(options: argparse.Namespace) -> int:
    from perfnb.command.listing import folder_with, without_ranks
    from perfnb.profile.loading import load, several_in
    from perfnb.ranks.ranks import Ranks

    found: Documented
    if inside := several_in(options.file):
        found = folder_with(options.file, inside)
    else:
        found = load(options.file, steps=options.steps)
        if isinstance(found, Ranks) and Path(options.file).is_dir():
            found = without_ranks(found, options.file)
    result = found if options.rank is None else _one_rank(found, options)
    if options.open:
        import webbrowser

        page = write_page(result, options.html)
        webbrowser.open(page.resolve().as_uri())
        if not options.json:
            say(f"Written to {page}.")
            return 0
    if say_result(result, options) and options.rank is None:
        say_profiles(options.file, "show")
    return 0


def _one_rank(found: Documented, options: argparse.Namespace) -> Documented:
    """Return the requested rank's profile or run."""
    from perfnb.loop.rank_runs import RankRuns
    from perfnb.ranks.ranks import Ranks

    if not isinstance(found, Ranks | RankRuns):
        raise WrongUse(f"{options.file} is a {type(found).__name__} and does not contain ranks: omit --rank.")
    if options.rank not in found.ranks:
        there = ", ".join(map(str, found.ranks))
        raise WrongUse(f"{options.file} does not contain rank {options.rank}. It contains {there}.")
    return found[options.rank]


COMMAND = SubCommand(
    name="show",
    summary="Show the report about a trace, a saved profile or anything else that perfnb can read.",
    usage="perfnb show FILE [--steps NAME] [--rank N] [--html OUT] [--open] [--json]",
    more=__doc__,
    add_options=_options,
    run=_run,
)
