"""Plain pickles decode as `pickle` decodes them; any other is refused before anything in it can run."""

from __future__ import annotations

import os
import pickle
import pickletools
import struct
import subprocess
import sys
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfnb.errors import TraceError
from perfnb.memory.snapshot import plain_pickle
from perfnb.memory.snapshot.plain_pickle import PickleLimits, decode
from tests.memory import snapshots

PROTOCOLS = [2, 3, 4, 5]

TEXT = st.text(st.characters(), max_size=8)
ATOMS = st.none() | st.booleans() | st.integers(-(2**2030), 2**2030) | st.floats(allow_nan=False) | TEXT
PLAIN = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5) | st.lists(inner, max_size=5).map(tuple)
    ),
    max_leaves=30,
)


def same(a: Any, b: Any) -> bool:
    """Equal, and of one type throughout: ``1 == True == 1.0`` would hide a wrong instruction."""
    return pickle.dumps(a) == pickle.dumps(b) or (a == b and repr(a) == repr(b))


@given(data=PLAIN, protocol=st.sampled_from(PROTOCOLS))
@example(data=[list(range(3000)), {str(i): i for i in range(3000)}], protocol=4)
@example(data=["x" * 300, "y" * 70_000, 255, 256, 65_535, 65_536, 2**31, -1, 0.5], protocol=2)
def test_plain_data_decodes_as_pickle_decodes_it(data: Any, protocol: int) -> None:
    raw = pickle.dumps(data, protocol=protocol)

    assert same(decode(raw), pickle.loads(raw))
    assert same(decode(pickletools.optimize(raw)), data)


@pytest.mark.parametrize("protocol", PROTOCOLS[1:])
def test_bytes_of_every_length_decode(protocol: int) -> None:
    data = [b"", b"a" * 255, b"b" * 70_000]

    assert decode(pickle.dumps(data, protocol=protocol)) == data


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_shared_stays_shared_and_a_list_may_hold_itself(protocol: int) -> None:
    inner: list[Any] = [1]
    inner.append(inner)

    (first, second) = decode(pickle.dumps([inner, inner], protocol=protocol))  # type: ignore[misc]

    assert first is second is first[1]


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_give_one_error(raw: bytes) -> None:
    for data in (raw, b"\x80\x04" + raw):
        check_any(data)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    data=PLAIN, protocol=st.sampled_from(PROTOCOLS), changes=st.lists(st.tuples(st.integers(0), st.integers(0, 255)))
)
def test_damaged_bytes_decode_as_pickle_would_or_give_one_error(data: Any, protocol: int, changes: list) -> None:
    raw = bytearray(pickle.dumps(data, protocol=protocol))
    for place, value in changes:
        raw[place % len(raw)] = value
    check_any(bytes(raw))


def check_any(raw: bytes) -> None:
    try:
        ours = decode(raw, "the file")
    except TraceError as error:
        sentence = str(error)
    else:
        sentence = ""
    if sentence:
        assert sentence.startswith("the file was not read: ")
        assert "\n" not in sentence
        return
    assert same(ours, pickle.loads(raw))  # what ours has read holds nothing that could run


@pytest.mark.slow
def test_cut_short_anywhere_gives_one_error() -> None:
    for protocol in (2, 4):
        raw = snapshots.dumped(snapshots.small(), protocol)
        for end in range(len(raw)):
            with pytest.raises(TraceError, match="not read"):
                decode(raw[:end])
        with pytest.raises(TraceError, match="2 bytes follow its end"):
            decode(raw + b"N.")


# What follows would run a command, build an object or fetch one, if it were unpickled.


class Runs:
    def __init__(self, call: Any, *args: Any) -> None:
        self.reduced = (call, args)

    def __reduce__(self) -> Any:
        return self.reduced


def global_call(module: str, name: str, argument: str, old: bool) -> bytes:
    """Return a call to a function by its name, in the words of protocol 2 or 4."""
    text = argument.encode()
    pushed = b"X" + struct.pack("<I", len(text)) + text
    if old:
        return b"\x80\x02c" + f"{module}\n{name}\n".encode() + pushed + b"\x85R."
    both = b"".join(b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name))
    return b"\x80\x04" + both + b"\x93" + pushed + b"\x85R."


