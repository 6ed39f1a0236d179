"""The JSON of a Chrome trace, decoded piece by piece: the result of decoding it whole, in far less memory.

A piece ends where one event seems to end and another to start. The decoder proves whether it does: the state of a JSON
parser follows from the text before, so if the piece, closed by a bracket, is a list, then the list was open between two
of its elements at this place of the whole text too. If it is not, a longer piece is tried.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Raw, UnsetType

from perfnb.errors import TraceError
from perfnb.quantities import size
from perfnb.trace.columns import MISSING
from perfnb.trace.trace_file import MAX_DEPTH, Limits, too_deep, too_many

Time = TypeVar("Time")
#: The key under which a part of the events is decoded with what precedes or follows them in the file.
INNER_KEY = "perfnb: events"
#: What a number can look like in a trace that went through other programs.
Loose = int | float | str | None
#: Text that an event does not have.
NO_TEXT = Raw(b"")


#: The argument in which perfnb keeps its own name of an event that it writes under a readable one.
OWN_NAME = "perfnb name"


class Args(msgspec.Struct, frozen=True, gc=False):
    """The arguments of an event."""

    external_id: Loose = msgspec.field(default=MISSING, name="External id")
    old_external_id: Loose = msgspec.field(default=MISSING, name="external id")
    python_parent: Loose = msgspec.field(default=MISSING, name="Python parent id")
    python_id: Loose = msgspec.field(default=MISSING, name="Python id")
    sequence: Loose = msgspec.field(default=MISSING, name="Sequence number")
    forward_thread: Loose = msgspec.field(default=MISSING, name="Fwd thread id")
    device: Loose = MISSING
    stream: Loose = MISSING
    correlation: Loose = MISSING
    shapes: Raw = msgspec.field(default=NO_TEXT, name="Input Dims")
    old_shapes: Raw = msgspec.field(default=NO_TEXT, name="Input dims")
    wait_stream: Loose = msgspec.field(default=MISSING, name="wait_on_stream")
    wait_correlation: Loose = msgspec.field(default=MISSING, name="wait_on_cuda_event_record_corr_id")
    reserved: Loose = msgspec.field(default=MISSING, name="Total Reserved")
    allocated: Loose = msgspec.field(default=MISSING, name="Total Allocated")
    bytes: Loose = msgspec.field(default=MISSING, name="Bytes")
    moved_bytes: Loose = msgspec.field(default=MISSING, name="bytes")
    device_id: Loose = msgspec.field(default=MISSING, name="Device Id")
    device_type: Loose = msgspec.field(default=MISSING, name="Device Type")
    address: Loose = msgspec.field(default=MISSING, name="Addr")
    collective: Raw = msgspec.field(default=NO_TEXT, name="Collective name")
    group: Raw = msgspec.field(default=NO_TEXT, name="Process Group Name")
    ranks: Raw = msgspec.field(default=NO_TEXT, name="Process Group Ranks")
    in_elements: Loose = msgspec.field(default=MISSING, name="In msg nelems")
    out_elements: Loose = msgspec.field(default=MISSING, name="Out msg nelems")
    dtype: Raw = NO_TEXT
    types: Raw = msgspec.field(default=NO_TEXT, name="Input type")
    name: Raw = NO_TEXT
    labels: Raw = NO_TEXT
    own_name: Raw = msgspec.field(default=NO_TEXT, name=OWN_NAME)


NO_ARGS = Args()


class Event(msgspec.Struct, Generic[Time], gc=False):
    """An event, with times in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Loose = MISSING
    tid: Loose = MISSING
    ts: Time | int = 0
    dur: Time | int = 0
    args: Args | None = NO_ARGS


#: Fast, and exact only below 2**43 microseconds.
Quick = int | float | str
AnyEvent = Event[Quick] | Event[Decimal]


class Top(msgspec.Struct, Generic[Time]):
    """What surrounds the events, or a whole trace."""

    events: list[Event[Time]] | UnsetType = msgspec.field(default=UNSET, name=INNER_KEY)
    whole: list[Event[Time]] | UnsetType = msgspec.field(default=UNSET, name="traceEvents")
    base: Loose | UnsetType = msgspec.field(default=UNSET, name="baseTimeNanoseconds")
    devices: Any = msgspec.field(default=UNSET, name="deviceProperties")
    old_devices: Any = msgspec.field(default=UNSET, name="computeProperties")
    distributed: Any = msgspec.field(default=UNSET, name="distributedInfo")
    perfnb: Any = UNSET


