"""Checks of lab 3, *Counting*."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from perfnb import Profile, Roofline, Timing
from perfnb.labs.answers import as_function, as_number, as_numbers, close, outcome, require, slip
from perfnb.labs.exercise import Exercise, Facts, Hint, all_there
from perfnb.labs.libraries_used import libraries_used
from perfnb.labs.workloads import interleaved, one_thread
from perfnb.quantities import share

#: Batch, inputs, outputs of linear layers.
LINEAR = ((7, 13, 29), (32, 784, 10), (128, 1024, 4096), (1, 1, 1))
#: Batch, input and output channels, kernel, height, width of convolutions with unchanged size.
CONVOLUTIONS = ((2, 5, 7, 5, 9, 11), (8, 3, 16, 3, 32, 32), (4, 16, 8, 1, 20, 10), (1, 1, 1, 1, 4, 4))
#: Batch and widths of networks of linear layers.
NETWORKS = ((10, (20, 30, 40, 50)), (64, (784, 256, 10)), (16, (8, 4, 2)))


def counted(run: Callable[[], Any], device: str = "meta") -> int:
    """FLOPs by torch's own counter; nothing is computed on "meta", where tensors have only shapes."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device(device), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def _cases(function: Callable[..., Any], every: Sequence[Any], count: Callable[..., int]) -> Facts:
    cases = []
    for sizes in every:
        said = as_number(outcome(function, *sizes), "The result of your function")
        cases.append({"sizes": list(sizes), "said": said, "counted": count(*sizes)})
    return {"cases": cases}


def _judge_cases(facts: Facts, every: Sequence[Any], arguments: str, *, training: bool = False) -> None:
    for case in all_there(facts["cases"], len(every)):
        said, wanted = case["said"], case["counted"]
        if not close(said, wanted, 1e-9):
            where = f"For ({arguments}) = {tuple(case['sizes'])}: "
            raise Hint(where + _miscounted(said, wanted, training=training))


def _miscounted(said: float, wanted: float, *, training: bool) -> str:
    if training and (close(said, wanted * 3, 1e-9) or close(said, wanted / 3, 1e-9)):
        return "It is off by a factor of three, as between a forward pass and a whole training step."
    if training and (close(said, wanted * 1.5, 1e-9) or close(said, wanted / 1.5, 1e-9)):
        return "It is off by a factor of 1.5, as between two products and three."
    if not training and close(said, wanted / 2, 1e-9):
        return "It is half of what it should be: each product is also added to a sum. Is that counted?"
    return slip(said, wanted, 1e-9, "It does not match the count: does every size enter as often as it should?")


def measure_linear(answer: Any) -> Facts:
    from torch import nn, ones

    def count(batch: int, inputs: int, outputs: int) -> int:
        return counted(lambda: nn.Linear(inputs, outputs)(ones(batch, inputs)))

    return _cases(as_function(answer, "linear_flops(batch, inputs, outputs)"), LINEAR, count)


def judge_linear(facts: Facts) -> None:
    for case in facts["cases"]:
        batch, _, outputs = case["sizes"]
        if batch * outputs > 1 and close(case["said"], case["counted"] + batch * outputs, 1e-9):
            raise Hint("It includes the bias additions, which are left out by convention.")
    _judge_cases(facts, LINEAR, "batch, inputs, outputs")


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
    _judge_cases(facts, CONVOLUTIONS, "batch, inputs, outputs, kernel, height, width")


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
            raise Hint("That is only the forward pass.")
        if close(case["said"], case["counted"] + products[0], 1e-9):
            raise Hint("One product too many: which layer's input needs no gradient?")
    _judge_cases(facts, NETWORKS, "batch, widths", training=True)


def measure_bytes(answer: Any, profile: Any = None, network: Any = None) -> Facts:
    def count(batch: int, inputs: int, outputs: int) -> int:
        import torch

        shapes = ((batch, inputs), (inputs, outputs), (batch, outputs))
        return sum(torch.empty(shape, device="meta").nbytes for shape in shapes)

    function = as_function(answer, "linear_bytes(batch, inputs, outputs)")
    return _cases(function, LINEAR, count) | {"layers": _moved(function, profile, network)}


