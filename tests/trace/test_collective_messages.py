"""Sizes of the messages of collectives, as their sources define them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from perfnb.trace.collective_messages import DTYPES, ITEM_BYTES, may_send, message_of, runs_on_host


def test_elements_have_the_size_of_torchs_dtypes() -> None:
    assert {name: getattr(torch, name).itemsize for name in ITEM_BYTES} == ITEM_BYTES
    assert set(DTYPES.values()) <= ITEM_BYTES.keys()
    for word in ("float", "double", "half", "long", "int", "short", "bool"):
        assert getattr(torch, word, torch.bool) == getattr(torch, DTYPES[word])


def raw(value: Any) -> msgspec.Raw:
    """Return an argument as a trace spells it; empty if there is none. Bytes are the spelling itself."""
    if isinstance(value, bytes):
        return msgspec.Raw(value)
    return msgspec.Raw(b"") if value is None else msgspec.Raw(msgspec.json.encode(value))


@pytest.mark.parametrize(
    ("sent", "received", "dtype", "shapes", "types", "message"),
    [
        (10, 80, "BFloat16", [], [], (80, "bfloat16")),
        (10, "80", "Float", [], [], (10, "float32")),
        (-1, 2**62, None, [[2, 3], [4]], ["c10::Half"], (6, "float16")),
        (None, None, None, [[[2, 3], [4]], [], [1]], ["TensorList", "long int"], (10, "int64")),
        (None, None, None, [[0], [2, -1]], ["Scalar"], (None, "")),
        (10, None, "unheard of", [], ["c10::Half"], (10, "")),
        (0, -1, "Float", [5], [], (0, "float32")),
        (2**62 - 1, 2**62, None, None, ["unheard of", 3, "INT"], (2**62 - 1, "int32")),
        (None, None, ["Long", "Float"], [[2**61, 2], [2**62 - 1], [2**62]], None, (2**62 - 1, "int64")),
        (None, None, 5, 5, b"[", (None, "")),
        (None, None, b'"\xe9"', b"[" * 100_000, "bool", (None, "bool")),
        (None, None, None, {"a": [2]}, {"a": "bool"}, (None, "")),
        (None, None, None, [[[[2, 3], [4]], [[5]]], [[]], 7], None, (15, "")),
    ],
)
def test_the_larger_of_what_is_sent_and_received(
    sent: Any, received: Any, dtype: str | None, shapes: Any, types: Any, message: tuple[int | None, str]
) -> None:
    assert message_of(sent, received, raw(dtype), raw(shapes), raw(types)) == message


@pytest.mark.parametrize(
    ("name", "on_host", "sends"),
    [
        ("record_param_comms", True, True),
        ("record_param_comms_", False, False),
        ("c10d::allreduce_", True, True),
        ("_c10d_functional::all_gather_into_tensor", True, True),
        ("c10d::wait_", False, False),
        ("gloo:all_reduce", True, True),
        ("xccl:broadcast", True, True),
        ("mpi:all_reduce", True, True),
        ("ucc:all_reduce", True, True),
        ("gloo:wait", False, False),
        ("my gloo:all_reduce", False, False),
        ("all_reduce", False, False),
        ("ncclDevKernel_AllReduce_Sum", False, True),
        ("nccl:all_reduce", False, True),
        ("my rccl", False, True),
        ("aten::mm", False, False),
    ],
)
def test_what_runs_on_the_host_and_what_may_describe_a_message(name: str, on_host: bool, sends: bool) -> None:
    assert runs_on_host(name) is on_host
    assert may_send(name) is sends
