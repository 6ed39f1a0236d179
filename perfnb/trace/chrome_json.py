"""Decode the JSON of a Chrome trace piece by piece.

The result is the same as if the JSON were decoded as a whole, but much less memory is needed. A piece ends at a
position where one event seems to end and another one to start. To check whether this is the case, the piece is closed
with a bracket and decoded. A JSON parser's state only depends on the preceding text, so if the closed piece is a valid
list, the position is also between two elements of the list in the whole text. If it is not a valid list, a longer piece
is tried, up to the end of the text or the maximum size that is held in memory. If the longest piece is not a valid list
either, it is searched for the damaged byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from secrets import token_hex
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType

from perfnb.errors import TraceError
from perfnb.quantities import size
from perfnb.trace.columns import MISSING
from perfnb.trace.trace_file import MAX_DEPTH, Limits, too_deep, too_many

Time = TypeVar("Time")
OneEvent = TypeVar("OneEvent")
#: The key under which some of the events are decoded together with the text before or after the list. It does not occur
#: in any file.
INNER_KEY = token_hex()
#: The possible types of a number in a trace that was processed by other programs.
Loose = int | float | str | None
#: The value for missing text.
NO_TEXT = Raw(b"")


#: The argument where perfnb stores an event's internal name if it writes the event under a readable name.
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
    graph_node: Loose = msgspec.field(default=MISSING, name="graph node id")
    module_fqn: Raw = NO_TEXT
    annotation: Raw = NO_TEXT
    mark: Raw = msgspec.field(default=NO_TEXT, name="str")
    name: Raw = NO_TEXT
    labels: Raw = NO_TEXT
    own_name: Raw = msgspec.field(default=NO_TEXT, name=OWN_NAME)


NO_ARGS = Args()


class Event(msgspec.Struct, Generic[Time], gc=False):
    """An event. Its times are in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Loose = MISSING
    tid: Loose = MISSING
    ts: Time | int = 0
    dur: Time | int = 0
    args: Args | None = NO_ARGS


#: These are fast, but only exact below 2**43 microseconds.
Quick = int | float | str
AnyEvent = Event[Quick] | Event[Decimal]


class Top(msgspec.Struct, Generic[OneEvent]):
    """The contents of a trace: only the parts around the events, or all of it."""

    events: list[OneEvent] | UnsetType = msgspec.field(default=UNSET, name=INNER_KEY)
    whole: list[OneEvent] | UnsetType = msgspec.field(default=UNSET, name="traceEvents")
    base: Raw = msgspec.field(default=NO_TEXT, name="baseTimeNanoseconds")
    devices: Raw = msgspec.field(default=NO_TEXT, name="deviceProperties")
    old_devices: Raw = msgspec.field(default=NO_TEXT, name="computeProperties")
    distributed: Raw = msgspec.field(default=NO_TEXT, name="distributedInfo")
    perfnb: Raw = NO_TEXT


class Decoders(Generic[OneEvent]):
    """Decoders for an event, for a list of events, and for a trace. `struct` is the type of a decoded event."""

    def __init__(self, struct: Any) -> None:
        self.event: msgspec.json.Decoder[OneEvent] = msgspec.json.Decoder(struct)
        self.events: msgspec.json.Decoder[list[OneEvent]] = msgspec.json.Decoder(list[struct])
        self.trace: msgspec.json.Decoder[Top[OneEvent]] = msgspec.json.Decoder(Top[struct])


QUICK: Decoders[Event[Quick]] = Decoders(Event[Quick])
_EXACT: Decoders[Event[Decimal]] = Decoders(Event[Decimal])

