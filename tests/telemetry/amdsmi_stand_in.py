"""A stand-in for AMD's package amdsmi; a test copies this file as ``amdsmi.py`` onto the path.

Its GPUs are in the JSON file that AMDSMI_STAND_IN names: a list of objects with the results of functions by their
names without ``amdsmi_get_``. A result ``{"error": "..."}`` is raised.
"""

from __future__ import annotations

import json
import os
from enum import IntEnum
from pathlib import Path
from typing import Any

print("Unable to find something; the real package prints too")


#: An entry for each time that it was shut down.
ended: list[bool] = []


class AmdSmiLibraryException(Exception):
    """As the real one, whose text spans lines."""

    def __str__(self) -> str:
        return f"Error code:\n\t2 | {self.args[0]}"


class AmdSmiInitFlags(IntEnum):
    INIT_AMD_GPUS = 2


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


class AmdSmiClkType(IntEnum):
    GFX = 0
    MEM = 4


def _gpus() -> Any:
    return json.loads(Path(os.environ["AMDSMI_STAND_IN"]).read_text())


def amdsmi_init(flags: AmdSmiInitFlags) -> None:
    if isinstance(gpus := _gpus(), dict):
        raise AmdSmiLibraryException(gpus["error"])


def amdsmi_shut_down() -> None:
    ended.append(True)


def amdsmi_get_processor_handles() -> list[int]:
    return list(range(len(_gpus())))


def _get(function: str, handle: int, *arguments: IntEnum) -> Any:
    name = "_".join([function, *(argument.name for argument in arguments if argument.name != "CURRENT")])
    result = _gpus()[handle].get(name, {"error": "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported"})
    if isinstance(result, dict) and "error" in result:
        raise AmdSmiLibraryException(result["error"])
    return result


def __getattr__(name: str) -> Any:
    if not name.startswith("amdsmi_get_"):
        raise AttributeError(name)
    return lambda handle, *arguments: _get(name.removeprefix("amdsmi_get_"), handle, *arguments)
