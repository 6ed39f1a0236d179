"""Check NVIDIA GPUs. Each check is one row, however many GPUs there are."""

from __future__ import annotations

from perfnb.system.check import Check, CheckResult, Judge, SystemFacts, check, judged
from perfnb.system.read.reading import Unreadable

#: The verdicts in order. The first one that applies to any GPU becomes the row's verdict.
_WORST = ("attention", "unknown", "info", "ok")


def _gpus(facts: SystemFacts) -> SystemFacts | CheckResult:
    """Return NVML's report, or a message if there is no GPU."""
    absent, torch = facts.why("gpus"), facts.get("torch")
    if absent is None:
        return SystemFacts(facts["gpus"])
    if torch is not None and torch["hip"]:
        raise Unreadable("perfnb does not support AMD GPUs")
    if torch is not None and torch["cuda"]:
        raise Unreadable(absent)
    return CheckResult(f"no NVIDIA GPU to check: {absent}", "info")


def _of_each(judge: Judge) -> Judge:
    """Return the row for a check that applies to each GPU. GPUs with the same result are grouped."""

    def row(facts: SystemFacts) -> CheckResult:
        gpus = _gpus(facts)
        if isinstance(gpus, CheckResult):
            return gpus
        groups: dict[CheckResult, list[str]] = {}
        for name, device in gpus["devices"].items():
            groups.setdefault(judged(judge, SystemFacts(device)), []).append(name.removeprefix("GPU "))
        worst = min((finding.verdict for finding in groups), key=_WORST.index)
        if len(groups) == 1:
            ((finding, names),) = groups.items()
            return CheckResult(finding.found + (f" (all {len(names)} GPUs)" if len(names) > 1 else ""), worst)
        return CheckResult("; ".join(f"GPU {', '.join(names)}: {each.found}" for each, names in groups.items()), worst)

    return row


@check(
    "GPU driver",
    "at least as new as torch's CUDA version",
    "An older driver rejects newer code or recompiles it at every start.",
    "Update the driver, or install a torch build for an older CUDA.",
)
def driver(facts: SystemFacts) -> CheckResult:
    gpus, torch = _gpus(facts), facts.get("torch")
    if isinstance(gpus, CheckResult):
        return gpus
    newest = gpus.get("driver_cuda")
    names = {name for device in gpus["devices"].values() if (name := SystemFacts(device).get("name")) is not None}
    found = "driver " + (gpus.get("driver") or f"could not be read ({gpus.why('driver')})")
    found += f", {', '.join(sorted(names))}" if names else ""
    if torch is None or newest is None:
        why = f" ({gpus.why('driver_cuda')})" if newest is None else ""
        return CheckResult(f"{found}; the CUDA version that it supports could not be read{why}", "unknown")
    found += f" (CUDA {newest[0]}.{newest[1]} or older)"
    if not torch["cuda"]:
        how = "Install a CUDA build of torch from pytorch.org."
        return CheckResult(f"{found}; this torch build has no CUDA support", "attention", how)
    found += f"; torch was built with CUDA {torch['cuda']}"
    parts = torch["cuda"].split(".")[:2]
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        return CheckResult(found, "unknown")
    built = int(parts[0]), int(parts[1])
    if built[0] > newest[0]:
        return CheckResult(found, "attention")
    # Within a major version, an older driver can run newer code, except for the newest features.
    return CheckResult(found, "info" if built > newest else "ok")


@check(
    "GPU persistence",
    "on",
    "Without it, the driver is reloaded for each program that finds the GPU unused, which takes seconds.",
    "Run sudo nvidia-smi -pm 1, which lasts until the next reboot. To make it permanent, enable the "
    "nvidia-persistenced service; on some systems, its unit contains --no-persistence-mode, which must be removed.",
)
@_of_each
def persistence(device: SystemFacts) -> CheckResult:
    return CheckResult("on", "ok") if device["persistent"] else CheckResult("off", "attention")


@check(
    "GPU power cap",
    "the default",
    "With a lower cap, the GPU reduces its clocks under load.",
    "Run sudo nvidia-smi -pl with the default limit, if the power supply and cooling allow it.",
)
@_of_each
def power_cap(device: SystemFacts) -> CheckResult:
    limit, usual = device["power_limit_mw"] / 1e3, device.get("power_default_mw")
    if usual is None:
        return CheckResult(f"{limit:,.0f} W; the default could not be read ({device.why('power_default_mw')})", "info")
    found = f"{limit:,.0f} of {usual / 1e3:,.0f} W"
    return CheckResult(found, "attention" if limit < 0.99 * usual / 1e3 else "ok")


@check(
    "GPU throttling",
    "not now",
    "A GPU that is too hot or short of power lowers its clocks. Check while a step is running, because idle GPUs "
    "rarely throttle.",
    "Check the cooling and the power cap; %gpuwatch shows when throttling occurs.",
)
@_of_each
def throttling(device: SystemFacts) -> CheckResult:
    reasons = device["throttled"]
    return CheckResult(", ".join(reasons), "attention") if reasons else CheckResult("not now", "ok")


@check(
    "GPU ECC",
    "on, without errors",
    "Uncorrectable errors mean that memory is failing. Without ECC, some GPUs are faster, but errors go unnoticed.",
    "nvidia-smi -q -d ECC shows the details. Replace a GPU that keeps producing errors.",
)
@_of_each
def ecc(device: SystemFacts) -> CheckResult:
    mode, errors = device["ecc"], device.get("uncorrected")
    found = "on" if mode["on"] else "off"
    if mode["on"] != mode["after_restart"]:
        found += f", {'on' if mode['after_restart'] else 'off'} after a reboot"
    if errors is None:
        return CheckResult(f"{found}, errors could not be read ({device.why('uncorrected')})", "info")
    if errors:
        return CheckResult(f"{found}, {errors:,} uncorrectable errors", "attention")
    return CheckResult(f"{found}, no uncorrectable errors", "ok" if mode["on"] else "info")


@check(
    "GPU PCIe link",
    "all lanes and the highest generation of the GPU and the slot",
    "Copies between host and GPU use this link, and half the lanes mean half the bandwidth.",
    "Check again while a step is running, because only a link that stays slow is faulty. Then try another slot, and "
    "check the card's seating, the risers and the BIOS.",
)
@_of_each
def pcie(device: SystemFacts) -> CheckResult:
    generation, width = device["pcie_generation"], device["pcie_width"]
    most_generation, most_width = device["pcie_most_generation"], device["pcie_most_width"]
    found = f"generation {generation} ×{width} of {most_generation} ×{most_width}"
    if width < most_width:
        return CheckResult(f"{found}; some GPUs use fewer lanes when idle", "attention")
    if generation < most_generation:
        return CheckResult(f"{found}; an idle GPU lowers its generation", "info")
    return CheckResult(found, "ok")


CHECKS: tuple[Check, ...] = (driver, persistence, power_cap, throttling, ecc, pcie)
