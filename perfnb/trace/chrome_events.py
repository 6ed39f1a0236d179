"""What perfnb decodes of a Chrome trace's JSON; msgspec skips the rest without making objects of it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from perfnb.trace.columns import MISSING

Time = TypeVar("Time")
#: Under this key a part of the events is decoded together with what stands before or after them in the file.
INNER_KEY = "perfnb: events"
#: What a number may look like in a trace that went through other programs.
Loose = int | float | str | None
#: Stands for a text that the event does not carry.
NO_TEXT = Raw(b"")


#: The argument under which perfnb writes what it calls an event that bears a readable name.
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
    name: Raw = NO_TEXT
    labels: Raw = NO_TEXT
    own_name: Raw = msgspec.field(default=NO_TEXT, name=OWN_NAME)


NO_ARGS = Args()


class Event(msgspec.Struct, Generic[Time], gc=False):
    """An event; its times are microseconds."""

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
    """What stands around the events, or a trace as a whole."""

    events: list[Event[Time]] | UnsetType = msgspec.field(default=UNSET, name=INNER_KEY)
    whole: list[Event[Time]] | UnsetType = msgspec.field(default=UNSET, name="traceEvents")
    base: Loose | UnsetType = msgspec.field(default=UNSET, name="baseTimeNanoseconds")
    devices: Any = msgspec.field(default=UNSET, name="deviceProperties")
    old_devices: Any = msgspec.field(default=UNSET, name="computeProperties")
    distributed: Any = msgspec.field(default=UNSET, name="distributedInfo")
    perfnb: Any = UNSET
