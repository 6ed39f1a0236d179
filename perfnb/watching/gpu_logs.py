"""Logs of ``nvidia-smi``, as job scripts keep them: ``--query-gpu=... --format=csv`` and ``dmon``.

Neither says which time zone its clock is in. The CSV has its units in the header, in the values, or in both; ``dmon``
has no time at all unless it was asked for, and repeats its header now and then.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from perfnb.draw.escape import plain
from perfnb.errors import TraceError
from perfnb.recording.reading import Loader
from perfnb.recording.recording import WatchRecord
from perfnb.recording.samples import watch_record
from perfnb.trace.trace_file import Limits, head_of, lines_of_file

_MOST_LINE, _MOST_DEVICES, _MOST_NAMED = 2**16, 256, 8
#: Bytes and the like in a unit; decimal megabytes only per second, as the driver counts PCIe.
_UNITS = {
    **{"%": 1.0, "w": 1.0, "c": 1.0, "mhz": 1.0, "mj": 1e-3, "j": 1.0, "": 1.0},
    **{"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "kb": 2.0**10, "mb": 2.0**20, "gb": 2.0**30},
    **{"kb/s": 1e3, "mb/s": 1e6, "gb/s": 1e9},
}
#: Columns of the CSV without their units: what they are in ``samples``.
_QUERIED = {
    "utilization.gpu": "busy_percent",
    "memory.used": "memory_bytes",
    **dict.fromkeys(("power.draw", "power.draw.average", "power.draw.instant"), "power_w"),
    "temperature.gpu": "temperature_c",
    **dict.fromkeys(("clocks.sm", "clocks.current.sm"), "sm_clock_mhz"),
    **dict.fromkeys(("clocks.mem", "clocks.current.memory"), "memory_clock_mhz"),
    "total_energy_consumption": "energy_j",
}
_FACTS = {
    "memory.total": "memory_bytes",
    "enforced.power.limit": "power_limit_w",
    "power.limit": "power_limit_w",
}
_WHICH = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "pci.bus", "serial", "gpu_serial")
_REASONS = re.compile(r"clocks_(?:throttle|event)_reasons\.(?P<which>\w+)")
#: Reasons that have a column each, and NVML's bit of them.
_BITS = {
    **{"sw_power_cap": 0x004, "hw_slowdown": 0x008, "sync_boost": 0x010, "sw_thermal_slowdown": 0x020},
    **{"hw_thermal_slowdown": 0x040, "hw_power_brake_slowdown": 0x080},
}
_DMON = {
    **{"pwr": "power_w", "gtemp": "temperature_c", "temp": "temperature_c", "sm": "busy_percent", "fb": "memory_bytes"},
    **{"mclk": "memory_clock_mhz", "pclk": "sm_clock_mhz"},
    **{"rxpci": "pcie_receive_bytes_per_s", "txpci": "pcie_send_bytes_per_s"},
}
_DMON_UNITS = {"fb": "mb", "rxpci": "mb/s", "txpci": "mb/s"}
#: What ``dmon`` writes by default: before and since it counts JPEG and optical flow.
_DEFAULT = ("gpu", "pwr", "gtemp", "mtemp", "sm", "mem", "enc", "dec", "mclk", "pclk")
_DEFAULTS = {10: _DEFAULT, 12: (*_DEFAULT[:8], "jpg", "ofa", *_DEFAULT[8:])}
_MISSING = {"", "-", "n/a", "[n/a]", "[not supported]", "not supported", "[unknown error]", "unknown error"}
_VALUE = re.compile(r"(-?[0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z%/]{0,5})")
_NAMED = re.compile(r"(?P<name>[a-z_0-9.]+)(?: \[(?P<unit>[A-Za-z%/]+)\])?")
_STAMP = re.compile(r"[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?")
_CLOCK, _DATE = re.compile(r"[0-9]{2}:[0-9]{2}:[0-9]{2}"), re.compile(r"[0-9]{4}/?[0-9]{2}/?[0-9]{2}")
_ROW_OF_DMON = re.compile(
    r"\s*(?:[0-9]{8}\s+)?(?:[0-9]{2}:[0-9]{2}:[0-9]{2}\s+)?[0-9]{1,3}(?:\s+(?:[0-9]{1,6}|-)){9,11}\s*"
)
_DAY_S = 86_400.0


@dataclass
class _Log:
    """What a log says, row by row."""

    rows: int = 0
    bad: int = 0
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # by device and column
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    ignored: dict[str, None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, device: str, t_s: float, read: Mapping[str, float], source: str, limits: Limits) -> None:
        """Add a reading of a device."""
        own = self.values.get(device)
        if own is None:
            if len(self.values) >= _MOST_DEVICES:
                raise TraceError(f"{source} was not read: it has more than {_MOST_DEVICES} GPUs, as no machine has.")
            own = self.values[device] = defaultdict(list)
            self.facts.setdefault(device, {})
        self.rows += 1
        if self.rows > limits.most_events:
            raise TraceError(
                f"{source} was not read: it has more than {limits.most_events:,} readings; if you trust it, raise "
                "max_events in limits=."
            )
        count = len(own["t_s"])
        own["t_s"].append(t_s)
        for name in (*own, *read):
            column = own[name]
            if len(column) <= count:
                column.extend([np.nan] * (count - len(column)))
                column.append(read.get(name, np.nan))


def load_log(path: Path, limits: Limits) -> tuple[WatchRecord, dict[str, Any]]:
    """Read a log: the samples of its GPUs, and the facts of a watch.

    Raises
    ------
    TraceError
        If it cannot be read, has no readings or no header, or exceeds a limit.
    """
    log, source = _Log(), str(path)
    limits = limits.whole()
    lines = lines_of_file(path, limits, _MOST_LINE)
    with closing(lines):
        kind = _kind(_text_of_head(head_of(path)))
        if kind is None:
            raise TraceError(f"{path} is not a log of nvidia-smi.")
        kind(lines, log, source, limits)
    if not log.rows:
        raise TraceError(f"{path} is a log of nvidia-smi without readings.")
    return _record(log)


def _record(log: _Log) -> tuple[WatchRecord, dict[str, Any]]:
    devices = sorted(log.values, key=lambda name: int(name.removeprefix("gpu")))
    columns, gaps, ticks = {}, [], 0
    first = min(min(own["t_s"]) for own in log.values.values())
    for device in devices:
        own = {name: np.array(values, dtype=float) for name, values in log.values[device].items()}
        order = np.argsort(own["t_s"], kind="stable")
        own = {name: values[order] for name, values in own.items()}
        own["t_s"] = np.round(own["t_s"] - first, 6)
        window = np.diff(own["t_s"], prepend=np.nan)
        gaps.append(window[1:])
        ticks = max(ticks, len(window))
        unknown, ones = np.full(len(window), np.nan), np.ones(len(window))
        columns[device] = {
            **own,
            **{"window_s": window, "read_ms": unknown, "late_ms": unknown, "missed_ticks": 0 * ones, "readings": ones},
        }
        if "throttle_reasons" in own:
            columns[device]["throttle_reasons"] = np.nan_to_num(own["throttle_reasons"], nan=-1.0)
    apart = np.concatenate(gaps) if gaps else np.array([])
    apart = apart[apart > 0]
    if log.bad:
        log.notes.append(f"Lines that are not readings, left out: {log.bad:,}.")
    if log.ignored:
        names = ", ".join(plain(name, 40) for name in list(log.ignored)[:_MOST_NAMED])
        more = f" and {len(log.ignored) - _MOST_NAMED:,} more" if len(log.ignored) > _MOST_NAMED else ""
        log.notes.append(f"Columns of the log that are not shown: {names}{more}.")
    meta: dict[str, Any] = {
        "running": False,
        "interval_s": float(np.median(apart)) if len(apart) else 1.0,
        "devices": {device: log.facts[device] for device in devices},
        "absent": {},
        "notes": log.notes,
        "ticks": ticks,
        "missed": 0,
    }
    return watch_record(columns, ()), meta


def _text_of_head(head: bytes) -> str:
    return head.decode("utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig", "replace")


_Kind = Callable[[Iterator[str], _Log, str, Limits], None]


def _kind(head: str) -> _Kind | None:
    """How to read a log that starts like this."""
    whole = head.rpartition("\n")[0] or head
    first = next((line.strip() for line in whole.split("\n") if line.strip()), "")
    if first.startswith("#"):
        words = first.lstrip("# ").replace(",", " ").lower().split()
        words = [word for word in words if word not in ("date", "time")]
        return _read_dmon if words[:1] == ["gpu"] and len(words) > 1 else None
    names = [_NAMED.fullmatch(part.strip()) for part in first.split(",")]
    if len(names) > 1 and all(names):
        known = [match["name"] for match in names if match]
        metrics = [name for name in known if name in _QUERIED or name in _FACTS or _REASONS.fullmatch(name)]
        return _read_csv if metrics else None
    if _STAMP.match(first) and first.count(",") and re.search(r"(?:MiB|%|\bW|MHz|\[N/A\])\s*(?:,|$)", first):
        return _refuse_without_header
    rows = [line for line in whole.split("\n") if line.strip()]
    if rows and all(_ROW_OF_DMON.fullmatch(line) for line in rows):
        return _read_dmon
    return None


def _refuse_without_header(lines: Iterator[str], log: _Log, source: str, limits: Limits) -> None:
    raise TraceError(
        f"{source} looks like a log of nvidia-smi whose header is missing: nothing tells its columns apart; record it "
        "with --format=csv, without noheader, or put the header back."
    )


def _read_csv(lines: Iterator[str], log: _Log, source: str, limits: Limits) -> None:
    header: list[str] = []
    units: list[str] = []
    seen: dict[str, str] = {}
    tick, position, clock = "", 0, _Clock()
    for line in lines:
        parts = [part.strip() for part in line.split(",")]
        if not line.strip():
            continue
        names = [_NAMED.fullmatch(part) for part in parts]
        if all(names) and (not header or "timestamp" in parts[:1] or parts[0].split(" ")[0] == header[0]):
            header = [match["name"] for match in names if match]
            units = [(match["unit"] or "").lower() for match in names if match]
            continue
        if len(parts) != len(header):
            log.bad += 1
            continue
        row = dict(zip(header, parts, strict=True))
        stamp = row.get("timestamp", "")
        if "timestamp" in row and not _STAMP.fullmatch(stamp):
            log.bad += 1
            continue
        position, tick = (position + 1 if stamp and stamp == tick else 0), stamp
        which = next((row[name] for name in _WHICH if row.get(name, "").lower() not in _MISSING), f"row {position}")
        index = row.get("index", "")
        if not (index.isascii() and index.isdecimal() and len(index) < 4):
            index = seen.setdefault(which, str(len(seen)))
        device = f"gpu{int(index)}"
        read = _readings(row, units, header)
        log.add(device, clock.of(stamp, device) if stamp else clock.counted(device), read, source, limits)
        _add_facts(log.facts[device], row, dict(zip(header, units, strict=True)))
    log.ignored |= dict.fromkeys(
        name
        for name in header
        if name not in (*_QUERIED, *_FACTS, *_WHICH, "timestamp", "name", "gpu_name", "count", "driver_version")
        and not _REASONS.fullmatch(name)
    )
    clock.tell(log.notes)


def _readings(row: Mapping[str, str], units: list[str], header: list[str]) -> dict[str, float]:
    read: dict[str, float] = {}
    bits = 0
    for name, unit in zip(header, units, strict=True):
        if column := _QUERIED.get(name):
            value = _number(row[name], unit)
            if value is not None:
                read.setdefault(column, value)
        elif reason := _REASONS.fullmatch(name):
            text = row[name].lower()
            if reason["which"] == "active" and re.fullmatch(r"0x[0-9a-f]{1,16}", text):
                read["throttle_reasons"] = float(int(text, 16) & 0xFFFFFFFF)
            elif text in ("active", "not active"):
                read.setdefault("throttle_reasons", 0.0)
                bits |= _BITS.get(reason["which"], 0) if text == "active" else 0
    if bits:
        read["throttle_reasons"] = float(int(read["throttle_reasons"]) | bits)
    return read


def _add_facts(facts: dict[str, Any], row: Mapping[str, str], units: Mapping[str, str]) -> None:
    """Add what does not change about a GPU."""
    for key in ("name", "gpu_name"):
        if row.get(key, "").lower() not in _MISSING:
            facts.setdefault("name", plain(row[key], 80))
    for key, fact in _FACTS.items():
        if fact not in facts and (value := _number(row.get(key, ""), units.get(key, ""))) is not None:
            facts[fact] = round(value) if fact == "memory_bytes" else value


def _number(text: str, unit: str) -> float | None:
    """A value in the units of ``samples``; the value's own unit counts, if it has one."""
    if text.lower() in _MISSING:
        return None
    found = _VALUE.fullmatch(text)
    factor = _UNITS.get((found[2] or unit).lower()) if found else None
    return None if found is None or factor is None else float(found[1]) * factor


