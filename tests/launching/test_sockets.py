"""Who can connect to a job: only processes of the same machine."""

from __future__ import annotations

import os
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import perfnb
from tests.launching.jobs import FAST, small

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tables of sockets"),
]


def listening_of(process: psutil.Process) -> list[str]:
    """Return the addresses at which a process listens, from the kernel's own tables."""
    inodes = set()
    for one in Path(f"/proc/{process.pid}/fd").iterdir():
        target = os.readlink(one) if one.is_symlink() else ""
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A" and cells[9] in inodes:  # the state LISTEN
                words = bytes.fromhex(cells[1].partition(":")[0])
                packed = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                found.append(str(ip_address(packed)))
    return found


@pytest.mark.slow
def test_a_job_of_a_function_listens_on_loopback_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither its ranks, which exchange gradients, nor the process that started them."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")  # what a cluster's image may set

    def set_up() -> Any:
        made = small()
        rank = torch.distributed.get_rank()
        starter = psutil.Process().parent()
        addresses = {"rank": listening_of(psutil.Process()), "starter": listening_of(starter)}
        (tmp_path / f"{rank}").write_text(repr(addresses))
        return made

    assert perfnb.profile_ranks(set_up, threads=1, **FAST).ranks == [0, 1]

    for rank in range(2):
        addresses = eval((tmp_path / f"{rank}").read_text())
        assert addresses["starter"] == []
        assert addresses["rank"], "gloo listens for the other rank"
        assert all(ip_address(one).is_loopback for one in addresses["rank"]), addresses
