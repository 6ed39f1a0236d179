"""The disk of the data by planted trees, and reads of real files, which leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from perfnb.system.read import disk
from perfnb.system.read.disk import block_device, mount_of, read_test
from perfnb.system.read.reading import SystemTree, Unreadable

pytestmark = pytest.mark.usefixtures("nothing_left")

MIB = 1 << 20


def mounted(root: Path, *lines: str) -> SystemTree:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("garbage\n" + "\n".join(lines) + "\n")
    return SystemTree(str(root), "linux")


def add_disk(root: Path, place: str, number: str, **files: str) -> None:
    folder = root / "sys/devices" / place
    folder.mkdir(parents=True, exist_ok=True)
    (root / "sys/dev/block").mkdir(parents=True, exist_ok=True)
    (root / "sys/dev/block" / number).symlink_to(os.path.relpath(folder, root / "sys/dev/block"))
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_the_innermost_mount_holds_the_path(tmp_path: Path) -> None:
    data = tmp_path / "with space" / "set"
    data.mkdir(parents=True)
    place = str(tmp_path / "with space").replace(" ", "\\040")
    tree = mounted(
        tmp_path / "root",
        "1 0 8:9 / / rw",  # cut off
        "1 0 8:1 / / rw - ext4 /dev/sda1",
        f"2 1 8:3 / {place} rw shared:1 - ext3 /dev/sdc rw",  # below the next one
        f"2 1 8:2 / {place} rw shared:1 - xfs /dev/sdb rw",
        f"3 1 0:9 / {place}-other rw - nfs server:/x rw",
    )
    assert mount_of(tree, str(data)) == {
        "folder": str(tmp_path / "with space"),
        "kind": "xfs",
        "source": "/dev/sdb",
        "device": "8:2",
    }


def test_a_part_belongs_to_its_disk_and_a_mapped_volume_to_what_lies_below(tmp_path: Path) -> None:
    tree = mounted(tmp_path, "1 0 8:1 / / rw - ext4 /dev/sda1 rw")
    add_disk(tmp_path, "sda", "8:0", queue__rotational="1\n")
    add_disk(tmp_path, "sda/sda1", "8:1", partition="1\n")
    add_disk(tmp_path, "dm-0", "253:0")
    (tmp_path / "sys/devices/dm-0/slaves").mkdir()
    (tmp_path / "sys/devices/dm-0/slaves/sda1").symlink_to("../../sda/sda1")

    expected = {"name": "sda", "turns": True}
    for number in ("8:0", "8:1", "253:0"):
        assert block_device(tree, {"device": number, "kind": "ext4", "source": "/dev/none"}) == expected


def test_btrfs_lies_on_the_disk_of_its_source_though_its_number_is_its_own(tmp_path: Path) -> None:
    tree = mounted(tmp_path)
    add_disk(tmp_path, "nvme0n1", "259:0", queue__rotational="0\n")
    add_disk(tmp_path, "nvme0n1/nvme0n1p2", "259:2", partition="2\n")
    add_disk(tmp_path, "dm-3", "253:3")
    (tmp_path / "sys/devices/dm-3/slaves").mkdir()
    (tmp_path / "sys/devices/dm-3/slaves/nvme0n1p2").symlink_to("../../nvme0n1/nvme0n1p2")
    (tmp_path / "sys/class/block").mkdir(parents=True)
    for name, place in (("nvme0n1p2", "nvme0n1/nvme0n1p2"), ("dm-3", "dm-3")):
        (tmp_path / "sys/class/block" / name).symlink_to(f"../../devices/{place}")
    (tmp_path / "dev/mapper").mkdir(parents=True)
    (tmp_path / "dev/mapper/luks").symlink_to("../dm-3")

    for source in ("/dev/nvme0n1p2", "/dev/mapper/luks"):
        mount = {"device": "0:35", "kind": "btrfs", "source": source}
        assert block_device(tree, mount) == {"name": "nvme0n1", "turns": False}
    with pytest.raises(Unreadable, match="btrfs file system is not on a visible disk"):
        block_device(tree, {"device": "0:35", "kind": "btrfs", "source": "/dev/sdz9"})


@pytest.mark.parametrize("device", ["0:35", "../../x", "", "8:9"])
def test_what_lies_on_no_disk(tmp_path: Path, device: str) -> None:
    tree = mounted(tmp_path, "1 0 8:1 / / rw - ext4 /dev/sda1 rw")
    with pytest.raises(Unreadable, match="overlay file system is not on a visible disk"):
        block_device(tree, {"device": device, "kind": "overlay", "source": "overlay"})


def test_a_disk_that_says_nothing(tmp_path: Path) -> None:
    tree = mounted(tmp_path)
    add_disk(tmp_path, "sda", "8:0", queue__rotational="\n")
    assert block_device(tree, {"device": "8:0", "kind": "ext4", "source": "/dev/sda"})["turns"] is None
    with pytest.raises(Unreadable, match="lists no file system"):
        mount_of(tree, str(tmp_path))


def total(told: dict[str, Any]) -> int:
    return int(told["disk_bytes"] + told["cached_bytes"])


def test_files_are_only_read_and_the_largest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name, size in (("a", 1), ("deep/b", 3 * MIB), ("deep/er/c", 2 * MIB), ("empty", 0)):
        (tmp_path / name).write_bytes(b"x" * size)
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    before = {path: path.stat() for path in tmp_path.rglob("*") if "loop" not in path.parts}
    monkeypatch.setattr(disk, "_FEWEST_BYTES", 0)  # what is cached is not read a second way

    told = read_test(str(tmp_path))
    assert (told["files"], told["temporary"], told["failed"], total(told)) == (3, False, 0, 5 * MIB + 1)
    for path, was in before.items():
        now = path.stat()
        assert (now.st_mtime_ns, now.st_size) == (was.st_mtime_ns, was.st_size)
        if path.is_file():
            assert now.st_atime_ns == was.st_atime_ns  # not even that they were read is noted

    told = read_test(str(tmp_path), most_bytes=4 * MIB)
    assert (told["files"], total(told)) == (2, 4 * MIB)
    told = read_test(str(tmp_path / "deep" / "b"))
    assert (told["files"], total(told)) == (1, 3 * MIB)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system does not take advice on reads")
def test_a_temporary_file_is_read_and_removed_if_there_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: advice.append(given[3]))
    told = read_test(str(tmp_path))

    assert (told["files"], told["temporary"], total(told)) == (0, True, 8 * MIB)
    assert list(tmp_path.iterdir()) == []
    assert advice == [os.POSIX_FADV_DONTNEED, os.POSIX_FADV_RANDOM]  # not from the cache, and not ahead


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not list open files in /proc")
def test_a_pipe_is_not_read_and_does_not_stay_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd")
    told = read_test(str(tmp_path / "pipe"))
    assert (told["files"], told["failed"], told["temporary"]) == (0, 1, True)
    assert os.listdir("/proc/self/fd") == before


def test_a_test_reads_at_most_32_mib_in_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(disk.time, "perf_counter", lambda: 5.0)
    monkeypatch.setattr(disk, "_read", lambda descriptor, *given: asked.append(given[:2]))
    (tmp_path / "data").touch()
    read_test(str(tmp_path / "data"))
    assert asked == [(32 * MIB, 6.0), (8 * MIB, 6.0)]  # the file, and a temporary one because nothing was read


def test_the_temporary_file_is_gone_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(Unreadable, match="read or written"):
        read_test(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_cached_data_is_reported_separately(tmp_path: Path) -> None:
    if not hasattr(os, "RWF_NOWAIT") or not hasattr(os, "posix_fadvise"):
        pytest.skip("the system does not tell what lies in its cache")
    path = tmp_path / "data"
    path.write_bytes(os.urandom(4 * MIB))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.pread(descriptor, 4 * MIB, 0)
    cached = read_test(str(path))
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    cold = read_test(str(path))
    os.close(descriptor)
    if not cached["cache_known"]:
        pytest.skip("this file system does not tell what lies in its cache")

    assert cached["cached_bytes"] >= 4 * MIB
    assert cached["temporary"]  # for it said nothing of the disk
    assert (cold["disk_bytes"], cold["disk_requests"], cold["temporary"]) == (4 * MIB, 4, False)


def test_it_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").write_bytes(b"x" * (4 * MIB))
    clock = iter(range(10_000))
    monkeypatch.setattr(disk.time, "perf_counter", lambda: float(next(clock)))

    told = read_test(str(tmp_path / "data"), most_s=10.0)  # the clock is asked three times for each chunk
    assert (total(told), told["disk_s"] + told["cached_s"], told["temporary"]) == (3 * MIB, 3.0, False)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="there is no"):
        read_test(str(tmp_path / "missing"))


def test_a_system_without_the_needed_call_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pread")  # as on Windows
    with pytest.raises(Unreadable, match="cannot test reads"):
        read_test(str(tmp_path))


def test_files_that_cannot_be_read_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"x" * MIB)
    opened, read = os.open, os.preadv

    def denied(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path).endswith("a"):
            raise OSError(5, "Input/output error")
        if str(path).endswith("b") and flags & os.O_NOATIME:
            raise PermissionError  # only an owner may keep the time of the last access
        return opened(path, flags, *rest, **more)

    def unknown(*given: Any) -> int:
        if given[3:]:
            raise OSError(95, "Operation not supported")
        return read(*given)

    monkeypatch.setattr(os, "open", denied)
    told = read_test(str(tmp_path))
    assert (told["files"], told["failed"], total(told) - 8 * MIB * told["temporary"]) == (2, 1, 2 * MIB)
    monkeypatch.setattr(os, "preadv", unknown)
    told = read_test(str(tmp_path))
    assert (told["cache_known"], told["cached_bytes"], told["temporary"]) == (False, 0, False)
    assert (told["disk_bytes"], told["disk_requests"]) == (2 * MIB, 2)
    (tmp_path / "small").write_bytes(b"x" * (MIB - 1))
    assert [read_test(str(tmp_path / name))["temporary"] for name in ("c", "small")] == [False, True]
    with pytest.raises(Unreadable, match=r"^no file could be read there$"):
        read_test(str(tmp_path / "a"), most_s=0.0)


def test_no_more_files_or_entries_are_looked_at_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in range(5):
        (tmp_path / str(place)).write_bytes(b"x" * (place + 1))
    monkeypatch.setattr(disk, "_FEWEST_BYTES", 0)
    monkeypatch.setattr(disk, "_MOST_FILES", 3)
    told = read_test(str(tmp_path))
    assert (told["files"], total(told)) == (3, 3 + 4 + 5)
    monkeypatch.setattr(disk, "_MOST_ENTRIES", 2)
    assert read_test(str(tmp_path))["files"] == 2
