"""Scratch memory of CPU kernels, by hand: the sizes that the formulas give for small tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from perfnb.memory.estimate.scratch import scratch_bytes, untold_bytes


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Return a CPU with AVX-512 and oneDNN, on which torch uses two threads."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    return monkeypatch


def ones(*shape: int, **options: Any) -> Tensor:
    return torch.empty(shape, device="meta", **options)


def last(*shape: int) -> Tensor:
    """Channels last."""
    return ones(*shape, memory_format=torch.channels_last)


X, Y = ones(6, 4), ones(4, 6).t()  # 96 bytes each, the second one not contiguous


@pytest.mark.parametrize(
    ("op", "args", "results", "held"),
    [
        ("relu", [Y], [X], 0),
        ("gelu_backward", [Y, X], [X], 96),
        ("gelu_backward", [Y, Y], [X], 96),  # copied once
        ("gelu_backward", [X, 3], [X], 0),
        ("gelu_backward", [last(2, 3, 4, 5)], [X], 0),
        ("native_batch_norm_backward", [X, X], [X], 96),
        ("native_batch_norm_backward", [Y, Y], [X], 0),
        ("native_batch_norm_backward", [last(2, 3, 4, 5), last(2, 3, 4, 5)], [X], 480),
        ("native_batch_norm_backward", [last(2, 3, 4, 5), ones(2, 3, 4, 5)], [X], 0),
        ("mm", [X, Y], [X], 0),
        ("mm", [ones(4, 6)[:, ::2], X], [X], 48),
        ("addmm", [ones(6), ones(1, 6).expand(4, 6), X], [X], 96),
        ("addmm", [ones(12)[::2], X, ones(4, 8)[:, :6]], [X], 0),
        ("mse_loss", [X], [ones()], 96),
        ("binary_cross_entropy_with_logits", [X], [ones()], 192),
        ("upsample_bilinear2d", [X], [ones(9)], 132),
    ],
)
def test_copies_and_buffers(op: str, args: list[Any], results: list[Tensor], held: int) -> None:
    assert scratch_bytes(op, args, results) == held


def test_a_squared_error_stays_in_the_memory_of_its_squares() -> None:
    assert untold_bytes("mse_loss", [X], [ones()]) == 92
    assert untold_bytes("mse_loss", [X], [ones(6, 4)]) == 0
    assert untold_bytes("huber_loss", [X], [ones()]) == 0


def test_an_lstm_layer_holds_its_gates_and_copies_of_its_weights() -> None:
    given: list[Any] = [None, ones(5), ones(7), *[None] * 4, ones(3), *[None] * 7, True]
    assert scratch_bytes("mkldnn_rnn_layer", given, [X]) == 4 * 96 + 48
    assert scratch_bytes("mkldnn_rnn_layer_backward", given, [X]) == 4 * 12 + 2 * 48
    assert untold_bytes("mkldnn_rnn_layer", given, [X, ones(1)]) == 1478  # 15.4 times the output
    assert untold_bytes("mkldnn_rnn_layer", [*given[:15], False], [X]) == 0


ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


@pytest.mark.parametrize(
    ("length", "keys", "rows", "columns"),
    [(10, 20, 10, 20), (191, 20, 32, 20), (192, 20, 64, 20), (767, 20, 64, 20), (768, 600, 256, 512)],
)
def test_attention_holds_a_block_of_rows_for_each_thread(length: int, keys: int, rows: int, columns: int) -> None:
    query, key = ones(1, 2, length, 8), ones(1, 2, keys, 8)
    assert scratch_bytes(ATTENTION, [query, key], [X]) == 4 * 2 * rows * (columns + 2 + 8)
    backward = scratch_bytes(f"{ATTENTION}_backward", [Y, query, key], [X])
    assert backward == 4 * 2 * 2 * rows * columns + 96  # and the gradient, which is copied


def convolved(x: Tensor, weight: Tensor, y: Tensor, stride: int = 1, dilation: int = 1, groups: int = 1) -> int:
    args = [x, weight, None, [stride] * 2, [0, 0], [dilation] * 2, False, [0, 0], groups]
    return scratch_bytes("convolution", args, [y])


@pytest.mark.parametrize(
    ("args", "held"),
    [
        # Unfolded into columns: 3 channels x 9 weights x 36 places x 4 bytes.
        ((ones(1, 3, 8, 8), ones(16, 3, 3, 3), ones(1, 16, 6, 6)), 3888),
        ((ones(2, 3, 8, 8, dtype=torch.float64), ones(4, 3, 3, 3), ones(2, 4, 6, 6)), 15552),
        ((ones(1, 3, 8, 8), ones(4, 3, 1, 1), ones(1, 4, 8, 8)), 0),
        ((ones(1, 3, 8, 8), ones(4, 3, 1, 1), ones(1, 4, 4, 4), 2), 192),
        # Up to 20,480 numbers of one sample.
        ((ones(1, 20, 32, 32), ones(16, 20, 3, 3), ones(1, 16, 30, 30)), 4 * 20 * 9 * 900),
        ((ones(1, 3, 1, 6827), ones(16, 3, 1, 3), ones(1, 16, 1, 6825)), 4 * 16 * 6825),
        # In blocks of 16 channels; few input channels stay together.
        ((ones(2, 3, 8, 8), ones(16, 3, 3, 3), ones(2, 16, 6, 6)), 4608),
        ((ones(1, 32, 8, 8), ones(16, 32, 5, 5), ones(1, 16, 4, 4)), 8192 + 51200),
        ((ones(2, 20, 8, 8), ones(5, 20, 3, 3), ones(2, 5, 6, 6)), 16384 + 18432 + 4608 - 1440),
        ((ones(2, 20, 8, 8), ones(1, 20, 3, 3), ones(2, 1, 6, 6)), 16384 + 18432 + 4608 - 288),
        # In groups: of one channel each, of three and two, and of eight.
        ((ones(2, 4, 8, 8), ones(4, 1, 3, 3), ones(2, 4, 6, 6), 1, 1, 4), 8192 + 144 + 4608 - 1152),
        ((ones(2, 6, 8, 8), ones(4, 3, 3, 3), ones(2, 4, 6, 6), 1, 1, 2), 1152),
        ((ones(2, 16, 8, 8), ones(16, 8, 3, 3), ones(2, 16, 6, 6), 1, 1, 2), 8192 + 4608),
        # Channels last: the packed weight, and a copy of a weight whose channels are not last.
        ((last(2, 16, 8, 8), ones(16, 16, 3, 3), last(2, 16, 6, 6)), 18432),
        ((last(2, 16, 8, 8), last(16, 16, 3, 3), last(2, 16, 6, 6)), 9216),
    ],
)
def test_a_convolution_holds_its_tensors_in_another_layout(args: Any, held: int) -> None:
    assert convolved(*args) == held


def test_how_a_convolution_is_computed_depends_on_the_machine(machine: pytest.MonkeyPatch) -> None:
    odd = ones(2, 20, 8, 8), ones(5, 20, 3, 3), ones(2, 5, 6, 6)
    point = ones(2, 3, 8, 8), ones(16, 3, 1, 1), ones(2, 16, 8, 8)
    many = ones(16, 3, 8, 8), ones(16, 3, 1, 1), ones(16, 16, 8, 8)
    assert convolved(*point) == 8192
    machine.setattr(torch, "get_num_threads", lambda: 1)
    assert (convolved(*point), convolved(*many)) == (0, 65536)
    machine.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert convolved(*odd) == 12288 + 6912 + 2304 - 1440
    machine.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert convolved(*odd) == 2 * 20 * 9 * 36 * 4


def test_a_transposed_convolution_holds_three_results() -> None:
    args = [ones(2, 3, 8, 8), ones(3, 5, 3, 3), None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1]
    assert scratch_bytes("convolution", args, [ones(2, 5, 10, 10)]) == 8000


def backward(
    x: Tensor, weight: Tensor, grad: Tensor, *wanted: bool, stride: int = 1, dilation: int = 1, transposed: bool = False
) -> int:
    args = [grad, x, weight, None, [stride] * 2, [0, 0], [dilation] * 2, transposed, [0, 0], 1, wanted]
    return scratch_bytes(
        "convolution_backward", args, [one for one, want in zip((x, weight), wanted, strict=True) if want]
    )


ODD = ones(2, 20, 8, 8), ones(5, 20, 3, 3)  # 10240 and 3600 bytes, in blocks 16384 and 18432


@pytest.mark.parametrize(
    ("grad", "wanted", "options", "held"),
    [
        (ones(2, 5, 6, 6), (True, True), {}, 10240 + 16384 + 18432 + 4608 - 13840),
        (ones(2, 5, 6, 6), (False, True), {}, 16384 + 18432 + 4608 - 3600),
        (ones(2, 5, 6, 6), (True, False), {}, 16384 + 18432 + 4608 - 10240),
        (ones(2, 5, 3, 3), (True, False), {"stride": 2}, 3 * 10240 - 10240),
        (ones(2, 5, 2, 2), (True, False), {"stride": 2, "dilation": 2}, 2 * 10240 - 10240),
        (ones(2, 5, 2, 2), (False, True), {"stride": 2, "dilation": 2}, 2 * 3600 - 3600),
        (ones(2, 20, 9, 9), (True, True), {"transposed": True}, 2 * 12960 + 10240),
    ],
)
def test_the_gradients_of_a_convolution(grad: Tensor, wanted: Any, options: Any, held: int) -> None:
    assert backward(*ODD, grad, *wanted, **options) == held


def test_the_gradients_of_convolutions_in_columns_and_of_channels_that_are_last() -> None:
    assert backward(ones(1, 3, 8, 8), ones(16, 3, 3, 3), ones(1, 16, 6, 6), True, True) == 3888
    assert backward(last(2, 16, 8, 8), ones(16, 16, 3, 3), last(2, 16, 6, 6), True, True) == 3 * 9216
