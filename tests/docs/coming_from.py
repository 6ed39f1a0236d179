"""What the page *Coming from* says that one types here: taken from its tables, and made to run."""

from __future__ import annotations

import re

from perfnb.magics.gpuwatch import GpuWatchMagics
from perfnb.magics.options import option_names, parser_of
from perfnb.recording.schema import SCHEMA
from tests.docs.pages import DOCS, PAGES, blocks_of, first_block

PAGE = DOCS / "coming_from.md"

#: The names that the page takes for granted, beside those of the first profile.
SETUP = f"""
{first_block(DOCS / "first_profile.md")}

import shutil
from pathlib import Path
from perfnb import Ranks

%load_ext perfnb

Path("traces").mkdir(exist_ok=True)
for name in ("rank0.json.gz", "rank1.json.gz"):
    shutil.copy(name, "traces")
batch, path = next(iter(loader)), "t.json"


def train_step():
    return step(batch)


def after():
    return step(batch)


before = train_step
p = perfnb.profile_step(step, loader)
other = p
ranks = perfnb.load("traces/")
with perfnb.watch(0.1) as w:
    train_step()
"""

#: What stands for something of the reader's own, and what a test puts there.
PLACEHOLDERS = {
    "perfnb.load([...])": 'perfnb.load(["rank0.json.gz", "rank1.json.gz"]);',
    "%profile_step statement": "%profile_step step(batch);",
    "%%profile_step for x, y in loader": "%%profile_step for x, y in loader\nstep((x, y));",
}

_CODE = re.compile(r"`([^`]+)`")
_CALL = re.compile(r"%|(?:perfnb|p|w|ranks|Ranks)\.")
_COLUMNS = {column for columns in SCHEMA.values() for column in columns}


def typed_here() -> list[str]:
    """The code of the tables' right column, and what is called in the text around them; each once, in order."""
    lines = PAGE.read_text("utf-8").splitlines()
    cells = [line.rpartition(" | ")[2] for line in lines if line.startswith("|")]
    beside = " ".join(line for line in lines if not line.startswith("|"))
    codes = [*_CODE.findall(" ".join(cells)), *(code for code in _CODE.findall(beside) if _CALL.match(code))]
    return list(dict.fromkeys(codes))


def runnable() -> list[str]:
    """The code among it, with placeholders filled in: what is no column, no option, and run by no other page.

    A semicolon hides what it would show: a dozen reports are drawn by other tests.
    """
    options = option_names(parser_of(GpuWatchMagics.gpuwatch))
    elsewhere = [block.code for path in PAGES.values() for block in blocks_of(path) if not block.not_run]
    found = []
    for code in typed_here():
        is_name = code in _COLUMNS or code.partition(" ")[0] in options
        if not is_name and not any(code in block for block in elsewhere):
            found.append(PLACEHOLDERS.get(code, f"{code};"))
    return found
