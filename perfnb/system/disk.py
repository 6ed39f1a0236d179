"""Checks of the disk on which the data lies."""

from __future__ import annotations

from typing import Any

from perfnb.system.check import Check, Facts, Finding, NotRead, counted, size_words

MIB = 1 << 20
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "beegfs", "afs", "gpfs", "virtiofs")
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
#: Disks that only virtual machines have; like all of theirs they call themselves turning whatever they are.
_VIRTUAL = ("vd", "xvd")
#: Longest a request of at most a MiB should take, in seconds: 100 MiB/s, or the seek of a turning disk.
_SLOW_S = 0.01
#: Fewest bytes from the disk itself whose rate tells anything.
_FEWEST = MIB


def disk(facts: Facts) -> Finding:
    """What the data lies on."""
    mount, device = facts["mount"], facts.get("block_device")
    kind = mount["kind"]
    found = f"{kind} at {mount['folder']}" + ("" if device is None else f", disk {device['name']}")
    if kind.startswith("fuse") or kind in _NETWORK:
        return Finding(f"{found}: a network or user-space file system", "attention")
    if kind in _IN_MEMORY:
        return Finding(f"{found}: in memory", "info")
    if kind == "overlay":
        return Finding(f"{found}: the layers of a container", "info")
    if device is not None and device["turns"]:
        if _is_virtual(facts, device):
            return Finding(f"{found}, a virtual one", "info")
        return Finding(f"{found}, which turns", "attention")
    return Finding(found, "ok" if device is not None else "info")


def scheduler(facts: Facts) -> Finding:
    """Does the kernel reorder what a fast disk does itself?"""
    device = facts["block_device"]
    name, chosen, turns = device["name"], device["scheduler"], device["turns"]
    found = f"{chosen} for {name}"
    if name.startswith("nvme"):
        verdict = "ok" if chosen == "none" else "attention" if chosen == "bfq" else "info"
        return Finding(found, verdict, _written("none", name))
    if turns and not _is_virtual(facts, device):
        verdict = "ok" if chosen in ("mq-deadline", "bfq") else "info"
        return Finding(found, verdict, _written("mq-deadline", name))
    return Finding(found, "info" if chosen == "bfq" else "ok", _written("mq-deadline", name))


def _is_virtual(facts: Facts, device: dict[str, Any]) -> bool:
    return bool(device["name"].startswith(_VIRTUAL) or facts.get("virtual"))


def _written(scheduler: str, name: str) -> str:
    return f"echo {scheduler} | sudo tee /sys/block/{name}/queue/scheduler, until the machine starts anew."


def read_test(facts: Facts) -> Finding:
    """How fast was a short read?"""
    told = facts["read_test"]
    what = _what(told, facts.get("data"))
    if not told["tells"]:
        rate = _rate(told["disk_bytes"] + told["cached_bytes"], told["disk_s"] + told["cached_s"])
        return Finding(f"{rate}, perhaps from the system's cache ({what})", "info")
    cached = f"{size_words(told['cached_bytes'])} from the system's cache"
    if told["disk_bytes"] < _FEWEST:
        return Finding(f"nearly all lay in the system's cache, which says nothing of the disk ({what})", "info")
    each_s = told["disk_s"] / max(1, told["disk_requests"])
    each = size_words(told["disk_bytes"] / max(1, told["disk_requests"]))
    found = f"{_rate(told['disk_bytes'], told['disk_s'])} from the disk, {1e3 * each_s:.2g} ms for {each} ({what}"
    found += f", {cached})" if told["cached_bytes"] else ")"
    return Finding(found, "attention" if each_s > _SLOW_S else "ok")


def _what(told: dict[str, Any], data: str | None) -> str:
    if not told["files"] and not told["temporary"]:
        raise NotRead("nothing was read")
    read = [counted(told["files"], "file")] if told["files"] else []
    read += ["a temporary file written just before"] if told["temporary"] else []
    size = size_words(told["disk_bytes"] + told["cached_bytes"])
    failed = f", {counted(told['failed'], 'file')} could not be read" if told["failed"] else ""
    return f"{size} of {' and '.join(read)}" + ("" if data is None else f" in {data}") + failed


def _rate(count: int, seconds: float) -> str:
    return "too fast to tell" if seconds <= 0 else f"{size_words(count / seconds)}/s"


CHECKS = (
    Check(
        "disk of the data",
        "a local disk without turning parts",
        "A network or a turning disk makes a loader wait at each small file.",
        "Copy the data to a local SSD, or pack small files into few large ones (WebDataset, Parquet, LMDB, HDF5).",
        disk,
    ),
    Check(
        "disk scheduler",
        "none for NVMe, mq-deadline or bfq for a turning disk",
        "An NVMe disk sorts its requests itself; a scheduler above it costs processor time.",
        "echo none | sudo tee /sys/block/.../queue/scheduler, with the name of the disk.",
        scheduler,
    ),
    Check(
        "read test",
        "at most 10 ms for a MiB or a small file, from the disk itself",
        "What the disk gives bounds the loader, once the data is larger than memory. At most 32 MiB in one second were "
        "read; the cache cannot be emptied without an administrator. What was written just before may still lie in a "
        "cache of the disk itself, or of the host of a virtual machine.",
        "More workers where single requests are slow, larger files, a faster disk; or memory that holds the data.",
        read_test,
    ),
)