#: The maximum size in bytes of a single event, or of the text before or after the events. This much text is held in
#: memory.
_MOST_HELD = 64 * 2**20
#: The size of a piece in bytes. It is so small that a piece needs little memory even if it consists of empty events.
_PIECE = 2**19
_BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*(?=\{)")
_START_OF_EVENTS = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
#: The maximum number of positions that are tried as the start of the events.
_TRIES = 20
#: The maximum number of bytes that are searched for a damaged byte.
_SEARCHED = 4 * 2**20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NOT_BLANK = re.compile(rb"[^ \t\r\n]")
_INNER = b'"%b":[' % INNER_KEY.encode()
_BARE, _INSIDE = b"[", b"{" + _INNER

_FACTS = [fact for fact in msgspec.structs.fields(Top) if fact.name not in ("events", "whole")]
Decoded = TypeVar("Decoded")
_SYNTAX = msgspec.json.Decoder(Raw)
_UNDECODED = (msgspec.DecodeError, UnicodeDecodeError)

_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS = bytes.maketrans(b'[{]}"', b"\x01\x01\xff\xff\x00")
_NEXT, _SCANNER = re.compile(r"[^ \t\r\n,]"), json.JSONDecoder()
_AGAIN = "copy or record it again"


@dataclass(frozen=True)
class Piece(Generic[OneEvent]):
    """Some of the events, with the JSON from which they were decoded. It starts at byte `place` in the text."""

    events: list[OneEvent]
    text: bytes
    place: int

    def exactly(self, source: str) -> list[Event[Decimal]]:
        """Return the same events with the full precision of their times."""
        try:
            if self.text.startswith(_BARE):
                return _EXACT.events.decode(self.text)
            return _events_of(_EXACT.trace.decode(self.text))
        except _UNDECODED as error:
            raise odd_time(source, f"a ts or dur after byte {self.place:,}", "it is not a number") from error


class ChromeJson(Generic[OneEvent]):
    """The events in a trace, piece by piece, followed by the text around them.

    Parameters
    ----------
    blocks : iterable of bytes-like
        The text.
    source : str
        The name of the text, for error messages.
    limits : Limits
    decoders : Decoders
        The decoders for the events.

    Attributes
    ----------
    facts : dict
        The other contents of the trace, by the field names of `Top`. They are complete after the last piece.
    """

    def __init__(
        self, blocks: Iterable[bytes | memoryview], source: str, limits: Limits, decoders: Decoders[OneEvent]
    ) -> None:
        self._decoders = decoders
        self.facts: dict[str, Any] = {}
        self._source = source
        self._limits = limits
        self._blocks = iter(blocks)
        self._text = bytearray()  # read but not decoded yet
        self._place = 0  # its position in the whole text
        self._ended = False
        self._events = 0

    def pieces(self) -> Iterator[Piece[OneEvent]]:
        """Decode the events in order.

        Raises
        ------
        TraceError
            If the text is not a trace, or exceeds the limits.
        """
        opening = self._open()
        yield from self._pieces_before_the_last()
        self._fill(None)
        text, place = opening + self._text, self._place - len(opening)
        if opening == _BARE:
            events = self._decode(self._decoders.events, text)
        elif (top := self._decode(self._decoders.trace, text)) is not None:
            self._take(top)
            events = _events_of(top)
        else:
            events = None
        if events is None:
            raise self._damaged()
        yield self._piece(events, text, place)

    def _open(self) -> bytes:
        """Skip to the first event, and return the prefix that makes the remaining text valid JSON."""
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
            # This searches a copy, because the text could not be shortened during a search.
            for found in islice(_START_OF_EVENTS.finditer(bytes(self._text)), _TRIES):
                tries += 1
                start, end = found.span()
                top = self._decode(self._decoders.trace, self._text[:start] + _INNER + b"]}")
                if top is not None:  # otherwise, this is inside another value
                    self._take(top)
                    self._drop(end)
                    return _INSIDE
            if self._ended or tries == _TRIES:
                if self._decode(_SYNTAX, self._text) is None:
                    raise self._damaged()
                why = "it is JSON without a list of events called traceEvents"
                raise no_trace(self._source, why, "pass another file")
            self._fill(2 * len(self._text))

    def _pieces_before_the_last(self) -> Iterator[Piece[OneEvent]]:
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
            events = self._decode(self._decoders.events, text)
            if events is None:  # this is inside an event or after the last one, or the text is damaged
                target = max(2 * target, end)
                continue
            yield self._piece(events, text, self._place - 1)
            self._drop(end)
            target = _PIECE

    def _piece(self, events: list[OneEvent], text: bytes, place: int) -> Piece[OneEvent]:
        self._events += len(events)
        if self._events > self._limits.most_events:
            raise too_many(self._source, self._limits.most_events)
        return Piece(events, text, place)

    def _take(self, top: Top[OneEvent]) -> None:
        """Store the facts about the trace in `top`."""
        if top.whole is not UNSET:
            raise _twice(self._source, "traceEvents")
        for fact in _FACTS:
            value = getattr(top, fact.name)
            if value is not NO_TEXT:
                if fact.name in self.facts:
                    raise _twice(self._source, fact.encode_name)
                if depth_of(bytes(value)) > MAX_DEPTH:
                    raise too_deep(self._source)
                try:
                    self.facts[fact.name] = msgspec.json.decode(value)
                except _UNDECODED as error:
                    raise no_trace(self._source, f"its {fact.encode_name} is damaged", _AGAIN) from error

    def _fill(self, least: int | None) -> None:
        """Read until at least `least` bytes of text are available, or the end of the text."""
        while not self._ended and (least is None or len(self._text) < least):
            if len(self._text) > _MOST_HELD:
                raise TraceError(
                    f"{self._source} was not read: no event ends within {size(_MOST_HELD)} after byte {self._place:,}, "
                    "so it is either damaged or not a trace."
                )
            block = next(self._blocks, None)
            if block is None:
                self._ended = True
            else:
                self._text += block

    def _drop(self, count: int) -> None:
        del self._text[:count]
        self._place += count

    def _decode(self, decoder: msgspec.json.Decoder[Decoded], text: bytes | bytearray) -> Decoded | None:
        """Decode a text. The result is ``None`` if the decoder does not accept the text."""
        try:
            return decoder.decode(text)
        except RecursionError as error:
            raise too_deep(self._source) from error
        except _UNDECODED:
            return None

    def _damaged(self) -> TraceError:
        """Return an error for an invalid value in the current text."""
        byte = self._place + _damage(self._text, self._decoders.event)
        advice = "JSON does not allow unescaped quotes and line breaks in names, or numbers such as NaN"
        return no_trace(self._source, f"it is damaged or cut off after byte {byte:,}", f"{advice}; {_AGAIN}")


def _damage(text: bytearray, event: msgspec.json.Decoder[Any]) -> int:
    """Return the position at which a list of events ends or becomes invalid, given without its opening bracket."""
    # Each byte is decoded as one character, so positions are the same in both. JSON's structural characters are ASCII.
    words, place = text[:_SEARCHED].decode("latin-1"), 0
    try:
        while (found := _NEXT.search(words, place)) is not None and found[0] not in "]}":
            place = found.start()
            end = _SCANNER.raw_decode(words, place)[1]
            event.decode(text[place:end])
            place = end
    except json.JSONDecodeError as error:
        if len(text) <= _SEARCHED:
            place = error.pos
    except (*_UNDECODED, RecursionError):
        pass
    return place


def depth_of(text: bytes) -> int:
    """Return the nesting depth of the brackets in a JSON text."""
    # After pairs of backslashes are removed, a backslash escapes the next character, which only matters for quotes.
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
    # One byte each: 1 for an opening bracket, -1 for a closing one, 0 for a quote.
    steps = np.frombuffer(plain.translate(_STEPS, _NOT_STRUCTURE), dtype=np.int8)
    # The number of preceding quotes, modulo 256, which still shows whether the number is odd or even.
    outside_strings = np.cumsum(steps == 0, dtype=np.uint8) & 1 ^ 1
    return int(np.cumsum(steps * outside_strings.view(np.int8), dtype=np.int32).max(initial=0))


def _events_of(top: Top[OneEvent]) -> list[OneEvent]:
    events = top.whole if top.events is UNSET else top.events
    return [] if events is UNSET else events


def _no_json(source: str, start: bytes, length: int) -> TraceError:
    """Describe a text that starts with neither an object nor a list."""
    if not start.strip(b" \t\r\n"):
        return no_trace(source, "it contains only whitespace" if length else "it is empty", "record it again")
    if not start.strip(b"\0"):
        return no_trace(source, "it contains null bytes instead of text", _AGAIN)
    marked = start.startswith((b"\xff\xfe", b"\xfe\xff"))
    if marked or not any(start[:8:2]) or not any(start[1:8:2]):
        return no_trace(source, "its text is UTF-16 or UTF-32", "save it as UTF-8")
    if any(byte < 9 for byte in start):
        return no_trace(source, "it is binary, not text", "pass another file")
    return no_trace(source, "it starts with neither a JSON object nor a list", "pass another file")


def _twice(source: str, name: str) -> TraceError:
    """Return an error for a key that occurs more than once."""
    return no_trace(source, f"it contains {name} twice", "keep the right one and remove the other")


def odd_time(source: str, what: str, time: str) -> TraceError:
    """Return an error for a time that is not a number, or that does not fit in int64 nanoseconds."""
    return no_trace(source, f"{what} is not a time that perfnb can represent: {time}", _AGAIN)


def no_trace(source: str, why: str, advice: str) -> TraceError:
    """Return an error for a text that is not a trace."""
    return TraceError(f"{source} is not a Chrome trace that perfnb can read: {why}; {advice}.")
