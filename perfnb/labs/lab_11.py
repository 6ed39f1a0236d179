"""Checks for lab 11, *Compilers and kernels*.

The checks count graphs and bytes, or compare values. They do not read a clock.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from perfnb.labs.answers import as_fields, as_function, as_pair, outcome, result_of, tried
from perfnb.labs.exercise import Exercise, Facts, Hint
from perfnb.labs.judging import Number, Numbers, all_there, close, hint_if
from perfnb.labs.workloads import agree


def measure_prediction(answer: Any) -> Facts:
    return as_fields(answer, gain=float, compilations=float, memory=float)


def judge_prediction(facts: Facts) -> None:
    hint_if(facts["gain"] <= 0, "gain is a factor: 2.0 means twice as fast, and 1.0 means no difference.")
    hint_if(facts["gain"] > 1e4, f"gain: {facts['gain']:.3g} times as fast? Give a factor, not a time.")
    versions = facts["compilations"]
    hint_if(versions < 1 or versions != int(versions), "compilations is a count: a whole number, at least 1.")
    hint_if(versions > 1200, "compilations: torch cannot compile more often than it is called, which is 1,200 times.")
    hint_if(facts["memory"] < 1, "memory is a factor. Would a longer card need less memory?")


#: Milliseconds that layers take, and the layers that a compiler cannot make faster.
LAYERS: tuple[tuple[dict[str, float], tuple[str, ...]], ...] = (
    ({"up": 3.0, "act": 6.0, "down": 2.0, "norm": 1.0}, ("up", "down")),
    ({"stem": 0.5, "up": 4.0, "act": 1.5, "head": 2.0}, ("stem", "up", "head")),
    ({"up": 1.0, "act": 7.0}, ("up",)),
    ({"up": 2.5, "down": 3.5, "norm": 1.5}, ("up", "down")),
)


def measure_at_most(answer: Any) -> Facts:
    function = as_function(answer, "at_most(ms, kept)")
    cases = tried(
        lambda ms, kept: function(dict(ms), list(kept)), LAYERS, lambda ms, kept: sum(ms.values()) / _kept(ms, kept)
    )
    return {"cases": cases}


def _kept(ms: dict[str, float], kept: Sequence[str]) -> float:
    return sum(ms[name] for name in kept)


def judge_at_most(facts: Facts) -> None:
    every = Numbers(facts["cases"], len(LAYERS), 1e-6)

    def slip(value: Callable[[float, float], float], words: str) -> None:
        every.slip(lambda case: value(sum(case["sizes"][0].values()), _kept(*case["sizes"])), words)

    slip(lambda total, kept: kept / total, "That is the share that stays. How many times as fast is the whole?")
    slip(
        lambda total, kept: 1 - kept / total, "That is the share that can vanish. How many times as fast is the whole?"
    )
    slip(lambda total, kept: total - kept, "Those are the milliseconds that can vanish; give a factor.")
    slip(lambda total, kept: kept, "Those are the milliseconds that stay; how many times as long was the whole?")
    slip(
        lambda total, kept: total / (total - kept),
        "That keeps the wrong layers: it is the gain if the layers in `kept` took no time.",
    )
    every.slip(
        lambda case: len(case["sizes"][0]) / len(case["sizes"][1]),
        "That counts layers. Their times differ: add up milliseconds.",
    )
    every.slip(lambda case: round(case["wanted"]), "The answer is rounded. Return the exact quotient.")
    for case in facts["cases"]:
        ms, kept = case["sizes"]
        layers = ", ".join(f"{name} {each:g} ms" for name, each in ms.items())
        where = f"For {layers}, where {' and '.join(kept)} keep their times:"
        Number(case["said"], case["wanted"], 1e-6, where).wrong("", "how long is the step if the others take no time?")


class _Operators(TorchDispatchMode):
    """Count the operators that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class _Counted:
    """A torch.compile backend that generates no code but counts the graphs that run."""

    def __init__(self) -> None:
        self.ran = 0

    def __call__(self, graph: Any, _: Any) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            self.ran += 1
            return graph.forward(*given)

        return run


#: The Reader's cards, given by their numbers of images.
CARDS = (12, 30, 12, 17, 25, 40)
#: A forward with more operators than this loops over the numbers of a tensor. (Checked needs fewer than a hundred.)
#: Such a loop would take minutes to compile, so it is not compiled.
MANY_OPERATORS = 500


