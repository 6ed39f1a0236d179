"""The pictures that labs 1 to 4 and 9 open and close with show what the texts around them state."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from notebooks.labs import build

BUILT = build.built()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The titles and labels of each picture that a cell shows."""
    pictures: list[list[str]] = []

    def show() -> None:
        axes = plt.gcf().axes
        pictures.append([each.get_title() for each in axes] + axes[0].get_legend_handles_labels()[1])
        plt.close("all")

    monkeypatch.setattr(plt, "show", show)
    return pictures


def ran(lab: int, *lines: str) -> dict[str, Any]:
    """What the solved lab's cells with these lines bind, run in their order after that of the imports."""
    (path,) = [path for path in BUILT if path.parent.name == "solutions" and path.name.startswith(f"{lab:02}_")]
    names: dict[str, Any] = {}
    left = ["from perfnb import labs", *lines]
    for cell in json.loads(BUILT[path])["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and (found := [line for line in left if line in source]):
            exec(build.MAGIC_LINE.sub("", source), names)
            left = [line for line in left if line not in found]
    assert not left
    return names


def test_two_people_agree_in_the_end(shown: list[list[str]], one_thread: None) -> None:
    ran(1, "WARMUP = 10", "def typical(", "def interval(", "picture({name: [typical(")
    opening, closing = shown
    figures = [re.fullmatch(r"(\w+): [\d.]+ \[([\d.]+), ([\d.]+)\] ms", title) for title in closing]

    assert opening == ["Tom: 33.8 ms", "Maya: 18.1 ms"]
    assert [found and found[1] for found in figures] == ["Tom", "Maya"]
    for found in figures:
        assert found is not None
        assert float(found[2]) <= 20.0 <= float(found[3])


def test_the_night_is_long_enough_in_the_end(
    shown: list[list[str]], one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever version of torch counts the operators."""
    ran(2, "OPENS_H = ", "class Rescale(", "class RescaleAtOnce(", "class Counter(")
    opening, closing = shown
    before, after = (int(calls.replace(",", "")) for calls in re.findall(r"([\d,]+) calls", capsys.readouterr().out))

    assert opening == ["", "Maya's script: done at 10:24"]
    assert closing[:2] == opening
    assert re.fullmatch(r"your layer: done at 02:\d\d", closing[2])
    assert 50 < before / after < 200  # a hundredth of the operators


def test_the_law_of_three_counts_fits_all_layers(shown: list[list[str]], one_thread: None) -> None:
    names = ran(3, "planted_us = ", "def linear_flops(", "def linear_bytes(", "def least_time(", "def your_law(")
    opening, closing = shown

    assert opening[0] == "Maya's law: 1.6 µs predicted for a width of 50, 7.1 µs taken"
    assert closing[0] == "Your law: 7.0 µs predicted for a width of 50, 7.1 µs taken"
    for width, us in names["planted_us"].items():
        assert names["your_law"](width) == pytest.approx(us, rel=0.03)


@pytest.mark.slow
def test_the_larger_reader_fits_in_the_end(shown: list[list[str]], one_thread: None) -> None:
    ran(4, "class LargerReader(", "tower = Tower(", "class CheckpointedTower(", "picture(CheckpointedTower")
    most = [float(title.removesuffix(" MiB").rpartition(" ")[2]) for (title, *_) in shown]

    assert most[0] > 1.3 * 24
    assert 16.4 < most[1] < 0.9 * 24


@pytest.fixture
def office(shown: list[list[str]], one_thread: None) -> Iterator[dict[str, Any]]:
    """The pictures of lab 9, with planted times."""
    names = ran(
        9, "log = monday()", "def picture(", "def latencies(", "def load_test(", "def toms_test(",
        "honest = load_test(", "def with_cache_s(", "def batched(",
    )  # fmt: skip
    yield names
    names["folder"].cleanup()


def test_monday_is_in_time_in_the_end(shown: list[list[str]], office: dict[str, Any]) -> None:
    titles = [title for title, *_ in shown if title]

    assert titles == [
        "Monday: 71% in time, the slowest after 3.0 s",
        "Monday with a cache: 100% in time, the slowest after 0.1 s",
        "One card at a time: 36% in time, the slowest after 21.4 s",
        "Batches of up to 8: 100% in time, the slowest after 0.3 s",
    ]


def test_the_worst_minute_is_no_longer_busy(office: dict[str, Any]) -> None:
    """By the log, and by its cards with a cache."""
    for log, services, worst in (
        (office["log"], office["log"]["service_s"], 0.98),
        (office["fixed"], office["with_cache_s"](office["log"]["characters"]), 0.19),
    ):
        ends, starts = log["answered_s"], log["answered_s"] - services
        busy = [(ends.clip(upper=60 * m + 60) - starts.clip(lower=60 * m)).clip(lower=0).sum() / 60 for m in range(10)]

        assert max(busy) == pytest.approx(busy[4], abs=0.001)
        assert round(busy[4], 2) == worst


def test_the_customers_saw_another_p99_than_tom(office: dict[str, Any]) -> None:
    honest, toms = np.array(office["honest"]), np.array(office["toms"])

    assert [round(float(np.quantile(times, 0.99)), 1) for times in (toms, honest)] == [0.1, 19.0]
    assert (honest > 0.11).mean() == pytest.approx(0.2, abs=0.005)
    assert np.ptp(np.array(office["due"])[honest > 0.11]) == pytest.approx(40.0, abs=0.5)
