"""The machine's ceilings: measured once, kept, and measured anew where what was kept is no good."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfnb.step import ceilings
from perfnb.step.ceilings import measure_ceilings
from perfnb.step.kept_rates import Rate, cache_folder, keep, kept

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERFNB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return what the clock says, in turn, instead of measuring: rates of small products and copies, the last one for
    ever.
    """
    told = [1e9]

    class Told:
        def __init__(self, *_: Any) -> None:
            self.rate: float | None = None

        def measure(self, budget_s: float) -> None:
            self.rate = max(self.rate or 0.0, told[0] if len(told) == 1 else told.pop(0))

    monkeypatch.setattr(ceilings, "_Ceiling", Told)
    return told


@pytest.mark.slow
def test_measured_ceilings_are_kept_and_the_users_settings_and_random_numbers_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "_TURN_S", 0.002)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    try:
        before = (torch.get_num_threads(), torch.is_grad_enabled())
        with torch.autocast("cpu", torch.bfloat16):
            first = measure_ceilings(["float32", "int64", "float32"])
            assert torch.is_autocast_enabled("cpu")
        assert (torch.get_num_threads(), torch.is_grad_enabled()) == before
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.rand(3), expected)

    assert list(first["flops_per_s"]) == ["float32"]  # integers have no ceiling of their own
    assert all(math.isfinite(rate) and rate > 0 for rate in [*first["flops_per_s"].values(), first["bytes_per_s"]])
    assert first["threads"] == torch.get_num_threads()
    assert json.loads(json.dumps(first)) == first
    monkeypatch.setattr(ceilings, "_measure", lambda wanted: pytest.fail("measured again") if wanted else {})
    assert measure_ceilings(["float32"]) == first
    assert os.listdir(folder) == ["ceilings.json"]


def test_only_what_is_not_known_is_measured(rates: list[float]) -> None:
    rates[:] = [1e9]
    measure_ceilings(["float32"])
    rates[:] = [5e9]
    both = measure_ceilings(["float32", "float64"])

    assert both["flops_per_s"] == {"float32": 1e9, "float64": 5e9}
    assert both["bytes_per_s"] == 1e9


def test_measured_again_the_better_one_stays(rates: list[float]) -> None:
    measure_ceilings(["float32"])
    rates[:] = [5e8]
    assert measure_ceilings(["float32"], refresh=True)["flops_per_s"] == {"float32": 1e9}
    rates[:] = [2e9]
    assert measure_ceilings(["float32"], refresh=True)["flops_per_s"] == {"float32": 2e9}
    assert measure_ceilings(["float32"])["flops_per_s"] == {"float32": 2e9}


class Beside:
    """Stands for `_Others`: a share that others use."""

    share = 0.0

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass


def test_it_is_measured_again_after_a_while_if_other_programs_ran(
    rates: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "_Others", Beside)
    monkeypatch.setattr(Beside, "share", 0.6)
    first = measure_ceilings(["float32"])
    assert (first["flops_per_s"]["float32"], first["others"]) == (1e9, 0.6)

    rates[:] = [3e9]
    assert measure_ceilings(["float32"]) == first  # not at once
    monkeypatch.setattr(ceilings, "_AGAIN_S", -1.0)
    again = measure_ceilings(["float32"])
    assert (again["flops_per_s"]["float32"], again["others"]) == (3e9, 0.6)

    monkeypatch.setattr(Beside, "share", 0.02)
    rates[:] = [2e9]
    quiet = measure_ceilings(["float32"])
    assert (quiet["flops_per_s"]["float32"], quiet["others"]) == (3e9, 0.02)
    rates[:] = [9e9]
    assert measure_ceilings(["float32"]) == quiet


