"""Limits, use and throttling from the files of cgroups of every version, whatever they say."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfnb.step import environment
from perfnb.telemetry.sampler import cgroup
from perfnb.telemetry.sampler.cgroup import CgroupSource, cpu_limit, memory_limit_bytes, throttled
from perfnb.telemetry.sampler.source import Absent, Lost

pytestmark = pytest.mark.usefixtures("nothing_left")

S = 10**9
GIB = 2**30
NO_LIMIT = str(2**63 - 4096)

V2_STAT = "usage_usec 5000000\nuser_usec 1\nsystem_usec 2\nnr_periods 10\nnr_throttled 4\nthrottled_usec 2500\n"
V1_STAT = "nr_periods 10\nnr_throttled 4\nthrottled_time 2500000\n"


class Tree:
    """A machine's cgroups below a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.root = folder / "proc", folder / "cgroup"
        self.proc.mkdir()
        self.root.mkdir()
        self.mounts: list[str] = []
        self.groups: list[str] = []

    @property
    def places(self) -> tuple[str, str]:
        return str(self.proc), str(self.root)

    def mount(self, name: str, group: str, *, unified: bool = False, top: str = "/") -> None:
        """A hierarchy (its controllers, or where the one of version 2 is) and the process's place in it."""
        at = "/sys/fs/cgroup" + f"/{name}".rstrip("/")
        kind = "cgroup2 cgroup2 rw,nsdelegate" if unified else f"cgroup cgroup rw,{name}"
        self.mounts.append(f"3{len(self.mounts)} 25 0:26 {top} {at} rw,nosuid shared:4 - {kind}")
        self.groups.append(f"0::{group}" if unified else f"{len(self.groups) + 1}:{name}:{group}")
        (self.proc / "mountinfo").write_text("1 1 8:1 / / rw - ext4 /dev/root rw\n" + "\n".join(self.mounts) + "\n")
        (self.proc / "cgroup").write_text("\n".join(self.groups) + "\n")
        (self.root / name).mkdir(parents=True, exist_ok=True)

    def put(self, folder: str, **files: str) -> None:
        """Write files of a group; dots in their names are written as two underscores."""
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (self.root / folder / name.replace("__", ".")).write_text(text)

    def limits(self) -> tuple[float | None, int | None]:
        return cpu_limit(*self.places), memory_limit_bytes(*self.places)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def v2(tree: Tree, group: str = "/a/b") -> Tree:
    tree.mount("", group, unified=True)
    tree.put(group[1:], cpu__max="max 100000\n", cpu__stat=V2_STAT, memory__max="max\n")
    tree.put(group[1:], memory__current=f"{3 * GIB}\n", memory__stat=f"anon 7\nfile 9\ninactive_file {GIB}\n")
    return tree


