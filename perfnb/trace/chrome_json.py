"""The JSON of a Chrome trace, decoded piece by piece: exactly what decoding the whole gives, in far less memory.

A piece ends where an event seems to end and another to begin. Whether it truly does, the decoder proves: the state of
a JSON parser follows from the text before, so if the piece, closed by a bracket, is a list, then the list stood open
between two of its elements at this place of the whole text too. If it is not, a longer piece is tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET

from perfnb.trace import chrome_faults
from perfnb.trace.chrome_events import INNER_KEY, Event, Quick, Time, Top
from perfnb.trace.trace_file import Limits

#: Bytes of a piece: so few that even a million empty events in it need little memory.
_PIECE = 2**19
_BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*(?=\{)")
_BEGIN_OF_EVENTS = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
#: Places where the events may begin that are tried; the text is decoded whole if none is right.
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


@dataclass(frozen=True)
class Piece:
    """Some of the events, and the JSON that they were decoded from, which begins at byte `place` of the text."""

    events: list[Event[Quick]]
    text: bytes
    place: int

    def exactly(self, source: str) -> list[Event[Decimal]]:
        """The same events with every digit of their times."""
        try:
            if self.text.startswith(_BARE):
                return _EXACT_LIST.decode(self.text)
            return _events_of(_EXACT_TOP.decode(self.text))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise chrome_faults.fault(source, error, self.text, self.place, exact=True) from error


class ChromeJson:
    """The events of a trace, piece by piece, and then what stands around them.

    Parameters
    ----------
    blocks : iterable of bytes-like
        The text.
    source : str
        What errors call it.
    limits : Limits

    Attributes
    ----------
    facts : dict
        What the trace says beside its events, by the fields of `Top`; whole after the last piece.
    """

    def __init__(self, blocks: Iterable[bytes | memoryview], source: str, limits: Limits) -> None:
        self.facts: dict[str, Any] = {}
        self._source = source
        self._limits = limits
        self._blocks = iter(blocks)
        self._text = bytearray()  # what is read and not decoded yet
        self._place = 0  # where it begins in the text
        self._ended = False
        self._around = 0  # how many values stand around a piece and are not in its JSON
        self._events = 0

    def pieces(self) -> Iterator[Piece]:
        """The events in their order.

        Raises
        ------
        TraceError
            If the text is no trace, or beyond the limits.
        """
        opening = self._open()
        if opening != _WHOLE:
            yield from self._pieces_before_the_last()
        self._fill(None)
        text, place = opening + self._text, self._place - len(opening)
        if text.count(_INNER[:-1]) > (opening == _INSIDE):
            raise chrome_faults.twice(self._source, INNER_KEY)
        try:
            if opening == _BARE:
                events = self._decode(_QUICK_LIST, text)
            else:
                top = self._decode(_QUICK_TOP, text)
                self._take(top, is_part=opening == _INSIDE)
                events = _events_of(top)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise chrome_faults.fault(self._source, error, text, place) from error
        yield self._piece(events, text, place)

    def _open(self) -> bytes:
        """Go to the first event; what makes JSON of the rest when it stands before it."""
        self._fill(_PIECE)
        if self._text.startswith(_BYTE_ORDER_MARK):
            self._drop(len(_BYTE_ORDER_MARK))
        while (first := _NOT_BLANK.search(self._text)) is None and not self._ended:
            self._fill(2 * len(self._text))
        if first is None or first[0] not in b"{[" or 0 in self._text[:4]:
            raise chrome_faults.no_json(self._source, bytes(self._text[:16]), self._place + len(self._text))
        if first[0] == _BARE:
            self._drop(first.end())
            return _BARE
        while True:
            tries = 0
            # In a copy, since the search would keep the text from being cut.
            for begin in islice(_BEGIN_OF_EVENTS.finditer(bytes(self._text)), _TRIES):
                tries += 1
                start, end = begin.span()
                head = self._text[:start] + _INNER + b"]}"
                try:
                    self._take(self._decode(_QUICK_TOP, head), is_part=True)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    if not chrome_faults.is_open(error):
                        raise chrome_faults.fault(self._source, error, head, self._place) from error
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
                if chrome_faults.is_open(error):
                    target = max(2 * target, end)
                    continue
                if chrome_faults.is_beyond(error):
                    return  # the events ended before this place
                raise chrome_faults.fault(self._source, error, text, self._place - 1) from error
            yield self._piece(events, text, self._place - 1)
            self._drop(end)
            target = _PIECE

    def _piece(self, events: list[Event[Quick]], text: bytes, place: int) -> Piece:
        self._events += len(events)
        if self._events > self._limits.max_events:
            raise chrome_faults.beyond(self._source, f"{self._limits.max_events:,} events", "max_events")
        return Piece(events, text, place)

    def _take(self, top: Top[Quick], *, is_part: bool) -> None:
        """Keep what `top` says of the trace."""
        if is_part and top.whole is not UNSET:
            raise chrome_faults.twice(self._source, "traceEvents")
        if not is_part and top.whole is UNSET:
            raise chrome_faults.no_events(self._source)
        for fact in _FACTS:
            value = getattr(top, fact.name)
            if value is not UNSET:
                if fact.name in self.facts:
                    raise chrome_faults.twice(self._source, fact.encode_name)
                self.facts[fact.name] = value

    def _fill(self, least: int | None) -> None:
        """Read on until `least` bytes of text are there, or all that there is."""
        most = max(self._limits.max_event_bytes, 2 * _PIECE)
        while not self._ended and (least is None or len(self._text) < least):
            if len(self._text) > most:
                raise chrome_faults.no_end(self._source, self._place, most)
            block = next(self._blocks, None)
            if block is None:
                self._ended = True
            else:
                self._text += block

    def _drop(self, count: int) -> None:
        del self._text[:count]
        self._place += count

    def _decode(self, decoder: msgspec.json.Decoder[Decoded], text: bytes | bytearray) -> Decoded:
        # What is left of a run of backslashes escapes what follows; only a quote matters here.
        plain = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
        # One byte each: 1 for an opening bracket, -1 for a closing one, 0 for a quote.
        steps = np.frombuffer(plain.translate(_STEPS, _NOT_STRUCTURE), dtype=np.int8)
        # How many quotes stood before, modulo 256, which tells as well as their number whether it was even.
        outside_strings = np.cumsum(steps == 0, dtype=np.uint8) & 1 ^ 1
        depth = np.cumsum(steps * outside_strings.view(np.int8), dtype=np.int32).max(initial=0)
        most = self._limits.max_depth
        if depth + (self._around if text.startswith(_BARE) else 0) > most:
            raise chrome_faults.beyond(self._source, f"{most:,} values inside each other", "max_depth")
        try:
            return decoder.decode(text)
        except RecursionError as error:
            raise chrome_faults.recursion(self._source) from error


def _events_of(top: Top[Time]) -> list[Event[Time]]:
    events = top.whole if top.events is UNSET else top.events
    return [] if events is UNSET else events
