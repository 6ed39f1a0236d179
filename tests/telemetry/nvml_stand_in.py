"""A machine with NVIDIA GPUs that do not exist, for the real NVML binding; and a process that reads them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

SETTINGS = "nvml.settings"

#: The keys of the GPUs, and what the first is called in notes.
FIRST, SECOND = "GPU-00000000", "GPU-00000001"
NAME = "GPU 0 (NVIDIA Stand-in)"
#: The default answers of the stand-in's GPUs.
USUAL = {
    "busy_percent": 50,
    "memory_bytes": 2**30,
    "power_w": 100.0,
    "energy_j": 5000.0,
    "temperature_c": 40,
    "sm_clock_mhz": 1400,
    "memory_clock_mhz": 1200,
    "throttle_reasons": 0,
    "pcie_receive_bytes_per_s": 3e6,
    "pcie_send_bytes_per_s": 2e6,
}
#: The errors of a GPU that has gone.
LOST = {pynvml.NVML_ERROR_GPU_IS_LOST: "GPU is lost", pynvml.NVML_ERROR_RESET_REQUIRED: "GPU requires restart"}
#: All that the binding knows, and one that it does not.
CODES = sorted({getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_ERROR_")} | {777})

_ROOT = Path(__file__).parents[2]


def stand_in(folder: Path, *, old_driver: bool = False) -> dict[str, str]:
    """Make a driver's library in a folder, and the environment that lets a new process find it.

    Skips the test where there is no C compiler, or no Linux. By default there are two GPUs, ``GPU-00000000`` and
    ``GPU-00000001``; `set_up` says otherwise, also while a process is using them. With monkeypatch, for instance::

        for name, value in stand_in(tmp_path).items():
            monkeypatch.setenv(name, value)  # for processes that are started from now on, such as the sampler
        set_up(tmp_path, {"count": 3, "0.busy": 80, "0.energy": "1000+250000/s"})
        ...
        set_up(tmp_path, {"count": 3, "1.error": 15})  # GPU 1 is lost

    Parameters
    ----------
    folder : Path
        Where library and settings go.
    old_driver : bool
        Whether the library lacks the functions that are newer than 2020.

    Returns
    -------
    dict of str to str
        The variables to be set; CUDA_VISIBLE_DEVICES is not one of them.
    """
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("the stand-in for NVIDIA's library needs Linux and a C compiler")
    source = Path(__file__).with_suffix(".c")
    target = folder / "libnvidia-ml.so.1"
    options = ["-DOLD_DRIVER"] if old_driver else []
    subprocess.run([compiler, "-shared", "-fPIC", *options, "-o", str(target), str(source)], check=True)
    set_up(folder, {})
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    return {"LD_LIBRARY_PATH": path, "NVML_STAND_IN": str(folder / SETTINGS)}


def set_up(folder: Path, settings: dict[str, int | str | bytes]) -> None:
    """Say what the GPUs of `stand_in` answer from now on; what is not said is as at the beginning.

    Names without a device are ``count`` (of GPUs, at most 16), ``init`` (the error that starting NVML gives),
    ``driver`` and ``driver_cuda`` (versions: text, and 12040 for 12.4), ``nvmlSystemGetDriverVersion`` and
    ``nvmlSystemGetCudaDriverVersion`` (their errors), and ``log`` (1: the calls are kept, see `calls`). Of a device,
    ``0`` or ``1`` or ``0:1`` for slice 1 of GPU 0:

    - ``0.name`` (bytes, if it is to be no text), ``0.uuid``, ``0.busy`` (percent), ``0.used``, ``0.reserved`` and
      ``0.total`` (bytes), ``0.power`` and ``0.power_limit`` (mW), ``0.energy`` (mJ), ``0.temperature``,
      ``0.sm_clock``, ``0.memory_clock``, ``0.throttle`` (bits), ``0.received`` and ``0.sent`` (bytes; without them the
      GPU has no such counters), ``0.counter_type`` (1: of 32 bits), ``0.receive_kb`` and ``0.send_kb`` (KB/s),
      ``0.link_generation``, ``0.link_width``, ``0.link_generation_now``, ``0.link_width_now``;
    - ``0.persistence`` (0: off), ``0.power_cap`` and ``0.power_default`` (mW), ``0.ecc`` and ``0.ecc_after`` (a
      restart; 0: off), ``0.ecc_errors``;
    - ``0.mig`` (1: on), ``0.slices`` (places for slices), ``0:1.absent`` (1: that place is empty);
    - ``0.error``: the error of everything that is asked of it; ``0.nvmlDeviceGetPowerUsage``: that of one function. Of
      functions for several things the names are ``nvmlDeviceGetClockInfo:1`` (SM) and ``:2``,
      ``nvmlDeviceGetPcieThroughput:0`` (sent) and ``:1``, ``nvmlDeviceGetFieldValues:197`` (sent) and ``:198``;
    - ``0.nvmlDeviceGetPowerUsage.delay_ms``: how long the function takes.

    A number may grow: ``1000+50/s``.
    """
    lines = [
        f"{name}=".encode() + (value if isinstance(value, bytes) else str(value).encode()) + b"\n"
        for name, value in settings.items()
    ]
    new = folder / (SETTINGS + ".new")
    new.write_bytes(b"".join(lines))
    new.replace(folder / SETTINGS)  # a reader sees all of it or nothing


def calls(folder: Path) -> list[str]:
    """Return what was called since `set_up` with ``log``, such as ``nvmlDeviceGetPowerUsage 0``; forgets it."""
    log = folder / (SETTINGS + ".calls")
    lines = log.read_text(encoding="ascii").splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


class Raised(Exception):
    """What the source raised in the other process: the exception's name and its words."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(kind, words)
        self.kind, self.words = kind, words


