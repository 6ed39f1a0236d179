"""NVML's names for why a GPU runs below its maximum clock; needs no NVML."""

from __future__ import annotations

#: NVML's bits, except those that slow nothing down: 1 (the GPU is idle) and 2 (someone set the clock).
_WORDS = {
    0x004: "SwPowerCap",
    0x008: "HwSlowdown",
    0x010: "SyncBoost",
    0x020: "SwThermalSlowdown",
    0x040: "HwThermalSlowdown",
    0x080: "HwPowerBrakeSlowdown",
    0x100: "DisplayClockSetting",
    0x200: "BoardLimit",
    0x400: "Reliability",
}
_HARMLESS = 0x001 | 0x002


def throttle_words(bits: int) -> list[str]:
    """Names of the throttle reasons in NVML's bit mask, such as ``SwPowerCap``, sorted.

    An idle GPU and a clock that someone set are not reasons. ``Other`` stands for bits newer than this list.
    """
    other = bits & ~(sum(_WORDS) | _HARMLESS)
    return sorted([word for bit, word in _WORDS.items() if bits & bit] + ["Other"] * bool(other))
