"""List the files of the project, for checks of all files."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def project_files() -> Iterator[Path]:
    """Yield the files that are or would be under version control, or outside a checkout, all except hidden folders."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        candidates = [ROOT / name for name in names.split("\0") if name]
    else:
        candidates = [path for path in ROOT.rglob("*") if not hidden(path.relative_to(ROOT))]
    yield from (path for path in candidates if path.is_file() and not path.is_symlink())


def hidden(path: Path) -> bool:
    return any(
        (part.startswith(".") and part != ".ci") or part in ("__pycache__", "build", "dist") for part in path.parts
    )
