"""perfnb's command line as processes of their own, and inside this one, which is far quicker."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from perfnb.command.main import main

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that finds this checkout, whose text is 100 columns wide."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8", **more}


def command(*words: object) -> list[str]:
    """Return what starts ``perfnb WORDS``."""
    return [sys.executable, "-m", "perfnb", *map(str, words)]


def perfnb(*words: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``perfnb WORDS`` to its end."""
    return subprocess.run(
        command(*words),
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env=environment(**env),
        timeout=300,
        check=False,
    )


def called(*words: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Do what ``perfnb WORDS`` does, in this process."""
    given, out, err = [*map(str, words)], io.StringIO(), io.StringIO()
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        chdir(cwd or Path.cwd()),
        patch.dict(os.environ, {"COLUMNS": "100", **env}),
    ):
        try:
            code = main(given)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    return subprocess.CompletedProcess(given, code, out.getvalue(), err.getvalue())