def _moved(function: Callable[..., Any], profile: Any, network: Any) -> list[Facts]:
    """Bytes moved by a profile's linear layers in a training step, and the answer for one of their products."""
    if not isinstance(profile, Profile) or not isinstance(network, Sequence) or len(network) != 2:
        raise Hint("Run the check unchanged: profile=p, network=(BATCH, WIDTHS).")
    batch, widths = network
    layers = profile.layers[profile.layers["module"] == "Linear"]
    layers = layers.dropna(subset=["forward_flops", "backward_flops", "moved_bytes"])
    sizes = [(batch, inputs, outputs) for inputs, outputs in itertools.pairwise(widths)]
    forward = [2 * batch * inputs * outputs for _, inputs, outputs in sizes]
    if layers["forward_flops"].tolist() != forward:
        raise Hint("The profile is not of that network's training step: rerun its cells unchanged.")
    return [
        {
            "name": str(name),
            "sizes": list(each),
            "said": as_number(outcome(function, *each), "The result of your function"),
            "products": int(1 + backward // flops),
            "moved": int(moved),
        }
        for name, each, flops, backward, moved in zip(
            layers.index, sizes, forward, layers["backward_flops"], layers["moved_bytes"], strict=True
        )
    ]


def judge_bytes(facts: Facts) -> None:
    for case in facts["cases"]:
        if close(case["said"], case["counted"] / 4, 1e-9):
            raise Hint("That is how many numbers are moved; how many bytes does a float32 have?")
        if close(case["said"], case["counted"] * 8, 1e-9):
            raise Hint("That looks like bits; return bytes.")
        batch, inputs, outputs = case["sizes"]
        for left_out, count in (("output", batch * outputs), ("input", batch * inputs), ("weight", inputs * outputs)):
            if close(case["said"], case["counted"] - 4 * count, 1e-9):
                raise Hint(f"The {left_out} is missing; it is moved as well.")
    _judge_cases(facts, LINEAR, "batch, inputs, outputs")
    for layer in all_there(facts["layers"], 1, or_more=True):
        batch, _, outputs = layer["sizes"]
        # Forward reads the bias; its gradient needs the output's gradient once more and writes the bias's own.
        bias = 4 * (outputs + batch * outputs + outputs)
        by_hand = layer["products"] * layer["said"] + bias
        if not close(by_hand, layer["moved"], 1e-9):
            raise Hint(
                f"{layer['name']} of your profile, {tuple(layer['sizes'])}: by your function, its "
                f"{layer['products']} products and its bias moved {share(by_hand / layer['moved'])} of the bytes "
                "counted."
            )


#: FLOPs, bytes, FLOP/s and bytes/s: memory-bound, compute-bound, and on the ridge.
ROOFS = ((1e9, 1e9, 1e12, 1e11), (1e12, 1e9, 1e12, 1e11), (5e6, 4e6, 5e10, 2e10), (1e10, 1e9, 1e12, 1e11))
#: Most points of the reader's own profile that are tested.
MOST_POINTS = 20


def measure_least_time(answer: Any, roofline: Any = None) -> Facts:
    function = as_function(answer, "least_time(flops, moved_bytes, peak, bandwidth)")
    require(roofline, Roofline, "Pass the roofline as well: roofline=p.roofline.")
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
    for case in all_there(facts["cases"], len(ROOFS), or_more=True):
        flops, moved, peak, bandwidth = case["sizes"]
        said, wanted = case["said"], case["wanted"]
        computing, moving = flops / peak, moved / bandwidth
        if close(said, wanted, 1e-3):
            continue
        if close(said, computing + moving, 1e-3):
            raise Hint("You add the two times, but a machine computes and moves data at the same time.")
        if close(said, min(computing, moving), 1e-3):
            raise Hint("That is the shorter of the two times, but both have to pass.")
        if close(said, 1e3 * wanted, 1e-3):
            raise Hint("It looks like milliseconds; return seconds.")
        raise Hint("That is not the minimum time. How long for the arithmetic alone, and how long for the bytes alone?")


#: Interleaved rounds in which the two steps run again, and how far their ratio may be from that of the timings.
TURNS, APART = 12, 3.0


def measure_small(answer: Any, big: Any = None, small: Any = None, steps: Any = ()) -> Facts:
    if not isinstance(big, Timing) or not isinstance(small, Timing):
        raise Hint("Pass the two timings as well: big=big, small=small, the results of perfnb.time_step.")
    if not isinstance(steps, list | tuple) or len(steps) != 2:
        raise Hint("Run the check unchanged: it also needs the two steps.")
    said = as_numbers(answer, ("arithmetic", "time", "not_arithmetic"))
    run_big, run_small = (as_function(step, "step()") for step in steps)
    own = interleaved(lambda: outcome(run_big), lambda: outcome(run_small), [()] * (TURNS + 1))
    return said | {
        "big_ms": big.median_ms,
        "small_ms": small.median_ms,
        "own_ms": [min(times) for times in own],
        "flops": [counted(run, "cpu") for run in (run_big, run_small)],
    }


def judge_small(facts: Facts) -> None:
    big_flops, small_flops = facts["flops"]
    if not 0 < small_flops < big_flops:
        raise Hint("The first step does no more arithmetic than the second: pass steps=(big_step, small_step).")
    ratio, own = facts["big_ms"] / facts["small_ms"], facts["own_ms"][0] / facts["own_ms"][1]
    if not 1 / APART < ratio / own < APART:
        raise Hint(
            "Run again just now, the two steps have a ratio far from that of big and small. Were these the timings of "
            "big_step and small_step, taken on an idle machine?"
        )
    arithmetic = big_flops / small_flops
    left = 1 - ratio / arithmetic
    if not close(facts["arithmetic"], arithmetic, 1e-6):
        raise Hint(
            "arithmetic is not the big layer's FLOPs divided by the small one's, which has fewer inputs and "
            "fewer outputs."
        )
    if not close(facts["time"], ratio, 0.03):
        raise Hint(f"time is not the ratio of the two medians. {slip(facts['time'], ratio, 0.03)}")
    if abs(facts["not_arithmetic"] - left) > 0.02:
        raise Hint(
            "not_arithmetic does not match. If the small layer computed as fast as the big one, how long would "
            f"it take, and which fraction of its time is left? "
            f"{slip(facts['not_arithmetic'], left, 0.03) if left > 0.05 else ''}".strip()
        )


#: Rows of a, its columns, columns of b; and the size at which loops are timed against torch.
PRODUCTS, TIMED = ((3, 4, 2), (5, 1, 6), (1, 7, 1), (1, 1, 1), (4, 3, 8)), 48
ROUNDS = 5
#: Python loops are slower than torch at that size, even if torch has to convert lists both ways.
LOOPS = 1.0


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
                "wrong": _wrong_with(returned, wanted),
                "changed": (a, b) != kept,
            }
        )
    if any(case["wrong"] for case in cases):
        return {"cases": cases}  # a wrong result is not timed
    inputs = []
    for _ in range(ROUNDS + 1):
        a, b = matrix(TIMED, TIMED), matrix(TIMED, TIMED)
        inputs.append((a, b))
    with one_thread():
        fast, slow = interleaved(lambda a, b: (torch.tensor(a) @ torch.tensor(b)).tolist(), matmul, inputs)
    return {"cases": cases, "uses": libraries_used(matmul), "ratio": min(slow) / min(fast)}


