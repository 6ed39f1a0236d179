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
    set_up(gpus, {"0.busy": 80, "0.energy": "1000000+250000/s", "0.power": 250000, "0.name": b"<b>\xff\xfe</b>"})
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
    page = w._repr_mimebundle_()["text/html"]
    assert "<b>" not in page
    assert "&lt;b&gt;" in page


def test_gpus_that_torch_does_not_know_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    uuids = ("00000001", "00000000")
    cuda = SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 2)
    cuda.get_device_properties = lambda index: SimpleNamespace(uuid=uuids[index])
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert watcher._torch_names(["GPU-00000007", "GPU-00000000"]) == {"GPU-00000007": "gpu2", "GPU-00000000": "gpu1"}
    assert watcher._torch_names(["GPU-00000007"]) is None
    assert watcher._torch_names([]) is None
