"""Logs of nvidia-smi become watches: columns by their header, units wherever they stand, and what is missing is NA."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pandas as pd
import pytest

import perfnb
from perfnb.errors import TraceError
from perfnb.trace.trace_file import Limits
from perfnb.watching.gpu_logs import load_log
from tests.damage import mutated

TRACES = Path(os.environ.get("PERFNB_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
REAL = TRACES / "dmon" / "morpheus_default_1gpu.log"
MIB = 2**20

CSV = """\
timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W], temperature.gpu, \
clocks_throttle_reasons.active, pcie.link.gen.current
2024/02/28 23:59:59.500, 0, NVIDIA <b>H100, 99 %, 30994 MiB, 81559 MiB, 620.25 W, 65, 0x0000000000000004, 5
2024/02/28 23:59:59.502, 1, NVIDIA H100, [N/A], 1024 MiB, 81559 MiB, [Not Supported], 35, 0x0000000000000001, 5
2024/02/29 00:00:04.500, 0, NVIDIA <b>H100, 0 %, 30994 MiB, 81559 MiB, 600.00 W, 66, 0x0000000000000000, 5
2024/02/29 00:00:04.502, 1, NVIDIA H100, [Unknown Error], 1024 MiB, 81559 MiB, [Not Supported], 36, 0x0, 5
"""
DMON = """\
# gpu   pwr gtemp mtemp    sm   mem  mclk  pclk    fb rxpci txpci
# Idx     W     C     C     %     %   MHz   MHz    MB  MB/s  MB/s
    0    70    48     -     5     1  7000  1350   512    10     2
    1     -    50     -    11     1  7000  1350  1024     -     3
# gpu   pwr gtemp mtemp    sm   mem  mclk  pclk    fb rxpci txpci
# Idx     W     C     C     %     %   MHz   MHz    MB  MB/s  MB/s
    0    80    49     -     6     1  7000  1360   512    12     2
    1     -    50     -    12     1  7000  1350  1024     -     3
