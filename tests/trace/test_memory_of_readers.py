"""No file takes gigabytes: what a few kilobytes can ask for stays far below the 2 GiB that `perfnb.load` promises."""

from __future__ import annotations

import gzip
import marshal
import os
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from perfnb.errors import TraceError
from perfnb.stacks.formats import format_of, read_record
from perfnb.trace import perfetto
from perfnb.trace.chrome_events import read as read_chrome
from perfnb.trace.columns import TraceColumns
from perfnb.trace.trace_file import LETTERS, MOST_TEXT, Limits, reader_of
from perfnb.trace.xla import STATS, XlaPlane
from perfnb.trace.xplane import read as read_xspace
from tests.wire import message

#: Unpacked, just below what is checked for its ratio of compression.
SIZE = 30 * 2**20
MOST_MIB = 1024

PEAK = """
import resource, sys
from pathlib import Path
import perfnb
from perfnb.errors import TraceError
try:
    perfnb.load(sys.argv[1])
    said = "loaded"
except TraceError as error:
    said = str(error)
# On Linux, ru_maxrss of a new program is at least that of the process which started it.
status = Path("/proc/self/status")
peaks = [line.split()[1] for line in status.read_text().splitlines() if "VmHWM" in line] if status.exists() else []
print(int(*peaks or [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]) // 1024, said)
"""


def repeated(begin: bytes, unit: bytes, end: bytes) -> bytes:
    return begin + unit * (SIZE // len(unit)) + end


def nested_arrays() -> bytes:
    """Return a Perfetto trace with arrays in each other, and a long text in the innermost."""
    value = message((6, "x" * SIZE))
    for _ in range(190):
        value = message((12, value))
    event = message((9, 1), (4, value + message((10, "Input Dims"))), (23, "a"))
    return message((1, message((8, 1), (11, event))))


def callers() -> bytes:
    """Return cProfile's statistics of one function with many callers."""
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
@pytest.mark.parametrize(
    "what", [pytest.param(name, marks=[] if name == "nested arrays" else [pytest.mark.deep]) for name in HOSTILE]
)
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
    assert said.startswith("loaded") or "raise max_events." in said, said


LONG = "a" * 2**18


def interned_shapes() -> bytes:
    """Return a Perfetto trace with one event whose shapes refer 6,000 times to one long text."""
    shapes = message((10, "Input Dims"), *[(12, message((17, 1)))] * 6_000)
    first = message((10, 1), (13, 1), (12, message((29, message((1, 1), (2, LONG))))))
    start = message((8, 1_000), (10, 1), (11, message((9, 1), (11, 5), (22, "cpu_op"), (23, "a"), (4, shapes))))
    return message((1, first), (1, start), (1, message((8, 2_000), (10, 1), (11, message((9, 2), (11, 5))))))


def named_kind(name: bytes, events: int) -> bytes:
    """Return an XSpace of events of one kind."""
    line = message((1, 1), (2, "python"), *[(4, message((1, 1), (2, 1_000), (3, 1_000)))] * events)
    return message((1, message((2, "/host:CPU"), (4, message((1, 1), (2, message((1, 1), (2, name))))), (3, line))))


def operation() -> bytes:
    """Return a result of rocprofv3 with many copies of one kind."""
    record = b'{"start_timestamp":1,"end_timestamp":2,"thread_id":1,"kind":0,"operation":0}'
    head = b'{"rocprofiler-sdk-tool":[{"strings":{"buffer_records":[{"operations":["%b"]}]},' % LONG.encode()
    return head + b'"buffer_records":{"memory_copy":[%b]}}]}' % b",".join([record] * 1_000)


def functions() -> bytes:
    """Return cProfile's statistics whose 500 functions all refer to one name with an address."""
    name = b"<function f at 0x7f1234567890> " + LONG.encode()
    first = b"\xe1" + struct.pack("<I", len(name)) + name
    figures = b")\x05" + b"i\x01\0\0\0" * 2 + (b"g" + struct.pack("<d", 0.1)) * 2 + b"{0"
    keys = (b")\x03z\x01fi" + struct.pack("<i", n + 1) + (b"r\0\0\0\0" if n else first) for n in range(500))
    return b"{" + b"".join(key + figures for key in keys) + b"0"


def deep_sample() -> bytes:
    """Return a speedscope file with one frame and one stack of it."""
    profile = '{"type":"sampled","unit":"seconds","samples":[%s],"weights":[1]}' % ([0] * 5_000)
    schema = "https://www.speedscope.app/file-format-schema.json"
    return f'{{"$schema":"{schema}","shared":{{"frames":[{{"name":"{LONG}"}}]}},"profiles":[{profile}]}}'.encode()


#: One long text, to which a file refers again and again, or which takes more memory decoded.
ODD = b"\xff" * 2**18 + "\N{GRINNING FACE}".encode()
LONG_TEXTS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "interned shapes": ("a.pftrace", interned_shapes),
    "text that is not UTF-8": ("a.xplane.pb", lambda: named_kind(ODD, 1)),
    "kind of events": ("a.xplane.pb", lambda: named_kind(b"$" + LONG.encode(), 1_000)),
    "operation": ("a_results.json", operation),
    "function": ("a.prof", functions),
    "frame": ("a.speedscope.json", deep_sample),
    "collapsed": ("a.txt", lambda: f"a;b 1\n{LONG[:-10]};b 1\n".encode()),
    "thread": (
        "a.json",
        lambda: f'[{{"ph":"M","name":"thread_name","args":{{"name":"{LONG}"}}}},{{"ph":"X","name":"a"}}]'.encode(),
    ),
}


@pytest.mark.parametrize("what", LONG_TEXTS)
def test_a_long_text_is_cut_where_it_is_read(tmp_path: Path, what: str) -> None:
    name, content = LONG_TEXTS[what]
    path = tmp_path / name
    path.write_bytes(content())

    tracemalloc.start()
    try:
        texts = texts_of(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    longest = max(texts, key=len)
    assert MOST_TEXT - 100 < len(longest) <= MOST_TEXT + 100  # with what a reader puts around it
    assert longest.endswith("…")
    assert peak < 32 * 2**20


def texts_of(path: Path) -> list[str]:
    """Return every text that a reader keeps of a file."""
    if format_of(path):
        record = read_record(path)
        return [one.name for one in (record.tree.functions if record.tree else record.functions)]
    reader = reader_of(path)
    assert reader is not None
    columns = reader.read(path, Limits(), None)
    assert isinstance(columns, TraceColumns)
    return [*columns.names, *columns.shape_texts, *columns.thread_names.values()]


def test_distinct_long_texts_have_a_limit_in_total(tmp_path: Path) -> None:
    """The shapes of each event may refer to the same long text, and still be texts of their own."""
    shapes = [message((10, "Input Dims"), (12, message((4, n))), (12, message((17, 1)))) for n in range(50)]
    packets = [message((10, 1), (13, 1), (12, message((29, message((1, 1), (2, LONG))))))]
    for n, value in enumerate(shapes):
        packets.append(message((8, n), (10, 1), (11, message((9, 1), (11, 5), (23, "a"), (4, value)))))
    path = tmp_path / "a.pftrace"
    path.write_bytes(message(*((1, packet) for packet in packets)))

    with pytest.raises(TraceError, match="raise max_events"):
        perfetto.read(path, Limits(max_events=50 * MOST_TEXT // LETTERS))
    assert len(perfetto.read(path, Limits(max_events=60 * MOST_TEXT // LETTERS)))


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
        with pytest.raises(Exception, match="raise max_events"):
            read_chrome(path, Limits(max_events=100 * count - 20))
