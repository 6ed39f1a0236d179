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

#: A mark for every category of memory. What a phase makes has that phase's colour; temporaries and parameters,
#: which no phase makes, have colours that no phase has.
CATEGORIES = {
    "parameters": Mark("parameters", "#6E6E6E", "▞", "grid"),
    "gradients": Mark("gradients", "#D55E00", "▓", "hatch"),
    "optimizer_state": Mark("optimizer state", "#009E73", "▒", "columns"),
    "activations": Mark("activations", "#0072B2", "█", "solid"),
    "inputs": Mark("inputs", "#E69F00", "░", "dots"),
    "temporaries": Mark("temporaries", "#F0E442", "≈", "rising"),
    "other": Mark("other", GREY, "·", "none"),
}

#: A mark for what a GPU of a rank does: computing is drawn as forward is, moving data as copies are.
RANK_PARTS = {
    "computing_ms": Mark("computing", "#0072B2", "█", "solid"),
    "both_ms": Mark("computing and communicating", "#0072B2", "▓", "rows"),
    "exposed_ms": Mark("communicating alone", "#56B4E9", "▒", "hatch"),
    "idle_ms": Mark("idle", GREY, "·", "none"),
}


#: A mark for every part of a GPU's time. Copies look as the phase in which they are made; waiting for the host as
#: waiting for data does.
GPU = {
    "computation": Mark("computation", "#0072B2", "█", "solid"),
    "communication": Mark("communication", "#CC79A7", "╬", "cross"),
    "memcpy": Mark("copies", "#56B4E9", "≡", "rows"),
    "host": Mark("idle: host was late", "#E69F00", "░", "dots"),
    "dependency": Mark("idle: waited for other work", "#F0E442", "≈", "rising"),
    "other": Mark("idle: other", GREY, "·", "none"),
}

#: A mark for every kind of segment of a critical path: on the GPU as above.
PATH = {
    **{name: GPU[name] for name in ("computation", "communication", "memcpy")},
    "delay": Mark("gap between kernels", "#F0E442", "≈", "rising"),
    "launch": Mark("launch", "#009E73", "▒", "columns"),
    "operator": Mark("ops on the host", "#E69F00", "░", "dots"),
    "call": Mark("GPU calls on the host", "#D55E00", "▓", "hatch"),
    "host": Mark("host between ops", "#6E6E6E", "▞", "grid"),
    "synchronisation": Mark("return from waiting", "#5E5E5E", "▪", "solid"),
    "handover": Mark("change of thread", "#B8B8B8", "▚", "hatch"),
    "unknown": Mark("not known", GREY, "·", "none"),
}


def mark(phase: str) -> Mark:
    """The mark of `phase`; an unknown one looks like ``other`` and keeps its name."""
    return MARKS.get(phase) or Mark(phase, GREY, "·", "none")


def category(name: str) -> Mark:
    """The mark of a category of memory; an unknown one looks like ``other`` and keeps its name."""
    return CATEGORIES.get(name) or Mark(name, GREY, "·", "none")
