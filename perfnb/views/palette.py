"""One colour, one word and one pattern for one meaning (Okabe and Ito's palette)."""

from __future__ import annotations

from dataclasses import dataclass

GREY = "#8C8C8C"


@dataclass(frozen=True)
class Mark:
    """How one meaning is drawn.

    Attributes
    ----------
    word : str
        What it is called.
    colour : str
        Its fill.
    glyph : str
        Its character in a bar made of text.
    pattern : str
        Name of its pattern in a bar made of boxes; the style sheets know them.
    """

    word: str
    colour: str
    glyph: str
    pattern: str


#: A mark for every phase and for recomputation.
MARKS = {
    "data": Mark("data", "#E69F00", "░", "dots"),
    "host_to_device": Mark("host to device", "#56B4E9", "≡", "rows"),
    "forward": Mark("forward", "#0072B2", "█", "solid"),
    "loss": Mark("loss", "#5E5E5E", "▪", "solid"),
    "backward": Mark("backward", "#D55E00", "▓", "hatch"),
    "recompute": Mark("recompute", "#CC79A7", "╬", "cross"),
    "optimizer": Mark("optimizer", "#009E73", "▒", "columns"),
    "other": Mark("other", GREY, "·", "none"),
}


def mark(phase: str) -> Mark:
    """The mark of `phase`; an unknown one looks like ``other`` and keeps its name."""
    return MARKS.get(phase) or Mark(phase, GREY, "·", "none")
