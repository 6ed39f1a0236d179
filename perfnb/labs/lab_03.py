"""Checks for lab 3, *Counting*."""

from __future__ import annotations

import copy
import dis
import gc
import itertools
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn, ones
from torch.utils.flop_counter import FlopCounterMode

from perfnb import Profile, Timing
from perfnb.labs.answers import as_fields, as_function, evidence, outcome, result_of, tried
from perfnb.labs.exercise import Exercise, Facts, Hint
from perfnb.labs.judging import Number, Numbers, all_there, close, hint_if
from perfnb.labs.workloads import shortest_ms, time_ratio
from perfnb.quantities import share
from perfnb.results import Roofline

#: Batch size, inputs and outputs of linear layers.
LINEAR = ((7, 13, 29), (32, 784, 10), (128, 1024, 4096), (1, 1, 1))
#: Batch size, input and output channels, kernel size, height and width of convolutions that keep the image size.
CONVOLUTIONS = ((2, 5, 7, 5, 9, 11), (8, 3, 16, 3, 32, 32), (4, 16, 8, 1, 20, 10), (1, 1, 1, 1, 4, 4))
#: Batch size and widths of networks that consist of linear layers.
NETWORKS = ((10, (20, 30, 40, 50)), (64, (784, 256, 10)), (16, (8, 4, 2)))


def counted(run: Callable[[], Any], device: str = "meta") -> int:
    """Return the FLOPs that torch's own counter reports.

    Nothing is computed on the device "meta", where tensors only have shapes.
    """
    with torch.device(device), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def _judge_cases(facts: Facts, every: Sequence[Any], arguments: str, *, training: bool = False) -> None:
    for case in all_there(facts["cases"], len(every)):
        wanted = case["wanted"]
        flops = Number(case["said"], wanted, 1e-9, f"For ({arguments}) = {tuple(case['sizes'])}:")
        if training:
            three = "It is off by a factor of three, the ratio of a whole training step to a forward pass."
            flops.slip((wanted * 3, wanted / 3), three)
            flops.slip((wanted * 1.5, wanted / 1.5), "It is off by a factor of 1.5, the ratio of 3 products to 2.")
        else:
            added = "It is half of what it should be: each product is also added to a sum. Is that counted?"
            flops.slip(wanted / 2, added)
            flops.slip(3 * wanted, "It is three times what it should be: how many products are there?")
        flops.wrong("", "It does not match the count: does every size enter as often as it should?")


def measure_linear(answer: Any) -> Facts:
    def count(batch: int, inputs: int, outputs: int) -> int:
        return counted(lambda: nn.Linear(inputs, outputs)(ones(batch, inputs)))

    return {"cases": tried(as_function(answer, "linear_flops(batch, inputs, outputs)"), LINEAR, count)}


def judge_linear(facts: Facts) -> None:
    def sums(case: Facts) -> int:
        return math.prod(case["sizes"][::2])  # one sum for each output of each row

    every, bias = Numbers(facts["cases"], len(LINEAR), 1e-9), "It includes the bias, which is left out by convention."
    every.slip(lambda case: case["wanted"] + sums(case), bias)
    every.slip(lambda case: case["wanted"] + 2 * sums(case), bias)
    every.slip(lambda case: case["wanted"] + case["sizes"][2], bias)
    one_less = "It has one addition less for each sum. By convention, the first one counts like the others."
    every.slip(lambda case: case["wanted"] - sums(case), one_less)
    _judge_cases(facts, LINEAR, "batch, inputs, outputs")


def measure_convolution(answer: Any) -> Facts:
    def count(batch: int, inputs: int, outputs: int, kernel: int, height: int, width: int) -> int:
        images = (batch, inputs, height, width)
        return counted(lambda: nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)(ones(images)))

    called = "conv_flops(batch, inputs, outputs, kernel, height, width)"
    return {"cases": tried(as_function(answer, called), CONVOLUTIONS, count)}


def judge_convolution(facts: Facts) -> None:
    _judge_cases(facts, CONVOLUTIONS, "batch, inputs, outputs, kernel, height, width")


