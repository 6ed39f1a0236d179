"""Frames of perfnb are found in printed tracebacks, and the folder of the checkout is not mistaken for one."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

import perfnb
from tests.tracebacks import PACKAGE, frames_of_perfnb

RUN = PACKAGE / "step" / "capture.py"


@pytest.mark.parametrize(
    "line", [f"File {RUN}:12, in run(step)", f'  File "{RUN}", line 12, in run', f"File {RUN}:12", f"  File {RUN}:12"]
)
def test_a_frame_of_the_package_is_found(line: str) -> None:
    assert frames_of_perfnb(f"Traceback (most recent call last):\n{line}\n    step()\nKeyError: 1") == [str(RUN)]


def test_a_file_under_the_home_folder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(PACKAGE.parent))

    assert frames_of_perfnb("File ~/perfnb/step/capture.py:12, in run(step)") == [str(RUN)]


@pytest.mark.parametrize(
    "line",
    [
        f"File {PACKAGE.parent / 'tests' / 'perfnb' / 'run.py'}:12, in step()",
        'File "/somewhere/perfnb/.venv/lib/torch/nn/modules/module.py", line 12, in __call__',
        "Cell In[3], line 1",
    ],
)
def test_other_files_are_not_perfnbs(line: str) -> None:
    assert frames_of_perfnb(line) == []


def test_pythons_own_traceback_of_an_error_inside(tmp_path: Path) -> None:
    with pytest.raises(perfnb.PerfnbError) as caught:
        perfnb.load(tmp_path / "no such file")

    assert frames_of_perfnb("".join(traceback.format_exception(caught.value)))