@pytest.mark.parametrize(
    ("seconds", "own", "busy", "share"),
    [
        *((1.0, 0.4, 1.40054, 0.5), (1.0, 0.4, 1.4012, 0.501), (1.0, 0.4, 0.4, 0.0), (1.0, 0.4, 0.3, 0.0)),
        *((1.0, 0.0, 3.0, 1.0), (0.0, 0.0, 1.0, 0.0)),
    ],
)
def test_what_other_programs_use_is_what_the_process_itself_did_not(
    seconds: float, own: float, busy: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(time, "process_time", iter((7.0, 7.0 + own)).__next__)
    monkeypatch.setattr(time, "perf_counter", iter((3.0, 3.0 + seconds)).__next__)
    monkeypatch.setattr(ceilings, "_busy_s", iter((5.0, 5.0 + busy)).__next__)
    with ceilings._Others() as others:
        pass
    assert others.share == share


@pytest.mark.parametrize(
    ("others", "at", "doubtful"),
    [
        (0.11, "2026-01-01T10:00:00+00:00", True),
        (0.1, "2026-01-01T10:00:00+00:00", False),
        (0.11, "2026-01-01T10:49:59+00:00", True),
        (0.11, "2026-01-01T10:50:00+00:00", False),
        (0.5, "once", True),
        (0.5, "2026-01-01T10:59:00", True),  # no time zone
        (0.0, "once", False),
    ],
)
def test_a_rate_from_a_busy_machine_is_doubtful_after_ten_minutes(others: float, at: str, doubtful: bool) -> None:
    now = datetime(2026, 1, 1, 11, tzinfo=UTC)
    assert ceilings._doubtful(Rate(1.0, at, others), now) == doubtful


def test_the_higher_rate_stays_and_a_quieter_machine_confirms_it() -> None:
    known = Rate(2.0, "then", 0.3)
    assert ceilings._better(None, known) == known
    assert ceilings._better(known, Rate(2.5, "now", 0.9)) == Rate(2.5, "now", 0.9)
    assert ceilings._better(known, Rate(2.0, "now", 0.2)) == Rate(2.0, "then", 0.2)
    assert ceilings._better(known, Rate(1.0, "now", 0.3)) == known
    assert ceilings._better(known, Rate(1.0, "now", 0.4)) == known


def test_runs_grow_while_they_are_fast_and_end_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    ran, unit, now = list[int](), 1 / 1024, [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def making(size: int) -> Callable[[], tuple[float, Callable[[], None]]]:
        def run() -> None:
            ran.append(size)
            now[0] += size * unit

        return lambda: (size**2, run)

    ceiling = ceilings._Ceiling(torch.device("cpu"), [making(size) for size in (1, 2, 12, 13, 20)])
    ceiling.measure(55 * unit)
    # Each runs once to warm up; a run of 12 units is fast enough for the next, one of 13 is not.
    assert ran == [1, 1, 2, 2, 12, 12, 13, 13]
    assert ceiling.rate == 13 / unit
    ran.clear()
    ceiling.measure(28 * unit)  # a round takes as long
    assert ran == [1, 2, 12, 13, 1, 2, 12, 13]
    still = ceilings._Ceiling(torch.device("cpu"), [making(0)])
    still.measure(1.0)
    assert (still.rate, ran[-2:]) == (None, [0, 0])


def test_a_run_on_a_gpu_takes_the_time_between_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            done.append("record")

        def synchronize(self) -> None:
            done.append("wait")

        def elapsed_time(self, _: Event) -> float:
            return 250.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert ceilings._on_gpu(lambda: done.append("run")) == 0.25
    assert done == ["record", "run", "record", "wait"]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device}")
    known = {"device": "GPU cuda:1", "threads": None, "torch": torch.__version__}
    assert ceilings._machine(torch.device("cuda:1")) == known
    assert ceilings._key(known | {"torch": "2"}) == "device GPU cuda:1 | threads None | torch 2"


def test_products_and_copies_are_counted_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    flops, run = ceilings._product(4, torch.device("cpu"), torch.float64)
    assert (flops, run().shape, run().dtype) == (128.0, (4, 4), torch.float64)
    monkeypatch.setitem(ceilings._COPY_BYTES, "cpu", 24)
    moved, copy = ceilings._copy(torch.device("cpu"))
    assert (moved, copy().nbytes) == (48.0, 24)


def test_rates_that_are_not_known_are_left_out_if_only_known_ones_are_wanted(rates: list[float]) -> None:
    measure_ceilings(["float32"])
    rates[:] = [5e9]
    only = measure_ceilings(["float32", "float64"], only_kept=True)
    assert (only["flops_per_s"], only["bytes_per_s"], rates) == ({"float32": 1e9}, 1e9, [5e9])


def test_settings_that_make_products_less_exact_are_other_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = SimpleNamespace(fp32_precision="none", allow_tf32=True, allow_bf16_reduced_precision_reduction=False)
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    cuda, usual = torch.device("cuda"), torch.get_float32_matmul_precision()
    assert ceilings._precision(cuda, "float32") == f"allow_tf32=True,{usual}"
    assert [ceilings._precision(cuda, dtype) for dtype in ("bfloat16", "float16", "float64")] == ["exact"] * 3
    matmul.fp32_precision, matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = "tf32", False, True
    assert ceilings._precision(cuda, "float32") == f"fp32_precision=tf32,{usual}"
    assert ceilings._precision(cuda, "bfloat16") == "allow_bf16_reduced_precision_reduction=True"


def test_settings_of_precision_that_torch_does_not_tell_are_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed() -> str:
        raise RuntimeError("both APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    assert ceilings._precision(torch.device("cpu"), "float32").endswith("mixed")
    assert ceilings._precision(torch.device("cpu"), "float64") == "exact"


def test_one_that_still_gets_better_has_more_turns(rates: list[float]) -> None:
    product, copy = [1e9, 2e9, 3e9, 4e9], 1e9
    rates[:] = [rate for turn in product for rate in (turn, copy)] + [5e9, 5e9, 6e9, 6e9, 6e9, 7e9]

    found = measure_ceilings(["float32"])

    assert found["flops_per_s"]["float32"] == 6e9  # two turns that were no better ended it
    assert found["bytes_per_s"] == 1e9
    assert rates == [7e9]


def test_other_threads_and_precisions_are_other_ceilings(rates: list[float]) -> None:
    measure_ceilings(["float32"])
    rates[:] = [7e9]
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        torch.set_num_threads(2)
        both = measure_ceilings(["float32"])
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision("medium")
        rates[:] = [8e9]
        medium = measure_ceilings(["float32"])
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)

    assert (both["threads"], both["flops_per_s"]) == (2, {"float32": 7e9})
    assert medium["flops_per_s"] == {"float32": 8e9}
    assert measure_ceilings(["float32"])["flops_per_s"] == {"float32": 1e9}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1, 2]",
        b"[" * 100_000,
        b'{"format": 2, "machines": {}}',
        b'{"format": 1, "machines": [3]}',
        b'{"format": 1, "machines": {"KEY": 5}}',
        b'{"format": 1, "machines": {"KEY": {"bytes_per_s": "fast"}}}',
        b'{"format": 1, "machines": {"KEY": {"bytes_per_s": [NaN, "now", 0]}}}',
        b'{"format": 1, "machines": {"KEY": {"bytes_per_s": [-5, "now", 0]}}}',
        b'{"format": 1, "machines": {"KEY": {"bytes_per_s": [0, "now", 0]}}}',
        b'{"format": 1, "machines": {"KEY": {"bytes_per_s": [5.0, "now", -0.1]}}}',
        b'{"format": 1, "machines": {"KEY": {"bytes_per_s": [true, "now", 0]}}}',
        b'{"format": 1, "machines": {"KEY": {"bytes_per_s": [1' + b"0" * 400 + b', "now", 0]}}}',
        b'{"format": 1, "machines": {"KEY": {"bytes_per_s": [5.0]}}}',
        b'{"format": 1, "machines": {"KEY": {"bytes_per_s": [5.0, "now", 7]}}}',
        b'{"format": 1, "machines": {"KEY": {"bytes_per_s": [5.0, "now", "busy"]}}}',
        b" " * (1 << 20) + b'{"format": 1}',
    ],
)
def test_a_damaged_or_foreign_file_only_means_measuring(content: bytes, folder: Path, rates: list[float]) -> None:
    key = ceilings._key(ceilings._machine(torch.device("cpu")))
    folder.mkdir()
    (folder / "ceilings.json").write_bytes(content.replace(b"KEY", key.encode()))

    assert measure_ceilings(["float32"])["bytes_per_s"] == 1e9
    rates[:] = [2e9]
    assert measure_ceilings(["float32"])["bytes_per_s"] == 1e9  # the file is a good one now