def exploits(sentinel: Path) -> dict[str, bytes]:
    touch = f"touch {sentinel}"
    found = {
        f"{module}.{name} {'GLOBAL' if old else 'STACK_GLOBAL'}": global_call(module, name, argument, old)
        for old in (True, False)
        for module, name, argument in (
            ("os", "system", touch),
            ("builtins", "eval", f"__import__('os').system({touch!r})"),
            ("torch._utils", "_rebuild_tensor_v2", "x"),
        )
    }
    for protocol in (2, 4):
        for name, value in {
            "getattr": Runs(getattr, Runs(__import__, "os"), "system"),
            "inside": {"segments": [{"blocks": [Runs(os.system, touch)]}]},
            "ordered dict": OrderedDict(a=1),
            "class": int,
            "set": {1, 2},
        }.items():
            found[f"{name} protocol {protocol}"] = pickle.dumps(value, protocol=protocol)
    found |= {
        "INST": b"\x80\x02(S'touch %b'\nios\nsystem\n." % str(sentinel).encode(),
        "BUILD": b"\x80\x02}}b.",
        "PERSID": b"\x80\x02Pabc\n.",
        "after the end": pickle.dumps([1]) + pickle.dumps(Runs(os.system, touch)),
    }
    return found


NAMES = sorted(exploits(Path("x")))


@pytest.mark.parametrize("name", NAMES)
def test_what_could_run_is_refused_and_nothing_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentinel = tmp_path / "ran"
    raw = exploits(sentinel)[name]
    for loader in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, loader, lambda *_, **__: pytest.fail("pickle was asked"))
    looked_up = set(sys.modules)

    with pytest.raises(TraceError, match="was not read") as refused:
        decode(raw, "strange.pickle")

    assert not sentinel.exists()
    assert set(sys.modules) == looked_up
    assert str(refused.value).startswith("strange.pickle was not read: ")


def test_the_exploits_are_real(tmp_path: Path) -> None:
    """Unpickled as a careless program would, they do leave their sentinel: otherwise the test above shows nothing."""
    ran = []
    for number, name in enumerate(["os.system GLOBAL", "builtins.eval STACK_GLOBAL", "inside protocol 4", "INST"]):
        sentinel = tmp_path / f"ran{number}"
        raw = exploits(sentinel)[name]
        careless = [sys.executable, "-c", "import pickle, sys; pickle.load(sys.stdin.buffer)"]
        subprocess.run(careless, input=raw, check=False, capture_output=True)
        ran.append(sentinel.exists())
    assert ran[:3] == [True] * 3


def test_only_instructions_of_plain_data_are_known() -> None:
    """Each of pickle's instructions in turn: those that fetch, call or build are refused by their names."""
    makes_more = {
        "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4",
        "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER", "BYTEARRAY8", "EMPTY_SET", "FROZENSET", "ADDITEMS",
        "DUP", "POP", "POP_MARK", "GET", "PUT", "INT", "LONG", "LONG4", "FLOAT", "STRING", "BINSTRING",
        "SHORT_BINSTRING", "UNICODE", "DICT", "LIST", "PROTO",
    }  # fmt: skip
    refused = set()
    for code in pickletools.opcodes:
        with pytest.raises(TraceError) as error:
            decode(b"\x80\x04" + code.code.encode("latin-1") + b"\xff" * 3)
        if f"the instruction {code.name} " in str(error.value):
            refused.add(code.name)
    assert refused == makes_more


MANY = 50_000

BOMBS = {
    "memo index": b"\x80\x02]r\xff\xff\xff\x7f.",
    "LONG4": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "BINUNICODE": b"\x80\x02X\xff\xff\xff\xffabc.",
    "BINUNICODE8": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"abc.",
    "BINBYTES8": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"abc.",
    "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"abc.",
    "FRAME": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.",
    "lists in lists": b"\x80\x02" + b"]" * MANY + b"a" * (MANY - 1) + b".",
    "marks": b"\x80\x02" + b"(" * MANY + b"t" * MANY + b".",
    "tuples in tuples": b"\x80\x02)" + b"\x85" * MANY + b".",
    "DUP": b"\x80\x02]" + b"2" * MANY + b".",
    "nothing": b"\x80\x02" + b"N" * MANY + b".",
    "look-ups": b"\x80\x02]q\x00" + b"h\x00" * MANY + b".",
    "long look-ups": b"\x80\x02]q\x00" + b"j\x00\x00\x00\x00" * MANY + b".",
    "memo": b"\x80\x04](" + b"}\x94" * MANY + b"e.",
    "same in memo": b"\x80\x04]" + b"\x94" * (5 * MANY) + b".",
    "key as deep as the stack": b"\x80\x02})" + b"\x85" * 125_000 + b"Ns.",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BOMBS))
