"""The night of lab 12: an archive of scanned cards, the work of a training script, and how far it gets by the morning.

The archive is really read and the work is really counted. The times of the night are planted, so that no clock decides
what its picture shows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from perfnb.labs.answers import outcome
from perfnb.labs.exercise import Hint
from perfnb.labs.judging import hint_if

#: Boxes on a card, and pixels of a box.
BOXES, PIXELS = 128, 64
#: Planted seconds of a step: for each card that is read, for a pass over 1,000 boxes, and for everything else. The
#: backward pass takes as long as two forward passes, and everything in float64 takes longer by a factor.
READ_S, PASS_S, REST_S, DOUBLE = 1e-4, 0.0166, 0.002, 2.6


class Archive:
    """Scans of water-meter cards, and the characters that are written on them.

    Parameters
    ----------
    cards : int
        How many there are. Their boxes are scikit-learn's handwritten digits.
    seed : int
        Decides which digits are on which card, and how bright each scan is.

    Attributes
    ----------
    reads : int
        How many cards were read so far.
    """

    def __init__(self, cards: int, seed: int = 0) -> None:
        from sklearn.datasets import load_digits

        digits, generator = load_digits(), np.random.default_rng(seed)
        places = generator.integers(len(digits.target), size=(cards, BOXES))
        bright = generator.uniform(8.0, 15.9, size=(cards, 1, 1))
        scans = (digits.images.reshape(-1, PIXELS)[places] * bright).astype(np.uint8)
        self._scans = [zlib.compress(scan.tobytes()) for scan in scans]
        self._characters = digits.target[places]
        self.reads = 0

    def __len__(self) -> int:
        return len(self._scans)

    def read(self, number: int) -> tuple[Any, Any]:
        """Unpack a card: its pixels, 128 boxes of 64 whole numbers from 0 to 255, and its 128 characters."""
        self.reads += 1
        pixels = np.frombuffer(zlib.decompress(self._scans[number]), np.uint8)
        return pixels.reshape(BOXES, PIXELS), self._characters[number]


@dataclass(frozen=True)
class Work:
    """What some steps of a script did, counted.

    Attributes
    ----------
    steps, reads, passes : int
        Steps; cards read in all, also before the first step; passes of the Reader.
    boxes : int
        Boxes that these passes computed, those of all cards of a batch together.
    longest : int
        Most boxes per card in a pass.
    float64 : bool
        Whether the Reader's inputs or parameters were in double precision.
    """

    steps: int
    reads: int
    passes: int
    boxes: int
    longest: int
    float64: bool

    @property
    def step_s(self) -> float:
        """Planted seconds per step."""
        trained = self.boxes / max(self.passes, 1)  # the boxes of one pass, through which the backward pass runs
        arithmetic = PASS_S * (self.boxes / self.steps + 2 * trained) / 1000
        return READ_S * self.reads / self.steps + arithmetic * (DOUBLE if self.float64 else 1) + REST_S


#: Per step of the script as Maya left it: a test counts it.
MAYAS = Work(steps=1, reads=402, passes=2, boxes=1024, longest=256, float64=True)


def run_counted(make: Callable[..., Any], archive: Archive, steps: int, seed: int = 0) -> tuple[Any, Work]:
    """Run some steps of ``make(archive, seed)`` and count their work.

    Returns
    -------
    script : object
        What `make` returned, after these steps.
    work : Work

    Raises
    ------
    Hint
        If the script has no Reader, or its code raises.
    """
    before = archive.reads
    script = outcome(make, archive, seed)
    reader: Any = getattr(script, "reader", None)
    hint_if(not isinstance(reader, nn.Module), "The script has no Reader: keep it in self.reader, as Nightly does.")
    shapes: list[tuple[int, ...]] = []
    kinds = {str(part.dtype) for part in reader.parameters()}

    def follow(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        boxes = (*given, named.get("boxes"))[0]
        if len(getattr(boxes, "shape", ())) != 3:
            raise Hint("The Reader takes boxes of the shape cards, boxes, pixels.")
        shapes.append(tuple(boxes.shape))
        kinds.add(str(boxes.dtype))

    handle = reader.register_forward_pre_hook(follow, with_kwargs=True)
    try:
        for _ in range(steps):
            outcome(script.step)
    finally:
        handle.remove()
    return script, Work(
        steps=steps,
        reads=archive.reads - before,
        passes=len(shapes),
        boxes=sum(cards * length for cards, length, _ in shapes),
        longest=max((length for _, length, _ in shapes), default=0),
        float64="torch.float64" in kinds,
    )


def work_of(make: Callable[..., Any], archive: Archive, steps: int = 30) -> Work:
    """Count the work of some steps of a script; see `Work`."""
    return run_counted(make, archive, steps)[1]
