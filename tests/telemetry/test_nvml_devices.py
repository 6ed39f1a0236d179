"""Which GPUs and MIG slices are read: the real binding, with a stand-in for the driver's library."""

from __future__ import annotations

import pytest

from tests.telemetry.nvml_stand_in import (
    CODES,
    FIRST,
    NAME,
    SECOND,
    USUAL,
    Gpus,
    Raised,
    absent,
)


def test_no_gpu(gpus: Gpus) -> None:
    gpus.set_up({"count": 0})
    assert absent(gpus) == "no GPU is visible"
    gpus.set_up({"nvmlDeviceGetCount": 999})
    assert absent(gpus) == "NVML does not start: Unknown Error"


def test_a_gpu_that_cannot_be_opened(gpus: Gpus) -> None:
    for code in CODES:
        gpus.set_up({"0.nvmlDeviceGetHandleByIndex": code})
        gpus.open()
        assert gpus.devices() == [SECOND]
        [note] = gpus.notes()
        assert note.startswith("GPU 0: ")
        assert note.endswith(". It is not read.")
        assert gpus.read(SECOND) == USUAL
    gpus.set_up({"0.error": 15, "1.error": 4})
    assert absent(gpus) == "no GPU can be read (GPU 0: GPU is lost)"
    assert absent(gpus, "1") == "no GPU can be read (GPU 1: Insufficient Permissions)"


def test_a_gpu_without_uuid(gpus: Gpus) -> None:
    gpus.set_up({"1.nvmlDeviceGetUUID": 999})
    gpus.open()
    assert gpus.devices() == [FIRST, "GPU 1"]
    assert gpus.read("GPU 1") == USUAL
    assert "uuid" not in gpus.facts("GPU 1")


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, "abcd"),
        ("0", "a"),
        ("2,1", "cb"),
        (" 1 , 3 ", "bd"),
        ("0,2,-1,1", "ac"),
        ("0,7,1", "a"),
        ("02,1", "cb"),
        ("0,0,1", "a"),
        ("0,GPU-aa", "a"),
        ("GPU-aa11", "a"),
        ("GPU-bb,GPU-aa11", "ba"),
        ("GPU-bb22,0", "ba"),
        ("GPU-aa22,GPU-zz,GPU-aa11", "d"),
        ("GPU-aa11,MIG-1", "a"),
    ],
)
def test_what_cuda_visible_devices_lets_through(gpus: Gpus, visible: str | None, seen: str) -> None:
    gpus.set_up({"count": 4, "0.uuid": "GPU-aa11", "1.uuid": "GPU-bb22", "2.uuid": "GPU-cc33", "3.uuid": "GPU-aa22"})
    gpus.open(visible)
    uuids = {"a": "GPU-aa11", "b": "GPU-bb22", "c": "GPU-cc33", "d": "GPU-aa22"}
    assert gpus.devices() == [uuids[letter] for letter in seen]


@pytest.mark.parametrize(
    "visible",
    ["", "-1", "-1,0", "2", "none", ",0", "GPU-aa", "gpu-aa11", "MIG-aa11", "1gpu"],
)
def test_cuda_visible_devices_hides_all(gpus: Gpus, visible: str) -> None:
    gpus.set_up({"0.uuid": "GPU-aa11", "1.uuid": "GPU-aa22"})
    assert absent(gpus, visible) == "no GPU is visible: CUDA_VISIBLE_DEVICES hides all 2"


def test_an_empty_entry_names_nothing(gpus: Gpus) -> None:
    gpus.set_up({"count": 1})
    gpus.open(f"{FIRST},")
    assert gpus.devices() == [FIRST]


SLICED: dict[str, int | str | bytes] = {
    "log": 1, "0.mig": 1, "0.slices": 4, "0:1.absent": 1, "0:3.absent": 1, "0:0.uuid": "MIG-aaa", "0:2.uuid": "MIG-abb",
    "0:0.used": 2**29, "0:0.total": 2**33, "0:0.name": "NVIDIA Stand-in MIG 1g.8gb", "0:2.nvmlDeviceGetName": 3,
}  # fmt: skip


def test_slices_stand_for_their_gpu(gpus: Gpus) -> None:
    gpus.set_up(SLICED)
    gpus.open()
    assert gpus.devices() == ["MIG-aaa", "MIG-abb", SECOND]
    assert gpus.facts("MIG-aaa") == {
        "name": "NVIDIA Stand-in MIG 1g.8gb",
        "uuid": "MIG-aaa",
        "index": 0,
        "memory_bytes": 2**33,
        "mig": True,
    }
    assert gpus.facts("MIG-abb")["name"] == "NVIDIA Stand-in"
    [note] = gpus.notes()
    assert note.startswith("Only the memory of a MIG slice can be read: ")

    gpus.calls()
    for second in (0, 5):
        assert gpus.read("MIG-aaa", second) == dict.fromkeys(USUAL) | {"memory_bytes": 2**29}
        assert gpus.read("MIG-abb", second) == dict.fromkeys(USUAL) | {"memory_bytes": 2**30}
        assert gpus.read(SECOND, second + 1) == USUAL
    assert gpus.notes() == []
    assert not [call for call in gpus.calls() if call.endswith(" 0")], "the whole GPU was asked for its slice"


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("0", ["MIG-aaa", "MIG-abb"]),
        ("1", [SECOND]),
        (FIRST, ["MIG-aaa", "MIG-abb"]),
        ("MIG-abb", ["MIG-abb"]),
        ("MIG-abb,MIG-aa", ["MIG-abb", "MIG-aaa"]),
        ("MIG-abb,MIG-unknown", ["MIG-abb"]),
    ],
)
def test_visible_slices(gpus: Gpus, visible: str, seen: list[str]) -> None:
    gpus.set_up(SLICED)
    gpus.open(visible)
    assert gpus.devices() == seen


def test_errors_of_slices(gpus: Gpus) -> None:
    gpus.set_up({**SLICED, "0:0.nvmlDeviceGetMemoryInfo_v2": 999})
    gpus.open("MIG-aaa,MIG-abb")
    gpus.notes()
    assert gpus.read("MIG-aaa") == dict.fromkeys(USUAL)
    assert gpus.notes() == ["MIG slice 0 of GPU 0 (NVIDIA Stand-in): memory cannot be read: Unknown Error."]
    gpus.set_up({**SLICED, "0:0.error": 15})
    with pytest.raises(Raised, match="Lost"):
        gpus.read("MIG-aaa", 1)
    assert gpus.read("MIG-abb", 1)["memory_bytes"] == 2**30


def test_mig_mode_without_slices(gpus: Gpus) -> None:
    gpus.set_up({"0.mig": 1, "0.slices": 7, **{f"0:{place}.absent": 1 for place in range(7)}, "1.mig": 0})
    gpus.open()
    assert gpus.devices() == [SECOND]
    assert gpus.notes() == [f"{NAME}: its MIG mode is on, but it has no slices. It is not read."]
    assert absent(gpus, "0") == f"no GPU can be read ({NAME}: its MIG mode is on, but it has no slices)"
