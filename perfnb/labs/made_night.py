"""The night in lab 12: an archive of scanned cards, a training script's work, and its progress by the morning.

The archive is really read and the work is really counted. The times are made up, so the picture of the night is the
same on every machine.
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

#: Boxes per card and pixels per box.
BOXES, PIXELS = 128, 64
#: Made-up seconds that a step takes for each card that it reads, for a pass over 1,000 boxes, and for everything else;
#: and the factor by which float64 slows everything down. A backward pass takes as long as two forward passes.
READ_S, PASS_S, REST_S, DOUBLE = 1e-4, 0.0166, 0.002, 2.6


class Archive:
    """Scans of water-meter cards and the characters written on them.

    Parameters
    ----------
    cards : int
        The number of cards. Their boxes contain handwritten digits from scikit-learn.
    seed : int
        The seed that determines the digits on each card and the brightness of each scan.

    Attributes
    ----------
    reads : int
        The number of cards read so far.
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
        """Unpack a card and return its pixels and its 128 characters.

        The pixels are 128 boxes of 64 integers from 0 to 255.
        """
        self.reads += 1
        pixels = np.frombuffer(zlib.decompress(self._scans[number]), np.uint8)
        return pixels.reshape(BOXES, PIXELS), self._characters[number]


@dataclass(frozen=True)
class Work:
    """The counted work of a number of steps.

    Attributes
    ----------
    steps, reads, passes : int
        The number of steps, of cards read (including before the first step), and of passes through the Reader.
    boxes : int
        The total number of boxes that went through the Reader, over all cards of each batch.
    longest : int
        The largest number of boxes per card in a pass.
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
        """Made-up seconds per step."""
        trained = self.boxes / max(self.passes, 1)  # the boxes of one pass, which are those of the backward pass
        arithmetic = PASS_S * (self.boxes / self.steps + 2 * trained) / 1000
        return READ_S * self.reads / self.steps + arithmetic * (DOUBLE if self.float64 else 1) + REST_S


#: Work per step of the script as Maya left it. A test verifies these counts.
MAYAS = Work(steps=1, reads=402, passes=2, boxes=1024, longest=256, float64=True)


def run_counted(make: Callable[..., Any], archive: Archive, steps: int, seed: int = 0) -> tuple[Any, Work]:
    """Run a number of steps of ``make(archive, seed)`` and count their work.

    Returns
    -------
    script : object
        The script that `make` returned, after these steps.
    work : Work

    Raises
    ------
    Hint
        If the script has no Reader, or if its code raises an exception.
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
    """Count the work of a number of a script's steps (see `Work`)."""
    return run_counted(make, archive, steps)[1]
