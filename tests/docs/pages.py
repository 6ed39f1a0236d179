"""Split the pages of the documentation and the README into blocks of code.

How a block is written decides what happens to it:

- a ``python`` fence is run, in the order of the page, with the names of the blocks before it and nothing else, as a
  reader pastes it;
- ``<!-- not run: reason -->`` before a fence skips it, with a reason;
- a ``text`` fence right below one that is run is compared with its output; other ``text`` fences are only shown;
- fences in braces belong to Sphinx.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = {path.relative_to(ROOT).as_posix(): path for path in (README, *sorted(DOCS.glob("*.md")))}

_NOT_RUN = re.compile(r"<!-- not run: (\S.*\S) -->")
_FENCE = re.compile(r"(`{3,}|~{3,}|:{3,})(.*)")


class Block(NamedTuple):
    """Code on a page: its first line, the code, why it is not run (empty if it is), and what it prints."""

    line: int
    code: str
    not_run: str = ""
    prints: str = ""


def blocks_of(path: Path) -> list[Block]:
    """Return the code of a page, in order.

    Raises
    ------
    ValueError
        For a fence that is neither run nor marked, or a mark without a fence below it.
    """
    found: list[Block] = []
    lines = list(enumerate(path.read_text("utf-8").splitlines(), start=1))
    reason = ""
    place = below = 0  # where the last block of code that is run ends
    while place < len(lines):
        number, line = lines[place]
        place += 1
        if mark := _NOT_RUN.fullmatch(line.strip()):
            reason = mark[1]
            continue
        fence = _FENCE.fullmatch(line)
        if fence is None:
            if line.strip() and reason:
                raise ValueError(f"{path.name}:{number}: a mark 'not run' is not followed by a block of code.")
            continue
        code, place = _until(lines, place, fence[1])
        language = fence[2].strip()
        if language == "python" or reason:
            found.append(Block(number, "\n".join(code), reason))
            below = 0 if reason else place
        elif language == "text" and below and not any(line for _, line in lines[below : number - 1]):
            found[-1] = found[-1]._replace(prints="\n".join(code).strip())
        elif not (language == "text" or language.startswith("{")):
            raise ValueError(f"{path.name}:{number}: a block of {language or 'no language'} is neither run nor marked.")
        reason = ""
    return found


def first_block(path: Path) -> str:
    """Return the first code of a page."""
    return blocks_of(path)[0].code


def prose(text: str) -> str:
    """Return a page without blocks of code and hidden parts."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def _until(lines: list[tuple[int, str]], place: int, end: str) -> tuple[list[str], int]:
    """Return the lines from a place up to `end`, and the place after it."""
    begin = place
    while lines[place][1].strip() != end:
        place += 1
    return [line for _, line in lines[begin:place]], place + 1
