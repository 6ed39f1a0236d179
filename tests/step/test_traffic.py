"""Bytes that an operator moves at least: each input read once, each output written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from perfnb.step.arithmetic import OpCounter, _extent, _place, bytes_moved, message_bytes, operator_of


def moved(run: Callable[[], Any]) -> int:
    with OpCounter() as counter:
        run()
    return sum(call.bytes for call in counter.calls)


A, B, HALF = torch.ones(8, 8), torch.ones(8, 8), torch.ones(8, 8, dtype=torch.bfloat16)
TABLE, PLACES, WRITTEN = torch.ones(100, 16), torch.tensor([3, 5, 3]), torch.zeros(8, 8)
SIZE = 8 * 8 * 4

CASES = [
    ("two inputs and an output", lambda: A @ B, 3 * SIZE),
    ("one tensor twice", lambda: A @ A, 2 * SIZE),
    ("one tensor and its transpose", lambda: A @ A.t(), 2 * SIZE),
    ("half precision", lambda: HALF @ HALF, 2 * SIZE // 2),
    ("a cast", lambda: A.to(torch.float64), SIZE + 2 * SIZE),
    ("added in place", lambda: WRITTEN.add_(A), 3 * SIZE),
    ("copied, not read", lambda: WRITTEN.copy_(A), 2 * SIZE),
    ("filled", lambda: WRITTEN.fill_(1.0), SIZE),
    ("an output that is given", lambda: torch.mm(A, B, out=WRITTEN), 3 * SIZE),
    ("expanded", lambda: A + torch.ones(()).expand(8, 8), 4 + 4 + 2 * SIZE),  # with the 4 that make the 1
    ("every fourth, expanded", lambda: A[:, ::4].unsqueeze(2).expand(8, 2, 9) * 2.0, 16 * 4 + 16 * 9 * 4),
    ("windows that overlap", lambda: A.view(-1).unfold(0, 32, 1) * 2.0, SIZE + 33 * 32 * 4),
    ("views", lambda: A.t()[2:].unsqueeze(0).expand(3, 6, 8).transpose(0, 1).detach(), 0),
    ("nothing made yet", lambda: torch.empty_like(A), 0),
    ("made", lambda: torch.zeros_like(A), SIZE),
    ("a scalar out", lambda: A.view(-1)[0].item(), 4),
    ("rows of a table", lambda: nn.functional.embedding(PLACES, TABLE), 2 * 3 * 16 * 4 + 3 * 8),
    ("rows by index", lambda: TABLE[PLACES], 2 * 3 * 16 * 4 + 3 * 8),
    ("selected", lambda: TABLE.index_select(0, PLACES), 2 * 3 * 16 * 4 + 3 * 8),
    ("gathered", lambda: TABLE.gather(0, PLACES[:, None]), 2 * 3 * 4 + 3 * 8),
    ("a list", lambda: torch._foreach_add_([WRITTEN, TABLE], 0.0), 2 * SIZE + 2 * 100 * 16 * 4),
    ("joined", lambda: torch.cat([A, B]), 4 * SIZE),
    ("none", lambda: torch.ones(0, 5) + 1.0, 0),
]


@pytest.mark.parametrize(("run", "expected"), [pytest.param(run, size, id=name) for name, run, size in CASES])
def test_bytes(run: Callable[[], Any], expected: int) -> None:
    assert moved(run) == expected


def test_views_of_the_same_elements_are_in_one_place() -> None:
    same = [A, A.t(), A[None], A.view(8, 1, 8), A.expand(3, 8, 8)]
    others = [A[:4], A[4:], A[:, :4], A[:, 4:], A.view(torch.int32), B, A.to_sparse(), B.to_sparse()]
    places = [_place(tensor) for tensor in same + others]
    assert len({*places[:5]}) == 1
    assert len({*places}) == 1 + len(others)


@pytest.mark.parametrize("n", [1, 16, 96])
def test_a_products_intensity_is_a_sixth_of_its_size(n: int) -> None:
    a, b = torch.ones(n, n), torch.ones(n, n)
    with OpCounter() as counter:
        a @ b
    (call,) = counter.calls
    assert call.flops == 2 * n**3
    assert call.bytes * n == 6 * call.flops


def test_a_linear_layer_and_its_backward() -> None:
    layer, x = nn.Linear(16, 32), torch.ones(4, 16, requires_grad=True)
    inputs, weight, bias, output = (4 * size for size in (4 * 16, 16 * 32, 32, 4 * 32))
    with OpCounter() as counter:
        layer(x).backward(torch.ones(4, 32))
    products = [call.bytes for call in counter.calls if call.op in ("aten::addmm", "aten::mm")]

    assert products == [inputs + weight + bias + output, *[inputs + weight + output] * 2]


def test_a_convolutions_backward_reads_only_what_its_gradients_need() -> None:
    layer, x = nn.Conv2d(3, 5, 3, bias=False), torch.ones(2, 3, 8, 8)
    inputs, weight, output = 4 * 2 * 3 * 64, 4 * 5 * 3 * 9, 4 * 2 * 5 * 36
    out = layer(x)
    gradient = torch.ones_like(out)
    with OpCounter() as counter:
        out.backward(gradient)
    (backward,) = (call.bytes for call in counter.calls if call.op == "aten::convolution_backward")

    assert backward == output + inputs + weight  # no weight read, no gradient of the input written


def test_sparse_tensors_count_what_they_hold() -> None:
    sparse = torch.eye(10).to_sparse()
    dense = torch.ones(10, 10)
    with OpCounter() as counter:
        torch.sparse.mm(sparse, dense)
    (call,) = (call for call in counter.calls if call.op == "aten::_sparse_addmm")
    held = 10 * (4 + 2 * 8)

    assert held + 2 * 400 <= call.bytes <= held + 3 * 400


@pytest.mark.filterwarnings("ignore:Sparse (CSR|BSR) tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_a_tensor_occupies_the_bytes_of_its_elements_in_memory() -> None:
    unit, scalar = torch.eye(4), torch.ones(())
    sizes = [
        *((A, 64 * 4), (A[::2, ::2], 16 * 4), (scalar, 4), (scalar.expand(3, 5), 4), (A[:0], 0)),
        *((unit.to_sparse(), 4 * (4 + 2 * 8)), (torch.ones(3, 4).to_sparse(1), 3 * (4 * 4 + 8))),
        *((unit.to_sparse_csr(), 4 * 4), (unit.to_sparse_bsr((2, 2)), 8 * 4), (A.to_mkldnn(), 64 * 4)),
        (torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]), 20 * 4),
    ]
    assert [_extent(tensor) for tensor, _ in sizes] == [size for _, size in sizes]


def test_operators_without_a_schema_move_each_of_their_tensors_once() -> None:
    unknown = operator_of("mine::op")
    assert bytes_moved(unknown, (A, [A, (TABLE,)]), {"more": {"half": HALF}}, A.t()) == SIZE + 100 * 16 * 4 + SIZE // 2


def test_a_collective_moves_its_largest_message() -> None:
    assert message_bytes([[A, B], HALF, [TABLE[:2]], 3]) == 2 * SIZE
    assert message_bytes([]) == 0


ATEN, MASK, PLACED = torch.ops.aten, torch.eye(8, dtype=torch.bool), PLACES[:, None]


@pytest.mark.parametrize(
    ("op", "args", "options", "read", "touched"),
    [
        (ATEN.index_put_.default, ([MASK], A[0]), {}, 64 + 32, 8 * 4),  # as many as there are values
        (ATEN.index_put_.default, ([None, PLACES], A[:, :3]), {}, 24 + 96, 8 * 3 * 4),
        (ATEN.index_put_.default, ([PLACED, PLACES], A[:3, :3]), {}, 24 + 36, 9 * 4),
        (ATEN.index_put_.default, ([PLACES], A[:3], True), {}, 24 + 96, 2 * 96),
        (ATEN.index_put_.default, ([PLACES], A[:3]), {"accumulate": True}, 24 + 96, 2 * 96),
        (ATEN.index_put_.default, ([PLACES], A[:3], False), {"accumulate": False}, 24 + 96, 96),
        (ATEN.scatter_.src, (0, PLACED, A), {}, 24 + SIZE, 3 * 4),
        (ATEN.scatter_.reduce, (0, PLACED, A), {"reduce": "add"}, 24 + SIZE, 2 * 3 * 4),
        (ATEN.scatter_add_.default, (0, PLACED, A), {}, 24 + SIZE, 2 * 3 * 4),
        (ATEN.scatter_reduce_.two, (0, PLACED, A, "sum"), {}, 24 + SIZE, 2 * 3 * 4),
        (ATEN.index_copy_.default, (0, PLACES, A[:3]), {}, 24 + 96, 96),
        (ATEN.index_add_.default, (0, PLACES, A[:3]), {}, 24 + 96, 2 * 96),
        (ATEN.index_reduce_.default, (0, PLACES, A[:3], "prod"), {}, 24 + 96, 2 * 96),
    ],
)
def test_what_writes_some_elements_moves_those_and_its_sources(
    op: Any, args: Any, options: dict[str, Any], read: int, touched: int
) -> None:
    assert bytes_moved(operator_of(op), (WRITTEN, *args), options, WRITTEN) == read + touched
