"""perfnb's command line as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that finds this checkout, whose text is 100 columns wide."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8", **more}


def command(*words: object) -> list[str]:
    """What starts ``perfnb WORDS``."""
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


def started(*words: object, cwd: Path | None = None, **options: Any) -> subprocess.Popen[str]:
    """Start ``perfnb WORDS`` in a session of its own, where no terminal sends signals."""
    return subprocess.Popen(
        command(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment(),
        start_new_session=True,
        **options,
    )
