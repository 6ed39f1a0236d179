"""Opening a trace file: whatever is wrong with it is one error that names it, and no file fills the memory."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import re
import subprocess
import sys
import time
import zipfile
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import perfnb
from perfnb.errors import TraceError
from perfnb.trace import trace_file
from perfnb.trace.kineto import read
from perfnb.trace.trace_file import (
    LETTERS,
    Kept,
    Limits,
    Reports,
    head_of,
    lines_of_file,
    refuse_many_values,
    whole_file,
)

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 9, "ts": 1.5, "dur": 2.25, "args": {}}
WHOLE = json.dumps({"traceEvents": [EVENT] * 3}).encode()


def error_of(path: Path | str, **options: int) -> str:
    with pytest.raises(TraceError) as caught:
        read(path, Limits(**options))
    message = str(caught.value)
    assert message.startswith(str(TraceError(str(path))))
    assert message.endswith(".")
    return message.removeprefix(str(path))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "host_1.1234.pt.trace.json", "trace", "trace.txt"])
def test_what_a_file_is_called_does_not_matter(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for data in (
        WHOLE,
        gzip.compress(WHOLE),
        b"\xef\xbb\xbf" + WHOLE,
        gzip.compress(WHOLE[:50]) + gzip.compress(WHOLE[50:]),
    ):
        path.write_bytes(data)
        assert read(path).names == read(str(path)).names == ["aten::mm"]


def test_a_file_that_is_missing_or_a_folder_or_forbidden_is_named(tmp_path: Path) -> None:
    assert "the file does not exist" in error_of(tmp_path / "missing.json")
    assert "it is a folder; pass one of the files in it" in error_of(tmp_path)
    (tmp_path / "file").write_bytes(WHOLE)
    assert "cannot be read" in error_of(tmp_path / "file" / "trace.json")
    assert "cannot be read" in error_of("null\0byte")
    forbidden = tmp_path / "forbidden.json"
    forbidden.write_bytes(WHOLE)
    forbidden.chmod(0)
    if not os.access(forbidden, os.R_OK):
        assert "Permission denied" in error_of(forbidden)


def test_no_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(trace_file, "open_regular", refuse)

    assert error_of(tmp_path / "trace.json") == " cannot be read as a trace: Permission denied."


def test_damaged_compression_is_reported(tmp_path: Path) -> None:
    whole = gzip.compress(WHOLE)
    path = tmp_path / "trace.json.gz"
    for data, why in (
        (whole[:2], "cut off"),
        (whole[:4], "cut off"),
        (whole[: len(whole) // 2], "cut off"),
        (whole[:-1], "cut off"),
        (whole[:30] + b"xxxxxxxx" + whole[38:], "damaged"),
        (whole[:-8] + bytes(8), "damaged"),
        (whole + b"more", "damaged"),
        (b"\x1f\x8b" + b"no gzip at all" * 9, "damaged"),
    ):
        path.write_bytes(data)
        assert f"its compressed data is {why}" in error_of(path)
    path.write_bytes(whole + bytes(100))  # gzip's own padding
    assert len(read(path)) == 3


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([{**EVENT, "cat": "Op", "args": {"op": "MatMul"}}] * 3, "categories such as 'Op'"),
        ([{**EVENT, "cat": "<b>" + "x" * 99}], "categories such as '<b>xxx"),
        ([{name: value for name, value in EVENT.items() if name != "cat"}], "no categories"),
    ],
)
def test_a_timeline_of_another_program_is_not_a_trace(
    tmp_path: Path, events: list[dict[str, object]], said: str
) -> None:
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps({"traceEvents": events}))

    words = error_of(path)
    assert words.startswith(f" is not a torch.profiler trace: its events have {said}")
    assert len(words) < 240
    assert len(perfnb.load([path])) == 1  # which asks the reader of other programs' traces


def test_one_event_of_the_profilers_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for category in ("kernel", "Kernel", "xpu_runtime"):
        path.write_text(json.dumps([{**EVENT, "cat": "of my own"}, {**EVENT, "cat": category}]))
        assert len(read(path)) == 2


@pytest.mark.parametrize("data", [gzip.compress(b"") * 10**4, gzip.compress(WHOLE) + bytes(10**6), WHOLE * 10**3])
def test_a_format_is_recognised_by_the_first_bytes_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    path, handed_out = tmp_path / "trace.json", 0

    class Counted(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            nonlocal handed_out
            part = super().read(size)
            handed_out += len(part)
            return part

    monkeypatch.setattr(trace_file, "open_regular", lambda _: Counted(data))
    trace_file.head_of(path)
    assert 0 < handed_out <= trace_file.HEAD


def test_the_head_of_a_file_is_unpacked_as_far_as_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "HEAD", 64)
    monkeypatch.setattr(trace_file, "_BLOCK", 16)
    path, text = tmp_path / "trace", bytes(range(100))
    damaged = b"\x1f\x8b" + bytes(50)
    heads = [(text, text[:64]), (text[:9], text[:9]), (gzip.compress(text[:9]) * 2, text[:9] * 2)]
    heads += [(gzip.compress(b"ab" * 200), b"ab" * 32), (damaged, damaged), (b"", b"")]
    for content, head in heads:
        path.write_bytes(content)
        assert head_of(path) == head
    assert head_of(tmp_path) == head_of(tmp_path / "missing") == b""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("block", [3, 2**20])
def test_a_text_file_has_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, block: int) -> None:
    monkeypatch.setattr(trace_file, "_BLOCK", block)
    monkeypatch.setattr(trace_file, "_LONGEST_LINE", 6)
    path, mark = tmp_path / "lines", b"\xfe\xff" if encoding == "utf-16-be" else b""
    for text, lines in (("", [""]), ("größe\r\n\n123456\nlast\r", ["größe", "", "123456", "last"])):
        path.write_bytes(mark + text.encode(encoding))
        assert list(lines_of_file(path, Limits())) == lines
    for text in ("1234567\n1", "1\n1234567", "1\n1234567\n"):
        path.write_bytes(mark + text.encode(encoding))
        with pytest.raises(TraceError, match="lines was not read: it has a line of more than 6 characters"):
            list(lines_of_file(path, Limits()))


@pytest.mark.parametrize(
    ("text", "refused"),
    [("[{},{}]", False), ("[[],{},{}]", True), (f"[{'1,' * 11}1]", False), (f"[{{{'1,' * 8}", True), ("", False)],
)
def test_lists_and_objects_count_as_values_and_four_others_as_one(text: str, refused: bool) -> None:
    with pytest.raises(TraceError, match=r"^it was not read: it contains more than 3") if refused else nullcontext():
        refuse_many_values(bytearray(text.encode()), "it", Limits(max_events=3))


def test_what_a_reader_keeps_is_counted_up_to_the_limits() -> None:
    kept = Kept("it", Limits(max_events=3))
    kept.add(2, "a" * LETTERS)
    kept.add(text="b" * 2 * LETTERS)

    with pytest.raises(TraceError, match="it contains more than 3 events, names and values"):
        kept.add()
    with pytest.raises(TraceError, match=f"its names have more than {3 * LETTERS:,} characters in total"):
        kept.add(-1, "c")


def test_formats_decoded_as_a_whole_have_the_lower_of_the_documented_limits() -> None:
    assert (Limits().most_bytes, Limits().most_events) == (8 * 1024**3, 25_000_000)
    assert (Limits().whole().most_bytes, Limits().whole().most_events) == (256 * 1024**2, 4_000_000)
    for limits in (Limits(5, 6), Limits(5, 6).whole()):
        assert (limits.most_bytes, limits.most_events) == (5, 6)
    names: Any = range(256_000_000)  # as many characters
    Kept("it", Limits()).add(text=names)
    with pytest.raises(TraceError, match="its names have more than 256,000,000 characters in total"):
        Kept("it", Limits()).add(text=range(256_000_001))  # type: ignore[arg-type]


def test_other_kinds_of_compression_are_named(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("trace.json", WHOLE)
    path = tmp_path / "trace.json.gz"
    for data, what in (
        (archive.getvalue(), "a ZIP archive"),
        (bz2.compress(WHOLE), "bzip2"),
        (lzma.compress(WHOLE), "xz"),
        (b"\x28\xb5\x2f\xfd" + bytes(20), "zstd"),
    ):
        path.write_bytes(data)
        with pytest.raises(TraceError, match=rf"\(it is .*{what}: unpack it first\)"):
            perfnb.load(path)
    path.write_bytes(gzip.compress(gzip.compress(WHOLE)))
    assert "compressed twice; unpack it first" in error_of(path)
    with pytest.raises(TraceError, match="compressed twice"):
        perfnb.load(path)


def test_a_file_above_a_cap_is_refused_with_the_cap_to_raise(tmp_path: Path) -> None:
    plain, packed = tmp_path / "trace.json", tmp_path / "trace.json.gz"
    long = json.dumps([EVENT] * 3 * 10**4).encode()
    plain.write_bytes(long)
    packed.write_bytes(gzip.compress(long))

    assert "above 2.00 MiB; raise max_bytes." in error_of(plain, max_bytes=2**21)
    assert "would unpack to more than 2.00 MiB, so it was not read;" in error_of(packed, max_bytes=2**21)
    assert "above 1.00 KiB; raise max_bytes." in error_of(packed, max_bytes=1024)
    assert len(read(plain)) == len(read(packed, Limits(max_bytes=len(long)))) == 30_000
    assert "above 9 B" in error_of(plain, max_bytes=9)


def test_progress_is_reported_a_few_times_per_second_after_a_while_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace_file, "QUIET_S", 2.0)
    monkeypatch.setattr(trace_file, "_EVERY_S", 0.5)
    now, told = [100.0], list[tuple[float, int, int]]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for steps in ((1.75, 1), (2.0, 2), (2.25, 3), (2.5, 4), (2.75, 5), (3.25, 6), (3.5, 90)), ((1.75, 90),):
        now[0] = 100.0
        report = Reports(lambda done, total: told.append((now[0] - 100.0, done, total)), 90)
        for at, done in steps:
            now[0] = 100.0 + at
            report(done)

    assert told == [(2.0, 2, 90), (2.5, 4, 90), (3.25, 6, 90), (3.5, 90, 90)]
    Reports(None, 90)(90)


def test_an_error_in_the_progress_callback_propagates_and_closes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "QUIET_S", 0.0)
    monkeypatch.setattr(trace_file, "_EVERY_S", 0.0)
    path = tmp_path / "trace.json"
    path.write_bytes(WHOLE)
    told: list[tuple[int, int]] = []
    read(path, progress=lambda *progress: told.append(progress))
    assert told == [(len(WHOLE), len(WHOLE))]

    with pytest.raises(ZeroDivisionError):  # a ResourceWarning would fail the test
        read(path, progress=lambda done, total: 1 // 0)  # type: ignore[arg-type, return-value]


def bomb(path: Path, begin: bytes, unit: bytes, unpacked: float = 10e9) -> None:
    """Write a file of about 10 MB that repeats `unit` up to about 10 GB."""
    block = unit * (2**20 // len(unit))
    packer = zlib.compressobj(9, wbits=31)
    first = packer.compress(begin) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    path.write_bytes(first + again * int(unpacked // len(block)) + packer.flush())


READ_WITHIN_512_MIB = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29))
from perfnb.errors import TraceError
from perfnb.trace import trace_file
from perfnb.trace.kineto import read
options = eval(sys.argv[2])
trace_file._MOST_RATIO = options.pop("ratio", trace_file._MOST_RATIO)
begin = time.process_time()  # tests/accuracy asks for it
try:
    read(sys.argv[1], trace_file.Limits(**options))
except TraceError as error:
    print(f"{time.process_time() - begin:.1f} s:", error)
"""


