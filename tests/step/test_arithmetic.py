"""The counter of operators: what it sees, what it leaves alone, and that it breaks no step."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

from perfnb.step import arithmetic
from perfnb.step.arithmetic import OpCounter

pytestmark = pytest.mark.usefixtures("nothing_left")


def seen(counter: OpCounter) -> list[str]:
    return [call.op for call in counter.calls]


def test_calls_are_numbered_and_named_as_in_the_trace() -> None:
    a = torch.ones(3, 3, dtype=torch.float64)
    with OpCounter() as counter:
        torch.addmm(a, a, a)
        a.t()
    first, second = counter.calls
    assert (first.number, first.op, first.flops, first.dtype) == (0, "aten::addmm", 54, "float64")
    assert (second.number, second.op, second.flops, second.bytes) == (1, "aten::t", 0, 0)


def test_the_dtype_is_that_of_the_arithmetic() -> None:
    table, places = torch.ones(4, 4, dtype=torch.bfloat16), torch.tensor([1])
    with OpCounter() as counter:
        torch.nn.functional.embedding(places, table)
        places + 1
        torch.zeros(2, dtype=torch.float16)
        with torch.autocast("cpu", torch.bfloat16):
            torch.ones(2, 2) @ torch.ones(2, 2)
    dtypes = {call.op: call.dtype for call in counter.calls}
    assert dtypes["aten::embedding"] == dtypes["aten::mm"] == "bfloat16"
    assert dtypes["aten::add"] == "int64"
    assert dtypes["aten::zeros"] == "float16"


def test_the_step_computes_what_it_did_before() -> None:
    def step() -> list[Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Dropout(0.5), nn.GRU(6, 5))
        model(torch.randn(3, 2, 8))[0].square().sum().backward()
        with torch.inference_mode():
            again = model(torch.randn(3, 2, 8))[0]
        return [again.clone(), torch.rand(3), *(parameter.grad for parameter in model.parameters())]

    bare = step()
    with OpCounter() as counter:
        counted = step()
    assert all(torch.equal(one, other) for one, other in zip(bare, counted, strict=True))
    assert {"aten::convolution", "aten::convolution_backward"} <= set(seen(counter))


def test_an_error_of_an_operator_reaches_the_user_unchanged() -> None:
    def wrong() -> None:
        torch.ones(2, 3) @ torch.ones(2, 3)

    with pytest.raises(RuntimeError) as bare:
        wrong()
    with pytest.raises(RuntimeError) as counted, OpCounter() as counter:
        wrong()
    assert str(counted.value) == str(bare.value)
    assert seen(counter) == ["aten::ones", "aten::ones"]
    assert _get_current_dispatch_mode() is None


def test_no_tensor_is_kept() -> None:
    gc.disable()
    try:
        with OpCounter() as counter:
            x = torch.ones(10)
            kept = [weakref.ref(x)]
            y = x * 2
            kept.append(weakref.ref(y))
            del x, y
            assert [reference() for reference in kept] == [None] * 2
    finally:
        gc.enable()
    assert seen(counter) == ["aten::ones", "aten::mul"]


def test_composite_operators_are_taken_apart_where_autograd_does_not() -> None:
    with torch.inference_mode():
        layer, x = nn.Linear(4, 4), torch.ones(2, 3, 4)
        with OpCounter() as counter:
            layer(x)
    assert "aten::linear" not in seen(counter)
    assert "aten::addmm" in seen(counter)


@pytest.mark.slow
def test_backward_and_recomputation_are_seen() -> None:
    layer, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.ones(2, 4, requires_grad=True)
    for reentrant in (False, True):
        with OpCounter() as counter:
            checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
        assert seen(counter).count("aten::addmm") == 2
        assert seen(counter).count("aten::mm") == 2


@pytest.mark.slow
def test_a_range_of_the_users_is_not_cut() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, OpCounter() as counter:
        with torch.profiler.record_function("mine"):
            torch.ones(3).add(1)
        torch.ones(3).mul(2)
    ranges = {event.name: event.time_range for event in profile.events()}
    mine = ranges["mine"]
    assert mine.start <= ranges["aten::add"].start <= ranges["aten::add"].end <= mine.end
    assert ranges["aten::mul"].start >= mine.end
    assert not any(op.startswith("profiler::") for op in seen(counter))


def test_subclasses_do_their_own_work_and_its_parts_are_counted() -> None:
    layer = nn.Linear(4, 4)
    with OpCounter() as counter:
        out = layer(TwoTensor(torch.ones(2, 4), torch.ones(2, 4)))
    assert type(out) is TwoTensor
    assert seen(counter).count("aten::addmm") == 2


class Quiet(Tensor):
    """A subclass without operators of its own."""


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_tensors_of_other_kinds_break_nothing() -> None:
    layer = nn.Linear(4, 4)
    jagged = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
    with OpCounter() as counter:
        layer(jagged)
        with torch.inference_mode():
            layer(jagged)
        layer(nested)
        with torch.inference_mode():
            layer(nested)
        torch.eye(3).to_sparse_csr() @ torch.ones(3, 3)
        torch.ones(3, device="meta") + 1
        layer(torch.ones(2, 4).as_subclass(Quiet))
        torch.vmap(lambda a: a @ a)(torch.ones(2, 3, 3))
        torch.func.grad(lambda a: (a @ a).sum())(torch.ones(3, 3))
    jagged_rows = [call.flops for call in counter.calls if call.op == "aten::addmm"][:2]
    assert jagged_rows == [2 * 5 * 4 * 4] * 2


def test_shadows_of_tensors_are_let_through_uncounted() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with OpCounter() as counter:
        with FakeTensorMode() as mode:
            fake = torch.ones(3, 3) @ torch.ones(3, 3)
        assert (fake @ fake).shape == (3, 3)
        assert mode is not None
    assert "aten::mm" not in seen(counter)


@pytest.mark.slow
def test_operators_that_take_functions_pass() -> None:
    with OpCounter() as counter:
        out = torch.cond(torch.tensor(True), lambda a: a @ a, lambda a: a + a, (torch.ones(3, 3),))
    assert torch.equal(out, torch.full((3, 3), 3.0))
    assert [call.flops for call in counter.calls if call.op == "cond"] == [None]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flexible_attention_is_counted_by_torchs_formula() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.ones(1, 2, 16, 16)
    with torch.no_grad():
        expected = flex_attention(q, q, q)
        with OpCounter() as counter:
            out = flex_attention(q, q, q)
    assert torch.equal(out, expected)
    assert [call.flops for call in counter.calls if call.op == "flex_attention"] == [2 * 2 * 2 * 16**3]


def test_an_older_torch_knows_the_counter_for_each_operator_that_takes_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh, known = SimpleNamespace(python_key_table={}), SimpleNamespace(python_key_table={OpCounter: print})
    monkeypatch.setattr(torch._ops, "_higher_order_ops", {"fresh": fresh, "known": known})
    monkeypatch.setattr(TorchDispatchMode, "supports_higher_order_operators", True, raising=False)
    with OpCounter():
        assert fresh.python_key_table == {}
    monkeypatch.delattr(TorchDispatchMode, "supports_higher_order_operators")
    with OpCounter() as counter:
        pass
    assert known.python_key_table == {OpCounter: print}
    monkeypatch.setattr(OpCounter, "__torch_dispatch__", lambda *args: args)
    assert fresh.python_key_table[OpCounter](counter, 1, flag=2) == (counter, fresh, (), (1,), {"flag": 2})


def test_tensors_without_a_size_move_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def sizeless(*_: Any) -> int:
        raise NotImplementedError("no size")

    monkeypatch.setattr("perfnb.step.arithmetic.bytes_moved", sizeless)
    with OpCounter() as counter:
        torch.mm(*[torch.ones(3, 3, dtype=torch.float64)] * 2)
    assert counter.calls[-1][1:] == ("aten::mm", 54, 0, "float64", "cpu")


@pytest.mark.parametrize(
    ("name", "args", "options", "added"),
    [
        ("index_put_", (0, 1, 2), {}, False),
        ("index_put_", (0, 1, 2, False), {}, False),
        ("index_put_", (0, 1, 2, True), {}, True),
        ("index_put_", (0, 1, 2), {"accumulate": True}, True),
        ("index_put_", (0, 1, 2), {"accumulate": False}, False),
        ("scatter_", (0, 1, 2, 3), {}, False),  # the last one is the source
        ("scatter_", (0, 1, 2, 3), {"reduce": "multiply"}, True),
        *((name, (), {}, True) for name in ("index_add", "index_add_", "scatter_add", "scatter_add_")),
        ("index_copy_", (0, 1, 2, True), {"accumulate": True}, False),
    ],
)
def test_an_operator_adds_to_what_it_writes_into_if_it_is_told_to(
    name: str, args: tuple[Any, ...], options: dict[str, Any], added: bool
) -> None:
    assert arithmetic.adds(f"aten::{name}", args, options) is added


def test_the_dtype_is_the_first_fraction_and_the_device_the_first_accelerator() -> None:
    whole, half, real = (torch.ones(1, dtype=dtype) for dtype in (torch.int64, torch.bfloat16, torch.float32))
    imaginary, elsewhere = real * 1j, torch.ones(1, device="meta")
    lists = [[whole, half, real], [whole, imaginary, real], [whole, whole.char()], []]
    assert [arithmetic._dtype(tensors) for tensors in lists] == ["bfloat16", "complex64", "int64", ""]
    assert [arithmetic._device(tensors) for tensors in ([real, elsewhere], [real], [])] == ["meta", "cpu", "cpu"]
    nested, quantized = (
        SimpleNamespace(layout=torch.strided, is_nested=is_nested, is_quantized=not is_nested)
        for is_nested in (True, False)
    )
    plain = [arithmetic._is_plain(tensor) for tensor in (real, real.to_sparse(), nested, quantized)]  # type: ignore[arg-type]
    assert plain == [True, False, False, False]
