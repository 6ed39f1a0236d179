"""Damage files in the way that disks, networks and attackers do."""

from __future__ import annotations

import json
import random

#: Values that an event in JSON should not have.
_ODD = (None, -1, 2**70, "x", "1e9", [], {"name": 3}, 1e308, True, "B", "E", 10**12)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return the data with a few bytes changed, removed, duplicated or truncated."""
    whole, kinds = bytearray(data), chance.choice((1, 5))
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(whole))
        match chance.randrange(kinds):
            case 0:
                whole[place] = chance.randrange(256)
            case 1:
                del whole[place : place + chance.randint(1, 30)]
            case 2:
                whole[place:place] = whole[place : place + chance.randint(1, 200)]
            case 3:
                whole[place:place] = chance.randbytes(chance.randint(1, 9))
            case _:
                del whole[place + 1 :]
        if not whole:
            break
    return bytes(whole)


def with_odd_values(data: bytes, chance: random.Random) -> bytes:
    """Replace a few values in a JSON list of events with values that events do not have. The result is valid JSON."""
    events = json.loads(data)
    for _ in range(chance.randint(1, 4)):
        event = chance.choice(events)
        event[chance.choice([*event, "args", "dur"])] = chance.choice(_ODD)
    return json.dumps(events).encode()


def with_bad_sectors(data: bytes, chance: random.Random) -> bytes:
    """Overwrite up to 200 places anywhere in the data or in its header, or copy other parts of the data to them."""
    changed = bytearray(data)
    how = chance.randrange(4)
    for _ in range(chance.choice([1, 3, 20, 200])):
        place = chance.randrange(len(changed)) if how else chance.randrange(min(4096, len(changed)))
        if how < 3:
            changed[place] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        else:
            size = chance.randrange(1, 64)
            other = chance.randrange(len(changed) - size)
            changed[place : place + size] = changed[other : other + size]
    return bytes(changed[: chance.randrange(len(changed))] if chance.random() < 0.1 else changed)
