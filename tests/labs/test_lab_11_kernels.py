"""Lab 11, kernels: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import perfnb
from perfnb.labs import lab_11
from perfnb.labs.exercise import Hint
from tests.labs.judging import expect, hint
from tests.labs.lab_11_answers import cell_with, models


def moved(n: int) -> tuple[int, int]:
    return 88 * n, 8 * n


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (moved, ""),
        (lambda n: moved(n)[::-1], "The first number should be for the nine"),
        (lambda n: (22 * n, 8 * n), "you count numbers"),
        (lambda n: (44 * n, 8 * n), "not 2"),
        (lambda n: (36 * n, 8 * n), "what does it read"),
        (lambda n: (52 * n, 8 * n), "also writes a tensor"),
        (lambda n: (72 * n, 8 * n), "reads both"),
        (lambda n: (108 * n, 8 * n), "0.5 is no tensor"),
        (lambda n: (84 * n, 8 * n), "you count 21 tensors"),
        (lambda n: (1000 * n, 8 * n), "the one it writes"),
        (lambda n: (8 * n, 8 * n), "for each of them, count the tensors"),
        (lambda n: (88 * n, 2 * n), "One kernel: you count numbers"),
        (lambda n: (88 * n, 4 * n), "one tensor and writes one"),
        (lambda n: (88 * n, 24 * n), "it reads x once"),
        (lambda n: (88 * n, 88 * n), "never reach memory"),
        (lambda n: (88 * n, 12 * n), "what must it read"),
    ],
)
def test_nine_operators_one_kernel(answer: Callable[..., Any], words: str) -> None:
    expect("11.5", words, answer)


def test_a_wrong_count_of_tensors_is_named() -> None:
    for tensors in (10, 14, 15, 16, 17, 19, 20, 21, 23, 24, 25, 26):
        assert f"you count {tensors} tensors" in hint("11.5", lambda n, each=tensors: (4 * each * n, 8 * n))


class Moved(TorchDispatchMode):
    """Adds up the bytes of the tensors that each operator reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        every = [each for each in (*args, returned) if isinstance(each, torch.Tensor) and each.ndim]
        self.bytes += sum(each.numel() * each.element_size() for each in every)
        self.operators += 1
        return returned


def test_the_activation_moves_that_many_bytes() -> None:
    act, x = models()["TanhGELU"](), torch.rand(1000)
    with torch.no_grad(), Moved() as counted:
        act(x)

    assert counted.operators == 9
    assert counted.bytes == moved(1000)[0] == 4 * lab_11.NINE * 1000


def peak(cards: int, heads: int, length: int, width: int) -> int:
    return 2 * square(cards, heads, length) + 4 * cards * heads * length * width


def square(cards: int, heads: int, length: int) -> int:
    return 4 * cards * heads * length**2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (peak, ""),
        (lambda c, h, n, d: square(c, h, n), "how many are there"),
        (lambda c, h, n, d: peak(c, h, n, d) - square(c, h, n), "`scores` is still there"),
        (lambda c, h, n, d: 2 * square(c, h, n), "The output is missing"),
        (lambda c, h, n, d: 3 * square(c, h, n), "where is the output"),
        (lambda c, h, n, d: peak(c, h, n, d) + square(c, h, n), "the one before masked_fill is freed"),
        (lambda c, h, n, d: peak(c, h, n, d) + 2 * square(c, h, n), "at the same time"),
        (lambda c, h, n, d: peak(c, h, n, d) + 12 * c * h * n * d, "q, k and v as well"),
        (lambda c, h, n, d: 4 * c * h * n * d, "the output alone"),
        (lambda *sizes: peak(*sizes) / 4, "How many bytes"),
        (lambda *sizes: 8 * peak(*sizes), "looks like bits"),
        (lambda c, h, n, d: peak(c, 1, n, d), "one head"),
        (lambda c, h, n, d: peak(1, h, n, d), "one card"),
        (lambda *sizes: 1.5 * peak(*sizes), "bytes is not right. Go through plain"),
    ],
)
def test_the_memory_of_attention(answer: Callable[..., Any], words: str) -> None:
    expect("11.6", words, answer)


def notebook() -> dict[str, Any]:
    names: dict[str, Any] = {"torch": torch, "nn": nn, "math": math}
    exec(cell_with("def plain(q"), names)
    exec(cell_with("def inputs(").partition("@torch.inference_mode")[0], names)
    return names


@pytest.mark.slow
def test_perfnb_measures_these_bytes() -> None:
    names, length = notebook(), 64
    given = names["inputs"](length)

    @torch.inference_mode()
    def step() -> None:
        names["plain"](*given)

    memory = perfnb.profile_step(step, warmup=1, steps=1, traced=1).memory["total"]
    assert memory.max() - memory.iloc[0] == peak(4, 4, length, 32)


def sdpa(q: Any, k: Any, v: Any, mask: Any, **more: Any) -> Any:
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **more)


def visible(blank: Any) -> Any:
    return ~blank[:, None, None, :]


