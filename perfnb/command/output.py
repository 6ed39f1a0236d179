"""Print documents as text or JSON, and write pages. It is not an error if the reader of a pipe closes it early."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfnb.command.sub_command import WrongUse
from perfnb.shell import print_text

if TYPE_CHECKING:
    from perfnb.draw.document import Document
    from perfnb.draw.documented import Documented

#: The maximum width of sentences and help texts.
WIDEST = 100
#: The maximum number of a run's profiles to list.
_MOST_NAMED = 10


def columns() -> int:
    """Return the width for sentences and help texts."""
    return min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)


def say(text: str) -> None:
    """Print text to standard output. Ignore the error if the reader has closed the pipe early, like ``head``."""
    try:
        print_text(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up_output()
    except OSError as error:
        _give_up_output()
        raise WrongUse(f"the output could not be written: {os.strerror(error.errno or 0)}.") from None


def _give_up_output() -> None:
    # Buffered output would fail again when Python exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def sentences(*texts: str) -> str:
    """Wrap sentences into lines for a terminal."""
    from perfnb.draw import escape

    return "\n".join(line for text in texts for line in escape.wrapped(escape.plain(text, 2000), columns()))


def say_document(document: Document, as_json: bool, **more: Any) -> None:
    """Print a document as text, or as JSON together with further data."""
    from perfnb.draw.as_json import document_data
    from perfnb.draw.as_text import document_text, terminal_width

    if as_json:
        data = document_data(_without_pictures(document)) | more
        say(json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False))
    else:
        say(document_text(document, terminal_width()))


def _without_pictures(document: Document) -> Document:
    """Return the document without the parts that are drawn by JavaScript, because their format is not documented."""
    from perfnb.draw.document import Picture

    sections = [replace(part, data=None) if isinstance(part, Picture) else part for part in document.sections]
    return replace(document, sections=tuple(sections), tabs=tuple(map(_without_pictures, document.tabs)))


def say_profiles(folder: str | Path, command: str) -> None:
    """Print the paths of a run's profiles, one per line, so that they are easy to copy."""
    from perfnb.loop.run import profiles_beside

    if inside := profiles_beside(folder):
        more = [f"… {len(inside) - _MOST_NAMED:,} more"] if len(inside) > _MOST_NAMED else []
        lines = [f"Profiles in the same folder, for perfnb {command}:", *inside[:_MOST_NAMED], *more]
        say("\n" + "\n  ".join(lines))


def add_page_options(parser: argparse.ArgumentParser) -> None:
    """Add the options ``--html`` and ``--json``, which replace the text, to the parser of a command with a page."""
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--html", metavar="OUT", help="Write a self-contained HTML file instead.")
    forms.add_argument("--json", action="store_true", help="Print the figures and tables as JSON instead.")


def say_result(result: Documented, options: argparse.Namespace) -> bool:
    """Print a result as text or JSON, or write its page, depending on the options.

    Return whether the result was printed as text.
    """
    if options.html is not None:
        say(f"Written to {write_page(result, options.html)}.")
        return False
    say_document(result._document(), options.json)
    return not options.json


def write_page(result: Documented, path: str | None) -> Path:
    """Write a result's page to a path, or to a new temporary file if the path is ``None``."""
    return result.to_html(Path(tempfile.mkdtemp(prefix="perfnb-")) / "report.html" if path is None else path)
