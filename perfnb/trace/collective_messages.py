"""Determine the number of elements and the dtype of collectives' messages from the arguments of their events."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import msgspec
from msgspec import Raw

from perfnb.trace_names import COLLECTIVE_OP, COLLECTIVE_PARAMETERS, HOST_BACKENDS, collective_kind

_ON_HOST = re.compile(rf"(?:{'|'.join(HOST_BACKENDS)}|xccl):")
_ON_DEVICE = re.compile(r"(?:nccl|rccl|oneccl)", re.IGNORECASE)
_MOST_ELEMENTS, _MOST_SHAPES = 2**62, 100_000
#: torch's dtypes, by the names that it uses for them in the arguments of operators and collectives.
DTYPES = {
    **{"float": "float32", "double": "float64", "c10::half": "float16", "half": "float16"},
    **{"c10::bfloat16": "bfloat16", "bfloat16": "bfloat16", "long": "int64", "long int": "int64", "int": "int32"},
    **{"short": "int16", "short int": "int16", "signed char": "int8", "char": "int8", "unsigned char": "uint8"},
    **{"byte": "uint8", "bool": "bool", "c10::complex<float>": "complex64", "complexfloat": "complex64"},
    **{"float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2", "complexdouble": "complex128"},
}
#: The number of bytes per element.
ITEM_BYTES = {
    **{"float64": 8, "int64": 8, "complex64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2},
    **{"int8": 1, "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "complex128": 16},
}


def runs_on_host(name: str) -> bool:
    """Check whether an event with this name starts or runs a collective on the host."""
    run = _ON_HOST.match(name) or COLLECTIVE_OP.match(name)
    return name == COLLECTIVE_PARAMETERS or bool(run and collective_kind(name))


def may_send(name: str) -> bool:
    """Check whether an event with this name may describe a collective's message."""
    return runs_on_host(name) or _ON_DEVICE.search(name) is not None


def message_of(sent: Any, received: Any, dtype: Raw, shapes: Raw, types: Raw) -> tuple[int | None, str]:
    """Return the number of elements in a collective's message, and torch's name for their dtype.

    If the sent and received messages differ, the larger one counts. The result is empty if it is unknown.
    """
    words = [word.lower() for word in _values(dtype) or _values(types) if isinstance(word, str)]
    kind = next((DTYPES.get(word, word) for word in words if word in DTYPES or word in ITEM_BYTES), "")
    counts = [count for count in (sent, received) if isinstance(count, int) and 0 <= count < _MOST_ELEMENTS]
    counts = counts or [count for count in map(_elements, _values(shapes)) if 0 < count < _MOST_ELEMENTS]
    return max(counts, default=None), kind


def _elements(shape: Any) -> int:
    """Return the number of elements in one or several tensors, given their shapes, or 0 if there is none."""
    count, waiting, left = 0, [shape], _MOST_SHAPES
    while waiting and left:
        inner, left = waiting.pop(), left - 1
        if isinstance(inner, list) and inner:
            if all(isinstance(size, int) and 0 <= size < _MOST_ELEMENTS for size in inner):
                count += prod(inner)
            else:
                waiting.extend(inner)
    return count


def _values(json: Raw) -> list[Any]:
    """Return the values in an argument that is a list, or the text if the argument is a single text.

    For any other argument, the result is empty.
    """
    try:
        value = msgspec.json.decode(bytes(json)) if bytes(json) else []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [value] if isinstance(value, str) else value if isinstance(value, list) else []