def v1(tree: Tree, group: str = "/a/b", cpu: str = "cpu,cpuacct") -> Tree:
    for name in dict.fromkeys((cpu, "cpuacct" if cpu == "cpu" else cpu, "memory")):
        tree.mount(name, group)
    accounts = "cpuacct" if cpu == "cpu" else cpu
    tree.put(accounts + group, cpuacct__usage="5000000000\n")
    tree.put(cpu + group, cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n", cpu__stat=V1_STAT)
    tree.put(f"memory{group}", memory__limit_in_bytes=f"{NO_LIMIT}\n", memory__usage_in_bytes=f"{3 * GIB}\n")
    stat = f"inactive_file 1\nhierarchical_memory_limit {NO_LIMIT}\ntotal_inactive_file {GIB}\n"
    tree.put(f"memory{group}", memory__stat=stat)
    return tree


def hybrid(tree: Tree) -> Tree:
    """Memory in version 1, the rest in version 2."""
    tree.mount("memory", "/a")
    tree.mount("unified", "/b", unified=True)
    tree.put("memory/a", memory__limit_in_bytes=f"{4 * GIB}\n", memory__usage_in_bytes=f"{3 * GIB}\n")
    tree.put("memory/a", memory__stat=f"total_inactive_file {GIB}\n")
    tree.put("unified/b", cpu__max="150000 100000\n", cpu__stat=V2_STAT)
    return tree


KINDS: dict[str, tuple[Callable[[Tree], Tree], str]] = {
    "v2": (v2, "v2"),
    "v1": (v1, "v1"),
    "v1 apart": (lambda tree: v1(tree, cpu="cpu"), "v1"),
    "hybrid": (hybrid, "hybrid"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_group_uses_is_read(tree: Tree, kind: str) -> None:
    build, version = KINDS[kind]
    build(tree)
    source = CgroupSource(*tree.places)
    facts = source.facts("cgroup")
    assert facts["version"] == version
    assert (facts["cpu_limit"], facts["memory_limit_bytes"]) == tree.limits()
    assert tree.limits() == ((1.5, 4 * GIB) if kind == "hybrid" else (None, None))
    assert throttled(*tree.places) == (4, 2.5)
    assert source.read("cgroup", S) == {"cpu_percent": None, "memory_bytes": 2 * GIB, "throttled_percent": None}

    for name, old, new in (
        ("cpu.stat", "usage_usec 5000000", "usage_usec 8000000"),
        ("cpuacct.usage", "5000000000", "8000000000"),
        ("cpu.stat", "throttled_usec 2500", "throttled_usec 502500"),
        ("cpu.stat", "throttled_time 2500000", "throttled_time 502500000"),
    ):
        for path in tree.root.rglob(name):
            path.write_text(path.read_text().replace(old, new))
    assert source.read("cgroup", 3 * S) == {
        "cpu_percent": 150,
        "memory_bytes": 2 * GIB,
        "throttled_percent": 25,
    }
    source.close()


def test_the_tightest_limit_on_the_way_up_holds(tree: Tree) -> None:
    v2(tree, "/a/b/c")
    tree.put("a/b", cpu__max="300000 100000", memory__max=str(2 * GIB), cpu__stat="nr_throttled 1\nthrottled_usec 0\n")
    tree.put("a", cpu__max="50000 25000", memory__max=str(5 * GIB), cpu__stat="nr_throttled 9\nthrottled_usec 7000\n")
    tree.put("aside", cpu__max="1000 100000", memory__max="1")
    assert tree.limits() == (2.0, 2 * GIB)
    assert throttled(*tree.places) == (9, 7.0)


def test_the_tightest_limit_of_version_1_holds(tree: Tree) -> None:
    v1(tree, "/a/b")
    tree.put("cpu,cpuacct/a", cpu__cfs_quota_us="150000", cpu__cfs_period_us="100000")
    tree.put("cpu,cpuacct/a", cpu__stat="nr_throttled 9\nthrottled_time 7000000\n")
    tree.put("memory/a", memory__limit_in_bytes=str(2 * GIB))
    assert tree.limits() == (1.5, 2 * GIB)
    assert throttled(*tree.places) == (9, 7.0)
    tree.put("memory/a/b", memory__stat=f"hierarchical_memory_limit {GIB}\n")  # set above what can be seen
    assert tree.limits() == (1.5, GIB)


def test_in_a_container_the_mount_shows_its_own_group(tree: Tree) -> None:
    tree.mount("", "/docker/abc", unified=True)  # the host's path, which is not to be found here
    tree.put("", cpu__max="200000 100000", memory__max=str(GIB))
    assert tree.limits() == (2.0, GIB)


def test_a_mount_may_begin_at_the_containers_group(tree: Tree) -> None:
    tree.mount("cpu", "/docker/abc/inner", top="/docker/abc")
    tree.mount("memory", "/docker/abcd", top="/docker/abc")  # begins alike, but lies elsewhere
    tree.put("cpu", cpu__cfs_quota_us="400000", cpu__cfs_period_us="100000")
    tree.put("cpu/inner", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    tree.put("memory", memory__limit_in_bytes="4096")
    tree.put("memory/d", memory__limit_in_bytes="1")
    assert tree.limits() == (0.5, 4096)


def test_a_path_does_not_lead_out_of_the_mount(tree: Tree) -> None:
    tree.mount("unified", "/../aside", unified=True)
    tree.put("aside", cpu__max="100000 100000")
    assert cpu_limit(*tree.places) is None


def test_a_name_with_a_space_is_found(tree: Tree) -> None:
    v2(tree, "/a b")
    path = tree.proc / "mountinfo"
    (tree.root / "with space").mkdir()
    path.write_text(path.read_text().replace("/sys/fs/cgroup rw", "/sys/fs/cgroup/with\\040space rw"))
    tree.put("with space/a b", cpu__max="100000 50000")
    assert cpu_limit(*tree.places) == 2.0


def test_lines_that_do_not_describe_a_mounted_group_are_skipped(tree: Tree) -> None:
    path = tree.proc / "mountinfo"
    path.write_text("1 1 0:1 / - cgroup2 cgroup rw\n1 1 0:1 / /a - cgroup2 rw\n1 1 0:1 / /a - ext4 cgroup rw\n- -\n")
    assert tree.limits() == (None, None)


def test_a_name_that_cannot_be_one_is_not_found(tree: Tree) -> None:
    v2(tree)
    path = tree.proc / "mountinfo"
    path.write_text(path.read_text().replace("/sys/fs/cgroup rw", "/sys/fs/cgroup/\\000 rw"))
    assert tree.limits() == (None, None)


def test_a_group_without_memory_accounts_belongs_to_the_one_above(tree: Tree) -> None:
    v2(tree, "/a")
    tree.groups.clear()
    tree.mounts.clear()
    tree.mount("", "/a/b", unified=True)
    tree.put("a/b", cpu__stat="usage_usec 1\n")
    source = CgroupSource(*tree.places)
    assert source.read("cgroup", S)["memory_bytes"] == 2 * GIB
    assert throttled(*tree.places) == (4, 2.5)
    source.close()


@pytest.mark.parametrize(
    "text",
    ["max", "max 100000", "", "\n", "-1", "0 100000", "100000 0", "-1 100000", "a b", "1 2 3", "100000", "1e5 1e5"],
)
def test_invalid_limits_count_as_none(tree: Tree, text: str) -> None:
    v2(tree)
    tree.put("a/b", cpu__max=text, memory__max="x" + text)
    assert tree.limits() == (None, None)


@pytest.mark.parametrize("text", [NO_LIMIT, str(2**63 - 65536), str(2**64 - 1), "-1", "", "max", "9" * 5000])
def test_no_limit_of_version_1_is_none(tree: Tree, text: str) -> None:
    v1(tree)
    tree.put("memory/a/b", memory__limit_in_bytes=text)
    tree.put("cpu,cpuacct/a/b", cpu__cfs_quota_us="-1")
    assert tree.limits() == (None, None)


def test_a_number_has_at_most_19_digits() -> None:
    texts = (b" 7\n", b"9" * 19, b"9" * 20, b"-1", b"")
    assert [cgroup._whole(text) for text in texts] == [7, 10**19 - 1, None, None, None]


def test_without_the_share_of_the_cache_the_memory_is_unknown(tree: Tree) -> None:
    v2(tree)
    tree.put("a/b", memory__stat="anon 5\n")
    source = CgroupSource(*tree.places)
    assert source.read("cgroup", S)["memory_bytes"] is None
    source.close()


def test_without_cgroups_the_source_is_absent(tree: Tree) -> None:
    for build in (lambda: None, lambda: tree.mount("", "/a", unified=True), lambda: tree.mount("memory", "/")):
        build()
        assert tree.limits() == (None, None)
        assert throttled(*tree.places) is None
        with pytest.raises(Absent, match="no cgroup"):
            CgroupSource(*tree.places)


def test_a_group_that_can_no_longer_be_read_is_lost(tree: Tree) -> None:
    v2(tree)
    tree.put("a/b", cpu__max="100000 100000")
    source = CgroupSource(*tree.places)
    source.read("cgroup", S)
    for name in ("cpu.stat", "memory.current", "memory.stat"):
        (tree.root / "a/b" / name).write_text("")
    with pytest.raises(Lost):
        source.read("cgroup", 2 * S)
    source.close()


GARBAGE = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.sampled_from(["0", "1", "max", "-1", ":", "::", "/", "/a", "..", "cpu", "memory", " - ", "cgroup2"])
    ).map(lambda words: " ".join(words).encode()),
    st.sampled_from([b"0::/\0", b"\xff\xfe", b"nr_throttled x\nthrottled_usec 1", b"1" * 6000, b"0::/" + b"a/" * 3000]),
)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_raises_nothing(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    tree = KINDS[data.draw(st.sampled_from(list(KINDS)))][0](Tree(tmp_path_factory.mktemp("cgroups")))
    files = sorted(path for path in (*tree.proc.rglob("*"), *tree.root.rglob("*")) if path.is_file())
    for path in data.draw(st.lists(st.sampled_from(files), min_size=1, unique=True)):
        path.write_bytes(data.draw(GARBAGE))
    cpu, memory = tree.limits()
    assert cpu is None or cpu > 0
    assert memory is None or memory >= 0
    assert throttled(*tree.places) is None or throttled(*tree.places) >= (0, 0)
    try:
        source = CgroupSource(*tree.places)
    except Absent:
        return
    source.read("cgroup", S)
    assert all(value is None or value >= 0 for value in source.read("cgroup", 2 * S).values())
    source.close()


def test_this_machines_cgroup_is_absent_or_read() -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    try:
        source = CgroupSource()
    except Absent:
        pytest.skip("no cgroup here")
    source.read("cgroup", S)
    assert source.facts("cgroup")["version"] in ("v1", "v2", "hybrid")
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_conditions_tell_how_the_limit_held_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [(3, 20.0), (5, 45.5)]
    assert environment.throttled is cgroup.throttled
    monkeypatch.setattr(environment, "throttled", lambda: told.pop(0))
    with environment.Conditions() as during:
        pass
    assert (during.facts["throttled_periods"], during.facts["throttled_ms"]) == (2, 25.5)
    monkeypatch.setattr(environment, "throttled", lambda: None)
    with environment.Conditions() as during:
        pass
    assert "throttled_ms" not in during.facts
