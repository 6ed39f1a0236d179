"""Decode pickles of plain data without using `pickle`. Nothing in the file can be imported, called or constructed.

This small stack machine only accepts instructions that create dicts, lists, tuples, text, bytes, numbers, booleans and
``None``. Any other instruction raises an error, and memory is counted as it grows. A `pickle.Unpickler` with a
``find_class`` that rejects everything would not be as safe: its instructions can allocate unlimited memory (for
example, a memo index of two billion allocates its memory immediately), and hashing a deeply nested key overflows the
stack. Scanning for such instructions before unpickling would require a second reader, which might interpret the file
differently.
"""

from __future__ import annotations

import pickletools
import struct
import sys
from dataclasses import dataclass

from perfnb.errors import TraceError

#: The types of values in a pickle of plain data. Containers can be nested.
Plain = dict[str, "Plain"] | list["Plain"] | tuple["Plain", ...] | str | bytes | int | float | bool | None


@dataclass(frozen=True)
class PickleLimits:
    """Limits on the resources that decoding a pickle may use."""

    #: The memory used by all decoded values, which is estimated as it grows.
    memory_bytes: int = 6 << 30
    #: The number of values waiting to be put into a container, which also limits nesting. Picklers write 1,000 values
    #: at a time.
    open_values: int = 10_000
    #: The number of containers that are being filled at the same time.
    depth: int = 100


LIMITS = PickleLimits()
#: The protocols that have a header and binary numbers.
PROTOCOLS = range(2, 6)

_NAMES = {ord(code.code): code.name for code in pickletools.opcodes}
#: The bytes used by containers and their members, rounded up.
_LIST, _DICT, _TUPLE, _ITEM, _PAIR, _NUMBER, _MEMO = 72, 240, 56, 9, 60, 40, 9
#: The number of instructions between two checks of the limits.
_STRETCH = 4096


class _Damaged(Exception):
    """Raised with the reason if the bytes are not a pickle of plain data."""


def decode(data: bytes, source: str = "the pickle", limits: PickleLimits = LIMITS) -> Plain:
    """Decode a pickle of protocol 2 to 5 that contains plain data.

    Raises
    ------
    TraceError
        If the pickle contains anything else, is truncated or damaged, or exceeds the `limits`. The message mentions
        `source`.
    """
    try:
        return _decoded(data, limits)
    except _Damaged as error:
        raise TraceError(f"{source} was not read: {error}.") from error
    except MemoryError as error:
        raise TraceError(f"{source} was not read, because it needs too much memory: record fewer entries.") from error


