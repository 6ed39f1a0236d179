"""Figures of a watch: quantiles, totals, energy, charts, and what fell into which phase."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfnb.recording.recording import WatchRecord
from perfnb.recording.schema import conform
from perfnb.watching.charts import CHARTS, charts_of
from perfnb.watching.summary import MachineSummary, machine_summary, machine_table, weighted_quantile


def samples(device: str = "host", interval: float = 0.5, **metrics: list[float | None]) -> pd.DataFrame:
    length = len(next(iter(metrics.values())))
    frame = pd.DataFrame({name: pd.array(values, dtype="Float64") for name, values in metrics.items()})
    frame["t_s"] = np.arange(length) * interval
    frame["window_s"] = pd.array([None, *[interval] * (length - 1)], dtype="Float64")
    if "readings" not in metrics:
        frame["readings"] = 1
    frame["device"] = pd.Categorical([device] * length)
    return conform(frame, "samples")


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(1, 9)), min_size=1, max_size=40),
    st.sampled_from([0.1, 0.5, 0.95, 1.0]),
)
def test_a_weight_counts_as_so_many_equal_values(pairs: list[tuple[float, int]], q: float) -> None:
    values, weights = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    repeated = np.repeat(values, weights.astype(int))
    assert weighted_quantile(values, weights, q) == pytest.approx(
        float(np.quantile(repeated, q, method="averaged_inverted_cdf")), rel=1e-9, abs=1e-9
    )


def test_totals_are_integrals_over_the_windows() -> None:
    table = machine_table(samples(disk_write_bytes_per_s=[None, 100.0, 300.0], cpu_percent=[None, 10.0, 30.0]))
    row = table.loc[("host", "disk_write_bytes_per_s")]
    assert (row["median"], row["max"], row["total"], row["readings"]) == (200.0, 300.0, 200.0, 2)
    assert pd.isna(table.loc[("host", "cpu_percent"), "total"])


@pytest.mark.parametrize(
    ("power", "uncertainty"), [([90.0, 100.0, 100.0, 110.0], 20.0), ([None, 100.0, 100.0, 110.0], 21.0)]
)
def test_energy_is_a_difference_with_its_uncertainty(power: list[float | None], uncertainty: float) -> None:
    frame = samples("gpu0", energy_j=[1000.0, 1050.0, 1100.0, 1150.0], power_w=power)
    frame["t_s"] += 8.0
    row = machine_table(frame).loc[("gpu0", "energy_j")]
    assert (row["total"], row["uncertainty"]) == (150.0, pytest.approx(uncertainty))


def test_energy_over_a_second_is_known() -> None:
    frame = samples("gpu0", energy_j=[10.0, 10.0, 13.0])
    frame["t_s"] += 8.0
    assert machine_table(frame).loc[("gpu0", "energy_j"), "total"] == 3.0
    frame.loc[2, "t_s"] -= 0.001
    assert pd.isna(machine_table(frame).loc[("gpu0", "energy_j"), "total"])


@pytest.mark.parametrize(("known", "total"), [(19, 9.5), (18, None)])
def test_a_rate_that_was_known_for_95_percent_of_the_time_has_a_total(known: int, total: float | None) -> None:
    values: list[float | None] = [None, *[1.0] * known, *[None] * (20 - known)]
    found = machine_table(samples(disk_read_bytes_per_s=values)).loc[("host", "disk_read_bytes_per_s"), "total"]
    assert (None if pd.isna(found) else found) == total


@pytest.mark.parametrize(
    ("interval", "energy"),
    [(0.2, [1.0, 2.0, 3.0]), (1.0, [5.0, 1.0, 2.0]), (0.9, [1.0, None, None])],
    ids=["under a second", "the counter began anew", "one reading"],
)
def test_energy_that_cannot_be_determined_is_missing(interval: float, energy: list[float | None]) -> None:
    row = machine_table(samples("gpu0", interval, energy_j=energy)).loc[("gpu0", "energy_j")]
    assert pd.isna(row["total"])
    assert pd.isna(row["uncertainty"])


def test_charts_hold_only_what_was_read_and_bounds_that_are_known() -> None:
    frame = pd.concat([samples("host", cpu_percent=[1.0, 2.0]), samples("gpu0", power_w=[None, None])])
    devices = {"host": {"cpus": 4, "memory_bytes": 100}, "gpu0": {"name": "H100", "power_limit_w": 700.0}}
    (cpu,) = charts_of(frame, devices)
    assert (cpu.key, cpu.unit, cpu.ceiling, cpu.ceiling_word) == ("cpu", "percent", 400.0, "all cores")
    assert [line.word for line in cpu.lines] == ["host"]
    assert charts_of(frame, devices, ["memory"]) == ()


def test_a_cgroup_that_limits_is_drawn_and_bounds_the_chart() -> None:
    frame = pd.concat([samples(device, cpu_percent=[1.0, 2.0]) for device in ("host", "cgroup")])
    host = {"cpus": 8, "memory_bytes": 100}
    (free,) = charts_of(frame, {"host": host, "cgroup": {"cpu_limit": None}})
    (limited,) = charts_of(frame, {"host": host, "cgroup": {"cpu_limit": 1.5}})
    assert [line.device for line in free.lines] == ["host"]
    assert [line.device for line in limited.lines] == ["cgroup", "host"]
    assert (limited.ceiling, limited.ceiling_word) == (150.0, "cgroup limit")


@pytest.mark.parametrize(
    ("facts", "ceiling"),
    [
        ({"host": {"memory_bytes": 100}}, (100, "installed")),
        ({"host": {"memory_bytes": 100}, "cgroup": {"memory_limit_bytes": 50}}, (50, "cgroup limit")),
        ({"host": {"memory_bytes": 100}, "cgroup": {"memory_limit_bytes": 200}}, (100, "installed")),
        ({"host": {}, "cgroup": {"memory_limit_bytes": 50}}, (50, "cgroup limit")),
        ({"host": {}}, (None, "")),
        ({"gpu0": {"memory_bytes": 80}, "gpu1": {"memory_bytes": 80}}, (80, "installed")),
        ({"gpu0": {"memory_bytes": 80}, "gpu1": {"memory_bytes": 40}}, (None, "")),
        ({"gpu0": {"memory_bytes": 80}, "gpu1": {}}, (80, "installed")),
    ],
)
def test_the_ceiling_of_memory_is_what_there_is_at_most(
    facts: dict[str, dict[str, int]], ceiling: tuple[int | None, str]
) -> None:
    frame = pd.concat([samples(device, memory_bytes=[1.0, 2.0]) for device in facts])
    (chart,) = charts_of(frame, facts)
    assert (chart.ceiling, chart.ceiling_word) == ceiling


def test_several_gpus_are_distinguished_by_their_numbers() -> None:
    frame = pd.concat([samples(f"gpu{n}", sm_clock_mhz=[1.0, 2.0], memory_clock_mhz=[1.0, 2.0]) for n in range(2)])
    (clocks,) = charts_of(frame, {"gpu0": {"name": "A"}, "gpu1": {"name": "B"}})
    clocks_of = [f"GPU {n} {clock} clock" for n in range(2) for clock in ("SM", "memory")]
    assert [line.word for line in clocks.lines] == clocks_of


def test_a_summary_of_nothing_is_empty() -> None:
    record = WatchRecord(conform(pd.DataFrame(), "samples"), conform(pd.DataFrame(), "marks"))
    meta = {"interval_s": 0.5, "devices": {"host": {}}, "ticks": 0, "missed": 0}
    summary = machine_summary(record, meta)
    assert summary.duration_s == 0.0
    assert summary.table.empty
    assert summary.charts == ()
    assert summary.cost_percent is None
    assert len(CHARTS) == 12


def test_a_rate_that_was_seldom_known_has_no_total() -> None:
    seldom: list[float | None] = [None, *[1e9, None, None, None] * 5]
    table = machine_table(samples("gpu0", pcie_send_bytes_per_s=seldom, power_w=[5.0] * 21))
    row = table.loc[("gpu0", "pcie_send_bytes_per_s")]
    assert pd.isna(row["total"])
    assert (row["median"], row["readings"]) == (1e9, 5)


def test_exact_figures_stand_for_joined_readings() -> None:
    exact = {"host": {"disk_read_bytes_per_s": {"max": 9.0, "integral": 77.0, "known_s": 1.0, "readings": 40}}}
    row = machine_table(samples(disk_read_bytes_per_s=[None, 1.0, 2.0]), exact).loc[("host", "disk_read_bytes_per_s")]
    assert (row["max"], row["total"], row["readings"], row["median"]) == (9.0, 77.0, 40, 1.5)


def summary_of(frame: pd.DataFrame, **facts: object) -> MachineSummary:
    record = WatchRecord(frame, conform(pd.DataFrame(), "marks"))
    devices = {str(name): {} for name in frame["device"].cat.categories}
    return machine_summary(record, {"interval_s": 0.5, "devices": devices, "ticks": 1, "missed": 0, **facts})


def test_the_time_that_was_watched_and_the_cost_of_it() -> None:
    frame = samples(load=[0.0] * 4)
    frame["t_s"] += 7.0
    summary = summary_of(frame, sampler_cpu_s=0.03, sampler_lived_s=2.0, running=True)
    assert (summary.duration_s, summary.cost_percent, summary.running) == (1.5, pytest.approx(1.5), True)
    assert summary_of(frame, sampler_cpu_s=0.0, sampler_lived_s=2.0).cost_percent == 0.0
    assert summary_of(frame, sampler_cpu_s=0.1, sampler_lived_s=0.0).cost_percent is None
    assert summary_of(frame, sampler_lived_s=2.0).cost_percent is None


def test_gaps_are_those_between_readings_that_stand_alone() -> None:
    frame = samples(load=[0.0] * 6)
    frame["t_s"] = [0.0, 10.0, 10.5, 11.0, 11.5, 12.5]
    frame["readings"] = [20, 20, 1, 1, 1, 1]
    summary = summary_of(frame)
    assert summary.gap_p99_ms == pytest.approx(np.percentile([500, 500, 1000], 99))
    assert any("maxima are exact" in note for note in summary.notes)


def test_a_gpu_that_was_held_back_is_reported() -> None:
    frame = samples("gpu0", power_w=[1.0] * 4)
    frame["throttle_reasons"] = ["", "SwPowerCap", "HwSlowdown, SwPowerCap", ""]
    (note,) = summary_of(frame).notes
    assert note == "GPU 0 was throttled: SwPowerCap in 2, HwSlowdown in 1 of 4 readings."
    (lost,) = summary_of(samples(load=[0.0]), unsent=1200).notes
    assert lost.startswith("1,200 readings were lost")