def _wrong_with(returned: Any, wanted: list[list[float]]) -> str:
    """What is wrong with a product, in a word or two; empty if nothing is."""
    rows, columns = len(wanted), len(wanted[0])
    if returned is None:
        return "nothing"
    if not isinstance(returned, Sequence) or not all(isinstance(row, Sequence) for row in returned):
        return f"type {type(returned).__name__}"
    if len(returned) != rows or any(len(row) != columns for row in returned):
        widths = sorted({len(row) for row in returned})
        return f"shape {len(returned)} x {' or '.join(map(str, widths))}"
    if len({id(row) for row in returned}) < rows:
        return "one row"
    if any(not isinstance(value, (int, float)) for row in returned for value in row):
        return "values"
    near = all(
        abs(value - right) < 1e-4
        for row, other in zip(returned, wanted, strict=True)
        for value, right in zip(row, other, strict=True)
    )
    return "" if near else "numbers"


def judge_loops(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(PRODUCTS) + 1):
        rows, inner, columns = case["sizes"]
        what = f"The product of a {rows} x {inner} and a {inner} x {columns} matrix"
        kind, _, found = case["wrong"].partition(" ")
        if kind == "nothing":
            raise Hint("The function returns nothing yet.")
        if case["changed"]:
            raise Hint("The function changes its arguments.")
        if kind == "type":
            raise Hint(f"{what} must be a list of rows, each a list of numbers; you return a {found}.")
        if kind == "shape":
            raise Hint(f"{what} has {rows} rows and {columns} columns; yours is {found}.")
        if case["wrong"] == "one row":
            raise Hint(
                f"{what}: several rows of your result are the same list, so writing to one changes them all. `[[0] *"
                " columns] * rows` does that; make a new list for each row."
            )
        if kind == "values":
            raise Hint(f"{what} must hold plain numbers.")
        if kind:
            raise Hint(f"{what} has the right shape but wrong numbers: which row meets which column?")
    if facts["uses"]:
        raise Hint(
            f"The result is right, but your code uses {' and '.join(facts['uses'])}. To see what Python alone "
            "costs, multiply and add the numbers one by one in loops."
        )
    if facts["ratio"] < LOOPS:
        raise Hint(
            f"The result is right, but took only {facts['ratio']:.2g} times as long as torch with list "
            "conversion. Use loops over numbers, without torch, numpy or the like."
        )


EXERCISES = (
    Exercise("3.1", "A linear layer", measure_linear, judge_linear),
    Exercise("3.2", "A convolution", measure_convolution, judge_convolution),
    Exercise("3.3", "A training step", measure_training, judge_training),
    Exercise("3.4", "Bytes", measure_bytes, judge_bytes),
    Exercise("3.5", "Under the roof", measure_least_time, judge_least_time),
    Exercise("3.6", "A hundred times smaller", measure_small, judge_small, timed=True),
    Exercise("3.7", "Loops of your own", measure_loops, judge_loops, timed=True),
)
