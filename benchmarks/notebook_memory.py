"""Measure the peak memory of JupyterLab, a kernel and their child processes while a notebook runs, with a hard limit.

    python -m benchmarks.notebook_memory                      # at the start, and every notebook
    python -m benchmarks.notebook_memory notebooks/labs/solutions/0[45]*.ipynb
    python -m benchmarks.notebook_memory --python ENV/bin/python   # JupyterLab and kernels of another environment

Each notebook gets its own JupyterLab, as on Binder, and its cells run through the server in order. The memory of the
whole process tree is read ten times per second. Private pages are added up, and shared pages are counted once. Files
in memory, such as torch's libraries, are counted once and in full, even if other programs also use them. Peaks that are
shorter than a tenth of a second are detected through the system's high-water mark for each process, and are assumed to
coincide.

If the process tree exceeds the limit, this script kills it. A control group could do this as well, but creating one
requires permissions that are usually not available in containers. As a backstop, the system's limit per process
(``RLIMIT_DATA``) is set to twice the limit. It cannot be lower, because it also counts memory that is requested but not
used. When it was set to the limit itself, it stopped a notebook that used less than half of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import websocket

ROOT = Path(__file__).resolve().parents[1]
LIMIT_BYTES = 2 * 10**9
_MIB = 2**20
_TICK_S, _FILES_EVERY_S, _CELL_S = 0.1, 2.0, 600.0
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ ([0-9a-f]+) (\S+) (\d+)\s*(.*)$")
_SHARED_MEMORY = ("/dev/shm/", "/memfd:", "/SYSV", "/dev/zero")


class OverLimit(Exception):
    """Raised if the process tree exceeds the memory limit."""


class Meter(threading.Thread):
    """Tracks the peak memory of a process and its descendants, and kills them if it exceeds the limit."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.root = psutil.Process(pid)
        self.peak_bytes = self.peak_files = self.now_bytes = self.now_files = 0
        self.over = False
        self._marks: dict[int, int] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        files_at = 0.0
        while not self._ended.wait(_TICK_S):
            pids = self.pids()
            if time.monotonic() - files_at > _FILES_EVERY_S:
                self.now_files, files_at = _files_in_memory(pids), time.monotonic()
            rollups = {pid: _rollup(pid) for pid in pids}
            self.now_bytes = sum(own for own, _ in rollups.values()) + self.now_files
            most_bytes = self.now_bytes + sum(self._given_back(pid, all_) for pid, (_, all_) in rollups.items())
            if most_bytes > self.peak_bytes:
                self.peak_bytes, self.peak_files = most_bytes, self.now_files
            if most_bytes > LIMIT_BYTES:
                self.over = True
                self.end()

    def _given_back(self, pid: int, now: int) -> int:
        """Return how much more memory than now a process had since the last reading, if this was a new maximum."""
        found = re.search(r"^VmHWM:\s+(\d+) kB$", _read(pid, "status"), re.MULTILINE)
        mark = 1024 * int(found[1]) if found else 0
        before, self._marks[pid] = self._marks.get(pid, mark), mark
        return max(0, mark - now) if mark > before else 0

    def pids(self) -> list[int]:
        """Return the ids of the process and its descendants."""
        try:
            return [self.root.pid, *(child.pid for child in self.root.children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def end(self) -> None:
        """Kill the process and its descendants."""
        self._ended.set()
        for pid in reversed(self.pids()):
            try:
                psutil.Process(pid).kill()
            except psutil.NoSuchProcess:
                continue


def _rollup(pid: int) -> tuple[int, int]:
    """Return a process's resident bytes outside files (with its part of shared pages), and all its resident bytes."""
    found = re.findall(r"^(Rss|Pss_Anon|Pss_Shmem|SwapPss): +(\d+) kB$", _read(pid, "smaps_rollup"), re.MULTILINE)
    sizes = {name: 1024 * int(size) for name, size in found}
    return sum(size for name, size in sizes.items() if name != "Rss"), sizes.get("Rss", 0)


def _files_in_memory(pids: list[int]) -> int:
    """Return the resident bytes of the files that these processes have mapped, counting each file once."""
    parts: dict[tuple[str, ...], int] = {}
    for pid in pids:
        part, size = None, 0
        for line in _read(pid, "smaps").splitlines():
            if mapping := _MAPPING.match(line):
                offset, device, inode, path = mapping.groups()
                part = (offset, device, inode) if inode != "0" and not path.startswith(_SHARED_MEMORY) else None
            elif part and line.startswith("Rss:"):
                size = int(line.split()[1])
            elif part and line.startswith("Anonymous:"):
                parts[part] = max(parts.get(part, 0), size - int(line.split()[1]))
    return 1024 * sum(parts.values())


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""  # the process has ended


class Lab:
    """JupyterLab in a separate process with one kernel, subject to the limit."""

    def __init__(self, python: str, folder: Path) -> None:
        homes = ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "HOME", "PERFNB_CACHE")
        options = ["--no-browser", "--allow-root", "--port=0", "--IdentityProvider.token=lab"]
        environment = dict(os.environ)
        if python != sys.executable:
            environment.pop("PYTHONPATH", None)
        with (folder / "log").open("w") as log:
            self.server = subprocess.Popen(
                [python, "-m", "jupyterlab", *options, f"--ServerApp.root_dir={ROOT}"],
                cwd=ROOT,
                env=environment | {name: str(folder / name) for name in homes},
                stdout=subprocess.DEVNULL,
                stderr=log,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (2 * LIMIT_BYTES, 2 * LIMIT_BYTES)),
            )
        self.meter = Meter(self.server.pid)
        self.meter.start()
        self.folder = folder
        self.socket: websocket.WebSocket | None = None
        self.url = self._address()

    def _address(self) -> str:
        """Return the address of the server once it responds, which is shortly after its file appears."""
        for _ in range(600):
            time.sleep(0.1)
            if self.server.poll() is not None:
                break
            for path in (self.folder / "JUPYTER_RUNTIME_DIR").glob("jpserver-*.json"):
                with contextlib.suppress(OSError, ValueError):
                    address = f"127.0.0.1:{json.loads(path.read_text())['port']}"
                    urllib.request.urlopen(f"http://{address}/api", timeout=10).close()
                    return address
        raise RuntimeError(f"JupyterLab did not start: {(self.folder / 'log').read_text()[-500:]}")

    def open(self, notebook: Path) -> None:
        """Start a kernel for a notebook, in the same way as JupyterLab."""
        asked = {"path": str(notebook), "name": "", "type": "notebook", "kernel": {"name": "python3"}}
        url = f"http://{self.url}/api/sessions?token=lab"
        request = urllib.request.Request(url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            kernel = json.load(reply)["kernel"]["id"]
        address = f"ws://{self.url}/api/kernels/{kernel}/channels?token=lab"
        socket = self.socket = websocket.create_connection(address, timeout=5)
        for _ in range(24):  # requests sent while the kernel starts can be lost
            if self._replies("kernel_info_request", {}):
                socket.settimeout(_CELL_S)
                return
        raise RuntimeError(f"The kernel did not start: {(self.folder / 'log').read_text()[-500:]}")

    def run(self, code: str) -> str:
        """Run a cell and return its error as text, or an empty string."""
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "user_expressions": {}}
        replies = self._replies("execute_request", content)
        if not replies:
            raise (OverLimit if self.meter.over else RuntimeError)("The kernel does not respond.")
        errors = [reply["content"] for reply in replies if reply["msg_type"] == "error"]
        return f"{errors[0]['ename']}: {errors[0]['evalue']}" if errors else ""

    def _replies(self, kind: str, content: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the kernel's replies to a request until it is idle again, or an empty list if it never is."""
        number = uuid.uuid4().hex
        header = {"msg_id": number, "msg_type": kind, "session": "lab", "username": "", "version": "5.3", "date": ""}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        replies: list[dict[str, Any]] = []
        socket = self.socket
        assert socket is not None
        try:
            socket.send(json.dumps(message | {"channel": "shell", "buffers": []}))
            while True:
                read = socket.recv()
                if isinstance(read, bytes):
                    continue  # the message has buffers, so it is from a widget
                reply = json.loads(read)
                if reply["parent_header"].get("msg_id") == number:
                    replies.append(reply)
                    if reply["msg_type"] == "status" and reply["content"]["execution_state"] == "idle":
                        return replies
        except (websocket.WebSocketException, OSError):
            return []

    def close(self) -> None:
        """Kill the server and all processes that it started."""
        if self.socket is not None:
            self.socket.close()
        self.meter.end()
        self.server.wait()


class Reading(NamedTuple):
    """The resident bytes of all processes together, and the number of these bytes that belong to files."""

    total_bytes: int
    file_bytes: int

    def __str__(self) -> str:
        return f"{self.total_bytes / _MIB:6.0f} MiB (files: {self.file_bytes / _MIB:4.0f} MiB)"


class Peak(NamedTuple):
    """The peak memory of a notebook, its run time, and its errors."""

    reading: Reading
    seconds: float
    troubles: list[str]

    def __str__(self) -> str:
        return "; ".join([f"{self.reading}, {self.seconds:4.0f} s", *self.troubles])


def at_start(python: str) -> Iterator[tuple[str, Reading]]:
    """Yield the memory in use while nothing runs, from JupyterLab alone to a kernel with perfnb."""
    with tempfile.TemporaryDirectory(prefix="perfnb-lab-") as folder:
        lab = Lab(python, Path(folder))
        try:
            yield "JupyterLab alone", _resting(lab)
            lab.open(Path("notebooks/index.ipynb"))
            for words, code in (
                ("with an idle kernel", ""),
                ("after import perfnb", "import perfnb"),
                ("after import torch", "import torch"),
                ("after %load_ext perfnb", "%load_ext perfnb"),
            ):
                if error := lab.run(code):
                    raise RuntimeError(error)
                yield words, _resting(lab)
        finally:
            lab.close()


def _resting(lab: Lab) -> Reading:
    time.sleep(_FILES_EVERY_S + 1)
    return Reading(lab.meter.now_bytes, lab.meter.now_files)


def peak(python: str, notebook: Path) -> Peak:
    """Run all cells of a notebook. If a cell fails, report it and run the remaining cells."""
    cells = [cell for cell in json.loads((ROOT / notebook).read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    began = time.monotonic()
    troubles = []
    with tempfile.TemporaryDirectory(prefix="perfnb-lab-", ignore_cleanup_errors=True) as folder:
        lab = Lab(python, Path(folder))
        try:
            lab.open(notebook)
            for place, cell in enumerate(cells, start=1):
                error = lab.run("".join(cell["source"]))
                if error and "raises-exception" not in cell["metadata"].get("tags", []):
                    troubles.append(f"code cell {place} failed: {error[:200]}")
        except OverLimit:
            troubles.append("KILLED: over the limit")
        finally:
            lab.close()
    return Peak(Reading(lab.meter.peak_bytes, lab.meter.peak_files), time.monotonic() - began, troubles)


def notebooks() -> list[Path]:
    """Return the notebooks that are not labs, and the labs with their solutions."""
    folder = ROOT / "notebooks"
    found = [*folder.glob("[!i]*.ipynb"), *(folder / "labs" / "solutions").glob("*.ipynb")]
    return sorted((path.relative_to(ROOT) for path in found), key=lambda path: (len(path.parts), path))


def run(python: str = sys.executable, chosen: list[Path] | None = None) -> Iterator[str]:
    """Yield lines with the memory at the start, and a line with the peak of each notebook."""
    yield f"notebook memory: the limit for all processes together is {LIMIT_BYTES / _MIB:.0f} MiB"
    if not chosen:
        for words, size in at_start(python):
            yield f"notebook memory: {words:52} {size}"
    for notebook in chosen or notebooks():
        yield f"notebook memory: {notebook!s:52} {peak(python, notebook)}"


def main(arguments: list[str]) -> None:
    """Print each line as soon as it has been measured."""
    words = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.notebook_memory", description=words)
    parser.add_argument("notebook", nargs="*", type=Path, help="notebooks (default: all, and the memory at the start)")
    parser.add_argument("--python", default=sys.executable, help="the Python interpreter of the environment to measure")
    options: Any = parser.parse_args(arguments)
    for line in run(options.python, [path.resolve().relative_to(ROOT) for path in options.notebook]):
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
