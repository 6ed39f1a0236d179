"""Measure the CPU time of reading and judging large files, compared with the least that it could take."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import perfnb
from perfnb.attribution.attribution import attribute
from perfnb.experiments.journal_files import ENTRY
from perfnb.experiments.journal_table import journal_history
from perfnb.findings.verdict import find
from tests.accuracy.judging import Figures
from tests.experiments.test_journal_files import a_thousand_entries, read_entries
from tests.public_profiles import profile_of
from tests.trace.test_public_traces import FOLDER
from tests.trace.test_trace_file import bomb, seconds_and_words


def least_s(work: Callable[[], object], times: int = 5) -> float:
    """CPU time of the fastest of some runs."""
    taken = []
    for _ in range(times):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return min(taken)


def test_a_journal_of_a_thousand_entries(tmp_path: Path, figure: Figures) -> None:
    """Against the same machine's own reading and decoding of the same files, for no second here is like another."""
    a_thousand_entries(tmp_path)

    def bare() -> None:
        for folder in sorted(tmp_path.iterdir()):
            json.loads((folder / ENTRY.file).read_text("utf-8"))

    ratio = least_s(lambda: journal_history(read_entries(tmp_path)[0])) / least_s(bare)
    figure("loading a journal of 1,000 entries / decoding its files", ratio, at_most=8)


def test_findings_of_a_large_trace(figure: Figures) -> None:
    path = FOLDER / "kineto/mi300_owlv2_large.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    profile = profile_of("mi300_owlv2_large")
    recording, summary = profile._recording, profile._summary
    attribution = attribute(recording)
    reading = least_s(lambda: perfnb.load(path), 1)
    judging = least_s(lambda: find(recording, attribution, summary), 1)
    figure("finding bottlenecks in 100,000 events / reading these", judging / reading, at_most=1.5)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
def test_a_bomb_is_refused_soon(tmp_path: Path, figure: Figures) -> None:
    path = tmp_path / "bomb.json.gz"
    for inside, size, options in ((b" ", 2e9, {"ratio": 2_000}), (b'{"ph":"X"},', 1e9, {"max_events": 100_000})):
        bomb(path, b"[", inside, size)
        seconds, _ = seconds_and_words(path, **options)
        figure(
            f"a trace that unpacks to {size / 1e9:g} GB of {inside.decode()!r} is refused after",
            seconds,
            at_most=10,
            unit="s",
        )
