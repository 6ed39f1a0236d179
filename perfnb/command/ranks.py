"""``perfnb ranks``: the ranks of one job side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from perfnb.command.output import add_page_options, columns, require_one_form, say, say_json, say_profiles, write_page
from perfnb.command.sub_command import SubCommand, WrongUse

_MORE = """\
Shows what each rank did per step, how long it waited for others, and which rank holds them up;
of whole runs, which rank waits for its data.

examples:
  perfnb ranks traces/                           a folder with a trace per rank
  perfnb ranks rank0.json.gz rank1.json.gz
  perfnb ranks runs/                             what perfnb run --save runs/ left of each rank
  perfnb ranks traces/ --html ranks.html

exit codes: 0 shown; 2 there are no ranks, or they cannot be read"""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="FOLDER", nargs="+", help="The folder, or the trace of each rank.")
    add_page_options(parser)


def _run(options: argparse.Namespace) -> int:
    from perfnb.command.as_json import facts_of
    from perfnb.loop.rank_runs import RankRuns
    from perfnb.profile.loading import load
    from perfnb.ranks.ranks import Ranks

    require_one_form(options)
    folder = Path(options.paths[0])
    found = load(folder) if len(options.paths) == 1 and not folder.is_file() else load(options.paths)
    if not isinstance(found, Ranks | RankRuns):
        raise WrongUse(f"{folder} holds no ranks but a {type(found).__name__}: perfnb show {folder} shows it.")
    if options.html is not None:
        say(f"Written to {write_page(found, options.html, folder.name)}.")
    elif options.json:
        say_json(facts_of(found))
    else:
        say(found._text(columns()))
        if len(options.paths) == 1:
            say_profiles(folder, "ranks")
    return 0


COMMAND = SubCommand(
    name="ranks",
    summary="Show the ranks of one job side by side, from their traces.",
    usage="perfnb ranks FOLDER... [--html OUT] [--json]",
    more=_MORE,
    add_options=_options,
    run=_run,
)
