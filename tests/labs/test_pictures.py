"""The pictures that labs 1 to 4 open and close with show what the texts around them state."""

from __future__ import annotations

import json
import re
from typing import Any

import matplotlib.pyplot as plt
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