def measure_training(answer: Any) -> Facts:
    def count(batch: int, widths: Sequence[int]) -> int:
        def train() -> None:
            x = ones(batch, widths[0])
            for inputs, outputs in itertools.pairwise(widths):
                x = nn.functional.relu(nn.Linear(inputs, outputs)(x))
            x.sum().backward()

        return counted(train)

    return {"cases": tried(as_function(answer, "training_flops(batch, widths)"), NETWORKS, count)}


def judge_training(facts: Facts) -> None:
    def products(case: Facts) -> list[int]:
        batch, widths = case["sizes"]
        return [2 * batch * inputs * outputs for inputs, outputs in itertools.pairwise(widths)]

    every = Numbers(facts["cases"], len(NETWORKS), 1e-9)
    every.slip(lambda case: sum(products(case)), "That is only the forward pass.")
    one_more = "That is one product too many: which layer's input needs no gradient?"
    every.slip(lambda case: case["wanted"] + products(case)[0], one_more)
    _judge_cases(facts, NETWORKS, "batch, widths", training=True)


def measure_bytes(answer: Any, profile: Any = None, network: Any = None) -> Facts:
    def count(batch: int, inputs: int, outputs: int) -> int:
        shapes = ((batch, inputs), (inputs, outputs), (batch, outputs))
        return sum(torch.empty(shape, device="meta").nbytes for shape in shapes)

    function = as_function(answer, "linear_bytes(batch, inputs, outputs)")
    return {"cases": tried(function, LINEAR, count), "layers": _moved(function, profile, network)}