def _read_dmon(lines: Iterator[str], log: _Log, source: str, limits: Limits) -> None:
    header: list[str] = []
    units: list[str] = []
    clock, guessed = _Clock(), False
    for line in lines:
        parts = line.replace(",", " ").split()
        if not parts:
            continue
        if parts[0].startswith("#"):
            words = [word.lower() for word in line.replace(",", " ").replace("#", " ", 1).split()]
            if "gpu" in words:
                header, units = words, []
            elif "idx" in words and len(words) == len(header):
                units = words
            continue
        if not header:
            timed = bool(_DATE.fullmatch(parts[0]) and len(parts[0]) >= 8) + any(map(_CLOCK.fullmatch, parts[:2]))
            if len(parts) - timed not in _DEFAULTS:
                log.bad += 1
                continue
            named = _DEFAULTS[len(parts) - timed]
            header = [*(["date"] if _DATE.fullmatch(parts[0]) and timed else []), *named]
            header.insert(len(header) - len(named), "time") if any(map(_CLOCK.fullmatch, parts[:2])) else None
            guessed = True
        if len(parts) != len(header):
            log.bad += 1
            continue
        row = dict(zip(header, parts, strict=True))
        index = row["gpu"]
        if not (index.isascii() and index.isdecimal() and len(index) < 4):
            log.bad += 1
            continue
        told = dict(zip(header, units, strict=True)) if units else {}
        read = {}
        for name, column in _DMON.items():
            value = _number(row.get(name, "-"), told.get(name) or _DMON_UNITS.get(name, ""))
            if value is not None:
                read[column] = value
        device = f"gpu{int(index)}"
        stamp = " ".join(row[name] for name in ("date", "time") if name in row and "time" in row)
        log.add(device, clock.of(stamp, device) if stamp else clock.counted(device), read, source, limits)
    log.ignored |= dict.fromkeys(name for name in header if name not in (*_DMON, "gpu", "date", "time"))
    if guessed:
        log.notes.append("The log has no header: its columns are taken for those that dmon writes by default.")
    clock.tell(log.notes)


