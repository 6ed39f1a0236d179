"""No file takes gigabytes: what a few kilobytes can ask for stays far below the 2 GiB that `perfnb.load` promises."""

from __future__ import annotations

import gzip
import marshal
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perfnb.trace.chrome_events import read as read_chrome
from perfnb.trace.trace_file import Limits
from perfnb.trace.xla import STATS, XlaPlane
from perfnb.trace.xplane import read as read_xspace
from tests.wire import message

#: Unpacked, just below what is checked for its ratio of compression.
SIZE = 30 * 2**20
MOST_MIB = 1024

PEAK = """
import resource, sys
import perfnb
from perfnb.errors import TraceError
try:
    perfnb.load(sys.argv[1])
    said = "loaded"
except TraceError as error:
    said = str(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, said)
"""


def repeated(begin: bytes, unit: bytes, end: bytes) -> bytes:
    return begin + unit * (SIZE // len(unit)) + end


def nested_arrays() -> bytes:
    """A Perfetto trace with arrays in each other, and a long text in the innermost."""
    value = message((6, "x" * SIZE))
    for _ in range(190):
        value = message((12, value))
    event = message((9, 1), (4, value + message((10, "Input Dims"))), (23, "a"))
    return message((1, message((8, 1), (11, event))))


def callers() -> bytes:
    """Statistics of cProfile with one function, and many callers of it."""
    caller = marshal.dumps(("f", 1, "g"), 2) + b"N"
    return repeated(b"{" + caller[:-1] + b"(\x05\0\0\0" + b"i\x01\0\0\0" * 4 + b"{", caller, b"00")


SPEEDSCOPE = b'{"$schema":"https://www.speedscope.app/file-format-schema.json","shared":{"frames":[]},"profiles":['
HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "nested arrays": ("a.pftrace", nested_arrays),
    "records": (
        "a_results.json",
        lambda: repeated(b'{"rocprofiler-sdk-tool":[{"buffer_records":{"kernel_dispatch":[', b"{},", b"{}]}}]}"),
    ),
    "samples": ("a.json", lambda: repeated(SPEEDSCOPE + b'{"type":"sampled","samples":[', b"[],", b"[]]}]}")),
    "values in an event": ("a.json", lambda: repeated(b'[{"ph":"X","cat":"a","args":{"a":[', b"{},", b"{}]}}]")),
    "callers": ("a.prof", callers),
    "stacks": ("a.txt", lambda: b"".join(b"a;%d;%d 1\n" % (n, n) for n in range(SIZE // 20))),
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read in KiB, as on Linux")
@pytest.mark.parametrize("what", HOSTILE)
def test_a_small_file_takes_no_gigabytes(tmp_path: Path, what: str) -> None:
    name, content = HOSTILE[what]
    path = tmp_path / name
    path.write_bytes(gzip.compress(content(), 6))

    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-500:]
    peak, _, said = done.stdout.partition(" ")
    assert int(peak) < MOST_MIB, said
    assert said.startswith("loaded") or "raise max_events in limits=." in said, said


def test_statistics_of_a_kind_that_nothing_uses_are_not_copied_to_its_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the work is that of events times statistics."""
    seen: list[set[str]] = []
    monkeypatch.setattr(XlaPlane, "add", lambda self, *event: seen.append(set(event[-1])))
    names = [*STATS, *(f"unknown {n}" for n in range(100))]
    stats = [(5, message((1, n), (2, message((1, n), (2, name))))) for n, name in enumerate(names, 1)]
    kind = message((1, 1), (2, "a"), *((5, message((1, n), (4, 1))) for n in range(1, len(names) + 1)))
    line = message((1, 1), (2, "thread"), *[(4, message((1, 1), (2, 1), (3, 1)))] * 3)
    plane = message((2, "/host:CPU"), *stats, (4, message((1, 1), (2, kind))), (3, line))
    (tmp_path / "a.xplane.pb").write_bytes(message((1, plane)))

    read_xspace(tmp_path / "a.xplane.pb", Limits())

    assert seen == [set(STATS)] * 3


def test_names_and_numbers_of_threads_count_as_well(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for event, count in (('{"ph":"X","cat":"a"}', 1), ('{"ph":"X","name":"%d"}', 2), ('{"ph":"B","tid":"t%d"}', 4)):
        path.write_text(f"[{','.join(event % n if '%' in event else event for n in range(100))}]")
        assert len(read_chrome(path, Limits(max_events=100 * count + 20)))
        with pytest.raises(Exception, match="raise max_events in limits="):
            read_chrome(path, Limits(max_events=100 * count - 20))
