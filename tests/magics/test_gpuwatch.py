"""``%gpuwatch`` and ``%%gpuwatch`` in a real kernel: what they show, what they leave, what they refuse."""

from __future__ import annotations

import json
import re

import pytest

from tests.magics.kernel import CELL_TIMEOUT_S, WIDGET_VIEW, Kernel, client_of, notebook_of, until
from tests.tracebacks import frames_of_perfnb

pytestmark = pytest.mark.slow

#: Ends when the watch has read often enough, however late a busy machine makes it.
SLEEP = "import time\nbefore = len(w.samples)\nwhile len(w.samples) < before + 30: time.sleep(0.05)"
#: Of a watch that gets its name only when the cell has ended.
SHORT = "import time; time.sleep(0.4)"


def test_a_watch_goes_on_until_it_is_stopped(kernel: Kernel) -> None:
    started = kernel.ok("%gpuwatch --interval 0.05 --into w")
    static, live = started.outputs
    assert set(static["data"]) == {"text/plain", "text/html"}
    assert set(live["data"]) == {WIDGET_VIEW}
    assert "watch" in static["data"]["text/plain"].lower()

    kernel.ok(SLEEP)
    status = kernel.ok("%gpuwatch status").text()
    assert re.fullmatch(r"<perfnb\.Watch: running, every 0\.05 s, [\d,]+ readings>\n", status)
    kernel.ok("%gpuwatch stop")
    assert kernel.ok("%gpuwatch status").text() == "No watch started by %gpuwatch is running.\n"

    cells = kernel.value("w.marks['name'].tolist()")
    numbers = [int(name.removeprefix("cell ")) for name in cells]
    assert numbers == list(range(numbers[0], numbers[0] + 4)), "start, the cell, status, stop"
    assert kernel.value("In[int(w.marks['name'][1][5:])]") == SLEEP
    assert kernel.value("bool((w.samples['mark'] == w.marks['name'][1]).sum() > 6)")


def test_a_cell_is_watched_from_start_to_end(kernel: Kernel) -> None:
    reply = kernel.ok(f"%%gpuwatch --interval 0.05 --into w\n{SHORT}\nb = 3\nb + 4")
    assert reply.outputs[-1]["data"]["text/plain"] == "7", "the cell's own value"
    static = reply.outputs[0]["data"]
    assert "<svg" in static["text/html"], "the history as charts"
    assert "process" in static["text/plain"]
    assert kernel.value("w.running") is False
    assert kernel.value("bool(w.samples['t_s'].max() > 0.4)")


def test_an_error_or_interrupt_reaches_the_user_and_ends_the_watch(kernel: Kernel) -> None:
    reply = kernel.run("%%gpuwatch --into w\n1 / 0")
    assert reply.error == "ZeroDivisionError"
    assert "1 / 0" in reply.traceback
    assert frames_of_perfnb(reply.traceback) == []
    assert kernel.value("w.running") is False

    request = kernel.send("%%gpuwatch --into w\nimport time\nopen('running', 'w').close()\nwhile True: time.sleep(0.1)")
    assert kernel.client.get_iopub_msg(timeout=CELL_TIMEOUT_S)

    until((kernel.folder / "running").exists)
    kernel.manager.interrupt_kernel()
    assert kernel.wait(request).error == "KeyboardInterrupt"
    assert kernel.value("w.running") is False


def test_a_saved_notebook_holds_the_history_without_a_kernel(kernel: Kernel) -> None:
    sources = ["%gpuwatch --interval 0.05 --into w", SLEEP, "%gpuwatch stop"]
    notebook = notebook_of(*sources)
    client_of(notebook, kernel).execute()
    outputs = notebook["cells"][0]["outputs"]
    static = next(output["data"] for output in outputs if "text/html" in output.get("data", {}))
    assert "<svg" in static["text/html"]
    assert "<script" not in static["text/html"]
    assert "CPU" in static["text/plain"]
    assert len(json.dumps(notebook)) < 250_000


def test_cells_inside_cells_are_marked_as_such(kernel: Kernel) -> None:
    kernel.ok("%gpuwatch --into w")
    kernel.ok("get_ipython().run_cell('1')\nNone")
    kernel.ok("2")
    kernel.ok("%gpuwatch stop")
    marks = kernel.value("[tuple(row) for row in w.marks[['name', 'depth']].astype(object).values.tolist()]")
    assert [depth for _, depth in marks] == [0, 0, 1, 0, 0]
    assert kernel.value("bool(w.marks['end_s'].notna().all())")


def test_a_sampler_that_was_killed_shows_in_the_panel_when_the_next_cell_has_ended(kernel: Kernel) -> None:
    kernel.ok("%gpuwatch --interval 0.05 --into w")
    kernel.ok("w._watcher._process.process.kill(); w._watcher._process.thread.join(60)")
    assert kernel.value("(w.running, w._panels)") == (False, [])
    assert kernel.value("w.notes[-1]").startswith("The sampler ended by itself after")


@pytest.mark.deep
def test_of_many_places_the_last_ones_are_live(kernel: Kernel) -> None:
    kernel.ok("%gpuwatch --into w")
    for _ in range(5):
        kernel.ok("w")
    assert kernel.value("len(w._panels)") == 4
    kernel.ok("%gpuwatch stop")
