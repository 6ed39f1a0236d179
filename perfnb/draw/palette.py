"""One colour, one word and one pattern for one meaning (Okabe and Ito's palette)."""

from __future__ import annotations

from dataclasses import dataclass

#: Okabe and Ito's hues, and greys. What is drawn takes its colour from here; the style sheets repeat those they need.
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
DARK, SLATE, GREY, LIGHT = "#5E5E5E", "#6E6E6E", "#8C8C8C", "#B8B8B8"


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
    "data": Mark("data", ORANGE, "░", "dots"),
    "host_to_device": Mark("host to device", SKY, "≡", "rows"),
    "forward": Mark("forward", BLUE, "█", "solid"),
    "loss": Mark("loss", DARK, "▪", "solid"),
    "backward": Mark("backward", VERMILION, "▓", "hatch"),
    "recompute": Mark("recompute", PURPLE, "╬", "cross"),
    "optimizer": Mark("optimizer", GREEN, "▒", "columns"),
    "other": Mark("other", GREY, "·", "none"),
}

#: A mark for every category of memory. What a phase makes has that phase's colour; temporaries and parameters,
#: which no phase makes, have colours that no phase has.
CATEGORIES = {
    "parameters": Mark("parameters", SLATE, "▞", "grid"),
    "gradients": Mark("gradients", VERMILION, "▓", "hatch"),
    "optimizer_state": Mark("optimizer state", GREEN, "▒", "columns"),
    "activations": Mark("activations", BLUE, "█", "solid"),
    "inputs": Mark("inputs", ORANGE, "░", "dots"),
    "temporaries": Mark("temporaries", YELLOW, "≈", "rising"),
    "other": Mark("other", GREY, "·", "none"),
}

#: A mark for what a GPU of a rank does: computing is drawn as forward is, moving data as copies are.
RANK_PARTS = {
    "computing_ms": Mark("computing", BLUE, "█", "solid"),
    "both_ms": Mark("computing and communicating", BLUE, "▓", "rows"),
    "exposed_ms": Mark("communicating alone", SKY, "▒", "hatch"),
    "idle_ms": Mark("idle", GREY, "·", "none"),
}


#: A mark for every part of a GPU's time. Copies look as the phase in which they are made; waiting for the host as
#: waiting for data does.
GPU = {
    "computation": Mark("computation", BLUE, "█", "solid"),
    "communication": Mark("communication", PURPLE, "╬", "cross"),
    "memcpy": Mark("copies", SKY, "≡", "rows"),
    "host": Mark("idle: host was late", ORANGE, "░", "dots"),
    "dependency": Mark("idle: waited for other work", YELLOW, "≈", "rising"),
    "other": Mark("idle: other", GREY, "·", "none"),
}

#: A mark for every kind of segment of a critical path: on the GPU as above.
PATH = {
    **{name: GPU[name] for name in ("computation", "communication", "memcpy")},
    "delay": Mark("gap between kernels", YELLOW, "≈", "rising"),
    "launch": Mark("launch", GREEN, "▒", "columns"),
    "operator": Mark("ops on the host", ORANGE, "░", "dots"),
    "call": Mark("GPU calls on the host", VERMILION, "▓", "hatch"),
    "host": Mark("host between ops", SLATE, "▞", "grid"),
    "synchronisation": Mark("return from waiting", DARK, "▪", "solid"),
    "handover": Mark("change of thread", LIGHT, "▚", "hatch"),
    "unknown": Mark("not known", GREY, "·", "none"),
}
#: A mark for every kind of layer. Phases are shown in the same place, so none has the blue of forward or the
#: vermilion of backward, and each has a pattern that no phase has beside its colour.
KINDS = {
    "attention": Mark("attention", PURPLE, "▓", "hatch"),
    "linear": Mark("linear", YELLOW, "█", "rising"),
    "convolution": Mark("convolution", SKY, "▒", "columns"),
    "normalisation": Mark("normalisation", ORANGE, "░", "rows"),
    "activation": Mark("activation", GREEN, "▞", "dots"),
    "embedding": Mark("embedding", DARK, "≡", "grid"),
    "other": Mark("other", GREY, "·", "none"),
}

#: Better, worse, as before: of answers, which never stand in one picture with phases, and always beside a word.
BETTER, WORSE, AS_BEFORE, UNDECIDED = GREEN, VERMILION, BLUE, GREY


def mark(phase: str) -> Mark:
    """The mark of `phase`; an unknown one looks like ``other`` and keeps its name."""
    return MARKS.get(phase) or Mark(phase, GREY, "·", "none")


def category(name: str) -> Mark:
    """The mark of a category of memory; an unknown one looks like ``other`` and keeps its name."""
    return CATEGORIES.get(name) or Mark(name, GREY, "·", "none")
