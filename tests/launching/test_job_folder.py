"""The folder of a job: removed by its owner, and by the next job if the owner was killed; nobody else's is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from perfnb.launching.child import tell_failure
from perfnb.launching.job import FollowedRanks
from perfnb.launching.job_folder import ORDER, is_abandoned, job_folder, remove_abandoned, tell
from perfnb.launching.order import Order

OWNER = (
    "import os, sys\nfrom perfnb.launching.job_folder import job_folder\n"
    "with job_folder() as folder:\n    print(folder, flush=True)\n    sys.stdin.read()\n"
)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_gone_afterwards_and_there_until_then(base: Path) -> None:
    with job_folder() as mine:
        (mine / "inside").mkdir()
        with job_folder() as another:
            assert another != mine
            assert not is_abandoned(mine)
        assert (mine / "inside").is_dir()
    assert is_abandoned(mine)
    assert list(base.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_what_a_killed_process_left_is_removed_by_the_next_job(base: Path) -> None:
    command, env = [sys.executable, "-c", OWNER], {**os.environ, "TMPDIR": str(base)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        with job_folder():
            assert left.is_dir()  # its owner lives
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert left.is_dir()
        assert is_abandoned(left)
        with job_folder():
            assert not left.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no links")
def test_a_folder_whose_lock_cannot_be_opened_is_not_abandoned(tmp_path: Path) -> None:
    assert is_abandoned(tmp_path)
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    assert not is_abandoned(tmp_path)


def test_nothing_else_is_removed(base: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "owner").touch()
    (base / "perfnb-job-link").symlink_to(elsewhere)
    (base / "perfnb-job-new").mkdir()  # not yet locked
    (base / "mine").mkdir()
    (base / "mine" / "owner").touch()

    remove_abandoned(base)

    assert {one.name for one in base.iterdir()} == {"perfnb-job-link", "perfnb-job-new", "mine"}
    assert (elsewhere / "owner").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_files_of_a_job_are_readable_by_this_user_only(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        tell(tmp_path / "text", "done")
        tell_failure(tmp_path, 0, ValueError("the step's own"))
        FollowedRanks(tmp_path, Order("script"), 1, "1 thread each")
        with job_folder() as mine:
            assert [path.stat().st_mode & 0o777 for path in (mine, mine / "lock")] == [0o700, 0o600]
    finally:
        os.umask(before)

    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("text", "raised_0", "failed_0", ORDER), 0o600)
