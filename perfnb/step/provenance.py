"""Where and from what a figure came: versions, device and settings, the host, and the commit of the user's code."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from perfnb.step.device import describe_environment

#: Seconds after which git is not waited for: a folder on a slow network must not hold up a report.
_GIT_S = 3.0


def provenance() -> dict[str, Any]:
    """The environment as `describe_environment` tells it, with what tells one run from another; JSON-able.

    Beside it ``host``, ``perfnb``, ``numpy`` (versions), ``at`` (UTC, ISO 8601), and where the working folder is under
    git ``commit`` and ``uncommitted`` (whether tracked files differ from it).
    """
    return {
        **describe_environment(),
        "host": platform.node(),
        "perfnb": _version("perfnb"),
        "numpy": _version("numpy"),
        "at": datetime.now(UTC).isoformat(),
        **_git(Path.cwd()),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a checkout on the path
        return None


def _git(folder: Path) -> dict[str, Any]:
    commit = _ask(folder, "rev-parse", "HEAD")
    if commit is None:
        return {}
    changes = _ask(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit} | ({} if changes is None else {"uncommitted": bool(changes)})


def _ask(folder: Path, *words: str) -> str | None:
    """What git says; ``None`` without git, outside a repository, or where it takes long."""
    # A repository may name a program to ask for changed files: it is not run.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *words]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_GIT_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
