"""Checks of lab 3, *Counting*."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from perfnb import Roofline
from perfnb.labs.exercise import Exercise, Facts, Hint, as_function, as_number, as_numbers, close, outcome, slip
from perfnb.labs.workloads import interleaved, one_thread

#: Batch, inputs, outputs of linear layers.
LINEAR = ((7, 13, 29), (32, 784, 10), (128, 1024, 4096), (1, 1, 1))
#: Batch, channels in and out, kernel, height, width of convolutions that keep the size.
CONVOLUTIONS = ((2, 5, 7, 5, 9, 11), (8, 3, 16, 3, 32, 32), (4, 16, 8, 1, 20, 10), (1, 1, 1, 1, 4, 4))
#: Batch and widths of networks of linear layers.
NETWORKS = ((10, (20, 30, 40, 50)), (64, (784, 256, 10)), (16, (8, 4, 2)))


def counted(run: Callable[[], Any]) -> int:
    """FLOPs that torch's own counter finds; nothing is computed, for the tensors have shapes alone."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def _cases(function: Callable[..., Any], every: Sequence[Any], count: Callable[..., int]) -> Facts:
    cases = []
    for sizes in every:
        said = as_number(outcome(function, *sizes), "The result of your function")
        cases.append({"sizes": list(sizes), "said": said, "counted": count(*sizes)})
    return {"cases": cases}


def _judge_cases(facts: Facts, arguments: str) -> None:
    for case in facts["cases"]:
        said, wanted = case["said"], case["counted"]
        if not close(said, wanted, 1e-9):
            where = f"For ({arguments}) = {tuple(case['sizes'])}: "
            raise Hint(where + _miscounted(said, wanted))


def _miscounted(said: float, wanted: float) -> str:
    if close(said, wanted * 3, 1e-9) or close(said, wanted / 3, 1e-9):
        return "It is off by a factor of three, that between forward alone and a whole training step."
    if close(said, wanted * 1.5, 1e-9) or close(said, wanted / 1.5, 1e-9):
        return "It is off by a factor of 1.5, that between two products and three."
    return slip(said, wanted, 1e-9, "It does not agree with the count: does every size enter as often as it should?")


def measure_linear(answer: Any) -> Facts:
    from torch import nn, ones

    def count(batch: int, inputs: int, outputs: int) -> int:
        return counted(lambda: nn.Linear(inputs, outputs)(ones(batch, inputs)))

    return _cases(as_function(answer, "linear_flops(batch, inputs, outputs)"), LINEAR, count)


def judge_linear(facts: Facts) -> None:
    for case in facts["cases"]:
        batch, _, outputs = case["sizes"]
        if batch * outputs > 1 and close(case["said"], case["counted"] + batch * outputs, 1e-9):
            raise Hint("The additions of the bias are counted too; by convention they are left out.")
    _judge_cases(facts, "batch, inputs, outputs")


