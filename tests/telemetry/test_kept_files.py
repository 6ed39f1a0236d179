"""Files that stay open between readings, and are closed when they can no longer be read."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from perfnb.telemetry.sampler.source import KeptFiles, Rates, file_bytes

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's files")


def test_files_stay_open_up_to_a_number_and_are_closed_in_the_end(tmp_path: Path) -> None:
    process, files = psutil.Process(), KeptFiles(most=2)
    before = process.num_fds()
    paths = [tmp_path / str(place) for place in range(3)]
    for place, path in enumerate(paths):
        path.write_text(f"first {place}")
    for again in range(2):
        assert [files.text(str(path)) for path in paths] == [f"first {place}".encode() for place in range(3)]
        assert process.num_fds() == before + 2, again
    paths[0].write_text("then")
    assert files.text(str(paths[0])) == b"then"
    files.forget(str(paths[0]))
    files.forget("never opened")
    assert process.num_fds() == before + 1
    files.close()
    assert process.num_fds() == before


def test_a_file_that_can_be_opened_but_not_read_is_closed(tmp_path: Path) -> None:
    process, files = psutil.Process(), KeptFiles(most=1)
    before = process.num_fds()
    for _ in range(2):
        with pytest.raises(IsADirectoryError):
            files.text(str(tmp_path))
        assert process.num_fds() == before


@pytest.mark.parametrize("length", [0, 2048, 2049, 4096, 7000, 8192, 20_000])
@pytest.mark.parametrize("size", [3000, 8192])
def test_a_file_that_comes_in_pages_is_read_up_to_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, size: int
) -> None:
    content = bytes(place % 251 for place in range(length))
    (tmp_path / "file").write_bytes(content)
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda file, most, place: read(file, min(most, 2500), place))
    files = KeptFiles()
    assert files.text(str(tmp_path / "file"), size) == content[:size]
    files.close()


def test_a_rate_is_the_increase_over_the_time_since_the_last_value() -> None:
    rates = Rates()
    told = [
        *[(10, 1, None), (14, 3, 2e9), (14, 5, 0.0)],  # per ns
        *[(13, 6, None), (14, 7, 1e9)],  # it was reset
        *[(15, 7, None), (16, 6, None), (18, 8, 1e9)],  # no time went by
        *[(None, 9, None), (30, 10, None), (31, 12, 0.5e9)],
    ]
    assert [rates.per_second("a", value, now) for value, now, _ in told] == [rate for *_, rate in told]
    assert rates.per_second("b", 99, 20) is None
    assert rates.per_second("a", 33, 13) == 2e9


def test_a_system_file_is_read_in_full_and_no_endless_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content := bytes(place % 251 for place in range(150_000)))
    assert file_bytes(str(tmp_path / "file")) == content
    assert len(file_bytes("/dev/zero", 100_000)) < 300_000
    with pytest.raises(FileNotFoundError):
        file_bytes(str(tmp_path / "missing"))
