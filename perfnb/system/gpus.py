"""Checks of NVIDIA GPUs; a check is one row, however many GPUs there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfnb.system.check import Check, Facts, Finding
from perfnb.system.read.reading import Unread

#: The first of these that a GPU has decides the row.
_WORST = ("attention", "unknown", "info", "ok")

_Judge = Callable[[dict[str, Any]], Finding]


def driver(facts: Facts) -> Finding:
    """Can the driver run what torch was built with?"""
    gpus, torch = _gpus(facts), facts.get("torch")
    if isinstance(gpus, Finding):
        return gpus
    version, newest = gpus["driver"], gpus["driver_cuda"]
    names = {device["name"] for device in gpus["devices"].values() if not isinstance(device, Unread)}
    known = sorted(name for name in names if not isinstance(name, Unread))
    found = "driver " + (f"could not be read ({version.why})" if isinstance(version, Unread) else version)
    found += f", {', '.join(known)}" if known else ""
    if torch is None or isinstance(newest, Unread):
        why = f" ({newest.why})" if isinstance(newest, Unread) else ""
        return Finding(f"{found}; the CUDA version it supports could not be read{why}", "unknown")
    found += f" (CUDA {newest[0]}.{newest[1]} or older)"
    if not torch["cuda"]:
        how = "Install a CUDA build of torch from pytorch.org."
        return Finding(f"{found}; this torch has no CUDA", "attention", how)
    found += f"; torch was built with CUDA {torch['cuda']}"
    built = _version(torch["cuda"])
    if built is None:
        return Finding(found, "unknown")
    if built[0] > newest[0]:
        return Finding(found, "attention")
    # Within a major version an older driver runs newer code, without the newest features.
    return Finding(found, "info" if built > newest else "ok")


def persistence(device: dict[str, Any]) -> Finding:
    """Does the driver stay loaded?"""
    return Finding("on", "ok") if device["persistent"] else Finding("off", "attention")


def power_cap(device: dict[str, Any]) -> Finding:
    """Is the power limit the default one?"""
    limit, usual = device["power_limit_mw"] / 1e3, device["power_default_mw"]
    if isinstance(usual, Unread):
        return Finding(f"{limit:,.0f} W; the default could not be read ({usual.why})", "info")
    found = f"{limit:,.0f} of {usual / 1e3:,.0f} W"
    return Finding(found, "attention" if limit < 0.99 * usual / 1e3 else "ok")


def throttling(device: dict[str, Any]) -> Finding:
    """Is the clock throttled now?"""
    reasons = device["throttled"]
    return Finding(", ".join(reasons), "attention") if reasons else Finding("not now", "ok")


def ecc(device: dict[str, Any]) -> Finding:
    """Is memory error-checked, and free of errors?"""
    mode, errors = device["ecc"], device["uncorrected"]
    found = "on" if mode["on"] else "off"
    if mode["on"] != mode["after_restart"]:
        found += f", {'on' if mode['after_restart'] else 'off'} after a reboot"
    if isinstance(errors, Unread):
        return Finding(f"{found}, errors could not be read ({errors.why})", "info")
    if errors:
        return Finding(f"{found}, {errors:,} uncorrectable errors", "attention")
    return Finding(f"{found}, no uncorrectable errors", "ok" if mode["on"] else "info")


def pcie(device: dict[str, Any]) -> Finding:
    """Is the link as wide and fast as it can be?"""
    generation, width = device["pcie_generation"], device["pcie_width"]
    most_generation, most_width = device["pcie_most_generation"], device["pcie_most_width"]
    found = f"generation {generation} ×{width} of {most_generation} ×{most_width}"
    if width < most_width:
        return Finding(f"{found}; some GPUs use fewer lanes when idle", "attention")
    if generation < most_generation:
        return Finding(f"{found}; an idle GPU lowers its generation", "info")
    return Finding(found, "ok")


def _of_each(needs: tuple[str, ...], judge: _Judge) -> Callable[[Facts], Finding]:
    """The row of a check that applies to each GPU; GPUs with the same answer are grouped."""

    def row(facts: Facts) -> Finding:
        gpus = _gpus(facts)
        if isinstance(gpus, Finding):
            return gpus
        groups: dict[Finding, list[str]] = {}
        for name, device in gpus["devices"].items():
            groups.setdefault(_one(device, needs, judge), []).append(name.removeprefix("GPU "))
        worst = min((finding.verdict for finding in groups), key=_WORST.index)
        if len(groups) == 1:
            (finding,) = groups
            every = gpus["devices"]
            return Finding(finding.found + (f" (all {len(every)} GPUs)" if len(every) > 1 else ""), worst)
        return Finding("; ".join(f"GPU {', '.join(names)}: {each.found}" for each, names in groups.items()), worst)

    return row


def _one(device: dict[str, Any] | Unread, needs: tuple[str, ...], judge: _Judge) -> Finding:
    if isinstance(device, Unread):
        return Finding(f"could not be read: {device.why}", "unknown")
    for need in needs:
        if isinstance(device[need], Unread):
            return Finding(f"could not be read: {device[need].why}", "unknown")
    return judge(device)


def _gpus(facts: Facts) -> dict[str, Any] | Finding:
    """What NVML reports, or what to say if there is no GPU."""
    absent = facts.why("gpus")
    if absent is None:
        gpus: dict[str, Any] = facts["gpus"]
        return gpus
    torch = facts.get("torch")
    if torch is not None and torch["hip"]:
        return Finding("could not be read: perfnb does not support AMD GPUs", "unknown")
    if torch is not None and torch["cuda"]:
        return Finding(f"could not be read: {absent}", "unknown")
    return Finding(f"no NVIDIA GPU to check: {absent}", "info")


def _version(text: str) -> tuple[int, int] | None:
    parts = text.split(".")[:2]
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        return None
    return int(parts[0]), int(parts[1])


CHECKS = (
    Check(
        "GPU driver",
        "at least as new as torch's CUDA version",
        "An older driver rejects newer code, or recompiles it at every start.",
        "Update the driver, or install a torch build for an older CUDA.",
        driver,
    ),
    Check(
        "GPU persistence",
        "on",
        "Without it, the driver is reloaded for each program that finds the GPU unused, which takes seconds.",
        "sudo nvidia-smi -pm 1, until the next reboot; permanently: the nvidia-persistenced service, whose unit has "
        "--no-persistence-mode on some systems: remove that.",
        _of_each(("persistent",), persistence),
    ),
    Check(
        "GPU power cap",
        "the default",
        "With a lower cap the GPU reduces its clocks under load.",
        "sudo nvidia-smi -pl with the default limit, if power supply and cooling allow it.",
        _of_each(("power_limit_mw",), power_cap),
    ),
    Check(
        "GPU throttling",
        "not now",
        "A GPU that is too hot or short of power lowers its clocks. Check while a step runs: idle ones rarely do.",
        "Check cooling and the power cap; %gpuwatch shows when it happens.",
        _of_each(("throttled",), throttling),
    ),
    Check(
        "GPU ECC",
        "on, without errors",
        "Uncorrectable errors mean failing memory. Without ECC some GPUs are faster, but errors go unnoticed.",
        "nvidia-smi -q -d ECC has the details; replace a GPU that keeps producing errors.",
        _of_each(("ecc",), ecc),
    ),
    Check(
        "GPU PCIe link",
        "all lanes and the highest generation of GPU and slot",
        "Copies between host and GPU use it: half the lanes, half the bandwidth.",
        "Check again while a step runs: only a link that stays slow is faulty. Then try another slot, and check the "
        "card's seating, risers and the BIOS.",
        _of_each(("pcie_generation", "pcie_width", "pcie_most_generation", "pcie_most_width"), pcie),
    ),
)