def measure_convolution(answer: Any) -> Facts:
    from torch import nn, ones

    def count(batch: int, inputs: int, outputs: int, kernel: int, height: int, width: int) -> int:
        conv_of = nn.Conv2d
        return counted(
            lambda: conv_of(inputs, outputs, kernel, padding=kernel // 2)(ones(batch, inputs, height, width))
        )

    called = "conv_flops(batch, inputs, outputs, kernel, height, width)"
    return _cases(as_function(answer, called), CONVOLUTIONS, count)


def judge_convolution(facts: Facts) -> None:
    _judge_cases(facts, "batch, inputs, outputs, kernel, height, width")


def measure_training(answer: Any) -> Facts:
    from torch import nn, ones

    def count(batch: int, widths: Sequence[int]) -> int:
        def train() -> None:
            x = ones(batch, widths[0])
            for inputs, outputs in itertools.pairwise(widths):
                x = nn.functional.relu(nn.Linear(inputs, outputs)(x))
            x.sum().backward()

        return counted(train)

    return _cases(as_function(answer, "training_flops(batch, widths)"), NETWORKS, count)


def judge_training(facts: Facts) -> None:
    for case in facts["cases"]:
        batch, widths = case["sizes"]
        products = [2 * batch * inputs * outputs for inputs, outputs in itertools.pairwise(widths)]
        if close(case["said"], sum(products), 1e-9):
            raise Hint("That is the forward pass alone.")
        if close(case["said"], case["counted"] + products[0], 1e-9):
            raise Hint("One product too many: which layer's input needs no gradient?")
    _judge_cases(facts, "batch, widths")


def measure_bytes(answer: Any) -> Facts:
    def count(batch: int, inputs: int, outputs: int) -> int:
        import torch

        shapes = ((batch, inputs), (inputs, outputs), (batch, outputs))
        return sum(torch.empty(shape, device="meta").nbytes for shape in shapes)

    return _cases(as_function(answer, "linear_bytes(batch, inputs, outputs)"), LINEAR, count)


def judge_bytes(facts: Facts) -> None:
    for case in facts["cases"]:
        if close(case["said"], case["counted"] / 4, 1e-9):
            raise Hint("That is how many numbers are moved; how many bytes has a float32?")
        if close(case["said"], case["counted"] * 8, 1e-9):
            raise Hint("That looks like bits; bytes are asked for.")
        batch, inputs, outputs = case["sizes"]
        for left_out, count in (("output", batch * outputs), ("input", batch * inputs), ("weight", inputs * outputs)):
            if close(case["said"], case["counted"] - 4 * count, 1e-9):
                raise Hint(f"The {left_out} is left out; it is moved as well.")
    _judge_cases(facts, "batch, inputs, outputs")


#: FLOPs, bytes, FLOP/s and bytes/s: bound by memory, by arithmetic, and on the ridge.
ROOFS = ((1e9, 1e9, 1e12, 1e11), (1e12, 1e9, 1e12, 1e11), (5e6, 4e6, 5e10, 2e10), (1e10, 1e9, 1e12, 1e11))
#: Points of the reader's own profile that are tried, at most.
MOST_POINTS = 20


def measure_least_time(answer: Any, roofline: Any = None) -> Facts:
    function = as_function(answer, "least_time(flops, moved_bytes, peak, bandwidth)")
    if not isinstance(roofline, Roofline):
        raise Hint("Give the roofline as well: roofline=p.roofline.")
    cases = [(sizes, max(sizes[0] / sizes[2], sizes[1] / sizes[3])) for sizes in ROOFS]
    points = roofline.points.dropna(subset=["flops", "bytes", "attainable_flops_per_s", "dtype"])
    for row in points.head(MOST_POINTS).to_dict("records"):
        peak, flops = roofline.peaks.get(str(row["dtype"])), float(row["flops"])
        if peak and roofline.bandwidth and flops > 0:
            sizes = (flops, float(row["bytes"]), float(peak), float(roofline.bandwidth))
            cases.append((sizes, flops / float(row["attainable_flops_per_s"])))
    found = []
    for sizes, wanted in cases:
        said = as_number(outcome(function, *sizes), "The result of your function")
        found.append({"sizes": list(sizes), "said": said, "wanted": wanted})
    return {"cases": found}


def judge_least_time(facts: Facts) -> None:
    for case in facts["cases"]:
        flops, moved, peak, bandwidth = case["sizes"]
        said, wanted = case["said"], case["wanted"]
        computing, moving = flops / peak, moved / bandwidth
        if close(said, wanted, 1e-3):
            continue
        if close(said, computing + moving, 1e-3):
            raise Hint("You add the two times; but a machine computes and moves at the same time.")
        if close(said, min(computing, moving), 1e-3):
            raise Hint("That is the shorter of two times that both have to pass.")
        if close(said, 1e3 * wanted, 1e-3):
            raise Hint("It looks like milliseconds; seconds are asked for.")
        raise Hint("That is not the least time. How long for the arithmetic alone, and how long for the bytes alone?")


def measure_small(answer: Any, big: Any = None, small: Any = None) -> Facts:
    if not hasattr(big, "median_ms") or not hasattr(small, "median_ms"):
        raise Hint("Give the two timings as well: big=big, small=small.")
    said = as_numbers(answer, ("arithmetic", "time", "not_arithmetic"))
    return said | {"big_ms": float(big.median_ms), "small_ms": float(small.median_ms), "counted": 100}


def judge_small(facts: Facts) -> None:
    ratio = facts["big_ms"] / facts["small_ms"]
    share = 1 - facts["big_ms"] / facts["counted"] / facts["small_ms"]
    if not close(facts["arithmetic"], facts["counted"], 1e-6):
        raise Hint(
            "arithmetic is not how many times the FLOPs of the small layer the big one needs; both its inputs and its "
            "outputs are fewer."
        )
    if not close(facts["time"], ratio, 0.03):
        raise Hint(f"time is not the ratio of the two medians. {slip(facts['time'], ratio, 0.03)}")
    if abs(facts["not_arithmetic"] - share) > 0.02:
        raise Hint(
            "not_arithmetic does not follow. If the small layer computed as fast as the big one does, how long would "
            f"it take? The rest of its time, as a share of it, is asked for. "
            f"{slip(facts['not_arithmetic'], share, 0.03) if share > 0.05 else ''}".strip()
        )


#: Rows of a, its columns, columns of b; and the size at which loops are timed against torch.
PRODUCTS, TIMED = ((3, 4, 2), (5, 1, 6), (1, 7, 1), (1, 1, 1), (4, 3, 8)), 48
ROUNDS = 5
#: The least by which loops in Python are slower than torch at that size, which has to convert the lists and back.
LOOPS = 4.0


def measure_loops(answer: Any) -> Facts:
    import torch

    matmul = as_function(answer, "matmul(a, b)")
    generator = random.Random(5)

    def matrix(rows: int, columns: int) -> list[list[float]]:
        return [[generator.uniform(-1, 1) for _ in range(columns)] for _ in range(rows)]

    cases = []
    for rows, inner, columns in (*PRODUCTS, PRODUCTS[-1]):
        a, b = matrix(rows, inner), matrix(inner, columns)
        kept = [list(row) for row in a], [list(row) for row in b]
        wanted = (torch.tensor(a) @ torch.tensor(b)).tolist()
        returned = outcome(matmul, a, b)
        cases.append(
            {
                "sizes": [rows, inner, columns],
                "right": _same_lists(returned, wanted),
                "nothing": returned is None,
                "changed": (a, b) != kept,
            }
        )
    if not all(case["right"] for case in cases):
        return {"cases": cases}  # what is wrong is not timed
    inputs = []
    for _ in range(ROUNDS + 1):
        a, b = matrix(TIMED, TIMED), matrix(TIMED, TIMED)
        inputs.append((a, b))
    with one_thread():
        fast, slow = interleaved(lambda a, b: (torch.tensor(a) @ torch.tensor(b)).tolist(), matmul, inputs)
    return {"cases": cases, "ratio": min(slow) / min(fast)}


def _same_lists(returned: Any, wanted: list[list[float]]) -> bool:
    if not isinstance(returned, Sequence) or len(returned) != len(wanted):
        return False
    for row, other in zip(returned, wanted, strict=True):
        if not isinstance(row, Sequence) or len(row) != len(other):
            return False
        if not all(
            isinstance(one, (int, float)) and abs(one - two) < 1e-4 for one, two in zip(row, other, strict=True)
        ):
            return False
    return True


def judge_loops(facts: Facts) -> None:
    for case in facts["cases"]:
        rows, inner, columns = case["sizes"]
        if case["nothing"]:
            raise Hint("The function returns nothing yet.")
        if case["changed"]:
            raise Hint("The function changes the matrices that it is given.")
        if not case["right"]:
            raise Hint(f"The product of a {rows} x {inner} and a {inner} x {columns} matrix is wrong, or no list.")
    if facts["ratio"] < LOOPS:
        raise Hint(
            f"The result is right, but took only {facts['ratio']:.1f} times as long as torch with lists converted: "
            "loops over numbers are asked for, without torch, numpy or the like."
        )


EXERCISES = (
    Exercise("3.1", "A linear layer", measure_linear, judge_linear),
    Exercise("3.2", "A convolution", measure_convolution, judge_convolution),
    Exercise("3.3", "A training step", measure_training, judge_training),
    Exercise("3.4", "Bytes", measure_bytes, judge_bytes),
    Exercise("3.5", "Under the roof", measure_least_time, judge_least_time),
    Exercise("3.6", "A hundred times smaller", measure_small, judge_small),
    Exercise("3.7", "Loops of your own", measure_loops, judge_loops),
)
