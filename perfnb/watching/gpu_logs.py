"""Logs of ``nvidia-smi``, as job scripts keep them: ``--query-gpu=... --format=csv`` and ``dmon``.

Neither says in which time zone its clock is, and ``dmon`` has no time unless it was asked for. Units are those that
``nvidia-smi`` writes for each column, whether or not they stand behind the values too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfnb.draw.escape import plain
from perfnb.errors import TraceError
from perfnb.recording.reading import Loader
from perfnb.recording.recording import WatchRecord
from perfnb.recording.samples import watch_record
from perfnb.recording.text import TEXT
from perfnb.trace.trace_file import Limits, head_of, lines_of_file, too_many

_MOST_DEVICES, _MOST_NAMED, _BATCH, _DAY_S = 256, 8, 20_000, 86_400
#: Columns of each kind of log: what they are in ``samples``.
_QUERIED = {
    **{"utilization.gpu": "busy_percent", "memory.used": "memory_bytes", "temperature.gpu": "temperature_c"},
    **dict.fromkeys(("power.draw", "power.draw.average", "power.draw.instant"), "power_w"),
    **dict.fromkeys(("clocks.sm", "clocks.current.sm"), "sm_clock_mhz"),
    **dict.fromkeys(("clocks.mem", "clocks.current.memory"), "memory_clock_mhz"),
    **{"total_energy_consumption": "energy_j"},
}
_DMON = {
    **{"pwr": "power_w", "gtemp": "temperature_c", "sm": "busy_percent", "fb": "memory_bytes"},
    **{"mclk": "memory_clock_mhz", "pclk": "sm_clock_mhz"},
    **{"rxpci": "pcie_receive_bytes_per_s", "txpci": "pcie_send_bytes_per_s"},
}
_FACTS = {"memory.total": "memory_bytes", "enforced.power.limit": "power_limit_w", "power.limit": "power_limit_w"}
#: The unit of a log's figures in that of ``samples``, where it is another: MiB, mJ and MB/s.
_UNITS = {
    **{"memory_bytes": 2.0**20, "energy_j": 1e-3},
    **{"pcie_receive_bytes_per_s": 1e6, "pcie_send_bytes_per_s": 1e6},
}
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_WHICH = ("gpu", "index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
_OTHERS = ("name", "gpu_name", "timestamp", "date", "time", "count", "driver_version")
_SHOWN = {*_QUERIED, *_DMON, *_FACTS, *_REASONS, *_WHICH, *_OTHERS}
#: A number, perhaps with its unit; what is missing is ``-``, ``[N/A]`` or ``[Not Supported]``.
_NUMBER = r"^(-?[0-9]{1,18}(?:\.[0-9]{1,9})?)(?: ?[A-Za-z%/]{1,5})?$"
_MASK = r"^0x([0-9a-fA-F]{1,16})$"


def load_log(path: Path, limits: Limits) -> tuple[WatchRecord, dict[str, Any]]:
    """Read a log: the samples of its GPUs, and the facts of a watch.

    Raises
    ------
    TraceError
        If it cannot be read, has no readings, does not tell its GPUs apart, or exceeds a limit.
    """
    parts, facts, notes = list[pd.DataFrame](), dict[int, dict[str, Any]](), list[str]()
    gpus, ignored, bad, told, dated = dict[str, int](), dict[str, None](), 0, True, True
    for text in _batches(path, limits.whole()):
        part = _part(text, gpus)
        timed = "timestamp" in text or "time" in text
        known = (part["device"] >= 0) & part.drop(columns=["t_s", "device"]).notna().any(axis=1)
        part = part[known & part["t_s"].notna() if timed else known]
        bad += len(text) - len(part)
        if part.empty:
            continue
        if (part["device"] >= _MOST_DEVICES).any():
            raise TraceError(f"{path} was not read: it has more than {_MOST_DEVICES} GPUs, as no machine has.")
        for device, own in part.groupby(part["device"].astype(int)):
            facts.setdefault(int(device), _facts(text.loc[own.index[0]]))
        told, dated = told and any(name in text for name in _WHICH), "time" not in text or "date" in text
        ignored |= dict.fromkeys(name for name in map(str, text) if name not in _SHOWN)
        parts.append(part)
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if table.empty:
        raise TraceError(f"{path} is a log of nvidia-smi without readings.")
    if table["t_s"].isna().any():
        table["t_s"] = table.groupby("device").cumcount().astype(float)
        notes.append("The log has no times: readings are taken to be one second apart, the default.")
    if not dated:  # a time of day continues after midnight
        table["t_s"] += (table["t_s"].diff() < -_DAY_S / 2).cumsum() * _DAY_S
    if not told and table["t_s"].duplicated().any():
        raise TraceError(f"{path} was not read: rows of the same time do not say of which GPU; record index as well.")
    if bad:
        notes.append(f"Lines that are not readings, left out: {bad:,}.")
    if ignored:
        words = ", ".join(plain(name, 40) for name in list(ignored)[:_MOST_NAMED])
        more = f" and {len(ignored) - _MOST_NAMED:,} more" if len(ignored) > _MOST_NAMED else ""
        notes.append(f"Columns of the log that are not shown: {words}{more}.")
    return _record(table, facts, notes)


def _batches(path: Path, limits: Limits) -> Iterator[pd.DataFrame]:
    """The rows of a log as text, a frame for many of them; a row with more or fewer cells than its header is empty."""
    header, rows, readings = list[str](), list[list[str]](), 0
    with closing(lines_of_file(path, limits)) as lines:
        for line in filter(str.strip, lines):
            names = _header(line)
            if not names and not line.startswith("#"):
                is_dmon = "gpu" in header
                cells = line.replace(",", " ").split() if is_dmon else [cell.strip() for cell in line.split(",")]
                rows.append(cells if len(cells) == len(header) else [""] * len(header))
                readings += 1
                if readings > limits.most_events:
                    raise too_many(str(path), limits.most_events)
            if rows and (len(rows) == _BATCH or (names and names != header)):
                yield _frame(rows, header)
                rows = []
            header = names or header
    if rows:
        yield _frame(rows, header)


def _frame(rows: list[list[str]], header: list[str]) -> pd.DataFrame:
    text = pd.DataFrame(rows, columns=header, dtype=TEXT)
    return text.loc[:, ~text.columns.duplicated()]


def _header(line: str) -> list[str]:
    """The columns that a line names; none if it is no header of a log."""
    if line.startswith("#"):
        names = line.lstrip("# ").replace(",", " ").lower().split()
        return names if "gpu" in names and not _DMON.keys().isdisjoint(names) else []
    names = [name.strip().partition(" [")[0] for name in line.split(",")]
    return names if any(name in _QUERIED or name in _FACTS or name in _REASONS for name in names) else []


def _part(text: pd.DataFrame, gpus: dict[str, int]) -> pd.DataFrame:
    """Time, GPU and figures of each row; `gpus` numbers those that have no index."""
    which = next((name for name in _WHICH if name in text), None)
    part = pd.DataFrame({"t_s": _seconds(text), "device": 0.0}, index=text.index)
    if which in ("gpu", "index"):
        part["device"] = _numbers(text[which])
    elif which is not None:
        part["device"] = [gpus.setdefault(name, len(gpus)) if name else np.nan for name in text[which]]
    for name, column in (_DMON if "gpu" in text else _QUERIED).items():
        if name in text:
            values = _numbers(text[name]) * _UNITS.get(column, 1.0)
            part[column] = part[column].fillna(values) if column in part else values
    for name in (name for name in _REASONS if name in text):
        digits = text[name].str.extract(_MASK, expand=False)
        part["throttle_reasons"] = [int(x, 16) & 0xFFFFFFFF if isinstance(x, str) else np.nan for x in digits]
    return part


def _numbers(text: pd.Series[Any]) -> pd.Series[Any]:
    digits = text.str.extract(_NUMBER, expand=False)
    return pd.to_numeric(digits.astype(object).where(digits.notna(), None), errors="coerce").astype(float)


def _seconds(text: pd.DataFrame) -> Any:
    """Seconds of each row's local time since an arbitrary day; missing without one."""
    if "timestamp" in text:
        stamps = pd.to_datetime(text["timestamp"], format="%Y/%m/%d %H:%M:%S.%f", errors="coerce")
    elif "time" in text:
        words = text.get("date", "20000101") + " " + text["time"]
        stamps = pd.to_datetime(words, format="%Y%m%d %H:%M:%S", errors="coerce")
    else:
        return np.nan
    return (stamps - pd.Timestamp("2000-01-01")).dt.total_seconds()


