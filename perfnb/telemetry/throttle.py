"""NVML's words for why a GPU runs below its highest clock; needs no NVML."""

from __future__ import annotations

#: NVML's bits; 1 (the GPU is idle) and 2 (someone chose the clock) hold nothing back.
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
    """The reasons in NVML's bit mask in words, such as ``SwPowerCap``, sorted.

    That the GPU is idle, or that its clock was set by someone, is no reason. ``Other`` stands for bits that are newer
    than this list.
    """
    other = bits & ~(sum(_WORDS) | _HARMLESS)
    return sorted([word for bit, word in _WORDS.items() if bits & bit] + ["Other"] * bool(other))