def plain(q: Any, k: Any, v: Any, blank: Any) -> Any:
    return lab_11.attention(q, k, v, blank, q.shape[-1] ** -0.5)


def wide(blank: Any) -> Any:
    """The blanks with a row for every image, as a view."""
    return blank[:, None, None, :].expand(-1, 1, blank.shape[1], -1)


def one_by_one(q: Any, k: Any, v: Any, blank: Any) -> Any:
    """One card and head after the other, so each square is small."""
    each = [
        [plain(*(x[c, h][None, None] for x in (q, k, v)), blank[c][None]) for h in range(q.shape[1])]
        for c in range(q.shape[0])
    ]
    return torch.cat([torch.cat(row, 1) for row in each])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda q, k, v, blank: sdpa(q, k, v, visible(blank)), ""),
        (lambda q, k, v, blank: sdpa(q, k, v, ~blank.unsqueeze(1).unsqueeze(1)), ""),
        (lambda q, k, v, blank: sdpa(q, k, v, visible(blank).expand(-1, q.shape[1], -1, -1)), ""),
        (lambda q, k, v, blank: sdpa(q, k, v, torch.where(blank, -math.inf, 0.0)[:, None, None]), ""),
        (lambda q, k, v, blank: sdpa(q, k, v, visible(blank), scale=q.shape[-1] ** -0.5), ""),
        (lambda q, k, v, blank: sdpa(q, k, v, blank[:, None, None, :]), "at exactly the blank boxes"),
        (lambda q, k, v, blank: sdpa(q, k, v, None), "`blank` has no effect"),
        (lambda q, k, v, blank: sdpa(q, k, v, visible(blank), scale=1.0), "not divided by the root"),
        (lambda q, k, v, blank: sdpa(q / q.shape[-1] ** 0.5, k, v, visible(blank)), "scaled twice"),
        (lambda q, k, v, blank: sdpa(q, k, v, blank[:, None, None, :].float()), "The mask is added"),
        (lambda q, k, v, blank: sdpa(q, k, v, None, is_causal=True), "The output differs"),
        (lambda q, k, v, blank: sdpa(q, k, v, ~blank[:, None, :, None]), "The output differs"),
        (lambda q, k, v, blank: sdpa(q, k, v, ~blank), "how plain adds the two missing dimensions"),
        (plain, "Use nn.functional"),
        (lambda q, k, v, blank: sdpa(q, k, v, ~wide(blank)), "Is it the mask?"),
        (lambda q, k, v, blank: sdpa(q, k, v, ~wide(blank).expand(-1, q.shape[1], -1, -1)), "pair of images"),
        (
            lambda q, k, v, blank: sdpa(
                q, k, v, torch.zeros(wide(blank).shape).masked_fill(blank[:, None, None], -math.inf)
            ),
            "Is it the mask?",
        ),
        (lambda q, k, v, blank: [] + q[9], "raised IndexError"),
        (one_by_one, "pair of images"),
        (lambda q, k, v, blank: sdpa(q, k, v, visible(blank)).transpose(1, 2), "returns a shape 2 x 50 x 4 x 32"),
        (lambda q, k, v, blank: 3.0, "returns a float"),
        (lambda q, k, v, blank: None, "returns nothing yet"),
    ],
)
def test_attention_in_one_kernel(answer: Callable[..., Any], words: str) -> None:
    expect("11.7", words, answer)


def test_the_check_wants_what_the_lab_s_attention_computes() -> None:
    names = notebook()
    given = names["inputs"](40)

    torch.testing.assert_close(names["plain"](*given), plain(*given))
    assert "each pair of images" in hint("11.7", names["plain"])


def test_only_a_mask_of_a_wrong_shape_is_explained() -> None:
    def failing(error: Exception) -> Callable[..., Any]:
        def attention(*_: Any) -> None:
            raise error

        return attention

    for error, explained in (
        (RuntimeError("sizes must match"), True),
        (RuntimeError("out of memory"), False),
        (ValueError("sizes must match"), False),
    ):
        with pytest.raises(Hint) as raised:
            lab_11._attended(failing(error), 1, 2, 3, 4)
        assert ("Does the mask have the wrong shape?" in str(raised.value)) is explained


@pytest.mark.parametrize(
    ("returned", "flag"),
    [
        (torch.tensor(True), True),
        (torch.tensor([True, False]), False),
        (torch.tensor(1.0), False),
        (np.bool_(False), True),
        (np.array([True, False]), False),
        (np.float64(1.0), False),
        (1.0, False),
    ],
)
def test_a_flag_is_a_single_boolean(returned: Any, flag: bool) -> None:
    assert lab_11._is_flag(returned) is flag


def weights(optimizer: Any) -> Any:
    return optimizer.param_groups[0]["params"]


def scaled(
    loss_of: Any,
    optimizer: Any,
    scale: float,
    *,
    clear: bool = True,
    before: float | None = None,
    after: float | None = None,
    skips: bool = True,
    steps: int = 1,
    divided: slice = slice(None),
    fine: Any = lambda every: all(each.isfinite().all() for each in every),
) -> bool:
    """One scaled step: the loss times `before`, the gradients divided by `after`."""
    if clear:
        optimizer.zero_grad()
    (loss_of() * (scale if before is None else before)).backward()
    for weight in weights(optimizer)[divided]:
        weight.grad /= scale if after is None else after
    if skips and not fine([weight.grad for weight in weights(optimizer)]):
        return False
    for _ in range(steps):
        optimizer.step()
    return True


