"""What a saved notebook holds of a profile, and that nbval runs one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.magics.conftest import SETUP, SharedKernel, checked
from tests.magics.kernel import WIDGET_VIEW, Kernel, client_of, environment, notebook_of

if TYPE_CHECKING:
    from nbformat import NotebookNode

pytestmark = pytest.mark.slow

CELL = """%%profile_step --steps 5 --warmup 2 --into p for x, y in loader
optimizer.zero_grad()
loss = loss_fn(model(x), y)
loss.backward()
optimizer.step()"""


@pytest.fixture(scope="module")
def saved(shared_kernel: SharedKernel, tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    """Return a notebook of one profile, run by nbclient, written and read again; only looked at afterwards."""
    path = tmp_path_factory.mktemp("notebook") / "saved.ipynb"
    with checked(shared_kernel) as kernel:
        notebook = notebook_of(CELL)
        client = client_of(notebook, kernel)
        client.execute()
        client.set_widgets_metadata()
    import nbformat

    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    return nbformat.read(path, as_version=4)


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, str | None] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(attrs)


def test_what_is_saved(saved: NotebookNode) -> None:
    progress, static, live = saved["cells"][0]["outputs"]

    assert progress["data"] == {"text/plain": "", "text/html": ""}, "a progress line that is blank"
    assert set(static["data"]) == {"text/plain", "text/html"}
    assert set(live["data"]) == {WIDGET_VIEW}
    assert {output["output_type"] for output in saved["cells"][0]["outputs"]} == {"display_data"}


def test_the_saved_text(saved: NotebookNode) -> None:
    text = saved["cells"][0]["outputs"][1]["data"]["text/plain"]

    for word in ("ran 14 times", "2 warm-up", "5 timed", "Phases", "forward", "backward", "optimizer", "model"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 160


def test_the_saved_html_needs_no_script_and_no_network(saved: NotebookNode) -> None:
    page = saved["cells"][0]["outputs"][1]["data"]["text/html"]
    seen = Tags(page)

    assert {"table", "th"} <= seen.tags
    assert not seen.tags & {"script", "iframe", "link", "object", "embed", "form"}
    assert not [name for name in seen.attributes if name.startswith("on")]
    assert not re.search(r"(?:src(?!=\"data:image/png;base64,)|href)\s*=|url\(|@import|javascript:", page)
    assert "model.2" in page


def test_the_widgets_state_is_saved(saved: NotebookNode) -> None:
    view = saved["cells"][0]["outputs"][2]["data"][WIDGET_VIEW]
    state = saved["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]

    assert json.loads(state[view["model_id"]]["state"]["data"])["subject"] == "step"
    assert len(json.dumps(saved)) < 400_000


@pytest.mark.deep
def test_torch_and_kineto_say_nothing(kernel: Kernel) -> None:
    first = kernel.ok(CELL)
    second = kernel.ok("%%profile_step --steps 2 --warmup 0\ntrain()")

    assert first.text("stderr") == second.text("stderr") == ""
    assert first.text() == second.text() == ""


@pytest.mark.deep
def test_a_level_of_kineto_that_the_user_set_stays(kernel: Kernel) -> None:
    kernel.ok("import os\nos.environ['KINETO_LOG_LEVEL'] = '5'")
    kernel.ok("%profile_step --steps 2 --warmup 0 --quiet train()")

    assert kernel.value("os.environ.pop('KINETO_LOG_LEVEL')") == "5"


def test_without_a_history_as_nbval_runs_cells(kernel: Kernel) -> None:
    reply = kernel.run(CELL, store_history=False)

    assert reply.status == "ok"
    assert len(reply.shown()) == 1
    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []


@pytest.mark.deep
def test_nbval_runs_a_notebook(tmp_path: Path) -> None:
    import nbformat

    checked = "# NBVAL_CHECK_OUTPUT\nprint(list(p.layers.index[:4]), len(p.steps), round(p.phases['share'].sum(), 6))"
    notebook = notebook_of("%load_ext perfnb\n" + SETUP, CELL, checked, "assert p.layers.loc['model', 'calls'] == 1")
    printed = "['model', 'model.0', 'model.1', 'model.2'] 14 1.0\n"
    notebook["cells"][2]["execution_count"] = 3
    notebook["cells"][2]["outputs"] = [nbformat.v4.new_output("stream", name="stdout", text=printed)]
    nbformat.write(notebook, tmp_path / "tiny.ipynb")
    options = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=150", "-p", "no:cacheprovider", "-q"]

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tiny.ipynb"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=170,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
