"""Files that stay open between readings, and are closed when they can no longer be read."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from perfnb.telemetry.sampler.source import KeptFiles

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