def late(loss_of: Any, optimizer: Any, scale: float) -> bool:
    """Scales the gradients, when they have vanished already."""
    optimizer.zero_grad()
    loss_of().backward()
    for weight in weights(optimizer):
        weight.grad *= scale
        weight.grad /= scale
    optimizer.step()
    return True


def divided_late(loss_of: Any, optimizer: Any, scale: float) -> bool:
    """Divides the gradients after the step."""
    scaled(loss_of, optimizer, scale, after=1.0)
    for weight in weights(optimizer):
        weight.grad /= scale
    return True


def slower(loss_of: Any, optimizer: Any, scale: float) -> bool:
    """Divides the learning rate instead of the gradients."""
    optimizer.param_groups[0]["lr"] /= scale
    return scaled(loss_of, optimizer, scale, after=1.0)


def with_a_scaler(loss_of: Any, optimizer: Any, scale: float) -> bool:
    """Uses torch's own scaler."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale() == scale


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (scaled, ""),
        (with_a_scaler, ""),
        (divided_late, "only after optimizer.step()"),
        (slower, "the learning rate stays changed"),
        (lambda *given: scaled(*given, divided=slice(1)), "Only some of the weights"),
        (lambda *given: scaled(*given, fine=lambda every: every[0].isfinite().all()), "last weight contains nan"),
        (lambda *given: scaled(*given, fine=lambda every: every[-1].isfinite().all()), "first weight contains -inf"),
        (lambda *given: scaled(*given, fine=lambda every: all(g.max() != math.inf for g in every)), "-inf"),
        (lambda *given: scaled(*given, fine=lambda every: not any(g.isinf().any() for g in every)), "contains nan"),
        (lambda *given: np.bool_(scaled(*given)), ""),
        (lambda *given: torch.tensor(scaled(*given)), ""),
        (late, "became 0 in float16"),
        (lambda *given: scaled(*given, before=1.0, after=1.0), "became 0 in float16"),
        (lambda *given: scaled(*given, after=1.0, skips=False), "256 times too far"),
        (lambda *given: scaled(*given, before=1.0), "never scaled"),
        (lambda loss_of, optimizer, scale: scaled(loss_of, optimizer, scale, before=1 / scale), "divided"),
        (lambda *given: scaled(*given, skips=False), "the weights are lost"),
        (lambda *given: scaled(*given, clear=False), "earlier step"),
        (lambda *given: scaled(*given, steps=2), "one step or two"),
        (lambda loss_of, o, scale: scaled(loss_of, o, scale, before=-scale), "uphill"),
        (lambda *given: not scaled(*given), "Return True if a step was taken"),
        (lambda *given: scaled(*given) and None, "a NoneType, not True or False"),
        (lambda *given: 1.0 if scaled(*given) else 0.0, "a float, not True or False"),
        (lambda *given: None, "does nothing yet"),
    ],
)
def test_a_scaled_step(answer: Callable[..., Any], words: str) -> None:
    expect("11.8", words, answer)


def best(serial: float, divisible: float, start: float, cores: int) -> int:
    times = [serial + divisible / n + start * (n - 1) for n in range(1, int(cores) + 1)]
    return 1 + times.index(min(times))


def root(serial: float, divisible: float, start: float, cores: int) -> float:
    return math.sqrt(divisible / start)


def least_ms(serial: float, divisible: float, start: float, cores: int) -> float:
    n = best(serial, divisible, start, cores)
    return serial + divisible / n + start * (n - 1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (best, ""),
        (lambda s, d, o, cores: cores, "always all cores"),
        (lambda *given: 1, "always one thread"),
        (least_ms, "the shortest time"),
        (lambda s, d, o, cores: best(s, d, o, 99), "take turns"),
        (root, "not a whole number"),
        (lambda *given: min(given[3], max(1, root(*given))), "not a whole number"),
        (lambda *given: round(root(*given)), "rounded to a whole number"),
        (lambda *given: int(min(given[3], max(1, round(root(*given))))), "rounded to a whole number"),
        (lambda *given: min(given[3], max(1, int(root(*given)))), "rounded to a whole number"),
        (lambda *given: min(given[3], max(1, math.ceil(root(*given)))), "rounded to a whole number"),
        (lambda *given: best(*given) if root(*given) else 1, "divides by start_ms"),
        (lambda *given: best(*given) if given[2] else [][0], "IndexError"),
        (lambda *given: best(*given) if given[2] else 1, "cores need 6 threads"),
        (lambda *given: best(*given) - 1, "a place in a list"),
        (lambda *given: best(*given) + 1, "is faster"),
    ],
)
def test_how_many_threads(answer: Callable[..., Any], words: str) -> None:
    expect("11.9", words, answer)
