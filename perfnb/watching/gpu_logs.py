"""Read ``nvidia-smi`` logs that job scripts have written with ``--query-gpu=... --format=csv`` or ``dmon``.

Neither format contains the clock's time zone, and ``dmon`` only contains times if they were requested. Each column has
the unit that ``nvidia-smi`` uses for it, even if the unit does not appear after the values.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfnb.draw.escape import plain
from perfnb.errors import TraceError
from perfnb.quantities import named
from perfnb.recording.loadable import Loadable
from perfnb.recording.recording import WatchRecord
from perfnb.recording.samples import watch_record
from perfnb.recording.text import TEXT
from perfnb.trace.trace_file import Limits, head_of, lines_of_file, too_many

_MOST_DEVICES, _MOST_NAMED, _DAY_S = 256, 8, 86_400
_MIB, _MB = 2.0**20, 1e6
#: The columns of ``samples`` for the columns of logs, with the factor between their units. The columns of ``dmon`` come
#: last.
_COLUMNS = {
    **{"utilization.gpu": ("busy_percent", 1.0), "memory.used": ("memory_bytes", _MIB)},
    **dict.fromkeys(("power.draw", "power.draw.average", "power.draw.instant"), ("power_w", 1.0)),
    **{"temperature.gpu": ("temperature_c", 1.0), "total_energy_consumption": ("energy_j", 1e-3)},
    **dict.fromkeys(("clocks.sm", "clocks.current.sm"), ("sm_clock_mhz", 1.0)),
    **dict.fromkeys(("clocks.mem", "clocks.current.memory"), ("memory_clock_mhz", 1.0)),
    **{"pwr": ("power_w", 1.0), "gtemp": ("temperature_c", 1.0), "sm": ("busy_percent", 1.0)},
    **{"fb": ("memory_bytes", _MIB), "mclk": ("memory_clock_mhz", 1.0), "pclk": ("sm_clock_mhz", 1.0)},
    **{"rxpci": ("pcie_receive_bytes_per_s", _MB), "txpci": ("pcie_send_bytes_per_s", _MB)},
}
_LIMITS = {
    "memory.total": ("memory_bytes", _MIB),
    **dict.fromkeys(("enforced.power.limit", "power.limit"), ("power_limit_w", 1.0)),
}
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_WHICH = ("gpu", "index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
_NAMES, _TIMES = ("name", "gpu_name"), ("timestamp", "date", "time")
_SHOWN = {*_COLUMNS, *_LIMITS, *_REASONS, *_WHICH, *_NAMES, *_TIMES, "count", "driver_version"}
#: A number with an optional unit. Missing values are ``-``, ``[N/A]`` or ``[Not Supported]``.
_NUMBER = r"^(-?[0-9]{1,18}(?:\.[0-9]{1,9})?)(?: ?[A-Za-z%/]{1,5})?$"
_MASK = r"^0x([0-9a-fA-F]{1,16})$"


def load_log(path: Path, limits: Limits) -> tuple[WatchRecord, dict[str, Any]]:
    """Read a log, and return the samples from its GPUs as a record of a watch, with the watch's metadata.

    Raises
    ------
    TraceError
        If the log cannot be read, has no readings, does not distinguish between GPUs, or exceeds a limit.
    """
    text, count = _table_of(path, limits.whole())
    which = next((name for name in _WHICH if name in text), None)
    samples = pd.DataFrame({"t_s": _seconds(text), "device": 0.0}, index=text.index)
    if which is not None:
        by_number = which in ("gpu", "index")
        samples["device"] = _numbers(text[which]) if by_number else pd.factorize(text[which])[0].astype(float)
    for name in (name for name in _COLUMNS if name in text):
        column, factor = _COLUMNS[name]
        values = _numbers(text[name]) * factor
        samples[column] = samples[column].fillna(values) if column in samples else values
    for name in (name for name in _REASONS if name in text):
        masks = text[name].str.extract(_MASK, expand=False)
        samples["throttle_reasons"] = [int(x, 16) & 0xFFFFFFFF if isinstance(x, str) else -1 for x in masks]
    has_times = "timestamp" in text or "time" in text
    known = (samples["device"] >= 0) & samples.drop(columns=["t_s", "device"]).notna().any(axis=1)
    samples = samples[known & samples["t_s"].notna() if has_times else known].reset_index()
    if samples.empty:
        raise TraceError(f"{path} is an nvidia-smi log without any readings.")
    if (samples["device"] >= _MOST_DEVICES).any():
        raise TraceError(f"{path} was not read, because it contains more than {_MOST_DEVICES} GPUs.")
    notes = []
    if not has_times:
        samples["t_s"] = samples.groupby("device").cumcount().astype(float)
        notes.append("The log has no times, so the readings are assumed to be one second apart, which is the default.")
    elif "time" in text and "date" not in text:  # a time of day continues after midnight
        samples["t_s"] += (samples["t_s"].diff() < -_DAY_S / 2).cumsum() * _DAY_S
    if which is None and samples["t_s"].duplicated().any():
        raise TraceError(
            f"{path} was not read, because rows with the same time do not identify their GPU. Also record the index."
        )
    if count > len(samples):
        notes.append(f"Lines that were skipped because they are not readings: {count - len(samples):,}.")
    if ignored := [name for name in text if name not in _SHOWN]:
        notes.append(
            f"Columns in the log that are not displayed: {named([plain(name, 40) for name in ignored], _MOST_NAMED)}."
        )
    first = samples.drop_duplicates("device").sort_values("device")
    facts = {int(device): _facts(text.loc[row]) for device, row in zip(first["device"], first["index"], strict=True)}
    return _record(samples.drop(columns="index"), facts, notes)


def _table_of(path: Path, limits: Limits) -> tuple[pd.DataFrame, int]:
    """Return the cells of a log as text, and the number of lines that are not headers."""
    header, rows, count = list[str](), list[list[str]](), 0
    with closing(lines_of_file(path, limits)) as lines:
        for line in filter(str.strip, lines):
            names = _header(line)
            header = header or names
            if names or line.startswith("#"):
                continue
            count += 1
            if count * (1 + len(header) // 4) > limits.most_events:  # four strings use as much memory as one list
                raise too_many(str(path), limits.most_events)
            cells = line.replace(",", " ").split() if "gpu" in header else [cell.strip() for cell in line.split(",")]
            rows += [cells] * (len(cells) == len(header))
    text = pd.DataFrame(rows, columns=header, dtype=TEXT)
    return text.loc[:, ~text.columns.duplicated()], count


def _header(line: str) -> list[str]:
    """Return the names of the columns in a header line, or an empty list if the line is not a header."""
    if line.startswith("#"):
        names = line.lstrip("# ").replace(",", " ").lower().split()
        return names if "gpu" in names and not _COLUMNS.keys().isdisjoint(names) else []
    names = [name.strip().partition(" [")[0] for name in line.split(",")]
    return names if any(name in _COLUMNS or name in _LIMITS or name in _REASONS for name in names) else []


def _numbers(text: pd.Series[Any]) -> pd.Series[Any]:
    digits = text.str.extract(_NUMBER, expand=False)
    return pd.to_numeric(digits.astype(object).where(digits.notna(), None), errors="coerce").astype(float)


def _seconds(text: pd.DataFrame) -> Any:
    """Return each row's local time in seconds since an arbitrary day, which is missing for rows without a time."""
    if "timestamp" in text:
        stamps = pd.to_datetime(text["timestamp"], format="%Y/%m/%d %H:%M:%S.%f", errors="coerce")
    elif "time" in text:
        words = text.get("date", "20000101") + " " + text["time"]
        stamps = pd.to_datetime(words, format="%Y%m%d %H:%M:%S", errors="coerce")
    else:
        return np.nan
    return (stamps - pd.Timestamp("2000-01-01")).dt.total_seconds()


