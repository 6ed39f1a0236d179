"""A history keeps integrals and stays within its memory, however long it gets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfnb.telemetry import history as history_module
from perfnb.telemetry.history import _OWN, FEWEST_ROWS, History, Marks, _joined, _starts_of_pairs, throttle_words


def filled(history: History, values: list[float | None], device: str = "host", interval: float = 0.5) -> None:
    for number, value in enumerate(values):
        own = {
            "t_s": number * interval,
            "window_s": interval if number else float("nan"),
            "read_ms": 0.5,
            "late_ms": float(number % 7),
            "missed_ticks": float(number % 50 == 3),
        }
        bits = None if value is None else float(1 << (number % 4))
        history.append(device, own, {"rate": value, "energy_j": 10.0 * number, "throttle_reasons": bits})


def test_a_short_history_is_kept_as_it_came() -> None:
    history = History(1)
    filled(history, [1.0, None, 3.0])
    columns = history.columns()["host"]
    np.testing.assert_array_equal(columns["rate"], [1.0, np.nan, 3.0])
    np.testing.assert_array_equal(columns["readings"], [1, 1, 1])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of(st.none(), st.floats(0, 1e9)), min_size=1, max_size=4 * FEWEST_ROWS))
def test_coarsening_keeps_integrals_counts_and_extremes_of_time(values: list[float | None]) -> None:
    history = History(1, most_bytes=0)
    filled(history, values)
    kept = history.columns()["host"]

    assert len(kept["t_s"]) <= FEWEST_ROWS
    assert kept["readings"].sum() == len(values)
    assert kept["missed_ticks"].sum() == sum(number % 50 == 3 for number in range(len(values)))
    assert kept["t_s"][-1] == (len(values) - 1) * 0.5
    assert (np.diff(kept["t_s"]) > 0).all()
    np.testing.assert_allclose(np.nansum(kept["window_s"]), 0.5 * (len(values) - 1))
    if None not in values:
        exact = 0.5 * sum(values[1:])  # type: ignore[arg-type]
        np.testing.assert_allclose(np.nansum(kept["rate"] * kept["window_s"]), exact, rtol=1e-9, atol=1e-6)
    known = [value for value in values if value is not None]
    if known:
        assert min(known) - 1e-6 <= np.nanmin(kept["rate"])
        assert np.nanmax(kept["rate"]) <= max(known) * (1 + 1e-9)


NAN = float("nan")


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        ((0.5, 4, NAN, 0b01), (1.5, 8, 30, 0b10), (2.0, 7, 30, 0b11)),  # a mean over the time
        ((NAN, 4, 20, 0b01), (1.5, 8, NAN, NAN), (1.5, 8, 20, 0b01)),  # the first of all covers no time
        ((NAN, 4, 20, NAN), (1.5, NAN, 30, NAN), (1.5, 4, 30, NAN)),
        ((NAN, 4, 20, 0b110), (NAN, 6, 30, 0b011), (0.0, 5, 30, 0b111)),
        ((0.5, NAN, NAN, NAN), (0.5, NAN, NAN, NAN), (1.0, NAN, NAN, NAN)),
        ((0.5, NAN, 20, 0), (0.5, 3, NAN, 0), (1.0, 3, 20, 0)),
    ],
)
def test_two_rows_become_one(first: tuple[float, ...], second: tuple[float, ...], joined: tuple[float, ...]) -> None:
    names = (*_OWN, "rate", "energy_j", "throttle_reasons")
    # Besides: when, how long, how late, skipped ticks, readings.
    a = [3.0, first[0], 0.5, 9.0, 2.0, 4.0, *first[1:]]
    b = [7.0, second[0], 0.75, 8.0, 3.0, 1.0, *second[1:]]
    (found,) = _joined(np.array([a]), np.array([b]), names)
    np.testing.assert_allclose(found, [7.0, joined[0], 0.75, 9.0, 5.0, 5.0, *joined[1:]], rtol=1e-8)


@pytest.mark.parametrize(
    ("eligible", "starts"),
    [("", []), ("1", []), ("11", [0]), ("111", [0]), ("0110", [1]), ("1011110111", [2, 4, 7]), ("1010", [])],
)
def test_pairs_are_of_neighbours_and_have_no_row_in_common(eligible: str, starts: list[int]) -> None:
    assert _starts_of_pairs(np.array([letter == "1" for letter in eligible], dtype=bool)).tolist() == starts


def test_a_full_history_joins_its_oldest_rows_and_no_new_ones() -> None:
    history = History(1, most_bytes=0)
    filled(history, [1.0] * FEWEST_ROWS)
    assert history.columns()["host"]["readings"].tolist() == [1] * FEWEST_ROWS
    filled(history, [1.0])
    old = FEWEST_ROWS * 3 // 4
    kept = history.columns()["host"]
    assert kept["readings"].tolist() == [2] * (old // 2) + [1] * (FEWEST_ROWS - old + 1)
    assert kept["late_ms"][3] == 6  # of readings 6 and 7 the greater


def test_devices_share_the_room() -> None:
    # Nine columns of 8 bytes: the metrics of `filled`, and those that every reading has.
    for devices, rows in ((1, 2000), (2, 1000), (3, 664), (9, FEWEST_ROWS)):
        history = History(devices, most_bytes=2000 * 9 * 8)
        filled(history, [1.0] * rows)
        assert len(history.columns()["host"]["t_s"]) == rows
        filled(history, [1.0])
        assert len(history.columns()["host"]["t_s"]) < rows


@pytest.mark.slow
def test_all_the_past_is_as_fine() -> None:
    history = History(1, most_bytes=0)
    filled(history, [1.0] * (20 * FEWEST_ROWS))
    readings = history.columns()["host"]["readings"]
    assert readings.max() <= 4 * np.median(readings[: len(readings) // 2])
    assert readings[-1] == 1


def test_what_all_readings_went_into_is_exact_however_they_were_joined() -> None:
    history = History(1, most_bytes=0)
    length = 5 * FEWEST_ROWS
    values: list[float | None] = [None if number % 2 else 3.0 for number in range(length)]
    values[100] = 1000.0
    filled(history, values)
    exact = history.exact()["host"]["rate"]
    known = length // 2
    assert exact == {
        "max": 1000.0,
        "integral": 0.5 * (3.0 * (known - 2) + 1000.0),  # the first reading covers no time
        "known_s": 0.5 * (known - 1),
        "readings": known,
    }
    assert np.nanmax(history.columns()["host"]["rate"]) < 1000


def test_the_oldest_marks_go_if_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MOST_MARKS", 10)
    marks = Marks()
    outer = marks.start("outer", 0.0)
    for place in range(10):
        marks.end(marks.start(f"mark {place}", float(place)), place + 0.5)
    assert (len(marks.all()), marks.dropped) == (11, 0)

    marks.end(marks.start("one more", 10.0), 10.5)

    assert [mark.name for mark in marks.all()] == ["outer", "mark 6", "mark 7", "mark 8", "mark 9", "one more"]
    assert marks.dropped == 6
    marks.end(outer, 11.0)
    assert [mark.name for mark in marks.all(latest=2)] == ["outer", "one more"]


def test_marks_know_what_is_around_them_and_count_their_changes() -> None:
    marks = Marks()
    outer, inner = marks.start("outer", 1.0), marks.start("inner", 1.0)
    marks.end(inner, 2.0)
    marks.end(inner, 9.0)  # it has ended already
    later = marks.start("later", 3.0)

    assert marks.all() == [("outer", 0, 1.0, None), ("inner", 1, 1.0, 2.0), ("later", 1, 3.0, None)]
    assert marks.changes == 4
    marks.end_all(5.0)
    assert marks.changes == 6
    assert [mark.end_s for mark in marks.all()] == [5.0, 2.0, 5.0]
    assert len({outer, inner, later}) == 3


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x000, []),
        (0x001 | 0x002, []),
        (0x004 | 0x001, ["SwPowerCap"]),
        (0x040 | 0x008, ["HwSlowdown", "HwThermalSlowdown"]),
        (0x400, ["Reliability"]),
        (0x800, ["Other"]),
        (0x800 | 0x010, ["Other", "SyncBoost"]),
    ],
)
def test_reasons_to_throttle_are_named_if_they_slow_down(bits: int, words: list[str]) -> None:
    assert throttle_words(bits) == words
