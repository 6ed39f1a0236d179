"""The pages of the documentation and the README, taken apart into blocks of code.

How a block is written tells what becomes of it:

- a fence of ``python`` is run, in the order of the page and with the names of the blocks before it;
- ``<!-- setup`` with code until ``-->`` is run as well, and no reader sees it;
- code in ``setups``, in a file named as the page, is run before it: for a README that is read as it stands;
- ``<!-- setup: first_profile.md -->`` runs the first block of that page, which makes the names that most pages use;
- ``<!-- not run: reason -->`` before a fence leaves it out, and says why;
- a fence of ``text`` right below one that is run is what this prints, and that is compared; others are only shown;
- fences in braces are Sphinx's own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
SETUPS = Path(__file__).parent / "setups"
PAGES = {path.relative_to(ROOT).as_posix(): path for path in (README, *sorted(DOCS.glob("*.md")))}

_SETUP = "<!-- setup"
_NOT_RUN = re.compile(r"<!-- not run: (\S.*\S) -->")
_FENCE = re.compile(r"(`{3,}|~{3,}|:{3,})(.*)")


class Block(NamedTuple):
    """A piece of code on a page: where it begins, what it is, why it is not run (empty where it is), what it prints."""

    line: int
    code: str
    not_run: str = ""
    hidden: bool = False
    prints: str = ""


def blocks_of(path: Path) -> list[Block]:
    """The code of a page in its order.

    Raises
    ------
    ValueError
        For a fence that is neither run nor marked, and for a mark with no fence below it.
    """
    setup = SETUPS / f"{path.stem.lower()}.py"
    found = [Block(0, setup.read_text("utf-8"), hidden=True)] if setup.exists() and path in PAGES.values() else []
    lines = list(enumerate(path.read_text("utf-8").splitlines(), start=1))
    reason = ""
    place = below = 0  # where the last block of code that is run ends
    while place < len(lines):
        number, line = lines[place]
        place += 1
        if line.startswith(_SETUP):
            code, place = _until(lines, place, "-->") if "-->" not in line else ([], place)
            named = line.removeprefix(_SETUP).removesuffix("-->").strip(" :")
            found.append(Block(number, first_block(path.parent / named) if named else "\n".join(code), hidden=True))
            continue
        if mark := _NOT_RUN.fullmatch(line.strip()):
            reason = mark[1]
            continue
        fence = _FENCE.fullmatch(line)
        if fence is None:
            if line.strip() and reason:
                raise ValueError(f"{path.name}:{number}: a mark 'not run' stands before no block of code.")
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
    """The first code that a page shows."""
    return next(block.code for block in blocks_of(path) if not block.hidden)


def prose(text: str) -> str:
    """A page without its blocks of code and its hidden parts."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def _until(lines: list[tuple[int, str]], place: int, end: str) -> tuple[list[str], int]:
    """The lines from a place to the one that is `end`, and the place behind that."""
    begin = place
    while lines[place][1].strip() != end:
        place += 1
    return [line for _, line in lines[begin:place]], place + 1