def _facts(row: pd.Series[Any]) -> dict[str, Any]:
    """Return facts about a GPU that do not change."""
    names = [plain(row[name], 80) for name in _NAMES if name in row and not row[name].startswith("[")]
    facts: dict[str, Any] = {"name": names[0]} if names else {}
    for name, (fact, factor) in _LIMITS.items():
        if name in row and pd.notna(value := _numbers(row[[name]]).iloc[0]):
            facts.setdefault(fact, round(value * factor) if factor > 1 else float(value))
    return facts


def _record(
    table: pd.DataFrame, facts: dict[int, dict[str, Any]], notes: list[str]
) -> tuple[WatchRecord, dict[str, Any]]:
    table["t_s"] = (table["t_s"] - table["t_s"].min()).round(6)
    columns, gaps = {}, []
    for device, own in table.sort_values("t_s", kind="stable").groupby(table["device"].astype(int)):
        window, unknown = np.diff(own["t_s"], prepend=np.nan), np.full(len(own), np.nan)
        gaps.append(window[window > 0])
        columns[f"gpu{device}"] = {
            **{str(name): own[name].to_numpy(dtype=float) for name in own if name != "device"},
            **{"window_s": window, "read_ms": unknown, "late_ms": unknown},
            **{"missed_ticks": np.zeros(len(own)), "readings": np.ones(len(own))},
        }
    apart = np.concatenate(gaps)
    meta: dict[str, Any] = {
        **{"running": False, "interval_s": float(np.median(apart)) if len(apart) else 1.0, "missed": 0},
        **{"devices": {f"gpu{device}": facts[device] for device in sorted(facts)}, "absent": {}, "notes": notes},
        "ticks": max(len(own["t_s"]) for own in columns.values()),
    }
    return watch_record(columns, ()), meta


def _recognise(path: Path) -> bool:
    head = head_of(path) if path.is_file() else b""
    text = head.decode("utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig", "replace")
    return bool(_header(text.lstrip().partition("\n")[0]))


def _load(path: Path, limits: Limits, *_: object) -> Any:
    from perfnb.watching.watch import Watch

    return Watch(load_log(path, limits))


LOADABLE = Loadable(_recognise, _load)