def seconds_and_words(path: Path, **options: int) -> tuple[float, str]:
    """Return the reader's message on a file that must not need more memory, and the time that it took."""
    done = subprocess.run(
        [sys.executable, "-c", READ_WITHIN_512_MIB, str(path), repr(options)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    seconds, _, message = done.stdout.partition(" s: ")
    assert message.startswith(str(TraceError(str(path))))
    return float(seconds), message


BOMBS = {
    "blanks": (b"[", b" ", "no event ends within 64.0 MiB"),
    "events": (b"[", b'{"ph":"X"},', "more than 1,000,000 events"),
    "no events": (b'{"traceEvents":[', b"{},", "more than 1,000,000 events"),
    "a name": (b'[{"name":"', b"x", "no event ends within 64.0 MiB"),
    "brackets": (b"", b"[", "no event ends within 64.0 MiB"),
    "nulls": (b"", b"\0", "null bytes"),
    "long events": (b"[", b'{"ph":"X","cat":"%b"},' % (b"x" * 9_000), "would unpack to more than 1.00 GiB"),
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
@pytest.mark.parametrize(
    ("begin", "unit", "said"),
    [pytest.param(*bomb, id=what, marks=[] if what == "a name" else pytest.mark.deep) for what, bomb in BOMBS.items()],
)
def test_a_small_file_that_would_unpack_to_ten_gigabytes_is_refused(
    tmp_path: Path, begin: bytes, unit: bytes, said: str
) -> None:
    path = tmp_path / "bomb.json.gz"
    bomb(path, begin, unit)
    assert 5e6 < path.stat().st_size < 60e6

    refused = seconds_and_words(path)[1]
    assert "unlike any real trace" in refused or said in refused
    assert said in seconds_and_words(path, ratio=2_000, max_bytes=2**30, max_events=10**6)[1]


def test_a_bomb_is_refused_by_its_ratio_once_it_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, text = tmp_path / "bomb.json.gz", b"a" * 10_000
    path.write_bytes(gzip.compress(text))
    ratio = len(text) // path.stat().st_size
    for least, most, refused in ((10_000, 1, False), (9_999, 1, True), (1, ratio, True), (1, ratio + 1, False)):
        monkeypatch.setattr(trace_file, "_RATIO_FROM", least)
        monkeypatch.setattr(trace_file, "_MOST_RATIO", most)
        said = rf"unpacks to {ratio} times its size, .* unpack it first\.$"
        with pytest.raises(TraceError, match=said) if refused else nullcontext():
            assert whole_file(path, Limits()) == text
    path.write_bytes(text)
    monkeypatch.setattr(trace_file, "_MOST_RATIO", 0)
    assert whole_file(path, Limits()) == text  # not compressed


@pytest.mark.deep
@pytest.mark.slow
def test_a_repetitive_trace_is_not_a_bomb(tmp_path: Path) -> None:
    """One event again and again, only its time and number new: as tightly packed as a real trace can be."""
    text = json.dumps([{**EVENT, "ts": 10 * n, "args": {"External id": n}} for n in range(400_000)])
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text.encode(), 9))

    assert len(text) > 34e6
    assert len(text) / path.stat().st_size < 60
    assert len(read(path)) == 400_000


@pytest.mark.parametrize(
    ("data", "packed", "limit"),
    [
        (WHOLE, False, {"max_bytes": 100}),
        (WHOLE, True, {"max_bytes": 100}),
        (WHOLE, False, {"max_events": 2}),
    ],
)
def test_every_option_that_an_error_names_is_one_of_load(
    tmp_path: Path, data: bytes, packed: bool, limit: dict[str, int]
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(data, 9) if packed else data)

    with pytest.raises(TraceError) as caught:
        perfnb.load(path, **limit)  # type: ignore[arg-type]

    (named,) = re.findall(r"raise (\w+)", str(caught.value).removeprefix(str(path)))
    assert named == next(iter(limit))
    with pytest.raises(TraceError, match=f"raise {named}"):
        perfnb.load([path, path], **limit)  # type: ignore[arg-type]
