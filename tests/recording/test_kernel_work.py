"""Which operations kernels compute, and the bytes that they move, in graphs as Inductor describes them."""

from __future__ import annotations

from collections.abc import Sequence

from perfnb.recording.kernel_work import Kernel, Operation, Work, work_of

_KIB = 1024


def result(
    name: str, *inputs: str, op: str = "aten::mul", kib: int = 100, view: bool = False, returned: bool = False
) -> Operation:
    return Operation(name, op if inputs else "", (), inputs, kib * _KIB, 0, None, view, returned)


def work(operations: Sequence[Operation], **kernels: str) -> list[Work]:
    """Return the work of kernels, each given with the operations that Inductor names with it."""
    calls = [Kernel(name.replace("__", "."), "__" in name, tuple(names.split())) for name, names in kernels.items()]
    return work_of(calls, {operation.name: operation for operation in operations})


def kib(work: Work) -> dict[str, int]:
    return {name: moved // _KIB for name, moved in work.moved.items()}


def test_what_an_earlier_kernel_has_stored_is_read_and_not_computed_again() -> None:
    # As in the backward pass of a linear layer behind a GELU: its products read the gradient that the bias sums up.
    operations = [
        *(result("x"), result("w"), result("gradient", "x"), result("gelu", "gradient")),
        *(result("flat", "gelu", op="aten::view", view=True), result("product", "flat", "w", op="aten::mm")),
        result("bias", "flat", op="aten::sum", kib=1, returned=True),
    ]

    gelu, product, bias = work(
        operations, cpp_0="gelu gradient", extern_kernels__mm="product", cpp_1="bias flat gelu gradient"
    )

    assert kib(gelu) == {"gelu": 100, "gradient": 100}  # it writes the one, and reads x for the other
    assert kib(product) == {"product": 300}
    assert kib(bias) == {"bias": 101}


def test_what_nothing_outside_needs_is_computed_in_each_kernel_that_is_named_with_it() -> None:
    operations = [
        *(result("x"), result("centred", "x"), result("total", "centred", op="aten::sum", kib=1)),
        *(result("scaled", "centred", "total"), result("back", "scaled", "x", op="aten::convolution_backward")),
    ]

    statistics, scaled, back = work(
        operations,
        cpp_0="total centred back",  # it arranges the inputs of the operator
        cpp_1="scaled centred",
        torch__ops__aten__convolution_backward__default="back scaled centred",
    )

    assert kib(statistics) == {"total": 1, "centred": 100}
    assert kib(scaled) == {"scaled": 101, "centred": 100}
    assert kib(back) == {"back": 300}


def test_what_the_caller_of_the_graph_gets_is_stored_although_it_is_used_inside() -> None:
    kept = [result("x"), result("normed", "x"), result("out", "normed", returned=True)]

    inside, stored = (work([kept[0], kept[1]._replace(returned=on), kept[2]], cpp_0="out normed") for on in (0, 1))

    assert (kib(inside[0]), kib(stored[0])) == ({"out": 100, "normed": 100}, {"out": 100, "normed": 200})


def test_views_of_the_same_memory_are_read_once_and_of_a_table_only_the_rows_that_are_looked_up() -> None:
    operations = [
        *(result("qkv", kib=300), result("table", kib=10_000), result("index", kib=1)),
        *(result(f"part{number}", "qkv", op="aten::select", view=True) for number in range(2)),
        result("whole", "qkv", op="aten::view", kib=300, view=True),
        *(result("sum", "part0", "part1"), result("both", "part0", "whole")),
        result("rows", "table", "index", op="aten::embedding"),
    ]

    parts, both, rows = work(operations, cpp_0="sum part0", cpp_1="both part0 whole", cpp_2="rows")

    assert kib(parts) == {"sum": 100 + 2 * 100}
    assert kib(both) == {"both": 100 + 300}
    assert kib(rows) == {"rows": 100 + 100 + 1}


def test_a_kernel_whose_own_operations_are_unknown_has_those_that_it_is_named_with_and_no_bytes() -> None:
    operations = [
        *(result("x"), result("turned", "x", op="aten::permute", view=True)),
        result("back", "turned", op="aten::convolution_backward"),
    ]

    arranging, back = work(operations, cpp_0="back turned", torch__ops__aten__convolution_backward="back")

    assert kib(arranging) == {"back": 0, "turned": 0}
    assert kib(back) == {"back": 200}
