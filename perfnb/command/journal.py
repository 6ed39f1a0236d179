"""Implement ``perfnb journal``: list all results that perfnb saved below a folder, with their history and changes.

The journal lists profiles, runs, step times, A/B tests and manual entries with their verdicts,
newest first. If at least ten of them have the same name, machine, device, PyTorch version and batch
size, perfnb looks for changes in the step time. A hidden file in the folder caches the entries. You
can delete it at any time.

examples:
  perfnb journal runs/
  perfnb journal runs/ --across torch
  perfnb journal runs/ --figure peak_bytes
  perfnb journal runs/ --html runs.html

exit codes: 0 shown; 2 FOLDER cannot be read
"""

from __future__ import annotations

import argparse

from perfnb.command.output import add_page_options, say_result
from perfnb.command.sub_command import SubCommand, WrongUse


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="The folder with the results, which may be in subfolders.")
    parser.add_argument("--name", help="Only show the trend of entries with this name.")
    parser.add_argument("--figure", choices=("step_ms", "peak_bytes"), help="Only show the trend of this figure.")
    parser.add_argument(
        "--across",
        metavar="WHAT",
        action="append",
        help="Combine entries that differ in this (such as torch, host or name) in one trend. May be repeated.",
    )
    add_page_options(parser)


def _run(options: argparse.Namespace) -> int:
    from perfnb.experiments.journal import journal
    from perfnb.files import usable

    if not usable(options.folder).is_dir():
        raise WrongUse(f"{options.folder} is not a folder.")
    opened = journal(options.folder)
    if options.name is None and options.figure is None and options.across is None:
        say_result(opened, options)
        return 0
    try:
        trend = opened.trend(options.name, figure=options.figure or "step_ms", across=options.across or ())
    except ValueError as error:
        raise WrongUse(str(error)) from None
    say_result(trend, options)
    return 0


COMMAND = SubCommand(
    name="journal",
    summary="List everything that was saved below a folder, with its history and changes.",
    usage="perfnb journal FOLDER [--name NAME] [--figure FIGURE] [--across WHAT] [--html OUT] [--json]",
    more=__doc__,
    add_options=_options,
    run=_run,
)