def _moved(function: Callable[..., Any], profile: Any, network: Any) -> list[Facts]:
    """Return the bytes that a profile's linear layers moved in a training step.

    The reader's answer for one of each layer's products is returned with them.
    """
    if not isinstance(profile, Profile) or not isinstance(network, Sequence) or len(network) != 2:
        raise Hint("Run the check unchanged: profile=p, network=(BATCH, WIDTHS).")
    batch, widths = network
    layers = profile.layers[profile.layers["module"] == "Linear"]
    layers = layers.dropna(subset=["forward_flops", "backward_flops", "moved_bytes"])
    sizes = [(batch, inputs, outputs) for inputs, outputs in itertools.pairwise(widths)]
    if layers["forward_flops"].tolist() != [2 * math.prod(layer) for layer in sizes]:
        raise Hint("The profile is not of that network's training step: rerun its cells unchanged.")
    return [
        {
            "name": str(name),
            "sizes": list(layer),
            "said": result_of(function, *layer),
            "products": int(1 + row["backward_flops"] // row["forward_flops"]),
            "moved": int(row["moved_bytes"]),
        }
        for layer, (name, row) in zip(sizes, layers.iterrows(), strict=True)
    ]


def judge_bytes(facts: Facts) -> None:
    for case in facts["cases"]:
        wanted, (batch, inputs, outputs) = case["wanted"], case["sizes"]
        said = Number(case["said"], wanted, 1e-9)
        said.slip(wanted / 4, "That is how many numbers are moved; how many bytes does a float32 have?")
        said.slip(wanted * 8, "That looks like bits; return bytes.")
        for left_out, count in (("output", batch * outputs), ("input", batch * inputs), ("weight", inputs * outputs)):
            said.slip(wanted - 4 * count, f"The {left_out} is missing; it is moved as well.")
    _judge_cases(facts, LINEAR, "batch, inputs, outputs")
    for layer in all_there(facts["layers"], 1, or_more=True):
        batch, _, outputs = layer["sizes"]
        # Forward reads the bias; its gradient needs the output's gradient once more and writes the bias's own.
        bias = 4 * (outputs + batch * outputs + outputs)
        by_hand = layer["products"] * layer["said"] + bias
        if not close(by_hand, layer["moved"], 1e-9):
            raise Hint(
                f"{layer['name']} of your profile, {tuple(layer['sizes'])}: according to your function, its "
                f"{layer['products']} products and its bias moved {share(by_hand / layer['moved'])} of the counted "
                "bytes."
            )


#: FLOPs, bytes, FLOP/s and bytes/s of cases that are memory-bound, compute-bound, and at the ridge point.
ROOFS = ((1e9, 1e9, 1e12, 1e11), (1e12, 1e9, 1e12, 1e11), (5e6, 4e6, 5e10, 2e10), (1e10, 1e9, 1e12, 1e11))
#: Maximum number of points from the reader's profile that are tested.
MOST_POINTS = 20


def measure_least_time(answer: Any, roofline: Any = None) -> Facts:
    function = as_function(answer, "least_time(flops, moved_bytes, peak, bandwidth)")
    roofline = evidence(roofline, Roofline)
    cases = [(sizes, max(sizes[0] / sizes[2], sizes[1] / sizes[3])) for sizes in ROOFS]
    points = roofline.points.dropna(subset=["flops", "bytes", "attainable_flops_per_s", "dtype"])
    for row in points.head(MOST_POINTS).to_dict("records"):
        peak, flops = roofline.peaks.get(str(row["dtype"])), float(row["flops"])
        if peak and roofline.bandwidth and flops > 0:
            sizes = (flops, float(row["bytes"]), float(peak), float(roofline.bandwidth))
            cases.append((sizes, flops / float(row["attainable_flops_per_s"])))
    wanted = dict(cases)
    return {"cases": tried(function, wanted, lambda *sizes: wanted[sizes])}


def judge_least_time(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(ROOFS), or_more=True):
        flops, moved, peak, bandwidth = case["sizes"]
        computing, moving = flops / peak, moved / bandwidth
        least = Number(case["said"], case["wanted"], 1e-3)
        added = "You add the two times, but a machine computes and moves data at the same time."
        least.slip(computing + moving, added)
        least.slip(min(computing, moving), "That is the shorter of the two times, but the step takes at least both.")
        least.slip(1e3 * case["wanted"], "It looks like milliseconds; return seconds.")
        if not least.right:
            alone = "How long would the arithmetic take alone, and how long would the bytes take alone?"
            raise Hint(f"That is not the minimum time. {alone}")


#: Factor by which the ratio of the two steps, when they run again, may differ from the ratio of the timings.
APART = 3.0


def measure_small(answer: Any, big: Any = None, small: Any = None, steps: Any = ()) -> Facts:
    return as_fields(answer, arithmetic=float, time=float, not_arithmetic=float) | {
        "big_ms": evidence(big, Timing).median_ms,
        "small_ms": evidence(small, Timing).median_ms,
        "own_ms": shortest_ms(steps),
        "flops": [counted(run, "cpu") for run in steps],
    }


def judge_small(facts: Facts) -> None:
    big_flops, small_flops = facts["flops"]
    if not 0 < small_flops < big_flops:
        raise Hint(f"The steps need {big_flops:,} and {small_flops:,} FLOPs: pass steps=(big_step, small_step).")
    ratio, own = facts["big_ms"] / facts["small_ms"], facts["own_ms"][0] / facts["own_ms"][1]
    if not 1 / APART < ratio / own < APART:
        raise Hint(
            "The check has just run both steps again, and their ratio is far from that of big and small. Were these "
            "the timings of big_step and small_step, taken on an idle machine?"
        )
    arithmetic = big_flops / small_flops
    left = 1 - ratio / arithmetic
    if not close(facts["arithmetic"], arithmetic, 1e-6):
        raise Hint("arithmetic is not the big layer's FLOPs divided by the small one's (fewer inputs and outputs).")
    Number(facts["time"], ratio, 0.03).wrong("time is not the ratio of the two medians.")
    left_over = Number(facts["not_arithmetic"], left, 0.0, "not_arithmetic does not match.", absolute=0.02)
    as_fast = "If the small layer computed as fast as the big one, how long would it take, and which fraction of its "
    left_over.wrong(as_fast + "time is left?", within=0.03)


#: Libraries that process whole arrays outside Python.
LIBRARIES = frozenset(
    {"cupy", "jax", "mlx", "numba", "numexpr", "numpy", "pandas", "polars", "scipy", "sklearn", "tensorflow", "torch"}
)


def libraries_used(function: Any) -> list[str]:
    """Return the array libraries that a function, or any code that it can call, mentions or imports.

    A library that is imported next to the function but not used in it does not count.
    """
    used, seen, left = set(), {}, [function]
    while left:
        thing = left.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing  # kept alive, because another object could get its id otherwise
        home = _home(thing)
        if home in LIBRARIES:
            used.add(home)
        elif home not in sys.stdlib_module_names or not isinstance(thing, (FunctionType, type)):
            left += _parts(thing)
    return sorted(used)


def _home(thing: Any) -> str:
    """Return the name of the top-level module that an object is or comes from."""
    module = isinstance(thing, ModuleType)
    name = thing.__name__ if module else getattr(thing, "__module__", None) or type(thing).__module__
    return str(name).partition(".")[0]


def _parts(thing: Any) -> list[Any]:
    """Return the objects that a function, class or callable object consists of, as far as Python can see them."""
    if isinstance(thing, FunctionType):
        kept = (thing.__defaults__, thing.__kwdefaults__, thing.__dict__)
        parts = gc.get_referents(*kept, *(thing.__closure__ or ()))
        for instruction in _instructions(thing.__code__):  # names of attributes do not matter
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                parts.append(thing.__globals__.get(instruction.argval))
            if instruction.opname == "IMPORT_NAME":
                parts.append(sys.modules.get(instruction.argval))
        return parts
    if callable(thing) or isinstance(thing, (classmethod, property)):
        parts = gc.get_referents(thing)
        return parts + gc.get_referents(*(part for part in parts if isinstance(part, (dict, tuple))))
    return []


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """Yield all instructions, including those of nested functions."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)


#: Rows of a, columns of a and columns of b; and the size at which the loops are compared with torch.
PRODUCTS, TIMED = ((3, 4, 2), (5, 1, 6), (1, 7, 1), (1, 1, 1), (4, 3, 8)), 48
#: Square matrices on which an answer is tried if it is wrong for other shapes.
SQUARE = (3, 3, 3)
ROUNDS = 5
#: At this size, Python loops are slower than torch even if torch has to convert lists in both directions.
LOOPS = 1.0


def measure_loops(answer: Any) -> Facts:
    matmul = as_function(answer, "matmul(a, b)")
    generator = random.Random(5)

    def matrices(rows: int, inner: int, columns: int) -> tuple[list[list[float]], list[list[float]]]:
        shapes = (rows, inner), (inner, columns)
        a, b = ([[generator.uniform(-1, 1) for _ in range(width)] for _ in range(height)] for height, width in shapes)
        return a, b

    def by_torch(a: Any, b: Any) -> Any:
        return (torch.tensor(a) @ torch.tensor(b)).tolist()

    def case_of(sizes: tuple[int, int, int]) -> Facts:
        given = matrices(*sizes)
        kept = copy.deepcopy(given)
        wanted, last = by_torch(*given), by_torch([row[-1:] for row in given[0]], given[1][-1:])
        try:
            returned = outcome(matmul, *given)
        except Hint as hint:
            return {"sizes": list(sizes), "wrong": f"raised {hint}", "changed": given != kept}
        wrong = _wrong_with(returned, wanted)
        if wrong == "numbers" and not _wrong_with(returned, last):
            wrong = "last"
        return {"sizes": list(sizes), "wrong": wrong, "changed": given != kept}

    cases = [case_of(sizes) for sizes in (*PRODUCTS, PRODUCTS[-1])]
    if any(case["wrong"] for case in cases):  # a wrong result is not timed
        return {"cases": cases, "square": not case_of(SQUARE)["wrong"]}
    inputs = [matrices(TIMED, TIMED, TIMED) for _ in range(ROUNDS + 1)]
    return {"cases": cases, "uses": libraries_used(matmul), "ratio": time_ratio(matmul, by_torch, inputs)}


def _wrong_with(returned: Any, wanted: list[list[float]]) -> str:
    """Describe in a word or two what is wrong with a product. The result is empty if the product is right."""
    rows, columns = len(wanted), len(wanted[0])
    if returned is None:
        return "nothing"
    if not isinstance(returned, Sequence) or not all(isinstance(row, Sequence) for row in returned):
        return f"type {type(returned).__name__}"
    if len(returned) != rows or any(len(row) != columns for row in returned):
        widths = sorted({len(row) for row in returned})
        return f"shape {len(returned)} x {' or '.join(map(str, widths))}"
    if len({id(row) for row in returned}) < rows:
        return "repeated"
    values = list(itertools.chain(*returned))
    if any(not isinstance(value, (int, float)) for value in values):
        return "values"
    near = all(abs(value - right) < 1e-4 for value, right in zip(values, itertools.chain(*wanted), strict=True))
    return "" if near else "numbers"


def judge_loops(facts: Facts) -> None:
    cases = all_there(facts["cases"], len(PRODUCTS) + 1)
    square_only = facts.get("square") and all(case["wrong"] for case in cases if len(set(case["sizes"])) > 1)
    for case in cases:
        rows, inner, columns = case["sizes"]
        what = f"The product of a {rows} x {inner} and a {inner} x {columns} matrix"
        kind, _, returned = case["wrong"].partition(" ")
        hint_if(kind == "nothing", "The function returns nothing yet.")
        hint_if(case["changed"], "The function changes its arguments.")
        if square_only:
            raise Hint(
                f"The product of two {SQUARE[0]} x {SQUARE[1]} matrices is right, but that of a {rows} x {inner} and a "
                f"{inner} x {columns} matrix is not. Which length does each loop need if they differ?"
            )
        words = {
            "raised": f"For a {rows} x {inner} and a {inner} x {columns} matrix: {returned}",
            "type": f"{what} must be a list of rows, each a list of numbers; you return a {returned}.",
            "shape": f"{what} has {rows} rows and {columns} columns; yours is {returned}.",
            "repeated": f"{what}: several rows of your result are the same list, so writing to one changes them all. "
            "`[[0] * columns] * rows` does that; make a new list for each row.",
            "values": f"{what} must hold plain numbers.",
            "last": f"{what}: each number is the last product of its sum alone. Are the products added up?",
            "numbers": f"{what} has the right shape but wrong numbers: which row meets which column?",
        }
        if kind:
            raise Hint(words[kind])
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


#: Ways to multiply matrices, from the slowest to the fastest.
RUNGS = ("loop", "row_product", "numpy", "torch")


def measure_ladder(answer: Any, ladder_ms: Any = None) -> Facts:
    try:
        times = as_fields(ladder_ms, **dict.fromkeys(RUNGS, float))
    except Hint:
        raise Hint("Pass the times as well: ladder_ms=ladder_ms, made by the cell above.") from None
    hint_if(min(times.values()) <= 0, "A time in ladder_ms is not above zero: run the cell that measures them again.")
    return {"said": as_fields(answer, **dict.fromkeys((*RUNGS[1:], "all_rungs"), float)), "ms": times}


def judge_ladder(facts: Facts) -> None:
    said, ms = facts["said"], all_there(facts["ms"], len(RUNGS))
    for before, rung in itertools.pairwise(RUNGS):
        gain = Number(said[rung], ms[before] / ms[rung], 0.03, f"{rung}:")
        gain.slip(ms[rung] / ms[before], "that is the share of the time that is left; how many times as fast is it?")
        gain.slip(ms["loop"] / ms[rung], "that compares it with the loop; compare it with the rung before.")
        gain.slip(ms[before] - ms[rung], "that is the difference in ms; how many times as fast is it?")
        gain.wrong(f"it is not the time of {before} divided by its own.")
    gains = [ms[before] / ms[rung] for before, rung in itertools.pairwise(RUNGS)]
    every = Number(said["all_rungs"], math.prod(gains), 0.03, "all_rungs:")
    every.slip(
        sum(gains), "gains of successive rungs do not add up. If two rungs are twice as fast each, how fast are both?"
    )
    every.slip(1 / math.prod(gains), "that is the share of the time that is left.")
    every.wrong("it is not the time of the first rung divided by that of the last.")


EXERCISES = (
    Exercise("3.1", "A linear layer", measure_linear, judge_linear),
    Exercise("3.2", "A convolution", measure_convolution, judge_convolution),
    Exercise("3.3", "A training step", measure_training, judge_training),
    Exercise("3.4", "Bytes", measure_bytes, judge_bytes),
    Exercise("3.5", "Under the roof", measure_least_time, judge_least_time),
    Exercise("3.6", "A hundred times smaller", measure_small, judge_small, timed=True),
    Exercise("3.7", "Loops of your own", measure_loops, judge_loops, timed=True),
    Exercise("3.8", "A ladder", measure_ladder, judge_ladder),
)