def measure_whole(answer: Any, checked: Any = None) -> Facts:
    if not (isinstance(answer, type) and issubclass(answer, nn.Module)):
        raise Hint("Give the class itself, Whole, without calling it.")
    if not (isinstance(checked, type) and issubclass(checked, nn.Module)):
        raise Hint("Pass the class with the check in it as well: checked=Checked.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        old: Any = checked().eval()
        new: Any = outcome(answer)
    outcome(new.load_state_dict, old.state_dict())
    new.eval()
    generator = torch.Generator().manual_seed(5)
    cards = [torch.rand(count, 64, generator=generator) for count in CARDS]
    with torch.no_grad():
        cases = [_whole_case(old, new, card) for card in cards]
        with _Operators() as operators:
            outcome(new, cards[0])
        broken = any(case["returned"] for case in cases) or operators.count > MANY_OPERATORS
        graphs = None if broken else _graphs(new, cards)
    return {"cases": cases, "operators": operators.count, "graphs": graphs}


def _whole_case(old: Any, new: Any, card: torch.Tensor) -> Facts:
    """Return the new Reader's results for a card, and the values that the old Reader has before its head."""
    before: list[torch.Tensor] = []
    handle = old.head.register_forward_pre_hook(lambda _, given: before.append(given[0]))
    scores = old(card)
    handle.remove()
    got = outcome(new, card)
    (x,) = before
    facts: Facts = {"returned": _not_a_pair(got)}
    if not facts["returned"]:
        facts |= {
            "same": agree(scores, got[0]),
            "said": float(got[1]),
            "wanted": float(x.abs().max()),
            "signed": float(x.max()),
            "mean": float(x.abs().mean()),
            "of_scores": float(scores.abs().max()),
        }
    return facts


def _not_a_pair(got: Any) -> str:
    """Explain why a result is not a pair of scores and a tensor with one number. The result is empty if it is."""
    if isinstance(got, torch.Tensor):
        return "a single tensor"
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        return "nothing" if got is None else f"a {type(got).__name__}"
    if not isinstance(got[0], torch.Tensor):
        return f"a {type(got[0]).__name__} instead of the scores"
    if not isinstance(got[1], torch.Tensor):
        return f"a {type(got[1]).__name__} instead of a tensor with the largest number"
    return "" if got[1].numel() == 1 else f"{got[1].numel()} numbers instead of the largest one"


def _graphs(model: Any, cards: Sequence[torch.Tensor]) -> int:
    """Return the number of graphs that run per card when the model is compiled."""
    torch.compiler.reset()
    counted = _Counted()
    try:
        compiled = torch.compile(model, backend=counted, dynamic=True)
        for card in cards:
            counted.ran = 0
            outcome(compiled, card)
    finally:
        torch.compiler.reset()
    return counted.ran


def judge_whole(facts: Facts) -> None:
    cases = all_there(facts["cases"], len(CARDS))
    for case in cases:
        if not case["returned"]:
            continue
        hint_if(case["returned"] == "nothing", "forward returns nothing yet.")
        read = "Converting a tensor to a Python number has to wait for its value, which breaks the graph. " * (
            case["returned"].startswith(("a float", "a int", "a bool"))
        )
        raise Hint(f"forward returns {case['returned']}. {read}Return two tensors: scores, largest.")
    hint_if(not all(case["same"] for case in cases), "The scores differ from those of Checked with the same weights.")
    every = Numbers(cases, len(CARDS), 1e-4)
    every.slip(
        lambda case: case["signed"], "largest misses negative numbers: -20,000 is an explosion, too. Checked finds it."
    )
    every.slip(lambda case: case["mean"], "largest is a mean: one exploding number disappears in it.")
    every.slip(lambda case: case["of_scores"], "largest is the largest score. Checked looks at x, before the head.")
    hint_if(not every.right, "largest is not the largest absolute number of x before the head.")
    operators = facts["operators"]
    hint_if(
        operators > MANY_OPERATORS,
        f"The results are right, but forward runs {operators:,.0f} operators, because it goes through the numbers one "
        "by one, as Python's max() does. Use a method of the tensor instead, which is a single operator.",
    )
    graphs = facts["graphs"]
    hint_if(graphs == 0, "torch compiles none of it. Is something disabled, or is there an exception inside?")
    if graphs != 1:
        raise Hint(
            f"The results are right, but torch splits it into {graphs:g} graphs. A line in forward still needs a "
            "number while the graph runs. Look for an `if`, float(), bool(), print() or .item() on a tensor."
        )


#: Maximum number of versions of a function that torch compiles before it gives up.
LIMIT = 8
#: Lengths of cards, in the order of arrival.
LENGTHS: tuple[tuple[int, ...], ...] = (
    (100, 100, 100),
    (100, 120, 100, 120, 100),
    (97, 105, 99, 105, 128, 97, 101),
    (90, 91, 92, 93, 94, 95, 96, 97, 98, 99, 100, 101, 90),
    (128, 127, 128, 126, 125, 124, 123, 122, 121, 128),
    (112, 112, 97, 97, 120),
)


def versions(lengths: Sequence[int], dynamic: bool | None) -> int:
    """Return how many versions of a function `torch.compile` makes for a sequence of cards with these lengths."""
    different = len(set(lengths))
    return min(different, LIMIT) if dynamic is False else 1 if dynamic else min(different, 2)


def measure_versions(answer: Any) -> Facts:
    function = as_function(answer, "compilations(lengths, dynamic)")
    every = [(list(lengths), dynamic) for dynamic in (False, None, True) for lengths in LENGTHS]
    return {"cases": tried(lambda lengths, dynamic: function(list(lengths), dynamic), every, versions)}


def judge_versions(facts: Facts) -> None:
    cases = all_there(facts["cases"], 3 * len(LENGTHS))
    fixed, unset, free = (
        Numbers(cases[start * len(LENGTHS) :][: len(LENGTHS)], len(LENGTHS), 1e-9) for start in range(3)
    )
    for each, name in ((fixed, "False"), (unset, "None"), (free, "True")):
        each.slip(
            lambda case: 2 * case["wanted"],
            f"dynamic={name}: you count two per version. Count versions, not graphs; without a break, each has one.",
        )
    fixed.slip(lambda case: len(case["sizes"][0]), "dynamic=False: you count cards. A second card of a length is free.")
    fixed.slip(_different, f"dynamic=False: you count all lengths, but torch gives up after {LIMIT} versions.")
    fixed.slip(lambda case: min(_different(case), LIMIT + 1), f"dynamic=False: it is one more than the limit, {LIMIT}.")
    fixed.slip(lambda case: min(_different(case), LIMIT - 1), f"dynamic=False: it is one less than the limit, {LIMIT}.")
    changes = "dynamic=False: you count changes of length, but torch keeps the versions that it already has."
    fixed.slip(_changes, changes)
    fixed.slip(lambda case: 1 + _changes(case), changes)
    fixed.slip(lambda case: min(1 + _changes(case), LIMIT), changes)
    fixed.slip(lambda case: min(_different(case), 2), "dynamic=False: that is the number for dynamic=None.")
    for each, name in ((unset, "None"), (free, "True")):
        each.slip(lambda case: min(_different(case), LIMIT), f"dynamic={name}: that is the number for dynamic=False.")
        each.slip(_different, f"dynamic={name}: not every length gets its own version.")
    unset.slip(lambda case: 1, "dynamic=None: the first version is for one length only.")
    unset.slip(lambda case: 2, "dynamic=None: if all cards have one length, is there a second version?")
    unset.slip(
        lambda case: 1 if case["sizes"][0][0] == case["sizes"][0][1] else 2,
        "dynamic=None: you only compare the first two cards. The second length may also come with a later one.",
    )
    unset.slip(
        lambda case: 1 if case["sizes"][0][0] == case["sizes"][0][-1] else 2,
        "dynamic=None: you only compare the first card with the last. What if the second length comes in between?",
    )
    free.slip(lambda case: min(_different(case), 2), "dynamic=True: torch does not need to wait for a second length.")
    for case in cases:
        lengths, dynamic = case["sizes"]
        name = "None" if dynamic is None else str(bool(dynamic))
        where = f"For cards of {', '.join(f'{length:g}' for length in lengths)} images and dynamic={name}:"
        hint_if(not close(case["said"], case["wanted"], 1e-9), f"{where} {case['said']:g} is not right.")


def _different(case: Facts) -> float:
    return len(set(case["sizes"][0]))


def _changes(case: Facts) -> float:
    lengths = case["sizes"][0]
    return float(sum(one != other for one, other in itertools.pairwise(lengths)))


#: Numbers of elements in a tensor, and the number of tensors that the activation moves as nine operators and as one
#: kernel.
COUNTS, NINE, ONE = (1000, 524_288, 77), 22, 2


def measure_moved(answer: Any) -> Facts:
    function = as_function(answer, "moved_bytes(n)")
    cases = []
    for count in COUNTS:
        eager, fused = as_pair(outcome(function, count), "the bytes of nine operators, and the bytes of one kernel")
        cases.append({"count": count, "eager": eager, "fused": fused})
    return {"cases": cases}


def judge_moved(facts: Facts) -> None:
    cases = all_there(facts["cases"], len(COUNTS))
    eager, fused = (
        Numbers(
            [case | {"said": case[name], "wanted": 4 * tensors * case["count"]} for case in cases], len(COUNTS), 1e-9
        )
        for name, tensors in (("eager", NINE), ("fused", ONE))
    )

    def slip(which: Numbers, tensors: float, words: str) -> None:
        which.slip(lambda case: 4 * tensors * case["count"], words)

    if not (eager.right or fused.right):
        slip(eager, ONE, "The first number should be for the nine operators, and the second for one kernel.")
    slip(eager, NINE / 4, "Nine operators: you count numbers. A float32 has 4 bytes.")
    slip(eager, NINE / 2, "Nine operators: a float32 has 4 bytes, not 2.")
    slip(eager, 9, "Nine operators: each one writes a tensor, but what does it read?")
    slip(eager, 13, "Nine operators: you count what they read. Each one also writes a tensor.")
    slip(eager, 18, "Nine operators: you let each one read a single tensor. A product of two tensors reads both.")
    slip(eager, 27, "Nine operators: you let each one read two tensors. 0.5 * x reads only one: 0.5 is no tensor.")
    every = (10, 14, 15, 16, 17, 19, 20, 21, 23, 24, 25, 26)
    for tensors in every:
        slip(eager, tensors, f"Nine operators: you count {tensors} tensors. Write down one line per operator.")
    hint_if(not eager.right, "Nine operators: for each of them, count the tensors that it reads and the one it writes.")
    slip(fused, ONE / 4, "One kernel: you count numbers. A float32 has 4 bytes.")
    slip(fused, 1, "One kernel: it reads one tensor and writes one.")
    slip(fused, 6, "One kernel: it reads x once. Then the number is in a register, and using it again moves nothing.")
    slip(fused, NINE, "One kernel: the intermediate results stay in registers and never reach memory.")
    hint_if(not fused.right, "One kernel: what must it read from memory, and what must be in memory at the end?")


#: Numbers of cards, heads and images per card, and the width of a head.
ATTENTIONS = ((4, 4, 64, 32), (4, 4, 1024, 32), (1, 8, 100, 16), (3, 2, 40, 64))


def _squares(cards: float, heads: float, length: float) -> float:
    return 4 * cards * heads * length * length


def plain_bytes(cards: int, heads: int, length: int, width: int) -> int:
    """Return the peak memory of attention in plain operators, which is two squares of scores and the output."""
    return 4 * cards * heads * length * (2 * length + width)


def measure_attention_bytes(answer: Any) -> Facts:
    function = as_function(answer, "plain_bytes(cards, heads, length, width)")
    return {"cases": tried(function, ATTENTIONS, plain_bytes)}


def judge_attention_bytes(facts: Facts) -> None:
    every = Numbers(facts["cases"], len(ATTENTIONS), 1e-9)

    def slip(squares: float, outputs: float, words: str) -> None:
        every.slip(lambda case: squares * _squares(*case["sizes"][:3]) + outputs * 4 * math.prod(case["sizes"]), words)

    slip(1, 0, "That is one square of scores. While softmax runs, how many are there?")
    slip(1, 1, "That is one square of scores and the output. `scores` is still there when the last product runs.")
    slip(2, 0, "The output is missing: it is allocated while both squares are still there.")
    slip(3, 0, "There are never three squares: a tensor is freed when no name refers to it. And where is the output?")
    slip(3, 1, "There are never three squares: the one before masked_fill is freed when `scores` gets the new one.")
    slip(4, 1, "That adds up all squares that ever existed. Which of them exist at the same time?")
    slip(2, 4, "That counts q, k and v as well, which existed before.")
    slip(0, 1, "That is the output alone. How large is q @ k.transpose(-2, -1)?")
    every.slip(lambda case: case["wanted"] / 4, "Those are numbers. How many bytes does a float32 have?")
    every.slip(lambda case: 8 * case["wanted"], "It looks like bits.")
    every.slip(lambda case: case["wanted"] / case["sizes"][1], "That is for one head. Each head has its own scores.")
    every.slip(lambda case: case["wanted"] / case["sizes"][0], "That is for one card. Each card has its own scores.")
    for case in facts["cases"]:
        cards, heads, length, width = case["sizes"]
        where = f"cards={cards:g}, heads={heads:g}, length={length:g}, width={width:g}:"
        Number(case["said"], case["wanted"], 1e-9, where).wrong(
            f"{case['said']:,.0f} bytes is not right.", "Go through plain line by line: which tensors exist after each?"
        )


#: Numbers of cards, heads and images per card, and the width of a head.
SHAPES = ((2, 4, 50, 32), (3, 2, 33, 16))


class _Squares(TorchDispatchMode):
    """Find the tensors made by operators that have a number for each pair of images.

    Attributes
    ----------
    count : int
        The number of these tensors. A view that only repeats numbers does not count.
    largest : int
        The number of elements in the largest one.
    """

    def __init__(self, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count, self.largest, self._length = 0, 0, length

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        for each in returned if isinstance(returned, (tuple, list)) else (returned,):
            if isinstance(each, torch.Tensor) and self._is_square(each):
                self.count, self.largest = self.count + 1, max(self.largest, each.numel())
        return returned

    def _is_square(self, tensor: torch.Tensor) -> bool:
        size = self._length**2
        stored = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor.shape[-2:] == (self._length, self._length) and stored >= size


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blank: torch.Tensor | None, scale: float) -> Any:
    """Compute attention with plain operators. `blank` marks the images that no other image looks at."""
    scores = q @ k.transpose(-2, -1) * scale
    if blank is not None:
        scores = scores.masked_fill(blank[:, None, None, :], -math.inf)
    return scores.softmax(-1) @ v


def measure_swapped(answer: Any) -> Facts:
    function = as_function(answer, "attention(q, k, v, blank)")
    generator = torch.Generator().manual_seed(7)
    cases = []
    for shape in SHAPES:
        q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
        blank = torch.rand(shape[0], shape[2], generator=generator) < 0.3
        blank[:, :2] = torch.tensor([False, True])
        scale = shape[3] ** -0.5
        with torch.no_grad(), _Squares(shape[2]) as squares:
            got = _attended(function, q.clone(), k.clone(), v.clone(), blank.clone())
        slips = {
            "right": attention(q, k, v, blank, scale),
            "inverted": attention(q, k, v, ~blank, scale),
            "unmasked": attention(q, k, v, None, scale),
            "unscaled": attention(q, k, v, blank, 1.0),
            "scaled twice": attention(q, k, v, blank, scale**2),
            "added": (q @ k.transpose(-2, -1) * scale + blank[:, None, None, :].float()).softmax(-1) @ v,
        }
        like = [name for name, one in slips.items() if isinstance(got, torch.Tensor) and agree(one, got)]
        shown = list(got.shape) if isinstance(got, torch.Tensor) else type(got).__name__
        cases.append(
            {
                "shape": list(shape),
                "got": shown,
                "like": like,
                "squares": squares.count,
                "scores": squares.largest >= math.prod(shape[:3]) * shape[2],
            }
        )
    return {"cases": cases}


def _attended(function: Callable[..., Any], q: Any, k: Any, v: Any, blank: Any) -> Any:
    """Call the function that the reader wrote. If its mask has a wrong shape, the hint describes the right one."""
    try:
        return outcome(function, q, k, v, blank)
    except Hint as hint:
        if not isinstance(hint.__cause__, RuntimeError) or not re.search("must match|broadcast|expand", str(hint)):
            raise
        raise Hint(
            f"{str(hint).rstrip('.')}. Does the mask have the wrong shape? It must fit scores of cards x heads x "
            "images x images, where `blank` has only cards x images. See how plain adds the two missing dimensions."
        ) from hint


#: Hints for the mistakes that can be recognised from the result of `attention`.
SWAPS = {
    "inverted": "It looks at exactly the blank boxes. In attn_mask, True means that an image *may* be looked at.",
    "unmasked": "The blank boxes are looked at: `blank` has no effect.",
    "unscaled": "The scores are not divided by the root of the width; by default, the function does that itself.",
    "scaled twice": "The scores are scaled twice: the function divides by the root of the width itself.",
    "added": "The mask is added to the scores, because it consists of numbers. Give it as True and False.",
}


def judge_swapped(facts: Facts) -> None:
    cases = all_there(facts["cases"], len(SHAPES))
    for case in cases:
        hint_if(case["got"] == "NoneType", "Your function returns nothing yet.")
        if case["got"] != case["shape"]:
            got = case["got"] if isinstance(case["got"], str) else "shape " + " x ".join(map(str, case["got"]))
            raise Hint(f"Your function returns a {got}, not a tensor of {' x '.join(map(str, case['shape']))}.")
    if not all("right" in case["like"] for case in cases):
        for name, words in SWAPS.items():
            hint_if(all(name in case["like"] for case in cases), words)
        raise Hint("The output differs from that of plain. Does each image look at all images that are not blank?")
    if any(case["squares"] != 0 for case in cases):
        hint_if(
            not any(case["scores"] for case in cases),
            "The output is right, but a tensor of your code has a number for each pair of images, so it grows with the "
            "square as well. Is it the mask? One row per card is enough: cards x 1 x 1 x images.",
        )
        raise Hint(
            "The output is right, but your code makes tensors with a number for each pair of images on the way. Use "
            "nn.functional.scaled_dot_product_attention instead."
        )


class _HalfGradient(torch.autograd.Function):
    """Return the input unchanged, but round the gradient to float16, as layers of a float16 model do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].half().float()


class _Loss(NamedTuple):
    """A loss, whose gradient is `outer` times `inner` for each of three weights.

    `outer` is rounded to float16 on its way back, after it has been multiplied by `size` and by the scale.
    """

    size: float
    scale: float
    outer: tuple[float, ...] = (0.5, 1.0, -1.5)
    inner: tuple[float, ...] = (1.0, 1.0, 1.0)


#: The losses, by case. In the last three, gradients overflow: all of them, only the second one (-inf), or only the last
#: one, which becomes 0 times infinity, so it is not a number. The first two belong to one tensor of weights.
LOSSES = {
    "small": _Loss(1e-8, 2.0**16),
    "usual": _Loss(1.0, 2.0**8),
    "too large": _Loss(1.0, 2.0**30),
    "infinite": _Loss(1.0, 2.0**8, outer=(0.5, -1000.0, 1.0)),
    "not a number": _Loss(1.0, 2.0**8, outer=(0.5, 1.0, 1000.0), inner=(1.0, 1.0, 0.0)),
}
LEARNING_RATE = 0.5


def measure_scaled(answer: Any) -> Facts:
    function = as_function(answer, "scaled_step(loss_of, optimizer, scale)")
    return {"cases": {name: _scaled_case(function, loss) for name, loss in LOSSES.items()}}


def _scaled_case(function: Callable[..., Any], loss: _Loss) -> Facts:
    weights = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))]
    optimizer = torch.optim.SGD(weights, LEARNING_RATE / loss.size)
    for weight in weights:
        weight.grad = torch.full_like(weight, 3.0 * loss.size)  # left over from an earlier step

    def loss_of() -> torch.Tensor:
        halved: torch.Tensor = _HalfGradient.apply(torch.cat([*weights]) * torch.tensor(loss.inner))  # type: ignore[no-untyped-call]
        computed: torch.Tensor = (halved * torch.tensor(loss.outer)).sum() * loss.size
        return computed

    before = torch.cat([*weights]).detach().clone()
    returned = outcome(function, loss_of, optimizer, loss.scale)
    change = (torch.cat([*weights]).detach() - before).double() / LEARNING_RATE
    left = [0.0 if weight.grad is None else float(weight.grad[0]) / loss.size for weight in weights]
    return {
        "returned": bool(returned) if isinstance(returned, bool) or _is_flag(returned) else type(returned).__name__,
        "finite": bool(change.isfinite().all()),
        "change": [float(each) if math.isfinite(each) else None for each in change],
        "gradient": [outer * inner for outer, inner in zip(loss.outer, loss.inner, strict=True)],
        "left": left[0] if math.isfinite(left[0]) else None,
        "rate": optimizer.param_groups[0]["lr"] * loss.size / LEARNING_RATE,
        "scale": loss.scale,
    }


def _is_flag(returned: Any) -> bool:
    """Check whether a result is a single boolean from torch or numpy."""
    try:
        return str(returned.dtype) in ("torch.bool", "bool") and returned.numel() == 1
    except Exception:
        return str(getattr(returned, "dtype", "")) == "bool" and getattr(returned, "size", 0) == 1


def judge_scaled(facts: Facts) -> None:
    cases = all_there(facts["cases"], len(LOSSES))
    small, usual, large, infinite, undefined = (cases[name] for name in LOSSES)
    for case in (usual, small):
        factor = [-(change or 0.0) / gradient for change, gradient in zip(*_both(case), strict=True)]
        _judge_factor(case, factor, usual["returned"])
    hint_if(
        not all(close(case["rate"], 1.0, 1e-6) for case in (usual, small)),
        "This step is right, but the learning rate stays changed, so the next one will be wrong. Divide the gradients "
        "instead.",
    )
    hint_if(
        _moved(large),
        f"With a scale of {large['scale']:.0f}, gradients overflow to infinity, but the step was taken anyway and "
        "the weights are lost. Skip such a step.",
    )
    for case, which, number in ((infinite, "first", "-inf"), (undefined, "last", "nan")):
        hint_if(
            _moved(case),
            f"The step was taken although the gradient of the {which} weight contains {number}. Look at the gradients "
            "of all weights, for inf, -inf and nan.",
        )
    for name, case in cases.items():
        if isinstance(case["returned"], str):
            raise Hint(f"The steps are right, but your function returns a {case['returned']}, not True or False.")
        if case["returned"] != (name in ("small", "usual")):
            raise Hint("The steps are right. Return True if a step was taken, and False if it was skipped.")


def _moved(case: Facts) -> bool:
    return not case["finite"] or any(change != 0 for change in all_there(case["change"], 3))


def _both(case: Facts) -> tuple[list[Any], list[float]]:
    return all_there(case["change"], 3), all_there(case["gradient"], 3)


def _judge_factor(case: Facts, factor: Sequence[float], returned: Any) -> None:
    """Raise a `Hint` unless each weight moved by its gradient, apart from rounding in float16."""
    scale = case["scale"]

    def all_are(wanted: float) -> bool:
        return all(close(each, wanted, 0.01) for each in factor)

    if all_are(1.0):
        return
    if all(each == 0 for each in factor):
        nothing = returned == "NoneType"
        raise Hint(
            "Your function does nothing yet."
            if nothing
            else "The weights did not move: small gradients became 0 in float16 on their way back. What must be large "
            "*before* the backward pass?"
        )
    hint_if(
        all_are(scale) and case["left"] is not None and close(case["left"], case["gradient"][0], 0.01),
        f"The weights moved {scale:.0f} times too far: you divide the gradients only after optimizer.step().",
    )
    hint_if(
        close(factor[0], 1.0, 0.01) and close(factor[-1], scale, 0.01),
        "Only some of the weights moved correctly: divide the gradient of every weight by the scale.",
    )
    hint_if(all_are(scale), f"The weights moved {scale:.0f} times too far: divide the gradients by the scale again.")
    hint_if(all_are(1 / scale), "The weights hardly moved: the gradients were divided by the scale, but never scaled.")
    hint_if(all_are(1 / scale**2), "The gradients were divided by the scale twice; and was the loss multiplied?")
    hint_if(all_are(scale**2), "The gradients were multiplied by the scale twice.")
    hint_if(all_are(-1.0), "The weights moved uphill.")
    hint_if(all_are(2.0), "The weights moved twice as far as they should: is there one step or two?")
    if all(close(each - 1.0, 3.0 / gradient, 0.02) or close(each - 1.0, 3.0 / gradient / scale, 0.02)
           for each, gradient in zip(factor, case["gradient"], strict=True)):  # fmt: skip
        raise Hint("The gradients of an earlier step are still there: begin with optimizer.zero_grad().")
    raise Hint("The weights did not move as they would in float32. Is your order scale, backward, divide, step?")


#: Milliseconds that stay serial, that can be divided, and that each additional thread costs; and the number of cores.
WORK = (
    (1.0, 8.0, 0.55, 8),
    (0.2, 0.3, 0.5, 4),
    (0.0, 9.0, 1.0, 2),
    (5.0, 30.0, 0.35, 16),
    (2.0, 4.0, 0.3, 3),
    (0.0, 6.1, 1.0, 8),
)
#: Threads that cost nothing. A formula that divides by the cost fails here.
FREE = (1.0, 4.0, 0.0, 6)


def _ms(serial: float, divisible: float, start: float, threads: float) -> float:
    return serial + divisible / threads + start * (threads - 1)


def best_threads(serial: float, divisible: float, start: float, cores: int) -> int:
    """Return the number of threads with the shortest time, using at most one thread per core."""
    return min(range(1, int(cores) + 1), key=lambda threads: _ms(serial, divisible, start, threads))


def _shortest_ms(serial: float, divisible: float, start: float, cores: int) -> float:
    return _ms(serial, divisible, start, best_threads(serial, divisible, start, cores))


def measure_threads(answer: Any) -> Facts:
    function = as_function(answer, "best_threads(serial_ms, divisible_ms, start_ms, cores)")
    cases = tried(function, WORK, best_threads)
    try:
        free: float | None = result_of(function, *FREE)
    except Hint as hint:
        if not isinstance(hint.__cause__, ZeroDivisionError):
            raise
        free = None
    return {"cases": cases, "free": free}


def judge_threads(facts: Facts) -> None:
    every = Numbers(facts["cases"], len(WORK), 1e-9)
    every.slip(lambda case: case["sizes"][3], "That is always all cores. Starting a thread costs time, too.")
    every.slip(lambda case: 1, "That is always one thread.")
    every.slip(
        lambda case: _shortest_ms(*case["sizes"]),
        "That is the shortest time. How many threads reach it?",
    )
    every.slip(
        lambda case: best_threads(*[*case["sizes"][:3], 1000]), "More threads than cores take turns: see `cores`."
    )
    root = "The root of divisible / start is a good estimate, but it is not a whole number from 1 to `cores`."
    every.slip(lambda case: _root(*case["sizes"]), root)
    every.slip(lambda case: _within(_root(*case["sizes"]), case), root)
    words = "The root is rounded to a whole number, but the other one next to it can be faster. Compare their times."
    for how in (round, math.floor, math.ceil):
        every.slip(partial(_rounded, how), words)
        every.slip(partial(_rounded_within, how), words)
    every.slip(lambda case: best_threads(*case["sizes"]) - 1, "Is that a place in a list? The first thread is 1.")
    for case in facts["cases"]:
        serial, divisible, start, cores = case["sizes"]
        where = f"For {serial:g} + {divisible:g} / threads + {start:g} * (threads - 1) ms and {cores:g} cores:"
        hint_if(
            not close(case["said"], case["wanted"], 1e-9), f"{where} a number other than {case['said']:g} is faster."
        )
    hint_if(facts["free"] is None, "Your function divides by start_ms, which is 0 if threads cost nothing to start.")
    hint_if(facts["free"] != FREE[3], f"If starting a thread costs nothing, {FREE[3]} cores need {FREE[3]} threads.")


def _root(serial: float, divisible: float, start: float, cores: int) -> float:
    return math.sqrt(divisible / start)


def _rounded(how: Callable[[float], int], case: Facts) -> float:
    return how(_root(*case["sizes"]))


def _rounded_within(how: Callable[[float], int], case: Facts) -> float:
    return _within(_rounded(how, case), case)


def _within(threads: float, case: Facts) -> float:
    return min(float(case["sizes"][3]), max(1.0, threads))


EXERCISES = (
    Exercise("11.1", "A prediction", measure_prediction, judge_prediction, accepted="noted"),
    Exercise("11.2", "What a compiler can save", measure_at_most, judge_at_most),
    Exercise("11.3", "A graph that breaks", measure_whole, judge_whole),
    Exercise("11.4", "Other lengths, other code", measure_versions, judge_versions),
    Exercise("11.5", "Nine operators, one kernel", measure_moved, judge_moved),
    Exercise("11.6", "The memory of attention", measure_attention_bytes, judge_attention_bytes),
    Exercise("11.7", "Attention in one kernel", measure_swapped, judge_swapped),
    Exercise("11.8", "Gradients that vanish", measure_scaled, judge_scaled),
    Exercise("11.9", "Threads", measure_threads, judge_threads),
)