def test_a_bomb_is_refused_within_bounded_memory(name: str) -> None:
    raw = BOMBS[name]
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="not read"):
            decode(raw, limits=PickleLimits(memory_bytes=1 << 20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 << 20


@pytest.mark.parametrize(
    ("raw", "limits", "why"),
    [
        (b"\x80\x02" + b"(" * 9000 + b"t" * 9000 + b".", PickleLimits(depth=20), "nested too deeply"),
        (b"\x80\x02]" + b"N" * 9000 + b".", PickleLimits(open_values=2000), "nested too deeply"),
        (b"\x80\x02]q\x00" + b"h\x00" * 5_000_000 + b".", PickleLimits(), "nested too deeply"),
        (BOMBS["memo index"], PickleLimits(), "numbers its values with gaps"),
        (b"\x80\x02}((uu.", PickleLimits(), "damaged at byte 5"),
        (b"\x80\x02]((ee.", PickleLimits(), "damaged at byte 5"),
        (b"\x80\x02](a.", PickleLimits(), "damaged at byte 4"),
        (b"\x80\x02N(\x85.", PickleLimits(), "damaged at byte 4"),
        (b"\x80\x04N(\x94.", PickleLimits(), "damaged at byte 4"),
        (b"\x80\x02N(q\x00.", PickleLimits(), "damaged at byte 4"),
    ],
    ids=range(10),
)
def test_each_limit_has_its_own_words(raw: bytes, limits: PickleLimits, why: str) -> None:
    with pytest.raises(TraceError, match=why):
        decode(raw, limits=limits)


@pytest.mark.slow
@pytest.mark.parametrize(
    "item",
    [
        b"}", b"]", b"K\x01", b"M\x01\x02", b"\x8a\x08abcdefgh", b"\x8c\x01a", b"G" + bytes(8), b"}\x8c\x01aNs", b")",
        b"N\x85",
    ],
)  # fmt: skip
def test_the_estimate_of_memory_is_above_what_is_used(item: bytes) -> None:
    """A list of very many small things, as a pickler would write it, is refused before it takes more than allowed."""
    limit = 1 << 19
    raw = b"\x80\x02]" + (b"(" + item * 1000 + b"e") * 75 + b"."
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="GiB of memory"):
            decode(raw, limits=PickleLimits(memory_bytes=limit))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit * 1.6


def test_doubling_lists_decode_at_once() -> None:
    """Thirty lists, each twice in the next: a billion leaves for whoever walks them, thirty lists for us."""
    data: Any = []
    for _ in range(30):
        data = [data, data]

    result = decode(pickle.dumps(data))

    assert result[0] is result[1]  # type: ignore[index]


def test_keys_that_are_not_text_are_refused() -> None:
    for key in (1, 1.5, None, (1, 2), b"x"):
        with pytest.raises(TraceError, match="a key that is not text"):
            decode(pickle.dumps({key: 1}))


def test_errors_are_one_sentence_that_says_where() -> None:
    with pytest.raises(TraceError) as error:
        decode(global_call("os", "system", "x", old=True), "a.pickle")
    assert str(error.value) == (
        "a.pickle was not read: the instruction GLOBAL at byte 2 could run a program, and a memory snapshot, which "
        "contains only plain data, does not need it. Nothing in the file was run, and you should not open it by other "
        "means."
    )
    with pytest.raises(TraceError) as error:
        decode(snapshots.dumped([1, 2, 3])[:-3], "a.pickle")
    assert str(error.value).startswith("a.pickle was not read: it is truncated or damaged at byte ")
    with pytest.raises(TraceError, match="does not start like a pickle of protocol 2 to 5"):
        decode(pickle.dumps([1], protocol=0))
    with pytest.raises(TraceError, match=r"a\.pickle was not read: the text at byte 2 is not UTF-8"):
        decode(b"\x80\x03X\x01\x00\x00\x00\xff.", "a.pickle")
    with pytest.raises(TraceError, match="at byte 5, it numbers its values with gaps"):
        decode(b"\x80\x02]q\x01.", "a.pickle")


def test_a_number_of_a_value_may_be_given_again() -> None:
    raw = b"\x80\x02]q\x00K\x05q\x00ah\x00a."
    assert decode(raw) == pickle.loads(raw) == [5, 5]


def test_a_pickle_that_needs_more_memory_than_there_is_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "_decoded", Mock(side_effect=MemoryError))
    with pytest.raises(TraceError, match=r"a\.pickle was not read, because it needs too much memory"):
        decode(b"", "a.pickle")