def unwritable(folder: Path) -> None:
    folder.write_text("a file where the folder should be")


def a_folder_instead_of_the_file(folder: Path) -> None:
    (folder / "ceilings.json").mkdir(parents=True)


@pytest.mark.parametrize("spoil", [unwritable, a_folder_instead_of_the_file])
def test_a_folder_that_cannot_be_written_is_not_an_error(
    spoil: Callable[[Path], None], folder: Path, rates: list[float]
) -> None:
    spoil(folder)

    assert measure_ceilings(["float32"])["flops_per_s"] == {"float32": 1e9}
    assert list(folder.parent.rglob(".ceilings-*")) == []


def test_machines_do_not_overwrite_each_other(folder: Path) -> None:
    keep("one", {"bytes_per_s": Rate(1.0, "then")})
    keep("other", {"bytes_per_s": Rate(2.0, "then", 1.0)})
    keep("one", {"flops_per_s": Rate(3.0, "later")})

    assert kept("one") == {"bytes_per_s": Rate(1.0, "then"), "flops_per_s": Rate(3.0, "later")}
    assert kept("other") == {"bytes_per_s": Rate(2.0, "then", 1.0)}
    assert kept("third") == {}


def test_no_memory_or_no_such_product_leaves_the_ceiling_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ceilings._COPY_BYTES, "cpu", 1 << 60)

    def none(*_: Any) -> Any:
        raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")

    monkeypatch.setattr(ceilings, "_product", none)
    found = measure_ceilings(["float16"])

    assert (found["flops_per_s"], found["bytes_per_s"], found["measured_at"]) == ({}, None, None)


def test_the_folder_is_the_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("PERFNB_CACHE")
    monkeypatch.setenv("HOME", "/some/one")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/perfnb")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/some/one/.cache/perfnb")
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == Path("/some/one/Library/Caches/perfnb")


def test_without_a_home_there_is_no_folder_and_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PERFNB_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder() is None
    keep("one", {"bytes_per_s": Rate(1.0, "then")})
    assert kept("one") == {}
