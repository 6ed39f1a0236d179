"""What to type here, according to the page *Coming from*: taken from its tables and made runnable."""

from __future__ import annotations

import re

from perfnb.magics import parser_of
from perfnb.magics.line import option_names
from perfnb.recording.schema import SCHEMA
from tests.docs.pages import DOCS, PAGES, blocks_of, first_block

PAGE = DOCS / "coming_from.md"

#: What `nvidia-smi` writes.
GPU_LOG = "timestamp, index, utilization.gpu [%]\n" + "".join(
    f"2026/07/01 12:00:{second:02}.000, 0, 50 %\n" for second in range(3)
)

#: The names and files that the page assumes, besides those of the first profile.
SETUP = f"""
{first_block(DOCS / "first_profile.md")}

import cProfile
import shutil
from pathlib import Path
from perfnb.results import Ranks
from tests.nsys_files import training, write

%load_ext perfnb

Path("traces").mkdir(exist_ok=True)
for name in ("rank0.json.gz", "rank1.json.gz"):
    shutil.copy(name, "traces")
cProfile.run("sum(range(10))", "file.prof")
Path("log.txt").write_text({GPU_LOG!r})
write(Path("report.sqlite"), training())
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
loop = perfnb.profiled(loader)
for batch in loop:
    step(batch)
run, rank0, rank1 = loop.run, loop.run, loop.run
"""

#: Placeholders for the reader's own code, and what the test runs instead.
PLACEHOLDERS = {
    "perfnb.load([...])": 'perfnb.load(["rank0.json.gz", "rank1.json.gz"]);',
    "run.compare(other)": "run.compare(run);",
    "%profile_step statement": "%profile_step step(batch);",
    "%%profile_step for x, y in loader": "%%profile_step for x, y in loader\nstep((x, y));",
}

_CODE = re.compile(r"`([^`]+)`")
_CALL = re.compile(r"%|(?:perfnb|p|w|ranks|Ranks)\.")
_COLUMNS = {column for columns in SCHEMA.values() for column in columns}


def typed_here() -> list[str]:
    """Return the code in the right column of the tables and the calls in the text around them; each once, in order."""
    lines = PAGE.read_text("utf-8").splitlines()
    cells = [line.rpartition(" | ")[2] for line in lines if line.startswith("|")]
    beside = " ".join(line for line in lines if not line.startswith("|"))
    codes = [*_CODE.findall(" ".join(cells)), *(code for code in _CODE.findall(beside) if _CALL.match(code))]
    return list(dict.fromkeys(codes))


def runnable() -> list[str]:
    """Return the code among it, with placeholders filled in; without columns, options, commands of a terminal, and what
    another page runs.

    A semicolon hides the output: other tests draw the dozen reports.
    """
    options = option_names(parser_of("gpuwatch"))
    elsewhere = [block.code for path in PAGES.values() for block in blocks_of(path) if not block.not_run]
    found = []
    for code in typed_here():
        is_name = code in _COLUMNS or code.partition(" ")[0] in options or code.startswith(("perfnb ", "nsys "))
        if not is_name and not any(code in block for block in elsewhere):
            found.append(PLACEHOLDERS.get(code, f"{code};"))
    return found
