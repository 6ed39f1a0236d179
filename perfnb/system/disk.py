"""Checks of the disk that holds the data."""

from __future__ import annotations

from typing import Any

from perfnb import quantities as fmt
from perfnb.system.check import Check, Facts, Finding, NotRead, counted

MIB = 1 << 20
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "beegfs", "afs", "gpfs", "virtiofs")
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
#: Disks of virtual machines, which claim to be rotational whatever they are.
_VIRTUAL = ("vd", "xvd")
#: A request of at most a MiB should take no longer, in seconds: 100 MiB/s, or the seek of a hard disk.
_SLOW_S = 0.01
#: Fewer bytes from the disk itself say nothing about its rate.
_FEWEST = MIB


def disk(facts: Facts) -> Finding:
    """What kind of disk holds the data?"""
    mount, device = facts["mount"], facts.get("block_device")
    kind = mount["kind"]
    found = f"{kind} at {mount['folder']}" + ("" if device is None else f", disk {device['name']}")
    if kind.startswith("fuse") or kind in _NETWORK:
        return Finding(f"{found}: a network or user-space file system", "attention")
    if kind in _IN_MEMORY:
        return Finding(f"{found}: in memory", "info")
    if kind == "overlay":
        return Finding(f"{found}: a container's layers", "info")
    if device is not None and device["turns"]:
        if _is_virtual(facts, device):
            return Finding(f"{found} (virtual)", "info")
        return Finding(f"{found} (a hard disk)", "attention")
    return Finding(found, "ok" if device is not None else "info")


def _is_virtual(facts: Facts, device: dict[str, Any]) -> bool:
    return bool(device["name"].startswith(_VIRTUAL) or facts.get("virtual"))


def read_test(facts: Facts) -> Finding:
    """How fast was a short read?"""
    test = facts["read_test"]
    what = _what(test, facts.get("data"))
    if not test["cache_known"]:
        rate = _rate(test["disk_bytes"] + test["cached_bytes"], test["disk_s"] + test["cached_s"])
        return Finding(f"{rate}, possibly from the page cache ({what})", "info")
    cached = f"{fmt.size(test['cached_bytes'])} from the page cache"
    if test["disk_bytes"] < _FEWEST:
        return Finding(f"nearly all from the page cache, which says nothing about the disk ({what})", "info")
    each_s = test["disk_s"] / max(1, test["disk_requests"])
    each = fmt.size(test["disk_bytes"] / max(1, test["disk_requests"]))
    found = (
        f"{_rate(test['disk_bytes'], test['disk_s'])} from the disk, {fmt.duration(1e3 * each_s)} for {each} ({what}"
    )
    found += f", {cached})" if test["cached_bytes"] else ")"
    return Finding(found, "attention" if each_s > _SLOW_S else "ok")


def _what(test: dict[str, Any], data: str | None) -> str:
    if not test["files"] and not test["temporary"]:
        raise NotRead("nothing was read")
    read = [counted(test["files"], "file")] if test["files"] else []
    read += ["a new temporary file"] if test["temporary"] else []
    size = fmt.size(test["disk_bytes"] + test["cached_bytes"])
    failed = f", {counted(test['failed'], 'file')} could not be read" if test["failed"] else ""
    return f"{size} of {' and '.join(read)}" + ("" if data is None else f" in {data}") + failed


def _rate(count: int, seconds: float) -> str:
    return "too fast to measure" if seconds <= 0 else f"{fmt.size(count / seconds)}/s"


CHECKS = (
    Check(
        "disk of the data",
        "a local SSD",
        "On a network file system or a hard disk a loader waits for each small file.",
        "Copy the data to a local SSD, or pack small files into a few large ones (WebDataset, Parquet, LMDB, HDF5).",
        disk,
    ),
    Check(
        "read test",
        "at most 10 ms for 1 MiB or a small file, from the disk itself",
        "Once the data is larger than memory, the disk limits the loader. The test reads at most 32 MiB in one second. "
        "A new file may still be in the cache of the disk or of a virtual machine's host.",
        "Use more workers if single requests are slow, larger files, a faster disk, or enough memory for the data.",
        read_test,
    ),
)
