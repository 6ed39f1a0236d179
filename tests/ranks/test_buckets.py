"""What other sizes of buckets could save at most: a line through their transfers, or why there is none."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from perfnb.ranks.buckets import bucket_sentence, bucket_sizes
from perfnb.recording.nesting import NONE
from tests.ranks.test_host_ranks import job

MIB = 2**20


def calls(
    sizes: list[int], steps: int = 4, latency_ms: float = 2.0, per_mib_ms: float = 0.5, noise_ms: float = 0.0
) -> pd.DataFrame:
    """Return buckets that wait 1 ms for the last rank, then take a latency and a time per MiB; half is exposed."""
    chance = np.random.default_rng(20261123)
    rows = []
    for step in range(steps):
        for bucket, size in enumerate(sizes):
            took = latency_ms + per_mib_ms * size / MIB + noise_ms * chance.standard_normal()
            begin = 10**9 * step + 10**7 * bucket
            rows.append((step, bucket, size, begin, begin + round((1.0 + took) * 1e6), 10**6, round(took * 5e5)))
    columns = ["step", "bucket", "bytes", "begin_ns", "end_ns", "waiting_ns", "exposed_ns"]
    return pd.DataFrame(rows, columns=columns).astype({"waiting_ns": "Int64"})


def test_the_line_gives_latency_bandwidth_and_bounds() -> None:
    found = bucket_sizes(calls([MIB, 25 * MIB, 10 * MIB]), 4)

    assert found is not None
    assert (found.buckets, found.bytes) == (3, 36 * MIB)
    assert (found.latency_ms, found.low_ms, found.high_ms) == pytest.approx((2.0, 2.0, 2.0), abs=1e-5)
    assert found.bytes_per_s == pytest.approx(MIB / 0.5e-3, rel=1e-5)
    assert found.fewer_ms == pytest.approx(2 * 2.0, abs=1e-4)
    assert found.smaller_ms == pytest.approx((3 * 2.0 + 36 * 0.5) / 2, abs=1e-4)
    said = bucket_sentence(found)
    assert "36.0 MiB per step in 3 buckets, each with a latency of 2.00 ms [2.00, 2.00], and then 1.95 GiB/s" in said
    assert "A single bucket would save at most 4.00 ms per step. Smaller buckets, which start earlier, would" in said


def test_the_bound_takes_the_upper_end_of_the_interval() -> None:
    found = bucket_sizes(calls([MIB, 2 * MIB, 3 * MIB, 4 * MIB], noise_ms=0.1).assign(exposed_ns=10**9), 4)

    assert found is not None
    assert found.low_ms is not None
    assert found.high_ms is not None
    assert found.low_ms < 2.0 < found.high_ms
    assert found.fewer_ms == pytest.approx(3 * found.high_ms)


def test_the_interval_is_that_of_a_regression() -> None:
    given = calls([MIB, 2 * MIB, 3 * MIB, 9 * MIB], noise_ms=0.1).assign(exposed_ns=10**9)
    took = (given["end_ns"] - given["begin_ns"] - 10**6).astype(float) / 1e6
    line = stats.linregress(given["bytes"], took)
    half = stats.t.ppf(0.975, len(given) - 2) * line.intercept_stderr

    found = bucket_sizes(given, 4)

    assert found is not None
    expected = (line.intercept, line.intercept - half, line.intercept + half)
    assert (found.latency_ms, found.low_ms, found.high_ms) == pytest.approx(expected)
    assert found.bytes_per_s == pytest.approx(1e3 / line.slope)


def test_five_buckets_of_three_sizes_are_enough() -> None:
    given = calls([MIB, 2 * MIB, 3 * MIB], steps=2)

    enough, too_few = bucket_sizes(given.head(5), 2), bucket_sizes(given.head(4), 2)

    assert enough is not None
    assert (enough.buckets, enough.bytes, enough.why) == (2.5, 4.5 * MIB, "")
    assert enough.fewer_ms == pytest.approx(1.5 * 2.0)
    assert too_few is not None
    assert (too_few.why, too_few.latency_ms) == ("too few steps were traced", None)
    assert bucket_sizes(given, 0) is None
    alone = bucket_sizes(given, 1)
    assert alone is not None
    assert (alone.buckets, alone.bytes) == (6, 12 * MIB)


def test_larger_buckets_that_take_no_longer_have_no_bandwidth() -> None:
    found = bucket_sizes(calls([MIB, 2 * MIB, 3 * MIB], per_mib_ms=-0.1), 4)

    assert found is not None
    assert found.bytes_per_s is None
    assert "each with a latency of 2.00 ms [2.00, 2.00]. A single bucket" in bucket_sentence(found)


THREE = calls([MIB, 2 * MIB, 3 * MIB])


@pytest.mark.parametrize(
    ("given", "steps", "figures"),
    [
        (pd.concat([calls([n * MIB], steps=2) for n in (1, 2, 3)]), 6, {"buckets": 1.0, "fewer_ms": 0.0}),
        (THREE.assign(waiting_ns=10**9), 4, {"latency_ms": 0.0, "smaller_ms": 0.0}),  # they only waited
        (THREE.assign(exposed_ns=1000), 4, {"fewer_ms": 3e-3, "smaller_ms": 3e-3}),  # no more than nothing hid
        (calls([MIB, 2 * MIB, 3 * MIB], latency_ms=-0.4), 4, {"latency_ms": 0.0, "low_ms": 0.0, "fewer_ms": 0.0}),
    ],
)
def test_the_bounds_of_odd_buckets(given: pd.DataFrame, steps: int, figures: dict[str, float]) -> None:
    found = bucket_sizes(given.astype({"waiting_ns": "Int64"}), steps)
    assert {name: getattr(found, name) for name in figures} == pytest.approx(figures)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (calls([MIB, MIB]), "the buckets have only one size"),
        (calls([MIB, 3 * MIB]), "only two sizes"),
        (calls([MIB, 2 * MIB, 3 * MIB], steps=1), "too few steps were traced"),
        (calls([MIB, 2 * MIB, 3 * MIB]).assign(waiting_ns=pd.NA), "some buckets were not found on any other rank"),
        (calls([MIB, 2 * MIB, NONE]), "the bucket sizes are unknown"),
    ],
)
def test_a_missing_bound_is_explained(given: pd.DataFrame, why: str) -> None:
    found = bucket_sizes(given, 4)

    assert found is not None
    assert found.fewer_ms is None
    assert why in found.why
    assert bucket_sentence(found).startswith("The saving from other bucket sizes is unknown: ")


def test_without_buckets_there_is_no_note() -> None:
    assert bucket_sizes(calls([MIB]).assign(bucket=NONE), 4) is None


def test_ranks_say_it() -> None:
    ranks = job((0, 2000))

    assert "other bucket sizes is unknown: the buckets have only one size" in " ".join(str(ranks).split())
    assert "bucket sizes" not in set(ranks.findings["bottleneck"])