def _decoded(data: bytes, limits: PickleLimits) -> Plain:
    """Run the instructions in a single loop with local names, because a snapshot has millions of them."""
    if data[:1] != b"\x80" or len(data) < 2 or data[1] not in PROTOCOLS:
        raise _Damaged("it does not start like a pickle of protocol 2 to 5. Pass the unmodified file written by torch")
    end = len(data)
    stack: list[Plain] = []
    memo: list[Plain] = []
    marks: list[int] = []  # the position of each open mark in the stack
    floor = 0  # everything below this position belongs to an open mark
    spent, at, begin = 0, 2, 0
    push, memoize = stack.append, memo.append
    uint16, int32, uint32, uint64, float64 = (struct.Struct(f).unpack_from for f in ("<H", "<i", "<I", "<Q", ">d"))
    try:
        while True:
            if len(stack) > limits.open_values or len(marks) > limits.depth:
                raise _Damaged(
                    f"at byte {at:,}, it is nested too deeply for a memory snapshot, or designed to exhaust memory"
                )
            if spent > limits.memory_bytes:
                raise _Damaged(
                    f"at byte {at:,}, its contents need more than {limits.memory_bytes / 2**30:.3g} GiB of memory. "
                    "Record fewer entries"
                )
            for _ in range(_STRETCH):
                op = data[at]
                begin = at
                at += 1
                if op == 0x68:  # BINGET
                    push(memo[data[at]])
                    at += 1
                elif op == 0x6A:  # LONG_BINGET
                    push(memo[uint32(data, at)[0]])
                    at += 4
                elif op == 0x94:  # MEMOIZE
                    if len(stack) <= floor:
                        raise IndexError
                    memoize(stack[-1])
                    spent += _MEMO
                elif op == 0x28:  # MARK
                    floor = len(stack)
                    marks.append(floor)
                elif op == 0x8A:  # LONG1
                    size = data[at]
                    at += 1 + size
                    if at > end:
                        raise IndexError
                    push(int.from_bytes(data[at - size : at], "little", signed=True))
                    spent += _NUMBER + size
                elif op == 0x4A:  # BININT
                    push(int32(data, at)[0])
                    at += 4
                    spent += _NUMBER
                elif op == 0x4B:  # BININT1
                    push(data[at])
                    at += 1
                elif op == 0x7D or op == 0x5D:  # EMPTY_DICT, EMPTY_LIST
                    push({} if op == 0x7D else [])
                    spent += _DICT if op == 0x7D else _LIST
                elif op == 0x75 or op == 0x73:  # SETITEMS, SETITEM
                    floor = marks.pop() if op == 0x75 else max(floor, len(stack) - 2)
                    items = stack[floor:]
                    del stack[floor:]
                    floor = marks[-1] if marks else 0
                    target = stack[-1]
                    if len(stack) <= floor or type(target) is not dict or len(items) % 2 or (op == 0x73 and not items):
                        raise IndexError
                    keys = items[::2]
                    if not {*map(type, keys)} <= {str}:
                        raise _Damaged(
                            f"at byte {at - 1:,}, a dict has a key that is not text, unlike any memory snapshot"
                        )
                    target.update(zip(keys, items[1::2], strict=True))  # type: ignore[arg-type]
                    spent += _PAIR * len(keys)
                elif op == 0x65 or op == 0x61:  # APPENDS, APPEND
                    floor = marks.pop() if op == 0x65 else max(floor, len(stack) - 1)
                    items = stack[floor:]
                    del stack[floor:]
                    floor = marks[-1] if marks else 0
                    target = stack[-1]
                    if len(stack) <= floor or type(target) is not list or (op == 0x61 and not items):
                        raise IndexError
                    target += items
                    spent += _ITEM * len(items)
                elif op == 0x4D:  # BININT2
                    push(uint16(data, at)[0])
                    at += 2
                    spent += _NUMBER
                elif op == 0x89:  # NEWFALSE
                    push(False)
                elif op == 0x88:  # NEWTRUE
                    push(True)
                elif op == 0x4E:  # NONE
                    push(None)
                elif op in _SIZED:
                    width = _SIZED[op]
                    size = data[at] if width == 1 else (uint32 if width == 4 else uint64)(data, at)[0]
                    at += width
                    if size > end - at:
                        raise IndexError
                    chunk = data[at : at + size]
                    value = chunk if op in _BYTES else chunk.decode("utf-8", "surrogatepass")
                    push(value)
                    at += size
                    spent += sys.getsizeof(value)
                elif op in _TUPLES:
                    if op == 0x74:
                        floor = marks.pop()
                    else:
                        if len(stack) - _TUPLES[op] < floor:
                            raise IndexError
                        floor = len(stack) - _TUPLES[op]
                    value_of_all = tuple(stack[floor:])
                    del stack[floor:]
                    floor = marks[-1] if marks else 0
                    push(value_of_all)
                    spent += _TUPLE + _ITEM * len(value_of_all)
                elif op == 0x71 or op == 0x72:  # BINPUT, LONG_BINPUT
                    index = data[at] if op == 0x71 else uint32(data, at)[0]
                    at += 1 if op == 0x71 else 4
                    if len(stack) <= floor:
                        raise IndexError
                    if index == len(memo):
                        memoize(stack[-1])
                        spent += _MEMO
                    elif index < len(memo):
                        memo[index] = stack[-1]
                    else:
                        raise _Damaged(f"at byte {at:,}, it numbers its values with gaps, unlike any pickler")
                elif op == 0x47:  # BINFLOAT
                    push(float64(data, at)[0])
                    at += 8
                    spent += _NUMBER
                elif op == 0x95:  # FRAME
                    if uint64(data, at)[0] > end - at - 8:
                        raise IndexError
                    at += 8
                elif op == 0x2E:  # STOP
                    if len(stack) != 1 or marks:
                        raise IndexError
                    if at != end:
                        raise _Damaged(f"{end - at:,} bytes follow its end at byte {at:,}. Copy or dump it again")
                    return stack[0]
                else:
                    raise _refused(op, at - 1)
    except (IndexError, struct.error) as error:
        raise _Damaged(f"it is truncated or damaged at byte {begin:,} of {end:,}. Copy or dump it again") from error
    except UnicodeDecodeError as error:
        raise _Damaged(f"the text at byte {begin:,} is not UTF-8. Copy or dump it again") from error


#: The width of the size that precedes the data, for the instructions that create text and then those for bytes.
_SIZED = {0x8C: 1, 0x58: 4, 0x8D: 8, 0x43: 1, 0x42: 4, 0x8E: 8}
_BYTES = (0x43, 0x42, 0x8E)
#: The number of values in a tuple, for each instruction. 0x74 uses everything after the last mark.
_TUPLES = {0x29: 0, 0x85: 1, 0x86: 2, 0x87: 3, 0x74: 0}


def _refused(op: int, at: int) -> _Damaged:
    if op not in _NAMES:
        return _Damaged(f"the byte {op:#04x} at {at:,} is not a pickle instruction. Copy or dump it again")
    return _Damaged(
        f"the instruction {_NAMES[op]} at byte {at:,} could run a program, and a memory snapshot, which contains only "
        "plain data, does not need it. Nothing in the file was run, and you should not open it by other means"
    )
