"""Any damage to a file of any format is one sentence that names the file, or a trace; the same caps hold for all."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import perfnb
from perfnb.errors import TraceError
from perfnb.trace import chrome_events, kineto, nsys, perfetto, rocprof, xplane
from perfnb.trace.columns import TraceColumns
from perfnb.trace.trace_file import LIMITS, Limits, Reader
from tests.damage import mutated, with_bad_sectors, with_odd_values
from tests.nsys_files import joined, training, write
from tests.trace import test_chrome_events, test_kineto, test_perfetto, test_rocprof, test_xplane

#: A format's reader, and a file of it.
FORMATS: dict[str, tuple[Reader, Callable[[Path], bytes]]] = {
    "nsys": (nsys.READER, lambda path: write(path, joined(training(40, 2), training(41, 2))).read_bytes()),
    "xspace": (xplane.READER, lambda _: test_xplane.SAMPLE),
    "perfetto": (perfetto.READER, lambda _: test_perfetto.by_hand()),
    "rocprof": (rocprof.READER, lambda _: json.dumps(test_rocprof.SAMPLE).encode()),
    "chrome": (chrome_events.READER, lambda _: json.dumps(test_chrome_events.PAIRS).encode()),
    "kineto": (kineto.READER, lambda _: json.dumps([test_kineto.EVENT] * 9).encode()),
}
#: What else can happen to a file of a format; half of the time, it does.
ALSO = {"nsys": with_bad_sectors, "chrome": with_odd_values, "kineto": with_odd_values}


@pytest.mark.parametrize("count", [50, pytest.param(2000, marks=pytest.mark.deep)])
@pytest.mark.parametrize("name", FORMATS)
def test_any_damage_is_one_sentence_or_a_trace(tmp_path: Path, name: str, count: int) -> None:
    reader, sample = FORMATS[name]
    path, chance, read_anyway = tmp_path / "damaged", random.Random(name), 0
    data = sample(path)
    for number in range(count):
        damaged = (ALSO.get(name, mutated) if number % 4 > 1 else mutated)(data, chance)
        path.write_bytes(gzip.compress(damaged, 1) if number % 5 == 0 else damaged)
        try:
            trace = perfnb.load(path) if number % 10 == 1 else reader.read(path, LIMITS, None)
            read_anyway += not isinstance(trace, list | TraceColumns) or len(trace) > 0
        except TraceError as error:
            said = str(error).partition(str(path))
            assert said[1]
            assert said[2].endswith(".")
            assert len(said[2]) < 500
            assert "\n" not in said[2]
    assert read_anyway


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_caps_hold_for_every_format(tmp_path: Path, name: str) -> None:
    reader, sample = FORMATS[name]
    path = tmp_path / "a"
    path.write_bytes(sample(path))
    for limits, said in ((Limits(max_events=2), "raise max_events."), (Limits(max_bytes=99), "raise max_bytes.")):
        with pytest.raises(TraceError, match=said):
            reader.read(path, limits, None)


@pytest.mark.parametrize("begin", [b'{"rocprofiler-sdk-tool":[],"x":', b'[{"ph":"X","args":{"a":', b'{"a":', b""])
def test_endlessly_nested_values_give_one_sentence(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(begin + b"[" * 10**6)
    with pytest.raises(TraceError, match=r"nested more than 200|is damaged or cut off after byte 1;"):
        perfnb.load(path)


def test_values_are_counted_before_they_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a_results.json"
    path.write_bytes(b'{"rocprofiler-sdk-tool":[],"x":[' + b"{}," * 1_000 + b"{}]}")

    with pytest.raises(TraceError, match=r"raise max_events\."):
        rocprof.read(path, Limits(max_events=900))
