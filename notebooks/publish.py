"""Add the buttons of a published copy with ``make buttons`` or ``python -m notebooks.publish [OWNER/REPO]``.

By default, the repository is taken from git's remote `origin`. It is stored in ``pyproject.toml`` and used for the
buttons in the README and the documentation, the address in ``CITATION.cff``, and the cell that installs perfnb on
Colab. An unpublished copy has none of these, because they would lead nowhere.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COLAB_CELL = "colab"

_ORIGIN = re.compile(
    r"(?:https://(?:[^@/]+@)?|ssh://git@|git@)github\.com[:/](?P<repository>[\w.-]+/[\w.-]+?)(?:\.git)?/?"
)
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_BUTTONS = re.compile(r"(?<=<!-- buttons -->\n).*?(?=<!-- end of buttons -->)", re.DOTALL)
_NAMED = re.compile(r"^(?:Repository = |repository-code: ).*\n", re.MULTILINE)


def repository(root: Path = ROOT) -> str:
    """Return the OWNER/REPO of the published copy, or an empty string if it is not published."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project.get("urls", {}).get("Repository", "")).removeprefix("https://github.com/")


def binder_button(repository: str) -> str:
    """Return the Markdown for a button that opens the index of the notebooks on Binder."""
    link = f"https://mybinder.org/v2/gh/{repository}/HEAD?urlpath=lab/tree/notebooks/index.ipynb"
    return f"[![Open on Binder](https://mybinder.org/badge_logo.svg)]({link})"


def colab_button(repository: str, notebook: str) -> str:
    """Return the Markdown for a button that opens a notebook on Colab."""
    link = f"https://colab.research.google.com/github/{repository}/blob/HEAD/{notebook}"
    words = f"Open {Path(notebook).stem} on Colab"
    return f"[![{words}](https://colab.research.google.com/assets/colab-badge.svg)]({link})"


def colab_code(repository: str) -> str:
    """Return the code that a notebook runs first if it is opened on Colab."""
    return f"""# On Colab only: install perfnb next to Colab's torch, and enable its widgets.
import sys

if "google.colab" in sys.modules:
    %pip install --quiet "perfnb @ git+https://github.com/{repository}"
    from google.colab import output

    output.enable_custom_widget_manager()"""


def with_colab_cell(cells: list[dict[str, Any]], repository: str) -> list[dict[str, Any]]:
    """Return a notebook's cells with the cell for Colab before all other code.

    If there is no repository, the cell for Colab is left out. JupyterLab shows it collapsed.
    """
    others = [cell for cell in cells if cell["id"] != COLAB_CELL]
    place = next((place for place, cell in enumerate(others) if cell["cell_type"] == "code"), None)
    if not repository or place is None:
        return others
    metadata = {"jupyter": {"source_hidden": True}, "tags": [COLAB_CELL]}
    source = colab_code(repository).splitlines(keepends=True)
    cell = {"cell_type": "code", "execution_count": None, "id": COLAB_CELL, "metadata": metadata, "outputs": [],
            "source": source}  # fmt: skip
    return [*others[:place], cell, *others[place:]]


def as_file(notebook: dict[str, Any]) -> str:
    """Return the text of a notebook's file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def publish(repository: str, root: Path = ROOT) -> list[Path]:
    """Write the address of the published copy wherever it belongs, and return the changed files."""
    address = f"https://github.com/{repository}"
    notebooks = sorted((root / "notebooks").rglob("*.ipynb"))
    named = [path.relative_to(root).as_posix() for path in notebooks if path.stem != "index"]
    rows = [f"| `{name}` | {colab_button(repository, name)} |" for name in named if "/solutions/" not in name]
    buttons = {
        root / "README.md": [binder_button(repository), colab_button(repository, "notebooks/quickstart.ipynb")],
        root / "docs" / "online.md": [binder_button(repository), "", "| notebook | |", "|---|---|", *rows],
    }
    texts = {path: path.read_text("utf-8") for path in [*buttons, *notebooks]}
    written = {path: _with_buttons(texts[path], lines) for path, lines in buttons.items()}
    for path in notebooks:
        whole = json.loads(texts[path])
        written[path] = as_file(whole | {"cells": with_colab_cell(whole["cells"], repository)})

    project, cited = root / "pyproject.toml", root / "CITATION.cff"
    texts |= {path: path.read_text("utf-8") for path in (project, cited)}
    written[project] = _with_address(_NAMED.sub("", texts[project]), address)
    written[cited] = _NAMED.sub("", texts[cited]) + f'repository-code: "{address}"\n'

    changed = [path for path, text in written.items() if text != texts[path]]
    for path in changed:
        path.write_text(written[path], "utf-8")
    return changed


def _with_buttons(text: str, lines: list[str]) -> str:
    return _BUTTONS.sub(lambda _: "".join(f"{line}\n" for line in lines), text)


def _with_address(project: str, address: str) -> str:
    head, behind = "[project.urls]\n", "[project.optional-dependencies]\n"
    if head not in project:
        project = project.replace(behind, f"{head}\n{behind}")
    return project.replace(head, f'{head}Repository = "{address}"\n')


def origin(root: Path = ROOT) -> str:
    """Return the OWNER/REPO of git's remote `origin` if it is on GitHub, or its address otherwise."""
    command = ["git", "-C", str(root), "remote", "get-url", "origin"]
    url = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    found = _ORIGIN.fullmatch(url)
    return found["repository"] if found else re.sub(r"//[^@/]+@", "//", url)  # without a password


def main(arguments: list[str]) -> None:
    """Publish and print the changed files."""
    named = arguments[0] if arguments else origin()
    if not _REPOSITORY.fullmatch(named):
        sys.exit(f"{named or 'A missing origin'} is not a GitHub repository; name one as OWNER/REPO.")
    for path in publish(named):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
