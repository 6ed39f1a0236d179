"""Files as they become when a disk, a network or a stranger has had them."""

from __future__ import annotations

import random


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The data with a few bytes changed, taken out, doubled or cut off."""
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