"""


def log(folder: Path, text: str | bytes, name: str = "a.log") -> perfnb.Watch:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    watch = perfnb.load(path)
    assert isinstance(watch, perfnb.Watch)
    return watch


def of(watch: perfnb.Watch, device: str, column: str) -> list[object]:
    samples = watch.samples
    return [None if pd.isna(value) else value for value in samples.loc[samples["device"] == device, column]]


def test_a_csv_is_a_watch(tmp_path: Path) -> None:
    watch = log(tmp_path, CSV)

    assert of(watch, "gpu0", "t_s") == [0.0, 5.0]
    assert of(watch, "gpu1", "t_s") == pytest.approx([0.002, 5.002])
    assert of(watch, "gpu0", "busy_percent") == [99.0, 0.0]
    assert of(watch, "gpu1", "busy_percent") == of(watch, "gpu1", "power_w") == [None, None]
    assert of(watch, "gpu0", "memory_bytes") == [30994.0 * MIB] * 2
    assert of(watch, "gpu0", "power_w") == [620.25, 600.0]
    assert of(watch, "gpu0", "throttle_reasons") == ["SwPowerCap", ""]
    assert watch.meta["interval_s"] == 5.0
    assert watch.meta["devices"]["gpu1"] == {"name": "NVIDIA H100", "memory_bytes": 81559 * MIB}
    assert watch.notes == ("Columns in the log that are not displayed: pcie.link.gen.current.",)
    assert not watch.running
    assert "<b>H" not in watch._repr_mimebundle_()["text/html"]
    assert "SwPowerCap in 1 of 2 readings" in str(watch)
    assert perfnb.load(watch.save(tmp_path / "saved")).samples.equals(watch.samples)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("units", ["both", "header"])
def test_units_may_be_left_out_of_values(tmp_path: Path, units: str, encoding: str) -> None:
    text = CSV
    if units == "header":
        text = text.replace(" %,", ",").replace(" MiB,", ",").replace(" W,", ",")
    watch = log(tmp_path, text.replace("\n", "\r\n").encode(encoding))

    assert of(watch, "gpu0", "memory_bytes") == [30994.0 * MIB] * 2
    assert of(watch, "gpu0", "power_w") == [620.25, 600.0]


def test_of_several_columns_the_first_that_is_known_counts(tmp_path: Path) -> None:
    names = "timestamp, index, gpu_name, power.draw [W], power.draw.instant [W], enforced.power.limit, power.limit"
    rows = [
        "1, [N/A], [N/A], 90.00 W, [N/A], 350.50 W, Not Active",
        "-, A100, 70.00 W, 80.00 W, 300.00 W, 350.00 W, 0x4",  # of no GPU
        "0, A100, 70.00 W, 80.00 W, 300.00 W, 350.00 W, 0x0000000100000004",
    ]
    text = "".join(f"2024/01/01 00:00:00.000, {row}\n" for row in rows)
    watch = log(tmp_path, f"{names}, clocks_event_reasons.active\n{text}")
    assert (of(watch, "gpu0", "power_w"), of(watch, "gpu1", "power_w")) == ([70.0], [90.0])
    reasons = of(watch, "gpu0", "throttle_reasons"), of(watch, "gpu1", "throttle_reasons")
    assert reasons == (["SwPowerCap"], [None])  # only the low bits are reasons
    assert watch.meta["devices"] == {"gpu0": {"name": "A100", "power_limit_w": 300.0}, "gpu1": {"power_limit_w": 350.5}}
    assert (watch.meta["interval_s"], watch.meta["ticks"]) == (1.0, 1)
    assert watch.notes == ("Lines that were skipped because they are not readings: 1.",)


def test_gpus_without_an_index_are_distinguished(tmp_path: Path) -> None:
    row = "2024/01/01 00:00:0{}.000, {}{} %\n"
    whole = "timestamp, uuid, utilization.gpu [%]\n" + "".join(
        row.format(tick, f"GPU-{gpu}, ", 10 * tick + gpu) for tick in range(3) for gpu in (7, 3)
    )
    watch = log(tmp_path, whole)
    assert of(watch, "gpu0", "busy_percent") == [7.0, 17.0, 27.0]
    assert of(watch, "gpu1", "busy_percent") == [3.0, 13.0, 23.0]

    rows = [row.format(tick, "", 10 * tick + gpu) for tick in range(3) for gpu in (7, 3)]
    watch = log(tmp_path, "timestamp, utilization.gpu [%]\n" + "".join(rows[::2]))
    assert of(watch, "gpu0", "busy_percent") == [7.0, 17.0, 27.0]
    with pytest.raises(TraceError, match=r"do not identify their GPU\. Also record the index"):
        log(tmp_path, "timestamp, utilization.gpu [%]\n" + "".join(rows))


def test_lines_that_are_no_readings_are_counted(tmp_path: Path) -> None:
    header, *rows = CSV.splitlines()
    text = "\n".join([header, rows[0], "Unable to determine the device handle", header, *rows[2:], "2024/02/29 00:"])
    watch = log(tmp_path, text)
    assert of(watch, "gpu0", "t_s") == [0.0, 5.0]
    assert "Lines that were skipped because they are not readings: 2." in watch.notes


def test_dmon_is_a_watch(tmp_path: Path) -> None:
    watch = log(tmp_path, DMON)

    assert of(watch, "gpu0", "t_s") == of(watch, "gpu1", "t_s") == [0.0, 1.0]
    assert of(watch, "gpu0", "power_w") == [70.0, 80.0]
    assert of(watch, "gpu1", "power_w") == of(watch, "gpu1", "pcie_receive_bytes_per_s") == [None, None]
    assert of(watch, "gpu0", "pcie_receive_bytes_per_s") == [10e6, 12e6]
    assert of(watch, "gpu0", "memory_bytes") == [512.0 * MIB] * 2
    assert of(watch, "gpu1", "busy_percent") == [11.0, 12.0]
    assert watch.notes == (
        "The log has no times, so the readings are assumed to be one second apart, which is the default.",
        "Columns in the log that are not displayed: mtemp, mem.",
    )


def stamped(first: str, names: str, *stamps: str) -> str:
    """Return the log with columns in front."""
    head, units, *rows = [line for line in DMON.splitlines() if line]
    rows = [row for row in rows if not row.startswith("#")]
    lines = [f"#{names} {head[1:]}", f"#{first} {units[1:]}"]
    return "\n".join([*lines, *(f" {stamps[place // 2]} {row}" for place, row in enumerate(rows))])


@pytest.mark.parametrize(
    ("names", "units", "stamps"),
    [
        ("Date       Time    ", "YYYYMMDD   HH:MM:SS", ("20240228   23:59:58", "20240229   00:00:03")),
        ("Time    ", "HH:MM:SS", ("23:59:58", "00:00:03")),
    ],
)
def test_dmon_with_times_keeps_them(tmp_path: Path, names: str, units: str, stamps: tuple[str, str]) -> None:
    watch = log(tmp_path, stamped(units, names, *stamps))

    assert of(watch, "gpu0", "t_s") == of(watch, "gpu1", "t_s") == [0.0, 5.0]
    assert of(watch, "gpu0", "power_w") == [70.0, 80.0]
    assert watch.meta["interval_s"] == 5.0
    assert not any("one second apart" in note for note in watch.notes)


def test_dmon_as_csv(tmp_path: Path) -> None:
    text = "\n".join(", ".join(line.split()).replace("#, ", "# ") for line in DMON.splitlines())
    assert of(log(tmp_path, text), "gpu0", "power_w") == [70.0, 80.0]


def test_a_log_without_its_header_is_refused(tmp_path: Path) -> None:
    for text in (CSV, DMON):
        with pytest.raises(TraceError, match="is not a file that perfnb can read"):
            log(tmp_path, "".join(line for line in text.splitlines(True)[1:] if not line.startswith("#")))


def test_midnight_counts_once(tmp_path: Path) -> None:
    stamps = [f"{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}" for second in range(86_395, 86_405)]
    rows = "".join(f" {stamp} 0 70 48 - 5 1 0 0\n" for stamp in stamps)
    watch = log(tmp_path, f"#Time gpu pwr gtemp mtemp sm mem mclk pclk\n{rows}")
    assert of(watch, "gpu0", "t_s") == [float(second) for second in range(10)]


def test_other_text_is_not_a_log(tmp_path: Path) -> None:
    commented = "# a comment\n1 2\n", "# gpu mtemp\n0 2\n", "# pwr sm\n1 2\n"
    for text in ("a, b\n1, 2\n", *commented, "1 2 3\n", "index, name\n0, x\n", "timestamp, value\n1, 2\n"):
        with pytest.raises(TraceError, match="is not a file that perfnb can read"):
            log(tmp_path, text)
    for text in (CSV.partition("\n")[0], "index, memory.total [MiB]\n0, 5 MiB\n"):
        with pytest.raises(TraceError, match="without any readings"):
            log(tmp_path, text)
    reasons = log(tmp_path, "index, clocks_throttle_reasons.active\n3, 0x8\n")
    assert of(reasons, "gpu3", "throttle_reasons") == ["HwSlowdown"]


def test_limits_hold(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(CSV)
    with pytest.raises(TraceError, match="raise max_events"):
        perfnb.load(path, max_events=11)
    assert len(load_log(path, Limits(max_events=12))[0].samples) == 4  # ten cells count as three events
    path.write_text(CSV + "x" * 2**21)
    with pytest.raises(TraceError, match="a line of more than"):
        perfnb.load(path)
    head = DMON.splitlines()[0]
    assert log(tmp_path, f"{head}\n255 {'1 ' * 10}").samples["device"].tolist() == ["gpu255"]
    path.write_text(f"{head}\n256 {'1 ' * 10}")
    with pytest.raises(TraceError, match="more than 256 GPUs"):
        perfnb.load(path)


@pytest.mark.parametrize("count", [12, pytest.param(2000, marks=pytest.mark.deep)])
def test_any_damage_is_an_error_or_a_watch(tmp_path: Path, count: int) -> None:
    chance, read_anyway, path = random.Random(9), 0, tmp_path / "a.log"
    for number in range(count):
        path.write_bytes(mutated((CSV if number % 2 else DMON).encode(), chance))
        try:
            read_anyway += len(load_log(path, Limits())[0].samples) > 0
        except TraceError:
            continue
    assert read_anyway > count // 4


@pytest.mark.skipif(not REAL.is_file(), reason=f"no folder of public traces at {TRACES}; set PERFNB_TRACES")
def test_a_real_log() -> None:
    watch = perfnb.load(REAL)
    assert of(watch, "gpu0", "power_w") == [70.0, 68.0, 69.0, 270.0, 274.0, 278.0, 279.0, 277.0, 281.0]
    assert of(watch, "gpu0", "busy_percent") == [5.0, 11.0, 3.0, 10.0, 75.0, 86.0, 99.0, 86.0, 85.0]


def test_only_a_time_of_day_continues_after_midnight(tmp_path: Path) -> None:
    rows = ["2024010{} 23:59:59 0 10\n", "2024010{} 00:00:01 0 20\n"]
    dated = log(tmp_path, "#Date Time gpu sm\n" + rows[0].format(2) + rows[1].format(1))  # in no order
    assert (of(dated, "gpu0", "t_s"), of(dated, "gpu0", "busy_percent")) == ([0.0, 172_798.0], [20.0, 10.0])
    undated = log(tmp_path, "#Time gpu sm\n" + "".join(row.partition(" ")[2] for row in rows))
    assert (of(undated, "gpu0", "t_s"), of(undated, "gpu0", "busy_percent")) == ([0.0, 2.0], [10.0, 20.0])
