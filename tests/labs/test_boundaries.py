"""Where each judge begins to refuse: facts just inside a tolerance pass, and those just outside do not.

The facts are made up, so nothing is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perfnb.labs import lab_02
from perfnb.labs.exercise import Facts
from perfnb.labs.ledger import exercise_of
from tests.labs.judging import changed, expect_of

MIB = 2**20


def clock(ms: float) -> Facts:
    return {"calls": 1, "inside": ms, "around": ms + 1.0, "returned": ms + 0.5}


def interval(count: int) -> Facts:
    return {"different": count, "unsorted": False, "reversed": 0.0, "medians": False, "held": 0.95, "width": 1.0}


def compared(weather: str, true: float) -> Facts:
    return {"weather": weather, "true": true, "returned": true, "runs": [1000, 1000]}


def layer(**change: Any) -> Facts:
    off = {"largest": 0.0, "means": 0.0, "deviations": 0.0}
    same = {"shape": [5, 8], "returned": "Tensor", "returned_shape": [5, 8], "forward": True, "off": off}
    return {**same, "backward": True, "input_changed": False, **change}


def product(*sizes: int) -> Facts:
    return {"sizes": list(sizes), "wrong": "", "changed": False}


def parsed(count: int) -> Facts:
    return {"length": [count, count], "same": True, "label": True, "shifts": 50, "never": 3}


def epoch(seed: int, rows: int) -> list[int]:
    """Every row once, in an order without the neighbours and batches of another seed."""
    return [(seed * place + seed) % rows for place in range(rows)]


OWN = {name: {"self": own, "total": total, "said": own} for name, (total, own) in lab_02.TREE.items()}
#: Facts of right answers, by exercise.
RIGHT: dict[str, Facts] = {
    "1.1": {"asleep": clock(30.0), "at work": clock(20.0)},
    "1.2": {"cases": [{"wanted": ms, "said": ms, "of_all_ms": 2 * ms} for ms in (10.0, 0.2, 300.0)]},
    "1.3": {"plain": interval(200), "with slow steps": interval(100)},
    "1.4": {
        "cases": [
            compared(weather, true)
            for weather in ("steady", "slower and slower", "every second run slow")
            for true in (1.0, 0.8)
        ]
    },
    "1.5": {"smallest_percent": 3.7, "sees_one_percent": False, "detectable": 0.037},
    "1.6": {
        "claims": {
            "mean": {"answer": "faster", "ratio": 0.5, "same": True},
            "square": {"answer": "not shown", "ratio": 0.9, "same": True},
            "spread": {"answer": "wrong result", "ratio": 0.5, "same": False},
        }
    },
    "2.1": {"forward": 0.3, "backward": 0.5, "optimizer": 0.1, "rest": 0.1},
    "2.2": {"ratio": 2.0, "forward_ms": 10.0, "backward_ms": 20.0, "of_layers": [1.7, 1.8], "of_shares": [1.9]},
    "2.3": {"cases": [{"net": {"self": 100.0, "total": 100.0, "said": 100.0}}, OWN]},
    "2.4": {"said": {"stem": 1.0, "up": 3.0}, "flops": {"stem": [100, 100], "up": [100, 300]}},
    "2.5": {
        "before": {"stem": [100, 100], "blocks": [200, 400], "head": [50, 100]},
        "after": {"stem": [100, 0], "blocks": [200, 0], "head": [50, 50]},
        "learned": 2,
    },
    "2.6": {
        "layer": "net.norm",
        "at_most": 1 / 0.6,
        "names": ["net", "net.norm", "net.act", "(loss)"],
        "self_ms": {"net.norm": 4.0, "net.act": 3.0},
        "shares": {"net.norm": 0.4, "net.act": 0.3},
        "steps_ms": [12.0, 14.0, 13.0],
    },
    "2.7": {"cases": [layer()] * 5, "ratio": 0.3},
    "2.8": {
        "check": "",
        "ratio": 0.5,
        "ratio_ci": [0.4, 0.6],
        "speedup": 2.0,
        "tested_ms": [4.0, 2.0],
        "own_ms": [4.0, 2.0],
    },
    "3.4": {
        "cases": [
            {"sizes": [b, i, o], "said": 4 * (b * i + i * o + b * o), "wanted": 4 * (b * i + i * o + b * o)}
            for b, i, o in ((7, 13, 29), (32, 784, 10), (128, 1024, 4096), (1, 1, 1))
        ],
        "layers": [{"name": "net.0", "sizes": [2, 3, 5], "said": 124, "products": 3, "moved": 3 * 124 + 4 * 20}],
    },
    "3.5": {
        "cases": [
            {"sizes": [flops, moved, peak, bandwidth], "said": wanted, "wanted": wanted}
            for flops, moved, peak, bandwidth, wanted in (
                (1e9, 1e9, 1e12, 1e11, 0.01),
                (1e12, 1e9, 1e12, 1e11, 1.0),
                (5e6, 4e6, 5e10, 2e10, 2e-4),
                (1e10, 1e9, 1e12, 1e11, 0.01),
            )
        ]
    },
    "3.6": {
        "arithmetic": 10.0,
        "time": 2.0,
        "not_arithmetic": 0.8,
        "big_ms": 4.0,
        "small_ms": 2.0,
        "own_ms": [4.0, 2.0],
        "flops": [1000, 100],
    },
    "3.7": {
        "cases": [product(*sizes) for sizes in ((3, 4, 2), (5, 1, 6), (1, 7, 1), (1, 1, 1), (4, 3, 8), (4, 3, 8))],
        "uses": [],
        "ratio": 50.0,
    },
    "3.8": {
        "said": {"row_product": 2.0, "numpy": 5.0, "torch": 1.5, "all_rungs": 15.0},
        "ms": {"loop": 300.0, "row_product": 150.0, "numpy": 30.0, "torch": 20.0},
    },
    "4.1": {
        "most": 1_000_000.0,
        "sum_of_most": 1_500_000.0,
        "phase": "backward",
        "total": [1_000_000, 200_000, 100_000],
        "sum": 1_500_000,
        "at": "backward",
        "process": 9_000_000,
    },
    "4.4": {"batch": 100, "peaks": {"100": 16 * MIB, "103": 16 * MIB + 1}},
    "4.5": {"cases": [layer()] * 5, "ratio": 0.3},
    "4.6": {
        "said": {"memory": 0.4, "arithmetic": 1.3, "time": 1.2},
        "time": 1.2,
        "check": "",
        "plain": {"peak": 1000, "with_others": 1500, "flops": [100, 200, 0]},
        "checkpointed": {"peak": 400, "with_others": 900, "flops": [100, 200, 90]},
    },
    "4.7": {
        "layer": "net.1",
        "kib_per_step": 100.0,
        "verdict": "leak",
        "layers": {"net.1": 90_000.0, "net.2": 12_400.0},
        "growth": 102_400.0,
        "process": [150_000.0, 140_000.0, 160_000.0],
        "steps": 20,
    },
    "4.8": {
        "wanted": [float(step) for step in range(12)],
        "said": [float(step) for step in range(12)],
        "training": True,
        "allocated": 100.0,
        "process": 10.0,
        "batch": 1000,
    },
    "4.9": {
        "cases": [
            {"sizes": sizes, "said": sorted(sizes, reverse=True), "reserved": most}
            for sizes, most in (
                ([10, 12, 14, 30, 16, 12], 30),
                ([64, 8, 8, 40, 2], 64),
                ([7, 9, 11, 13, 15, 17, 19], 20),
                ([5, 5, 50, 5], 50),
            )
        ]
    },
    "5.1": {
        "said": {"cnn": 100.0},
        "batch": 64.0,
        "models": {"cnn": {"parameters": 1000, "forward_flops": 12_800_000, "backward_flops": 25_600_000}},
    },
    "5.2": {
        "said": {"time": 3.0, "arithmetic": 2.0, "per_flop": 1.5},
        "time": [3.0, 3.3],
        "arithmetic": 2.0,
        "forward": 1.9,
    },
    "5.4": {
        "said": {"time": 0.8, "arithmetic": 0.7, "per_flop": (0.8 / 0.2) / (0.7 / 0.3)},
        "longest": "512",
        "shares": {"64": 0.5, "512": 0.8},
        "arithmetic": 0.7,
        "products": 0.5,
        "forward": 0.2,
    },
    "5.5": {"said": {"flops": 565.0, "time": 400.0}, "shares": {"64": 0.5, "300": 0.7, "500": 0.76, "1000": 0.9}},
    "5.6": {
        "off_by": 0.1,
        "inside": True,
        "sizes": [32.0, 64.0, 128.0, 192.0, 256.0],
        "medians_ms": [1.0, 2.0, 3.0, 4.0, 6.0],
        "last_residual": 0.2,
        "predicted_ms": 10.0,
        "ci_ms": [9.0, 12.0],
        "measured_ms": 11.0,
    },
    "5.7": {
        "cases": [
            {"length": 512, "noisy": noisy, "said": 10.0, "wanted": 10.0, "power": 14.0}
            for noisy in (False, True)
            for _ in range(16)
        ]
    },
    "6.1": {
        "cases": [
            {
                "said": {"together": 17.0, "loader": 5.0, "model": 12.0},
                "took": {"together": [17.0], "loader": [5.0], "model": [12.0]},
                "usual_ms": 5.0,
                "ahead": False,
            },
            {
                "said": {"together": 9.0, "loader": 9.0, "model": 4.0},
                "took": {"together": [9.0], "loader": [9.0], "model": [4.0]},
                "usual_ms": 9.0,
                "ahead": True,
            },
        ]
    },
    "6.2": {
        "said": {"perfect_loader": 3.0, "perfect_model": 1.25},
        "times": {"together": 15.0, "loader": 12.0, "model": 5.0},
    },
    "6.3": {"cases": [parsed(40), parsed(24)], "ratio": 0.3},
    "6.4": {"said": {"batch_bytes": 8000.0, "written": 2.0}, "batch_bytes": 8000, "all_bytes": 16_000},
    "6.5": {
        "sizes": [32] * 7 + [26],
        "rows": [epoch(step, 250) for step in (37, 51, 77, 93, 119)],
        "labels": True,
        "ratio": 0.3,
    },
    "6.6": {
        "cases": [
            {
                "pace": list(pace),
                "rows": [epoch(11, 72), epoch(29, 72)],
                "batches": [9, 9],
                "workers": [list(range(needed)), list(range(needed))],
                "left": 0,
            }
            for pace, needed in (((24.0, 10.0), 3), ((11.0, 6.0), 2), ((4.0, 10.0), 1))
        ]
    },
    "6.7": {
        "length": 2048,
        "right": True,
        "peak": MIB,
        "copy_bytes": 1000,
        "file_bytes": 32 * MIB,
        "read_only": False,
        "own": True,
    },
    "6.8": {"speedup": 2.0, "shown": True, "ratio": 0.5, "ratio_ci": [0.4, 0.6], "turns": 2, "check": ""},
}


@pytest.mark.parametrize("number", RIGHT)
def test_the_right_facts_are_accepted(number: str) -> None:
    expect_of(number, "", RIGHT[number])


#: Exercise, what is changed of its right facts, and what the judge says of that; empty where it accepts.
ROWS: Sequence[tuple[str, dict[str, Any], str]] = (
    ("1.1", {"asleep/returned": 29.4}, ""),
    ("1.1", {"asleep/returned": 29.39}, "was asleep for at least 30.0 ms, but you returned 29.4."),
    ("1.1", {"at work/returned": 21.41}, ""),
    ("1.1", {"at work/returned": 21.43}, "was at work for at least 20.0 ms"),
    ("1.1", {"asleep/calls": 2}, "ran 2 times"),
    ("1.1", {"asleep/calls": 0}, "ran 0 times"),
    ("1.1", {"asleep/returned": 0.0294}, "looks like seconds"),
    ("1.1", {"asleep/returned": 0.0316}, "looks like seconds"),
    ("1.1", {"asleep/returned": 0.0317}, "Does your clock"),
    ("1.1", {"asleep/returned": 29_410.0}, "looks like microseconds"),
    ("1.1", {"at work/returned": 2.1e7}, "looks like nanoseconds"),
    ("1.2", {"cases/0/said": 10.019}, ""),
    ("1.2", {"cases/0/said": 10.021}, "slightly too high"),
    ("1.2", {"cases/2/said": 299.41}, ""),
    ("1.2", {"cases/2/said": 299.39}, "slightly too low"),
    ("1.2", {"cases/1/said": 0.2398}, "slightly too high"),
    ("1.2", {"cases/1/said": 0.2402}, "You returned 1.2 times the typical step. Do a few"),
    ("1.2", {"cases/0/said": 8.34}, "slightly too low"),
    ("1.2", {"cases/0/said": 8.33}, "You returned 0.83 times the typical step; is it the minimum"),
    ("1.2", {"cases/0/said": 20.0, "cases/1/said": 0.4, "cases/2/said": 600.0}, "includes the warm-up"),
    ("1.3", {"plain/different": 100}, ""),
    ("1.3", {"plain/different": 99}, "the same for different times"),
    ("1.3", {"with slow steps/different": 50}, ""),
    ("1.3", {"with slow steps/different": 49}, "the same for different times"),
    ("1.3", {"plain/held": 0.9}, ""),
    ("1.3", {"plain/held": 0.895}, "In 200 series of 61 skewed times, your interval"),
    ("1.3", {"with slow steps/held": 0.89}, "In 100 series of 61 skewed times where every 9th step"),
    ("1.3", {"plain/held": 0.995}, ""),
    ("1.3", {"plain/held": 1.0}, "Is it the range of single steps"),
    ("1.3", {"plain/width": 1.5}, ""),
    ("1.3", {"plain/width": 1.51}, "is 1.5 times as wide as necessary for series of skewed times"),
    ("1.3", {"with slow steps/width": 1.6}, "interval of the *mean*; an interval of the *median* depends only on"),
    ("1.3", {"with slow steps/unsorted": True}, "Are the times sorted"),
    ("1.3", {"plain/reversed": 0.5}, "in 50 % of the series"),
    ("1.3", {"plain/medians": True}, "the median of the series itself"),
    ("1.4", {"cases/0/runs": [999, 1000]}, "ran a 999 times and b 1000 times; run each 1000"),
    ("1.4", {"cases/5/runs": [1000, 999]}, "ran a 1000 times and b 999 times"),
    ("1.4", {"cases/0/returned": 1.03}, ""),
    ("1.4", {"cases/0/returned": 1.032}, "On a steady machine, where b takes 100 %"),
    ("1.4", {"cases/1/returned": 0.777}, ""),
    ("1.4", {"cases/1/returned": 0.775}, "On a steady machine, where b takes 80 %"),
    ("1.4", {"cases/1/returned": 1.22}, "wrong way round"),
    ("1.4", {"cases/1/returned": 1.2}, "Is it a ratio"),
    ("1.4", {"cases/3/returned": 0.83}, "On a 'slower and slower' machine"),
    ("1.4", {"cases/4/returned": 0.96}, "On a 'every second run slow' machine"),
    ("1.5", {"smallest_percent": 3.93}, ""),
    ("1.5", {"smallest_percent": 3.94}, "not the test's own figure"),
    ("1.5", {"detectable": 0.01, "smallest_percent": 1.0, "sees_one_percent": True}, ""),
    ("1.5", {"detectable": 0.0101, "smallest_percent": 1.01, "sees_one_percent": True}, "sees_one_percent does not"),
    ("1.5", {"detectable": 0.01, "smallest_percent": 1.0}, "sees_one_percent does not"),
    ("1.6", {"claims/mean/ratio": 0.69}, ""),
    ("1.6", {"claims/mean/ratio": 0.7}, "Claim mean: 'faster'"),
    ("1.6", {"claims/square/ratio": 0.7}, ""),
    ("1.6", {"claims/square/ratio": 0.69}, "Claim square: 'not shown'"),
    ("1.6", {"claims/spread/same": True}, "Claim spread: 'wrong result'"),
    ("2.1", {"rest": 0.12}, ""),
    ("2.1", {"rest": 0.13}, "add up to 1.03"),
    ("2.1", {"rest": 0.07}, "add up to 0.97"),
    ("2.1", {"rest": 0.0, "optimizer": 0.2}, ""),
    ("2.1", {"rest": -0.01, "optimizer": 0.21}, "negative time"),
    ("2.1", {"forward": 30, "backward": 50, "optimizer": 10, "rest": 12}, "they are percent"),
    ("2.1", {"forward": 30, "backward": 50, "optimizer": 10, "rest": 13}, "add up to 103"),
    ("2.2", {"ratio": 2.06}, ""),
    ("2.2", {"ratio": 2.07}, "Check it"),
    ("2.2", {"ratio": 1.7}, "a ratio of layer times"),
    ("2.2", {"ratio": 1.9}, "the ratio of the shares"),
    ("2.2", {"ratio": 1.92}, "Check it"),
    ("2.2", {"ratio": 20.1}, "only one direction"),
    ("2.2", {"ratio": 10.1}, "only one direction"),
    ("2.2", {"ratio": 10.3}, "Check it"),
    ("2.2", {"ratio": 0.5}, "inverse"),
    ("2.3", {"cases/1/net.body/said": 5.104}, ""),
    ("2.3", {"cases/1/net.body/said": 5.106}, "In a second tree that you have not seen, the time of net.body is too"),
    ("2.3", {"cases/1/net.body2/said": -0.104}, ""),
    ("2.3", {"cases/1/net.body2/said": -0.106}, "the time of net.body2 is too small"),
    ("2.3", {"cases/1/net.body/said": 60.05}, "net.body still includes the layers inside it"),
    ("2.3", {"cases/1/net.body/said": 60.07}, "net.body is too large"),
    ("2.3", {"cases/1/net/said": -90.0}, "net lost its own self time as well"),
    ("2.3", {"cases/1/net/said": -89.8}, "the time of net is too small"),
    ("2.3", {"cases/1/net.body/said": -55.0}, "the time of net.body is too small"),
    ("2.3", {"cases/0/net/said": 100.09}, ""),
    ("2.3", {"cases/0/net/said": 98.0}, "In your profile, the time of net is too small"),
    ("2.3", {"cases/0/net/said": None}, "In your profile, the row net is missing"),
    ("2.4", {"said/up": 3.0029}, ""),
    ("2.4", {"said/up": 3.0031}, "up: this is not the counted"),
    ("2.4", {"said": {"stem": 3.0, "up": 1.0}}, "swapped"),
    ("2.4", {"said": {"stem": 3.01, "up": 1.0}}, "stem: this is not the counted"),
    ("2.4", {"said/stem": 2.0}, "the textbook ratio"),
    ("2.4", {"said/stem": 2.0, "flops/stem": [100, 200]}, ""),
    ("2.4", {"said": {"stem": 1.0, "up": 1.0}, "flops/up": [100, 100]}, ""),
    ("2.5", {"after/head": [50, 99]}, ""),
    ("2.5", {"after/head": [50, 100]}, "computes as much as before"),
    ("2.5", {"after/head": [50, 0]}, "The weights of the head have no backward pass"),
    ("2.5", {"after/head": [50, 0], "learned": 0}, "Nothing is trained at all"),
    ("2.5", {"after/stem": [100, 1]}, "stem still has a backward pass"),
    ("2.5", {"after/blocks": [201, 0]}, "The forward pass of blocks differs"),
    ("2.5", {"learned": 1}, "Part of the head no longer learns"),
    ("2.6", {"at_most": 1.7}, ""),
    ("2.6", {"at_most": 1.702}, "does not match that share. Check it against"),
    ("2.6", {"at_most": 1.7, "steps_ms": [4.0, 14.0, 13.0]}, ""),
    ("2.6", {"at_most": 2.5}, "is 1 / share"),
    ("2.6", {"at_most": 2.51}, "does not match that share"),
    ("2.6", {"at_most": 1.5}, "fits the milliseconds"),
    ("2.6", {"at_most": 1.42}, "is 1 plus the share"),
    ("2.6", {"at_most": 0.41}, "is the layer's share"),
    ("2.6", {"at_most": 0.61}, "what would be left"),
    ("2.6", {"layer": "net.act", "at_most": 1 / 0.7}, "not the suspect"),
    ("2.6", {"layer": "net"}, "not a called layer"),
    ("2.6", {"layer": "(loss)"}, "not a layer but a separate row"),
    ("2.6", {"layer": "norm"}, "has no row 'norm'"),
    ("2.6", {"shares/net.norm": 0.05, "at_most": 1 / 0.95}, ""),  # adding and dividing come to nearly the same
    ("2.6", {"shares/net.norm": 0.507, "at_most": 1 / 0.507}, "1 / share"),  # so near one half, both are near
    ("2.6", {"shares/net.norm": 0.507, "at_most": 1 / 0.493}, ""),
    ("2.6", {"shares/net.norm": 0.507, "at_most": 2.0}, ""),
    ("2.6", {"shares/net.norm": 0.5, "at_most": 2.0}, ""),
    ("2.6", {"shares/net.norm": 0.493, "at_most": 1 / 0.493}, "1 / share"),
    ("2.7", {"ratio": 0.5}, ""),
    ("2.7", {"ratio": 0.51}, "forward and backward take 51 %"),
    ("2.7", {"cases/4": layer(backward=False)}, "the gradient of its input"),
    ("2.8", {"tested_ms": [7.9, 3.95]}, ""),
    ("2.8", {"tested_ms": [8.0, 4.0]}, "the machine has changed its pace"),
    ("2.8", {"tested_ms": [2.1, 1.05]}, ""),
    ("2.8", {"tested_ms": [2.0, 1.0]}, "the machine has changed its pace"),
    ("2.8", {"tested_ms": [4.0, 3.9]}, ""),
    ("2.8", {"tested_ms": [4.0, 4.0]}, "Did you compare these two"),
    ("2.8", {"tested_ms": [4.0, 1.1]}, ""),
    ("2.8", {"tested_ms": [4.0, 1.0]}, "is 4 times as fast; make_step(RescaleAtOnce()) is now 2 times"),
    ("2.8", {"ratio_ci": [0.4, 0.999]}, ""),
    ("2.8", {"ratio_ci": [1.01, 1.2]}, "the second step is slower"),
    ("2.8", {"ratio_ci": [1.0, 1.2]}, "shows no difference"),
    ("2.8", {"ratio_ci": [0.4, 1.0]}, "shows no difference"),
    ("2.8", {"speedup": 2.06}, ""),
    ("2.8", {"speedup": 2.07}, "The speed-up does not match"),
    ("2.8", {"check": None}, "did not compare the results"),
    ("3.4", {"layers/0/moved": 453}, "its 3 products and its bias moved 100 % of the counted bytes"),
    ("3.4", {"layers/0/said": 120}, "net.0 of your profile, (2, 3, 5): according to your function"),
    ("3.4", {"cases/0/said": 671.0}, "how many numbers are moved"),
    ("3.4", {"cases/0/said": 8 * 2684}, "looks like bits"),
    ("3.4", {"cases/0/said": 2684 - 4 * 7 * 29}, "The output is missing"),
    ("3.4", {"cases/0/said": 2684 - 4 * 7 * 13}, "The input is missing"),
    ("3.4", {"cases/0/said": 2684 - 4 * 13 * 29}, "The weight is missing"),
    ("3.4", {"cases/0/said": 2685}, "does not match"),
    ("3.5", {"cases/0/said": 0.010009}, ""),
    ("3.5", {"cases/0/said": 0.010011}, "not the minimum time"),
    ("3.5", {"cases/0/said": 0.011}, "You add the two times"),
    ("3.5", {"cases/0/said": 0.001}, "the shorter of the two"),
    ("3.5", {"cases/2/said": 0.19981}, "looks like milliseconds"),
    ("3.6", {"own_ms": [11.9, 2.0]}, ""),
    ("3.6", {"own_ms": [12.0, 2.0]}, "far from that of big and small"),
    ("3.6", {"own_ms": [1.4, 2.0]}, ""),
    ("3.6", {"big_ms": 6.0, "own_ms": [2.0, 2.0]}, "far from that of big and small"),
    ("3.6", {"flops": [100, 100]}, "need 100 and 100 FLOPs"),
    ("3.6", {"flops": [1000, 0]}, "need 1,000 and 0 FLOPs"),
    ("3.6", {"arithmetic": 10.00001}, ""),
    ("3.6", {"arithmetic": 10.00002}, "arithmetic is not"),
    ("3.6", {"time": 2.06}, ""),
    ("3.6", {"time": 2.07}, "time is not the ratio"),
    ("3.6", {"not_arithmetic": 0.819}, ""),
    ("3.6", {"not_arithmetic": 0.821}, "not_arithmetic does not match. If the small layer"),
    ("3.6", {"not_arithmetic": 0.2}, "not_arithmetic does not match"),
    ("3.7", {"ratio": 1.0}, ""),
    ("3.7", {"ratio": 0.99}, "took only 0.99 times as long"),
    ("3.7", {"uses": ["numpy", "torch"]}, "your code uses numpy and torch"),
    ("3.7", {"cases/5/changed": True}, "changes its arguments"),
    ("3.7", {"cases/0/wrong": "nothing"}, "The function returns nothing yet"),
    ("3.7", {"square": True, **dict.fromkeys([f"cases/{n}/wrong" for n in range(6) if n != 3], "numbers")}, "3 x 3"),
    ("3.7", {"square": True, **dict.fromkeys([f"cases/{n}/wrong" for n in (0, 1, 4, 5)], "numbers")}, "meets which"),
    ("3.7", {"cases/0/wrong": "last"}, "the last product of its sum alone"),
    ("3.7", {"cases/0/wrong": "numbers"}, "which row meets which column"),
    ("3.7", {"cases/0/wrong": "shape 2 x 3"}, "has 3 rows and 2 columns; yours is 2 x 3."),
    ("3.8", {"said/numpy": 5.15}, ""),
    ("3.8", {"said/numpy": 5.16}, "numpy: it is not the time of row_product divided by its own"),
    ("3.8", {"said/numpy": 0.2}, "the share of the time that is left"),
    ("3.8", {"said/numpy": 10.0}, "compares it with the loop"),
    ("3.8", {"said/numpy": 120.0}, "the difference in ms"),
    ("3.8", {"said/all_rungs": 15.4}, ""),
    ("3.8", {"said/all_rungs": 15.5}, "not the time of the first rung"),
    ("3.8", {"said/all_rungs": 8.5}, "do not add up"),
    ("3.8", {"said/all_rungs": 1 / 15}, "the share of the time that is left"),
    ("4.1", {"most": 1_001_900.0}, ""),
    ("4.1", {"most": 1_002_100.0}, "most does not match"),
    ("4.1", {"sum_of_most": 1_502_900.0}, ""),
    ("4.1", {"sum_of_most": 1_503_100.0}, "sum_of_most does not match"),
    ("4.1", {"most": 1_500_000.0}, "not alive at the same instant"),
    ("4.1", {"sum_of_most": 1_000_000.0}, "is the peak of the total"),
    ("4.1", {"most": 200_000.0}, "starts or ends"),
    ("4.1", {"most": 9_000_000.0}, "covers the whole process"),
    ("4.1", {"most": 9_000_000.0, "process": None}, "most does not match"),
    ("4.1", {"most": 0.96}, "right except for the unit"),
    ("4.1", {"most": 980.0}, "right except for the unit"),
    ("4.1", {"phase": " Backward "}, ""),
    ("4.1", {"phase": "forward"}, "not in forward"),
    ("4.1", {"phase": "forward", "at": None}, ""),
    ("4.4", {"peaks/103": 16 * MIB}, "so does one with 103"),
    ("4.4", {"peaks/99": 16 * MIB}, ""),
    ("4.4", {"peaks/100": 16 * MIB + 1, "peaks/99": 16 * MIB}, "one row less fits"),
    ("4.4", {"peaks/100": 16 * MIB + 1, "peaks/99": 16 * MIB + 1}, "Do both points"),
    ("4.4", {"batch": 1, "peaks": {"1": 17 * MIB}}, "needs 17.00 MiB of 16 available"),
    ("4.4", {"batch": 7, "peaks": {"7": 15 * MIB, "8": 15 * MIB}}, "so does one with 8"),
    ("4.5", {"ratio": 0.499}, ""),
    ("4.5", {"ratio": 0.5}, "still takes 50 % of the memory; get below 50 %"),
    ("4.5", {"cases/0": layer(backward=False)}, "Every block must be trained"),
    ("4.6", {"said/memory": 0.408}, ""),
    ("4.6", {"said/memory": 0.409}, "memory is not the checkpointed step"),
    ("4.6", {"said/arithmetic": 1.306}, ""),
    ("4.6", {"said/arithmetic": 1.307}, "arithmetic is not the checkpointed step"),
    ("4.6", {"said/time": 1.237}, ""),
    ("4.6", {"said/time": 1.238}, "time is not the checkpointed step"),
    ("4.6", {"said/memory": 0.6}, "and no step needs. peak_bytes leaves them out"),
    ("4.6", {"said/memory": 2.5}, "is the inverse"),
    ("4.6", {"said/arithmetic": 0.3}, "is only the change"),
    ("4.6", {"said/arithmetic": 1.0}, "as many FLOPs as before"),
    ("4.6", {"said/arithmetic": 4 / 3}, "the textbook's 4/3"),
    ("4.6", {"said/arithmetic": 1 / 3}, "only the forward pass"),
    ("4.6", {"plain/flops": [100, 200, 1]}, "recomputes nothing, or the first one does"),
    ("4.6", {"checkpointed/flops": [100, 200, 0]}, "recomputes nothing"),
    ("4.6", {"checkpointed/flops": [0, 0, 0]}, "has no FLOPs"),
    ("4.6", {"plain/flops": [0, 0, 0]}, "has no FLOPs"),
    ("4.6", {"check": "They differ."}, "return different results"),
    ("4.7", {"kib_per_step": 101.0}, ""),
    ("4.7", {"kib_per_step": 101.1}, "is not the growth per step"),
    ("4.7", {"kib_per_step": 102_400.0}, "in another unit"),
    ("4.7", {"kib_per_step": 0.0977}, "in another unit"),
    ("4.7", {"kib_per_step": 2000.0}, "over all steps"),
    ("4.7", {"kib_per_step": 1810.0}, "over all steps"),
    ("4.7", {"kib_per_step": 0.99}, "far too small"),
    ("4.7", {"kib_per_step": 1.0}, "is not the growth per step"),
    ("4.7", {"kib_per_step": 133.984375}, "the growth of the whole process"),
    ("4.7", {"kib_per_step": 133.9}, "is not the growth per step"),
    ("4.7", {"kib_per_step": 159.3}, "the growth of the whole process"),
    ("4.7", {"kib_per_step": 159.5}, "is not the growth per step"),
    ("4.7", {"kib_per_step": 146.0, "process": [150_000.0, None, None]}, "the growth of the whole process"),
    ("4.7", {"kib_per_step": 140.0, "process": [150_000.0, None, None]}, "is not the growth per step"),
    ("4.7", {"process": None, "kib_per_step": 146.0}, "is not the growth per step"),
    ("4.7", {"layer": "net.2"}, "not the largest part"),
    ("4.7", {"layer": "net.3"}, "Nothing allocated in 'net.3'"),
    ("4.7", {"verdict": "no leak"}, "The report says: no leak"),
    ("4.7", {"growth": None}, "names no layer"),
    ("4.7", {"layers": {}}, "names no layer"),
    ("4.8", {"allocated": 256.0}, ""),
    ("4.8", {"allocated": 257.0}, "memory still grows"),
    ("4.8", {"process": 500.0}, ""),
    ("4.8", {"process": 501.0}, "something is kept outside torch"),
    ("4.8", {"process": None}, ""),
    ("4.8", {"allocated": None}, "could not be watched"),
    ("4.8", {"training": False}, "no longer trains"),
    ("4.8", {"said": [float(step) for step in range(11)]}, "After 12 steps, strengths has 11 values"),
    ("4.8", {"said": [0.5] * 12}, "different values"),
    ("4.9", {"cases/2/reserved": 21}, "in your order, 21 MiB are reserved; 20 are enough"),
    ("4.9", {"cases/2/said": [7, 9, 11, 13, 15, 17, 19], "cases/2/reserved": 92}, "in the given order, 92 MiB"),
    ("4.9", {"cases/0/said": [10, 12, 12, 14, 16, 30], "cases/0/reserved": 94}, "with the shortest first, 94 MiB"),
    ("4.9", {"cases/3/said": [50, 5, 5, 6]}, "you return other sizes: 50, 5, 5, 6."),
    ("5.1", {"said/cnn": 101.0}, ""),
    ("5.1", {"said/cnn": 101.1}, "Check it"),
    ("5.1", {"said/cnn": 300.0}, "It includes backward"),
    ("5.1", {"said/cnn": 6400.0}, "the whole batch of 64"),
    ("5.1", {"said/cnn": 12_800.0}, "FLOPs per parameter"),
    ("5.2", {"said/time": 3.06, "said/per_flop": 1.53}, ""),
    ("5.2", {"said/time": 3.07, "said/per_flop": 1.53}, "time is not the measured ratio"),
    ("5.2", {"said/time": 3.3, "said/per_flop": 1.65}, ""),
    ("5.2", {"said/arithmetic": 2.004}, ""),
    ("5.2", {"said/arithmetic": 2.005}, "arithmetic is not the ratio"),
    ("5.2", {"said/arithmetic": 1.9}, "only the forward pass"),
    ("5.2", {"said/per_flop": 1.53}, ""),
    ("5.2", {"said/per_flop": 1.54}, "per_flop does not match the other two"),
    ("5.2", {"said/per_flop": 6.0}, "multiplies instead of dividing"),
    ("5.4", {"said/time": 0.816}, ""),
    ("5.4", {"said/time": 0.817}, "time is not the share of the kind attention"),
    ("5.4", {"said/time": 0.502}, "is the share at length 64"),
    ("5.4", {"said/time": 0.504}, "time is not the share"),
    ("5.4", {"said/arithmetic": 0.705}, ""),
    ("5.4", {"said/arithmetic": 0.706}, "arithmetic is not the share of the attention layer"),
    ("5.4", {"said/arithmetic": 0.5, "products": 0.48}, "is not the share"),
    ("5.4", {"said/arithmetic": 0.52, "products": 0.48}, "is the share of the linear layers"),
    ("5.4", {"said/arithmetic": 0.48, "products": 0.48}, "has only the two products"),
    ("5.4", {"said/arithmetic": 0.2}, "counts only the forward pass of attention"),
    ("5.4", {"said/per_flop": 1.8}, ""),
    ("5.4", {"said/per_flop": 1.81}, "per_flop does not match the two shares"),
    ("5.4", {"shares/512": 0.99, "said/time": 1.0, "said/per_flop": 99 / (0.7 / 0.3)}, ""),
    ("5.4", {"said/per_flop": 0.8 / 0.7}, "compares attention with the whole block"),
    ("5.5", {"said/flops": 564.0}, "one position short"),
    ("5.5", {"said/flops": 566.0}, "flops is not that length"),
    ("5.5", {"said/flops": 8.83}, "a multiple of the width"),
    ("5.5", {"said/flops": 1038.2}, "for the two products alone"),
    ("5.5", {"said/time": 421.0}, ""),
    ("5.5", {"said/time": 422.0}, "does not follow from the measured shares"),
    ("5.5", {"said/time": 565.0}, "is the length by FLOPs"),
    ("5.5", {"said/time": 500.0}, "is a measured length"),
    ("5.5", {"said/time": 501.0}, "does not follow from the measured shares"),
    ("5.6", {"off_by": 0.109}, ""),
    ("5.6", {"off_by": 0.111}, "does not match the prediction and the measurement. Check it"),
    ("5.6", {"off_by": 1.1}, "is the ratio"),
    ("5.6", {"off_by": 1.0}, "is in milliseconds"),
    ("5.6", {"off_by": 0.2}, "at a size it was fitted to"),
    ("5.6", {"off_by": 0.0}, "does not match the prediction"),
    ("5.6", {"off_by": 0.085}, "is relative to the measured time"),
    ("5.6", {"off_by": -1 / 11}, "the wrong way round"),
    ("5.6", {"ci_ms": [11.0, 12.0]}, ""),
    ("5.6", {"ci_ms": [11.1, 12.0]}, "inside does not follow"),
    ("5.6", {"ci_ms": [9.0, 11.0]}, ""),
    ("5.6", {"ci_ms": [9.0, 10.9]}, "inside does not follow"),
    ("5.6", {"ci_ms": [9.0, 10.9], "inside": False}, ""),
    ("5.6", {"inside": False}, "inside does not follow"),
    ("5.6", {"medians_ms/4": 11.0}, "held_out takes no longer than size 256"),
    ("5.6", {"sizes": [64.0, 128.0, 192.0, 256.0, 512.0]}, "so 512 is not held out"),
    ("5.6", {"sizes": [32.0, 64.0, 128.0, 256.0]}, "fitted to only 4 sizes"),
    ("5.6", {"sizes": [32.0, 64.0, 128.0, 192.0, 511.0]}, "fitted to the sizes 32, 64, 128, 192, 511"),
    ("5.6", {"sizes": [256.0, 192.0, 128.0, 64.0, 32.0]}, ""),
    ("5.7", {"cases/0/said": 10.09}, ""),
    ("5.7", {"cases/0/said": 10.11}, "At length 512 a made-up step takes 10 ms; you predict 10.11."),
    ("5.7", {"cases/16/said": 10.9}, ""),
    ("5.7", {"cases/16/said": 11.0}, "with 3 % noise you are +10 % off at length 512"),
    ("5.7", {"cases/16/said": 16.0}, "you are +60 % off"),
    ("5.7", {"cases/16/said": 9.2}, ""),
    ("5.7", {"cases/16/said": 9.0}, "you are -10 % off"),
    ("5.7", {"cases/31/said": 14.1}, "a single power of the length again"),
    ("5.7", {"cases/31/said": 14.2}, "with 3 % noise"),
    ("6.1", {"cases/0/said/together": 22.0}, ""),
    ("6.1", {"cases/0/said/together": 23.0}, "together is wrong"),
    ("6.1", {"cases/0/said/loader": 3.8}, ""),
    ("6.1", {"cases/0/said/loader": 3.7}, "loader is wrong"),
    ("6.1", {"cases/0/took/loader": [], "cases/0/said/loader": 6.0}, ""),
    ("6.1", {"cases/0/took/model": [12.0], "cases/0/said/model": 0.01599}, "looks like seconds"),
    ("6.1", {"cases/0/said/model": 144.0}, "the time of all batches"),
    ("6.1", {"cases/0/said/model": 0.1919}, "the seconds of all batches"),
    ("6.1", {"cases/0/said/model": 17.0}, "does the loader still run in it"),
    ("6.1", {"cases/0/said/loader": 17.0}, "does the step still run in it"),
    ("6.1", {"cases/1/said/model": 20.0}, "prepares the next batch during the step"),
    ("6.2", {"said/perfect_loader": 3.09}, ""),
    ("6.2", {"said/perfect_loader": 3.1}, "perfect_loader does not match"),
    ("6.2", {"said/perfect_model": 1.287}, ""),
    ("6.2", {"said/perfect_model": 1.29}, "perfect_model does not match"),
    ("6.2", {"said": {"perfect_loader": 1.25, "perfect_model": 3.0}}, "if the loader took no time"),
    ("6.2", {"said/perfect_model": 3.0}, "if the model took no time"),
    ("6.2", {"said/perfect_loader": 1 / 3}, "is the fraction of the step that is left"),
    ("6.2", {"said/perfect_loader": 10.0}, "how many ms would be saved"),
    ("6.2", {"said/perfect_loader": 2 / 3}, "would be saved; give the speed-up"),
    ("6.3", {"cases/0/shifts": 3}, ""),
    ("6.3", {"cases/0/shifts": 2}, "came with 2 different shift(s)"),
    ("6.3", {"cases/1/never": 15}, ""),
    ("6.3", {"cases/1/never": 16}, "16 in a row never came"),
    ("6.3", {"ratio": 0.5}, ""),
    ("6.3", {"ratio": 0.51}, "take 51 % of the original time"),
    ("6.3", {"cases/0/length": [39, 40]}, "is 39, for 40 lines"),
    ("6.3", {"cases/0/label": False}, "A label differs"),
    ("6.3", {"cases/1/same": False}, "A sample has other numbers"),
    ("6.4", {"said/batch_bytes": 2000.0}, "how many numbers x has"),
    ("6.4", {"said/batch_bytes": 64_000.0}, "looks like bits"),
    ("6.4", {"said/batch_bytes": 8001.0}, "batch_bytes is wrong"),
    ("6.4", {"all_bytes": 18_000}, ""),
    ("6.4", {"all_bytes": 20_800}, "The profile shows more"),
    ("6.4", {"said/written": 3.0}, "The profile shows fewer"),
    ("6.4", {"said/written": 16_000.0}, "written is in bytes"),
    ("6.5", {"ratio": 0.5}, ""),
    ("6.5", {"ratio": 0.51}, "take 51 % of the usual loader's time"),
    ("6.5", {"sizes": [32] * 6 + [26, 32]}, ""),
    ("6.5", {"sizes": [32] * 8}, "only the last may be smaller"),
    ("6.5", {"sizes": [32] * 7 + [25]}, "only the last may be smaller"),
    ("6.5", {"labels": False}, "no longer match"),
    ("6.5", {"rows/4": []}, "A later epoch is empty"),
    ("6.5", {"rows/4": list(range(250))}, "in the order of the data set"),
    ("6.5", {"rows/4": epoch(37, 250)}, "the same order as an earlier one"),
    ("6.5", {"rows/4": list(range(249))}, "has 249 samples, 249 of them different"),
    ("6.5", {"rows/4": [0, *range(249)]}, "has 250 samples, 249 of them different"),
    ("6.5", {"rows/4": epoch(1, 250)}, "Neighbours in the data set are still neighbours"),
    ("6.5", {"rows/4": epoch(37, 250)[::-1]}, "the same neighbours in two epochs"),
    ("6.6", {"cases/0/workers": [[1, 2], [1, 2]]}, "2 worker(s) deliver a batch every 12 ms"),
    ("6.6", {"cases/0/workers": [[1, 2, 3, 4]] * 2}, ""),
    ("6.6", {"cases/0/workers": [[1, 2, 3, 4, 5]] * 2}, "fewer than 5 workers are enough"),
    ("6.6", {"cases/2/workers": [[1, 2]] * 2}, ""),
    ("6.6", {"cases/2/workers": [[1, 2, 3]] * 2}, "fewer than 3 workers"),
    ("6.6", {"cases/2/workers": [[], []]}, "the loader has no workers"),
    ("6.6", {"cases/1/workers": [[1, 2], [3, 4]]}, "started new workers"),
    ("6.6", {"cases/1/left": 1}, "1 of its workers are still running"),
    ("6.6", {"cases/1/batches": [9, 10]}, "is batch_size used"),
    ("6.6", {"cases/1/rows/1": []}, "The second epoch is empty"),
    ("6.6", {"cases/1/rows/1": list(range(72))}, "in the order of the data set"),
    ("6.7", {"peak": 4 * MIB}, ""),
    ("6.7", {"peak": 4 * MIB + 1}, "of a 32 MiB file took 4 MiB; stay below 4"),
    ("6.7", {"copy_bytes": MIB}, ""),
    ("6.7", {"copy_bytes": MIB + 1}, "A copy for a worker has 1 MiB"),
    ("6.7", {"length": 2047}, "is 2047; the array in the file has 2048 rows"),
    ("6.7", {"right": False}, "A sample is not the row"),
    ("6.7", {"read_only": True}, "read-only memory"),
    ("6.7", {"own": False}, "changes later reads"),
    ("6.8", {"turns": 1}, "found no workers"),
    ("6.8", {"ratio_ci": [1.01, 1.2]}, "the second step is slower"),
    ("6.8", {"ratio_ci": [1.0, 1.2]}, "shown does not follow"),
    ("6.8", {"ratio_ci": [0.4, 1.0]}, "shown does not follow"),
    ("6.8", {"ratio_ci": [0.4, 1.0], "shown": False}, ""),
    ("6.8", {"shown": False}, "shown does not follow"),
    ("6.8", {"speedup": 2.06}, ""),
    ("6.8", {"speedup": 2.07}, "The speed-up does not match"),
)


@pytest.mark.parametrize(("number", "changes", "words"), ROWS)
def test_a_boundary(number: str, changes: dict[str, Any], words: str) -> None:
    expect_of(number, words, changed(RIGHT[number], changes))


@pytest.mark.parametrize(
    ("shares", "doubtful"),
    [
        ({"32": 0.5, "64": 0.6}, False),
        ({"32": 0.5, "64": 0.481}, False),
        ({"32": 0.5, "64": 0.48}, True),
        ({"32": 0.5, "512": 0.7, "64": 0.6}, False),
        ({"32": 0.5, "512": 0.6, "64": 0.7}, True),
    ],
)
def test_a_share_that_falls_is_doubted(shares: dict[str, float], doubtful: bool) -> None:
    for number in ("5.4", "5.5"):
        doubts = exercise_of(number).doubts
        assert doubts is not None
        assert bool(doubts({"shares": shares})) is doubtful
