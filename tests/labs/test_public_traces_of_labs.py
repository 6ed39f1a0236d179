"""The traces of lab 8: fetched once, checked, kept; and one clear sentence where that cannot be."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from notebooks.labs import build
from perfnb.errors import LabError
from perfnb.labs import public_traces
from perfnb.labs.public_traces import TRACES, trace_file
from tests.labs import traces_at_hand

CONTENT = b"a trace" * 100


class Site:
    """A server on this machine; what it has, by path, and what it was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append((self.path, self.headers["Accept"]))
                content = site.files.get(self.path)
                self.send_response(404 if content is None else 200)
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    site = Site()
    here = f"http://127.0.0.1:{site.server.server_port}"
    addresses = tuple(f"{here}/{'' if place else '{commit}/'}{{blob}}" for place in range(2))
    trace = replace(
        TRACES["h100_vit"], commit="c0", blob="b10b", size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest()
    )
    monkeypatch.setattr(public_traces, "ADDRESSES", addresses)
    monkeypatch.setitem(TRACES, "h100_vit", trace)
    monkeypatch.setenv("PERFNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("PERFNB_LAB_TRACES", raising=False)
    yield site
    site.close()


@pytest.mark.usefixtures("nothing_left")
def test_a_trace_is_fetched_once(site: Site, tmp_path: Path) -> None:
    site.files["/c0/b10b"] = CONTENT

    first, second = trace_file("h100_vit"), trace_file("h100_vit")

    assert first == second == tmp_path / "cache" / "traces" / "h100_vit.json.gz"
    assert first.read_bytes() == CONTENT
    assert [path for path, _ in site.asked] == ["/c0/b10b"]
    assert list(first.parent.iterdir()) == [first]


def test_the_second_address_is_asked_where_the_first_has_nothing(site: Site) -> None:
    site.files["/b10b"] = CONTENT

    assert trace_file("h100_vit").read_bytes() == CONTENT
    assert site.asked[1] == ("/b10b", "application/vnd.github.raw+json")  # else it answers with base64 in JSON


@pytest.mark.parametrize("content", [b"another" * 100, CONTENT[:-1], CONTENT + b"!"])
def test_another_file_is_not_taken(site: Site, tmp_path: Path, content: bytes) -> None:
    site.files["/c0/b10b"] = site.files["/b10b"] = content

    with pytest.raises(LabError, match=r"h100_vit could not be fetched .*another file than expected.*LAB_TRACES"):
        trace_file("h100_vit")
    assert not list(tmp_path.rglob("*.gz"))


def test_a_damaged_file_in_the_cache_is_fetched_anew(site: Site) -> None:
    site.files["/c0/b10b"] = CONTENT
    trace_file("h100_vit").write_bytes(b"damaged")

    assert trace_file("h100_vit").read_bytes() == CONTENT


def test_without_a_network_one_sentence_says_what_to_do(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_traces, "ADDRESSES", ("http://127.0.0.1:9/{blob}",))

    with pytest.raises(LabError) as error:
        trace_file("h100_vit")

    said = str(error.value)
    assert said.startswith("The trace h100_vit could not be fetched (http://127.0.0.1:9/b10b: ")
    assert said.endswith("name its folder in the environment variable PERFNB_LAB_TRACES.")
    assert said.count("\n") == 0


def test_a_folder_that_is_named_is_used_and_nothing_fetched(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERFNB_LAB_TRACES", str(tmp_path))
    path = tmp_path / "h100_vit.json.gz"
    with pytest.raises(LabError, match=r"h100_vit.json.gz cannot be read \(No such file or directory\): put the file"):
        trace_file("h100_vit")

    path.write_bytes(b"another")
    with pytest.raises(LabError, match="its sha256 is another one"):
        trace_file("h100_vit")

    path.write_bytes(CONTENT)
    assert trace_file("h100_vit") == path
    assert site.asked == []


def test_a_folder_that_cannot_be_made_is_named(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    site.files["/c0/b10b"] = CONTENT
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERFNB_CACHE", str(tmp_path / "file"))

    with pytest.raises(LabError, match=r"could not be kept in .*file/traces"):
        trace_file("h100_vit")


def test_an_unknown_trace_is_refused() -> None:
    with pytest.raises(LabError, match="There is no trace 'h200'; there are h100_vit, "):
        trace_file("h200")


def test_the_lab_names_source_and_licence_of_each_trace() -> None:
    notebook = json.loads(build.built()[build.HERE / "08_someone_elses_trace.ipynb"])
    text = " ".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    flat = " ".join(text.split())

    for name, trace in TRACES.items():
        assert f"`{name}`" in flat
        assert f"https://github.com/{trace.repository}" in flat
        assert trace.licence in flat.replace("Licence: MIT", "MIT")
        assert all(address.startswith("https://") and "{" not in address for address in trace.addresses())


@pytest.mark.skipif(traces_at_hand.folder() is None, reason=traces_at_hand.MISSING)
@pytest.mark.parametrize("name", TRACES)
def test_sizes_and_hashes_are_those_of_the_files(name: str) -> None:
    folder = traces_at_hand.folder()
    assert folder is not None
    content = (folder / f"{name}.json.gz").read_bytes()

    assert TRACES[name].same(content)
    assert hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == TRACES[name].blob
