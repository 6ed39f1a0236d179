"""The errors of reading a Chrome trace's JSON: what is wrong, at which byte, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from perfnb.errors import TraceError
from perfnb.trace.chrome_events import INNER_KEY, Event, Quick

_BYTE = re.compile(r"(?:JSON is malformed: )?(.*) \(byte (\d+)\)")
_NOT_A_NUMBER = re.compile(rb"[+-]?(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
_AGAIN = "copy or record it again"


class _RawTop(msgspec.Struct):
    events: list[msgspec.Raw] = msgspec.field(default_factory=list, name=INNER_KEY)
    whole: list[msgspec.Raw] = msgspec.field(default_factory=list, name="traceEvents")


_QUICK, _EXACT = msgspec.json.Decoder(Event[Quick]), msgspec.json.Decoder(Event[Decimal])
_RAW_LIST, _RAW_TOP = msgspec.json.Decoder(list[msgspec.Raw]), msgspec.json.Decoder(_RawTop)


def is_open(error: Exception) -> bool:
    """Whether the text ended inside a value."""
    return str(error).startswith("Input data was truncated")


def is_beyond(error: Exception) -> bool:
    """Whether the text went on after the value."""
    return "trailing characters" in str(error)


def fault(source: str, error: Exception, text: bytes | bytearray, place: int, *, exact: bool = False) -> TraceError:
    """What `error` of the decoder means; `text` begins at byte `place` of the file's text."""
    if is_open(error):
        return _no_trace(source, f"it is cut off after byte {place + len(text):,}", _AGAIN)
    if found := _BYTE.fullmatch(str(error)):
        byte = int(found[2])
        if name := _NOT_A_NUMBER.match(text, byte):
            return _no_trace(source, f"{name[0].decode()} at byte {place + byte:,} is no JSON", "write null instead")
        advice = "if a name in it holds a quote or a line break, rename it and record again"
        return _no_trace(source, f"at byte {place + byte:,} it is no JSON ({found[1]})", advice)
    event = _first_fault(text, _EXACT if exact else _QUICK)
    if event is None:
        return _no_trace(source, _plain(error), _AGAIN)
    byte, error = event
    return _no_trace(source, f"the event at byte {place + byte:,} is none: {_plain(error)}", _AGAIN)


def no_json(source: str, begin: bytes, length: int) -> TraceError:
    """What else a text may be that begins with neither an object nor a list."""
    if not begin.strip(b" \t\r\n"):
        return _no_trace(source, "it holds nothing but blanks" if length else "it is empty", "record it again")
    letters = begin.replace(b"\0", b"")
    if not letters:
        return _no_trace(source, "it holds null bytes instead of text", _AGAIN)
    marked = begin.startswith((b"\xff\xfe", b"\xfe\xff"))
    if marked or (letters[0] in b"{[ \t\r\n" and len(letters) < len(begin)):
        return _no_trace(source, "its text is UTF-16 or UTF-32", "save it as UTF-8")
    return _no_trace(source, f"it begins with {ascii(begin)[1:]}, which is no JSON object or list", "name another file")


def no_events(source: str) -> TraceError:
    """JSON without a list of events."""
    return _no_trace(source, "it is JSON without a list called traceEvents", "name another file")


def other_program(source: str, categories: Sequence[str]) -> TraceError:
    """Events none of which is of a kind that torch.profiler writes."""
    found = [ascii(name)[:40] for name in categories if name][:3]
    said = f"categories such as {', '.join(found)}" if found else "no categories"
    return TraceError(
        f"{source} is no trace of torch.profiler: its events have {said}, and none that torch.profiler writes; name a "
        "file that its export_chrome_trace wrote."
    )


def twice(source: str, name: str) -> TraceError:
    """A key that must be there once."""
    return _no_trace(source, f"{name} stands in it twice", "keep the right one and remove the other")


def recursion(source: str) -> TraceError:
    """Python's own limit, which was lower than the reader's."""
    return _no_trace(source, "its values are nested deeper than Python's recursion limit", "name another file")


def beyond(source: str, what: str, limit: str) -> TraceError:
    """A trace beyond one of the limits."""
    return TraceError(f"{source} was not read: it has more than {what}; if you trust it, raise {limit} in limits=.")


def no_end(source: str, place: int, most: int) -> TraceError:
    """No place between two events where there must be one."""
    return TraceError(
        f"{source} was not read: no event ends within {most / 2**20:.0f} MiB after byte {place:,}, so it seems to be "
        "no trace; if it is one, raise max_event_bytes in limits=."
    )


def odd_time(source: str, what: str, time: str) -> TraceError:
    """A time that is no number, or that int64 nanoseconds cannot hold."""
    return _no_trace(source, f"{what} is no time that perfnb can hold: {time}", _AGAIN)


def _no_trace(source: str, why: str, advice: str) -> TraceError:
    return TraceError(f"{source} is not a Chrome trace that perfnb can read: {why}; {advice}.")


def _plain(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "text that is not UTF-8"
    text = str(error).replace(" - at `$", " at `").replace("`.", "`")[:200]
    return text[:1].lower() + text[1:]


def _first_fault(text: bytes | bytearray, decoder: msgspec.json.Decoder[Any]) -> tuple[int, Exception] | None:
    """Where the first event begins that cannot be decoded, and why not."""
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
