"""A watch of GPUs that a stand-in for NVIDIA's library plays: devices by number, what fails alone, what is lost."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import perfnb
from perfnb.telemetry import watcher
from tests.telemetry.nvml_stand_in import set_up, stand_in
from tests.waiting import wait_until
from tests.watching.test_watch import read_again

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return two GPUs; the folder by which `set_up` changes them."""
    for name, value in stand_in(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def of(w: perfnb.Watch, device: str) -> pd.DataFrame:
    samples = w.samples
    return samples[samples["device"] == device]


@pytest.mark.slow
def test_gpus_have_their_meters_and_energy_is_a_difference(gpus: Path) -> None:
    set_up(gpus, {"0.busy": 80, "0.energy": "1000000+250000/s", "0.power": 250000})
    with perfnb.watch(0.05) as w:
        read_again(w, 25)  # energy is withheld under a second
    first = of(w, "gpu0")
    assert (first["busy_percent"] == 80).all()
    assert first["torch_allocated_bytes"].isna().all(), "torch uses no GPU here"
    table = w.summary()
    energy = table.loc[("gpu0", "energy_j")]
    assert energy["total"] > 0
    assert energy["uncertainty"] == pytest.approx(0.1 * 2 * 250)
    assert "GPU" not in " ".join(w.notes)
    charts = {chart.key: chart for chart in w._summary().charts}
    assert {"gpu", "gpu-memory", "power", "temperature", "clocks", "pcie"} <= charts.keys()
    assert "does not show how much of the GPU was used" in charts["gpu"].note


@pytest.mark.slow
def test_a_field_that_fails_is_missing_with_one_note_and_the_other_gpu_goes_on(gpus: Path) -> None:
    set_up(gpus, {"1.nvmlDeviceGetPowerUsage": 3})
    with perfnb.watch(0.05) as w:
        read_again(w)
    assert of(w, "gpu1")["power_w"].isna().all()
    assert of(w, "gpu1")["temperature_c"].notna().all()
    assert of(w, "gpu0")["power_w"].notna().all()
    assert len([note for note in w.notes if "power" in note]) == 1


@pytest.mark.slow
def test_a_gpu_that_is_lost_in_mid_run_ends_alone(gpus: Path) -> None:
    with perfnb.watch(0.05) as w:
        read_again(w)
        set_up(gpus, {"0.error": 15})
        wait_until(lambda: any("lost" in note for note in w.notes))
        lost_at = of(w, "gpu0")["t_s"].max()
        before = len(of(w, "gpu1"))
        wait_until(lambda: len(of(w, "gpu1")) > before + 3)
    assert of(w, "gpu0")["t_s"].max() == lost_at < of(w, "gpu1")["t_s"].max()
    assert len([note for note in w.notes if "lost" in note]) == 1


@pytest.mark.slow
def test_a_name_that_is_no_text_is_shown_safely(gpus: Path) -> None:
    set_up(gpus, {"0.name": b"<b>\xff\xfe</b>"})
    with perfnb.watch(0.05) as w:
        read_again(w)
    page = w._repr_mimebundle_()["text/html"]
    assert "<b>" not in page
    assert "&lt;b&gt;" in page


@pytest.mark.slow
def test_only_the_visible_gpus_are_watched_in_their_order(gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    set_up(gpus, {"0.busy": 10, "1.busy": 90})
    with perfnb.watch(0.05) as w:
        read_again(w)
    assert (of(w, "gpu0")["busy_percent"] == 90).all()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with perfnb.watch(0.05) as hidden:
        read_again(hidden)
    assert any("GPU" in note for note in hidden.notes)
    assert hidden.samples["busy_percent"].isna().all()


class Cuda(SimpleNamespace):
    """The parts of torch's module for CUDA that are used."""

    uuids = ("00000001", "00000000")

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return len(self.uuids)

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(uuid=self.uuids[index])

    def memory_stats_as_nested_dict(self, index: int) -> dict:
        return {name: {"all": {"current": 100 * (index + 1)}} for name in ("allocated_bytes", "reserved_bytes")}


@pytest.mark.slow
def test_torchs_order_names_the_gpus_as_soon_as_torch_uses_them(gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(initialized=False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, is_grad_enabled=lambda: False))
    set_up(gpus, {"0.busy": 10, "1.busy": 90})
    with perfnb.watch(0.05) as w:
        read_again(w)
        assert (of(w, "gpu0")["busy_percent"] == 10).all()
        cuda.initialized = True
        wait_until(lambda: of(w, "gpu1")["torch_allocated_bytes"].notna().any())
    # NVML's second is torch's first, also for what was read before.
    assert (of(w, "gpu0")["busy_percent"] == 90).all()
    allocated = of(w, "gpu1")["torch_allocated_bytes"]
    assert allocated.iloc[0] is pd.NA
    assert set(allocated.dropna()) == {200}, "missing where the reading came late"


def test_gpus_that_torch_does_not_know_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=Cuda(initialized=True)))
    assert watcher._torch_names(["GPU-00000007", "GPU-00000000"]) == {"GPU-00000007": "gpu2", "GPU-00000000": "gpu1"}
    assert watcher._torch_names(["GPU-00000007"]) is None
    assert watcher._torch_names([]) is None