#: Bytes of one event, or of everything before or after the events: this much text is held in memory.
_MOST_HELD = 64 * 2**20
#: Bytes of a piece: small enough that even a million empty events in it need little memory.
_PIECE = 2**19
_BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*(?=\{)")
_START_OF_EVENTS = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
#: How many places where the events may start are tried; if none is right, the text is decoded whole.
_TRIES = 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NOT_BLANK = re.compile(rb"[^ \t\r\n]")
_INNER = b'"%b":[' % INNER_KEY.encode()
_BARE, _INSIDE, _WHOLE = b"[", b"{" + _INNER, b""

_QUICK_LIST, _EXACT_LIST = msgspec.json.Decoder(list[Event[Quick]]), msgspec.json.Decoder(list[Event[Decimal]])
_QUICK_TOP, _EXACT_TOP = msgspec.json.Decoder(Top[Quick]), msgspec.json.Decoder(Top[Decimal])

_FACTS = [fact for fact in msgspec.structs.fields(Top) if fact.name not in ("events", "whole")]
Decoded = TypeVar("Decoded")

_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS = bytes.maketrans(b'[{]}"', b"\x01\x01\xff\xff\x00")
#: Characters that are looked at together.
_WORD = 64


@dataclass(frozen=True)
class Piece:
    """Some of the events, and the JSON they were decoded from, which starts at byte `place` of the text."""

    events: list[Event[Quick]]
    text: bytes
    place: int

    def exactly(self, source: str) -> list[Event[Decimal]]:
        """Return the same events with every digit of their times."""
        try:
            if self.text.startswith(_BARE):
                return _EXACT_LIST.decode(self.text)
            return _events_of(_EXACT_TOP.decode(self.text))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _fault(source, error, self.text, self.place, exact=True) from error


class ChromeJson:
    """The events of a trace, piece by piece, and then what surrounds them.

    Parameters
    ----------
    blocks : iterable of bytes-like
        The text.
    source : str
        What errors call the text.
    limits : Limits

    Attributes
    ----------
    facts : dict
        What the trace says besides its events, by the fields of `Top`; complete after the last piece.
    """

    def __init__(self, blocks: Iterable[bytes | memoryview], source: str, limits: Limits) -> None:
        self.facts: dict[str, Any] = {}
        self._source = source
        self._limits = limits
        self._blocks = iter(blocks)
        self._text = bytearray()  # read and not decoded yet
        self._place = 0  # where it starts in the text
        self._ended = False
        self._around = 0  # number of values around a piece that are not in its JSON
        self._events = 0

    def pieces(self) -> Iterator[Piece]:
        """Decode the events in order.

        Raises
        ------
        TraceError
            If the text is not a trace, or exceeds the limits.
        """
        opening = self._open()
        if opening != _WHOLE:
            yield from self._pieces_before_the_last()
        self._fill(None)
        text, place = opening + self._text, self._place - len(opening)
        if text.count(_INNER[:-1]) > (opening == _INSIDE):
            raise _twice(self._source, INNER_KEY)
        try:
            if opening == _BARE:
                events = self._decode(_QUICK_LIST, text)
            else:
                top = self._decode(_QUICK_TOP, text)
                self._take(top, is_part=opening == _INSIDE)
                events = _events_of(top)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _fault(self._source, error, text, place) from error
        yield self._piece(events, text, place)

    def _open(self) -> bytes:
        """Go to the first event; return what has to precede the rest to make it JSON."""
        self._fill(_PIECE)
        if self._text.startswith(_BYTE_ORDER_MARK):
            self._drop(len(_BYTE_ORDER_MARK))
        while (first := _NOT_BLANK.search(self._text)) is None and not self._ended:
            self._fill(2 * len(self._text))
        if first is None or first[0] not in b"{[" or 0 in self._text[:4]:
            raise _no_json(self._source, bytes(self._text[:16]), self._place + len(self._text))
        if first[0] == _BARE:
            self._drop(first.end())
            return _BARE
        while True:
            tries = 0
            # In a copy, because the search would prevent the text from being cut.
            for found in islice(_START_OF_EVENTS.finditer(bytes(self._text)), _TRIES):
                tries += 1
                start, end = found.span()
                head = self._text[:start] + _INNER + b"]}"
                try:
                    self._take(self._decode(_QUICK_TOP, head), is_part=True)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    if not _is_open(error):
                        raise _fault(self._source, error, head, self._place) from error
                else:
                    self._drop(end)
                    self._around = 1
                    return _INSIDE
            if self._ended or tries == _TRIES:
                return _WHOLE
            self._fill(2 * len(self._text))

    def _pieces_before_the_last(self) -> Iterator[Piece]:
        target = _PIECE
        while True:
            self._fill(target + _PIECE // 16)
            between = _BETWEEN_EVENTS.search(self._text, target)
            if between is None:
                if self._ended:
                    return
                self._fill(2 * len(self._text))
                continue
            start, end = between.span()
            text = b"".join((b"[", memoryview(self._text)[: start + 1], b"]"))
            try:
                events = self._decode(_QUICK_LIST, text)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if _is_open(error):
                    target = max(2 * target, end)
                    continue
                if _is_beyond(error):
                    return  # the events ended before this place
                raise _fault(self._source, error, text, self._place - 1) from error
            yield self._piece(events, text, self._place - 1)
            self._drop(end)
            target = _PIECE

    def _piece(self, events: list[Event[Quick]], text: bytes, place: int) -> Piece:
        self._events += len(events)
        if self._events > self._limits.most_events:
            raise too_many(self._source, self._limits.most_events)
        return Piece(events, text, place)

    def _take(self, top: Top[Quick], *, is_part: bool) -> None:
        """Keep what `top` says about the trace."""
        if is_part and top.whole is not UNSET:
            raise _twice(self._source, "traceEvents")
        if not is_part and top.whole is UNSET:
            raise _no_trace(self._source, "it is JSON without a list called traceEvents", "give another file")
        for fact in _FACTS:
            value = getattr(top, fact.name)
            if value is not UNSET:
                if fact.name in self.facts:
                    raise _twice(self._source, fact.encode_name)
                self.facts[fact.name] = value

    def _fill(self, least: int | None) -> None:
        """Read on until at least `least` bytes of text are available, or all of it."""
        while not self._ended and (least is None or len(self._text) < least):
            if len(self._text) > _MOST_HELD:
                raise TraceError(
                    f"{self._source} was not read: no event ends within {size(_MOST_HELD)} after byte {self._place:,}, "
                    "so it does not look like a trace."
                )
            block = next(self._blocks, None)
            if block is None:
                self._ended = True
            else:
                self._text += block

    def _drop(self, count: int) -> None:
        del self._text[:count]
        self._place += count

    def _decode(self, decoder: msgspec.json.Decoder[Decoded], text: bytes | bytearray) -> Decoded:
        # The rest of a run of backslashes escapes what follows; only a quote matters here.
        plain = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
        inside = MAX_DEPTH - (self._around if text.startswith(_BARE) else 0)
        if _not_deeper_than(plain) > inside and _depth(plain) > inside:
            raise too_deep(self._source)
        try:
            return decoder.decode(text)
        except RecursionError as error:
            why = "its values are nested deeper than Python's recursion limit"
            raise _no_trace(self._source, why, "give another file") from error


def _depth(text: bytes | bytearray) -> int:
    """Return how deep the brackets of a text without escaped quotes are nested."""
    # One byte each: 1 for an opening bracket, -1 for a closing one, 0 for a quote.
    steps = np.frombuffer(text.translate(_STEPS, _NOT_STRUCTURE), dtype=np.int8)
    # The number of quotes so far, modulo 256, which is as good as the number for telling odd from even.
    outside_strings = np.cumsum(steps == 0, dtype=np.uint8) & 1 ^ 1
    return int(np.cumsum(steps * outside_strings.view(np.int8), dtype=np.int32).max(initial=0))


def _not_deeper_than(text: bytes | bytearray) -> float:
    """Return a depth that `_depth` does not exceed, in half its time: 64 characters are looked at together, as bits."""
    if not hasattr(np, "bitwise_count"):  # NumPy 1
        return math.inf
    characters = np.frombuffer(text, dtype=np.uint8, count=len(text) // _WORD * _WORD)
    quotes = _bits(characters == ord('"'))
    for distance in (1, 2, 4, 8, 16, 32):  # each bit becomes the parity of the quotes up to it in its word
        quotes = quotes ^ quotes << np.uint64(distance)
    parity = quotes >> np.uint64(63)
    opened_before = np.bitwise_xor.accumulate(parity) ^ parity
    outside_strings = ~(quotes ^ -opened_before)
    characters = characters | np.uint8(0x20)  # of an ASCII bracket the brace, and of a brace itself
    opening, closing = (
        np.bitwise_count(_bits(characters == ord(brace)) & outside_strings).astype(np.int32) for brace in "{}"
    )
    before = np.cumsum(opening - closing) - (opening - closing)
    return int((before + opening).max(initial=0)) + len(text) % _WORD


def _bits(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    return np.packbits(flags, bitorder="little").view("<u8")


def _events_of(top: Top[Time]) -> list[Event[Time]]:
    events = top.whole if top.events is UNSET else top.events
    return [] if events is UNSET else events


_BYTE = re.compile(r"(?:JSON is malformed: )?(.*) \(byte (\d+)\)")
_NOT_A_NUMBER = re.compile(rb"[+-]?(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
_AGAIN = "copy or record it again"


class _RawTop(msgspec.Struct):
    events: list[msgspec.Raw] = msgspec.field(default_factory=list, name=INNER_KEY)
    whole: list[msgspec.Raw] = msgspec.field(default_factory=list, name="traceEvents")


_QUICK, _EXACT = msgspec.json.Decoder(Event[Quick]), msgspec.json.Decoder(Event[Decimal])
_RAW_LIST, _RAW_TOP = msgspec.json.Decoder(list[msgspec.Raw]), msgspec.json.Decoder(_RawTop)


def _is_open(error: Exception) -> bool:
    """Return whether the text ended inside a value."""
    return str(error).startswith("Input data was truncated")


def _is_beyond(error: Exception) -> bool:
    """Return whether the text continued after the value."""
    return "trailing characters" in str(error)


def _fault(source: str, error: Exception, text: bytes | bytearray, place: int, *, exact: bool = False) -> TraceError:
    """Explain an error of the decoder; `text` starts at byte `place` of the file's text."""
    if _is_open(error):
        return _no_trace(source, f"it is cut off after byte {place + len(text):,}", _AGAIN)
    if found := _BYTE.fullmatch(str(error)):
        byte = int(found[2])
        if name := _NOT_A_NUMBER.match(text, byte):
            return _no_trace(source, f"{name[0].decode()} at byte {place + byte:,} is not JSON", "write null instead")
        advice = "if a name in it holds a quote or a line break, rename it and record again"
        return _no_trace(source, f"at byte {place + byte:,} it is not JSON ({found[1]})", advice)
    event = _first_fault(text, _EXACT if exact else _QUICK)
    if event is None:
        return _no_trace(source, _plain(error), _AGAIN)
    byte, error = event
    return _no_trace(source, f"the event at byte {place + byte:,} is invalid: {_plain(error)}", _AGAIN)


def _no_json(source: str, start: bytes, length: int) -> TraceError:
    """Say what a text is that starts with neither an object nor a list."""
    if not start.strip(b" \t\r\n"):
        return _no_trace(source, "it contains only blanks" if length else "it is empty", "record it again")
    if not start.strip(b"\0"):
        return _no_trace(source, "it contains null bytes instead of text", _AGAIN)
    marked = start.startswith((b"\xff\xfe", b"\xfe\xff"))
    if marked or not any(start[:8:2]) or not any(start[1:8:2]):
        return _no_trace(source, "its text is UTF-16 or UTF-32", "save it as UTF-8")
    if any(byte < 9 for byte in start):
        return _no_trace(source, "it is binary, not text", "give another file")
    return _no_trace(source, "it starts with neither a JSON object nor a list", "give another file")


def _twice(source: str, name: str) -> TraceError:
    """A key occurs more than once."""
    return _no_trace(source, f"it contains {name} twice", "keep the right one and remove the other")


def odd_time(source: str, what: str, time: str) -> TraceError:
    """A time is not a number, or does not fit in int64 nanoseconds."""
    return _no_trace(source, f"{what} is not a time that perfnb can hold: {time}", _AGAIN)


def _no_trace(source: str, why: str, advice: str) -> TraceError:
    return TraceError(f"{source} is not a Chrome trace that perfnb can read: {why}; {advice}.")


def _plain(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "text that is not UTF-8"
    text = str(error).replace(" - at `$", " at `").replace("`.", "`")[:200]
    return text[:1].lower() + text[1:]


def _first_fault(text: bytes | bytearray, decoder: msgspec.json.Decoder[Any]) -> tuple[int, Exception] | None:
    """Find where the first event starts that cannot be decoded, and why."""
    try:
        if text.startswith(b"["):
            raws = _RAW_LIST.decode(text)
        else:
            top = _RAW_TOP.decode(text)
            raws = top.events or top.whole
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    byte = 0
    for raw in raws:
        event = bytes(raw)
        byte = text.index(event, byte)
        try:
            decoder.decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return byte, error
        byte += len(event)
    return None
