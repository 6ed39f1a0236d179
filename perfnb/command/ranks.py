"""Implement ``perfnb ranks``: show the ranks of one job side by side.

The report shows each rank's time per step, how long it waited for other ranks, and which rank made
the others wait. For whole runs, it shows which rank waited for its data.

examples:
  perfnb ranks traces/                           a folder with one trace per rank
  perfnb ranks rank0.json.gz rank1.json.gz
  perfnb ranks runs/                             all ranks of perfnb run --save runs/
  perfnb ranks traces/ --html ranks.html

exit codes: 0 shown; 2 no ranks were found, or they cannot be read
"""

from __future__ import annotations

import argparse
from pathlib import Path

from perfnb.command.output import add_page_options, say_profiles, say_result
from perfnb.command.sub_command import SubCommand, WrongUse


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="FOLDER", nargs="+", help="A folder with the ranks, or a trace for each rank.")
    add_page_options(parser)


def _run(options: argparse.Namespace) -> int:
    from perfnb.loop.rank_runs import RankRuns
    from perfnb.profile.loading import load
    from perfnb.ranks.ranks import Ranks

    folder = Path(options.paths[0])
    found = load(folder) if len(options.paths) == 1 and not folder.is_file() else load(options.paths)
    if not isinstance(found, Ranks | RankRuns):
        raise WrongUse(f"{folder} is a {type(found).__name__} and does not contain ranks: use perfnb show {folder}.")
    if say_result(found, options) and len(options.paths) == 1:
        say_profiles(folder, "ranks")
    return 0


COMMAND = SubCommand(
    name="ranks",
    summary="Show the ranks of one job side by side, from their traces.",
    usage="perfnb ranks FOLDER... [--html OUT] [--json]",
    more=__doc__,
    add_options=_options,
    run=_run,
)