def _facts(row: pd.Series[Any]) -> dict[str, Any]:
    """What does not change about a GPU."""
    facts: dict[str, Any] = {}
    for name in ("name", "gpu_name"):
        if name in row and not row[name].startswith("["):
            facts["name"] = plain(row[name], 80)
    for name, fact in _FACTS.items():
        if name in row and pd.notna(value := _numbers(row[[name]]).iloc[0]):
            facts.setdefault(fact, round(value * _UNITS[fact]) if fact in _UNITS else float(value))
    return facts


def _record(
    table: pd.DataFrame, facts: dict[int, dict[str, Any]], notes: list[str]
) -> tuple[WatchRecord, dict[str, Any]]:
    table["t_s"] = (table["t_s"] - table["t_s"].min()).round(6)
    columns, gaps = {}, []
    for device, own in table.sort_values("t_s", kind="stable").groupby(table["device"].astype(int)):
        window, unknown = np.diff(own["t_s"], prepend=np.nan), np.full(len(own), np.nan)
        gaps.append(window[window > 0])
        if "throttle_reasons" in own:
            own = own.fillna({"throttle_reasons": -1.0})
        columns[f"gpu{device}"] = {
            **{str(name): own[name].to_numpy(dtype=float) for name in own if name != "device"},
            **{"window_s": window, "read_ms": unknown, "late_ms": unknown},
            **{"missed_ticks": np.zeros(len(own)), "readings": np.ones(len(own))},
        }
    apart = np.concatenate(gaps)
    meta: dict[str, Any] = {
        "running": False,
        "interval_s": float(np.median(apart)) if len(apart) else 1.0,
        "devices": {f"gpu{device}": facts[device] for device in sorted(facts)},
        "absent": {},
        "notes": notes,
        "ticks": max(len(own["t_s"]) for own in columns.values()),
        "missed": 0,
    }
    return watch_record(columns, ()), meta


def _recognise(path: Path) -> bool:
    head = head_of(path) if path.is_file() else b""
    text = head.decode("utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig", "replace")
    return bool(_header(text.lstrip().partition("\n")[0]))


def _load(path: Path, limits: Limits, *_: object) -> Any:
    from perfnb.watching.watch import Watch

    return Watch(load_log(path, limits))


LOADER = Loader("logs of nvidia-smi (--query-gpu as CSV, dmon)", _recognise, _load)
