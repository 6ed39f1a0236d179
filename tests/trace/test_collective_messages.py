"""Sizes of the messages of collectives, and names of copies, as their sources define them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from perfnb.trace.collective_messages import DTYPES, ITEM_BYTES, may_send, message_of, runs_on_host
from perfnb.trace.nsys import _copy_name


def test_elements_have_the_size_of_torchs_dtypes() -> None:
    assert {name: getattr(torch, name).itemsize for name in ITEM_BYTES} == ITEM_BYTES
    assert set(DTYPES.values()) <= ITEM_BYTES.keys()
    for word in ("float", "double", "half", "long", "int", "short", "bool"):
        assert getattr(torch, word, torch.bool) == getattr(torch, DTYPES[word])


def raw(value: Any) -> msgspec.Raw:
    """Return an argument as a trace spells it; empty if there is none."""
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
    ],
)
def test_the_larger_of_what_is_sent_and_received(
    sent: Any, received: Any, dtype: str | None, shapes: Any, types: Any, message: tuple[int | None, str]
) -> None:
    assert message_of(sent, received, raw(dtype), raw(shapes), raw(types)) == message


def test_what_may_describe_a_message() -> None:
    for name in ("record_param_comms", "c10d::allreduce_"):
        assert runs_on_host(name)
        assert may_send(name)
    for name, sends in (
        ("ncclDevKernel_AllReduce_Sum", True),
        ("nccl:all_reduce", True),
        ("aten::mm", False),
    ):
        assert not runs_on_host(name)
        assert may_send(name) is sends


@pytest.mark.parametrize(
    ("kind", "source", "target", "name"),
    [
        (1, 0, 2, "Memcpy HtoD (Pageable -> Device)"),
        (2, 2, 1, "Memcpy DtoH (Device -> Pinned)"),
        (8, 2, 2, "Memcpy DtoD (Device -> Device)"),
        (10, 4, 5, "Memcpy PtoP (Managed -> Device static)"),
        (1, 0, 99, "Memcpy HtoD"),
    ],
)
def test_a_copy_is_named_by_its_direction_and_memory(kind: int, source: int, target: int, name: str) -> None:
    assert _copy_name(kind, source, target) == name