class _Clock:
    """Seconds of a log: from its local time, or counted if it has none."""

    def __init__(self) -> None:
        self._known: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._count: dict[str, int] = {}
        self._back = 0

    def of(self, stamp: str, device: str) -> float:
        """Seconds of a time stamp; a time of day without a date goes on after midnight."""
        day = 0.0
        if stamp not in self._known:
            if len(self._known) > 1000:
                self._known.clear()
            self._known[stamp] = _seconds(stamp)
        seconds = self._known[stamp]
        last = self._last.get(device)
        if last is not None and len(stamp) <= 8:
            day = _DAY_S * max(0.0, np.ceil((last - seconds) / _DAY_S - 0.5))
        if last is not None and seconds + day < last:
            self._back += 1
        self._last[device] = seconds + day
        return float(seconds + day)

    def counted(self, device: str) -> float:
        """The number of a device's reading, as seconds."""
        self._count[device] = self._count.get(device, -1) + 1
        return float(self._count[device])

    def tell(self, notes: list[str]) -> None:
        """Say what the times cannot tell."""
        if self._count:
            notes.append("The log has no times: readings are taken to be one second apart, the default.")
        if self._back:
            notes.append(f"The log's clock went back {self._back:,} times; readings are in order of its times.")


def _seconds(stamp: str) -> float:
    """Seconds of a local time; 0 for an impossible one."""
    for layout in ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S", "%Y%m%d %H:%M:%S"):
        try:
            return (datetime.strptime(stamp, layout) - datetime(2000, 1, 1)).total_seconds()
        except ValueError:
            continue
    parts = stamp.split(":")
    if len(parts) == 3 and all(part.isascii() and part.isdecimal() and len(part) < 3 for part in parts):
        hours, minutes, seconds = map(int, parts)
        return 3600.0 * hours + 60.0 * minutes + seconds
    return 0.0


def _recognise(path: Path) -> bool:
    return path.is_file() and _kind(_text_of_head(head_of(path))) is not None


def _load(path: Path, limits: Limits, *_: object) -> Any:
    from perfnb.watching.watch import Watch

    return Watch(load_log(path, limits))


LOADER = Loader("logs of nvidia-smi (--query-gpu as CSV, dmon)", _recognise, _load)
