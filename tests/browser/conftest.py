"""A browser without a screen, and a JupyterLab of its own, for tests that look at what a reader sees."""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]
START_TIMEOUT_S = 240.0
#: How long a test waits for what it expects of a page: only what is broken takes so long.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)

OpenPage = Callable[..., Page]


@dataclass(frozen=True)
class JupyterLab:
    """A JupyterLab server without a password; notebooks put into `root` open at `page_of(name)`."""

    url: str
    root: Path

    def page_of(self, notebook: str) -> str:
        """Return the address at which `notebook` opens in a workspace of its own."""
        return f"{self.url}/lab/workspaces/{Path(notebook).stem}-{time.monotonic_ns()}/tree/{notebook}"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Start headless Chromium."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """Yield an empty page in a context of its own."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="session")
def windows(chromium: Browser) -> Callable[..., BrowserContext]:
    """Return a window for each set of options, kept open by an empty page: it costs three times what a page in it
    does.
    """
    kept: dict[str, BrowserContext] = {}

    def window(**options: Any) -> BrowserContext:
        name = repr(sorted(options.items()))
        if name not in kept:
            kept[name] = chromium.new_context(**options)
            kept[name].new_page()
        return kept[name]

    return window


@pytest.fixture
def open_page(windows: Callable[..., BrowserContext], tmp_path: Path) -> Iterator[OpenPage]:
    """Open HTML as a separate page, and fail if it requests anything, logs an error or opens a dialog."""
    pages: list[Page] = []
    said: list[str] = []

    def open_(html: str, **options: Any) -> Page:
        path = tmp_path / f"{len(pages)}.html"
        path.write_text(html, encoding="utf-8")
        page = windows(**options).new_page()
        pages.append(page)
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: said.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: request.url == path.as_uri() or said.append(f"request: {request.url}"))
        page.goto(path.as_uri())
        return page

    yield open_
    for page in pages:
        page.close()
    assert said == []


@pytest.fixture
def opened(open_page: OpenPage) -> Callable[..., Any]:
    """Open a timeline in its report."""
    from tests.browser.timeline_driver import opened_timeline  # which knows this file

    return functools.partial(opened_timeline, open_page)


@pytest.fixture(scope="session")
def jupyterlab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterLab]:
    """Yield a running JupyterLab on a free port of this machine, with settings and files of its own."""
    pytest.importorskip("jupyterlab", reason="needs jupyterlab")
    home = tmp_path_factory.mktemp("jupyter")
    root = home / "root"
    root.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "notebook-extension/tracker": {"windowingMode": "none"},  # else it draws a cell only when that is scrolled to
    }
    for name, content in settings.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"),
        *("--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--ServerApp.root_dir={root}"),
        *("--ServerApp.disable_check_xsrf=True", "--LabApp.extension_manager=readonly"),
        *(f"--LabApp.user_settings_dir={home / 'settings'}", f"--LabApp.workspaces_dir={home / 'workspaces'}"),
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    log_path = home / "server.log"
    with log_path.open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(server, url, log_path)
        yield JupyterLab(url, root)
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_until_up(server: subprocess.Popen[bytes], url: str, log_path: Path) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/api/status", timeout=60) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start:\n{log_path.read_text(errors='replace')[-3000:]}")


def end_kernels(url: str) -> None:
    """End every kernel of a server."""
    with urllib.request.urlopen(f"{url}/api/sessions") as reply:
        sessions = json.load(reply)
    for session in sessions:
        request = urllib.request.Request(f"{url}/api/sessions/{session['id']}", method="DELETE")
        urllib.request.urlopen(request).close()
