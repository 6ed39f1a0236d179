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
def test_the_ranks_of_a_function_are_profiled_and_listen_on_loopback_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the ranks, which exchange gradients, nor the process that started them can be reached from elsewhere."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")  # what a cluster's image may set

    def set_up() -> Any:
        made = small()
        rank = torch.distributed.get_rank()
        print("rank", rank, "of", torch.distributed.get_world_size())
        starter = psutil.Process().parent()
        addresses = {"rank": listening_of(psutil.Process()), "starter": listening_of(starter)}
        (tmp_path / f"{rank}").write_text(repr(addresses))
        return made

    ranks = perfnb.profile_ranks(set_up, threads=1, name="small", **FAST)

    assert ranks.ranks == [0, 1]
    printed = capsys.readouterr().out
    for rank, profile in enumerate(ranks):
        assert f"[rank {rank}] rank {rank} of 2\n" in printed
        assert (profile.meta["name"], profile.meta["job"]["backend"]) == ("small", "gloo")
        assert profile.meta["environment"]["threads"] == 1
        assert "model.module" in profile.layers.index
        assert profile.steps["pass"].value_counts()["timed"] == 2
        assert set(profile.steps["samples"].dropna()) == {6}
        addresses = eval((tmp_path / f"{rank}").read_text())
        assert addresses["starter"] == []
        assert addresses["rank"], "gloo listens for the other rank"
        assert all(ip_address(one).is_loopback for one in addresses["rank"]), addresses