class Gpus:
    """The source of GPU readings in a process of its own, where a stand-in's library is the driver.

    Parameters
    ----------
    folder : Path
        That of `stand_in`.
    environment : dict of str to str
        What `stand_in` returned.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.telemetry.nvml_reader"],
            cwd=_ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self) -> int:
        """End the process; its exit status."""
        self._process.communicate(timeout=30)
        return self._process.returncode

    def set_up(self, settings: dict[str, int | str | bytes]) -> None:
        """See `set_up`."""
        set_up(self.folder, settings)

    def calls(self) -> list[str]:
        """See `calls`."""
        return calls(self.folder)

    def open(self, visible: str | None = None) -> None:
        """Make a source; one that is open already is closed before."""
        self._ask("open", visible)

    def close(self) -> None:
        """Close the source."""
        self._ask("close")

    def devices(self) -> list[str]:
        """Return the source's devices."""
        return list(self._ask("devices"))

    def facts(self, device: str) -> dict[str, Any]:
        """Return the source's facts of a device."""
        return dict(self._ask("facts", device))

    def read(self, device: str, at_s: float = 0.0) -> dict[str, Any]:
        """Read a device at an instant, in seconds."""
        return dict(self._ask("read", device, round(at_s * 1e9) + 10**12))

    def set_ups(self, visible: str | None = None) -> dict[str, Any]:
        """Return what `perfnb.system.read.gpus.read_gpus` gives; an `Unread` as ``{"unread": why}``."""
        return dict(self._ask("set_ups", visible))

    def notes(self) -> list[str]:
        """Return the source's notes; empties them."""
        return list(self._ask("notes"))

    def _ask(self, *request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"raised": ["the process ended", ""]}')
        if "raised" in answer:
            raise Raised(*answer["raised"])
        return answer["value"]


def recent_driver(folder: Path) -> Iterator[Gpus]:
    """For a fixture: a process with a recent driver."""
    process = Gpus(folder, stand_in(folder))
    yield process
    assert process.end() == 0


def two_gpus(process: Gpus) -> Iterator[Gpus]:
    """For a fixture: two GPUs in their initial state, with calls logged, and no source yet."""
    process.set_up({"log": 1})
    process.calls()
    yield process
    process.close()
    process.set_up({})


def absent(gpus: Gpus, visible: str | None = None) -> str:
    """Return the reason why there is no source."""
    with pytest.raises(Raised) as raised:
        gpus.open(visible)
    assert raised.value.kind == "Absent"
    return raised.value.words
