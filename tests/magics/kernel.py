"""A real Jupyter kernel of this interpreter, and what a cell gives back."""

from __future__ import annotations

import ast
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).resolve().parents[2]
CELL_TIMEOUT_S = 150.0
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class ThisPython(KernelManager):
    """Starts a kernel of the interpreter that runs the tests, whatever kernels are installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        # Without a history, whose thread starts at some later time.
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--HistoryManager.enabled=False"]
        return KernelSpec(argv=argv, display_name="perfnb's tests", language="python")


@dataclass
class Reply:
    """What became of a cell: its status, its error, and its outputs in order."""

    status: str = ""
    error: str = ""
    message: str = ""
    traceback: str = ""
    outputs: list[dict[str, Any]] = field(default_factory=list)

    def add(self, output: dict[str, Any]) -> None:
        """Keep an output; a stream continues where it stopped, as a notebook shows it, however it was cut."""
        if "name" in output and self.outputs and self.outputs[-1].get("name") == output["name"]:
            self.outputs[-1]["text"] += output["text"]
        else:
            self.outputs.append(output)

    def text(self, stream: str = "stdout") -> str:
        """Return all that was written to a stream."""
        return "".join(output["text"] for output in self.outputs if output.get("name") == stream)

    def shown(self, kind: str = "text/plain") -> list[Any]:
        """Return the cell's outputs of one mime type, without empty ones."""
        return [output["data"][kind] for output in self.outputs if output.get("data", {}).get(kind)]


class Kernel:
    """A running kernel, which works in `folder`; `run` runs a cell in it and waits."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient, folder: Path) -> None:
        self.manager = manager
        self.client = client
        self.folder = folder
        self._displays: dict[str, dict[str, Any]] = {}

    def run(self, code: str, **options: Any) -> Reply:
        """Run a cell to its end."""
        return self.wait(self.send(code, **options))

    def ok(self, code: str) -> Reply:
        """Run a cell that must succeed."""
        reply = self.run(code)
        assert reply.status == "ok", reply.traceback or reply.message
        return reply

    def send(self, code: str, **options: Any) -> str:
        """Queue a cell, as "Run all" does; its id."""
        return self.client.execute(code, **options)

    def wait(self, request: str) -> Reply:
        """Return the reply to a queued cell; requests are awaited in the order of sending."""
        reply = Reply()
        for message in self._published(request):
            kind, content = message["header"]["msg_type"], message["content"]
            if kind in ("display_data", "execute_result", "stream"):
                reply.add(dict(content))
                if name := content.get("transient", {}).get("display_id"):
                    self._displays[name] = reply.outputs[-1]
            elif kind == "update_display_data":
                self._displays[content["transient"]["display_id"]]["data"] = content["data"]
            elif kind == "error":
                reply.traceback = _ANSI.sub("", "\n".join(content["traceback"]))
        content = self._reply(request)["content"]
        reply.status = content["status"]
        reply.error, reply.message = content.get("ename", ""), _ANSI.sub("", content.get("evalue", ""))
        return reply

    def value(self, expression: str) -> Any:
        """Return an expression's value, which must be a literal; leaves no trace in the kernel's history."""
        request = self.client.execute("", silent=True, user_expressions={"value": expression})
        found = self._reply(request)["content"]["user_expressions"]["value"]
        assert found["status"] == "ok", (expression, found.get("evalue"))
        return ast.literal_eval(found["data"]["text/plain"])

    def inside(self, call: str) -> Any:
        """Call a function of `tests.magics.inside` in the kernel."""
        return self.value(f"__import__('tests.magics.inside', fromlist=['look']).{call}")

    def help(self, code: str) -> str:
        """Return the text that the pager shows for ``%magic?``."""
        (page,) = self._reply(self.send(code))["content"]["payload"]
        return _ANSI.sub("", page["data"]["text/plain"])

    def completions(self, code: str) -> list[str]:
        """Return what the Tab key offers at the end of `code`."""
        request = self.client.complete(code, len(code))
        return list(self._reply(request)["content"]["matches"])

    def _published(self, request: str) -> Iterator[dict[str, Any]]:
        while True:
            message = self.client.get_iopub_msg(timeout=CELL_TIMEOUT_S)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["header"]["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return
            yield message

    def _reply(self, request: str) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = self.client.get_shell_msg(timeout=CELL_TIMEOUT_S)
            if message["parent_header"].get("msg_id") == request:
                return message


# Both take seconds to import, which processes without a notebook to run do not spend.
def notebook_of(*sources: str) -> Any:
    """Return a notebook of cells of code."""
    import nbformat

    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def client_of(notebook: Any, kernel: Kernel) -> Any:
    """Return what runs a notebook's cells in a kernel that runs already."""
    from nbclient import NotebookClient

    client = NotebookClient(notebook, km=kernel.manager, timeout=CELL_TIMEOUT_S)
    client.kc = kernel.client
    return client


@contextmanager
def started(folder: Path) -> Iterator[Kernel]:
    """A new kernel that works in `folder` and keeps its history there."""
    manager = ThisPython()
    manager.start_kernel(cwd=str(folder), env=environment(folder))
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=CELL_TIMEOUT_S)
        yield Kernel(manager, client, folder)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a kernel: perfnb from this checkout, no files in the user's home."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    temporary = folder / "temporary"  # other tests make files of perfnb's too
    temporary.mkdir(exist_ok=True)
    own = {"PYTHONPATH": ROOT, "IPYTHONDIR": folder / "ipython", "TMPDIR": temporary, "OMP_NUM_THREADS": 2}
    return env | {name: str(value) for name, value in own.items()}


def until(condition: Any, seconds: float = CELL_TIMEOUT_S) -> None:
    """Wait until `condition()` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.0005)
