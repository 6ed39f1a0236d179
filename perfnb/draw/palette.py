"""Define one colour, one word and one pattern for each meaning, using Okabe and Ito's palette."""

from __future__ import annotations

from dataclasses import dataclass

#: Okabe and Ito's hues, and greys. All drawings use these colours, and the style sheets repeat some of them.
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
DARK, SLATE, GREY, LIGHT = "#5E5E5E", "#6E6E6E", "#8C8C8C", "#B8B8B8"


@dataclass(frozen=True)
class Mark:
    """The visual representation of one meaning."""

    #: The name that is displayed.
    word: str
    #: The fill colour.
    colour: str
    #: The character used in text bars.
    glyph: str
    #: The name of the fill pattern, as defined in the style sheets.
    pattern: str

    @property
    def data(self) -> dict[str, str]:
        """Return the data that the browser uses to draw the mark."""
        return {"word": self.word, "colour": self.colour, "pattern": self.pattern}


#: Communication has the same colour everywhere. No phase has this colour, because some pictures show communication
#: together with copies and phases.
_COMMUNICATION = Mark("communication", YELLOW, "≈", "rising")

#: A mark for every phase and for recomputation.
MARKS = {
    "data": Mark("data", ORANGE, "░", "dots"),
    "host_to_device": Mark("host to device", SKY, "≡", "rows"),
    "forward": Mark("forward", BLUE, "█", "solid"),
    "loss": Mark("loss", DARK, "▪", "solid"),
    "backward": Mark("backward", VERMILION, "▓", "hatch"),
    "recompute": Mark("recompute", PURPLE, "╬", "cross"),
    "optimizer": Mark("optimizer", GREEN, "▒", "columns"),
    "communication": _COMMUNICATION,
    "other": Mark("other", GREY, "·", "none"),
}

#: A mark for every category of memory. Memory that is allocated by a single phase has that phase's colour. Temporaries
#: and parameters have colours that no phase uses.
CATEGORIES = {
    "parameters": Mark("parameters", SLATE, "▞", "grid"),
    "gradients": Mark("gradients", VERMILION, "▓", "hatch"),
    "optimizer_state": Mark("optimizer state", GREEN, "▒", "columns"),
    "activations": Mark("activations", BLUE, "█", "solid"),
    "inputs": Mark("inputs", ORANGE, "░", "dots"),
    "temporaries": Mark("temporaries", YELLOW, "≈", "rising"),
    "other": Mark("other", GREY, "·", "none"),
}

#: A mark for every part of a GPU's time. Copies look like the phase that makes them, and a late host looks like waiting
#: for data. ``dependency`` is launched work that waited for other work, ``outside`` the time before the first work and
#: after the last.
GPU = {
    "computation": Mark("computation", BLUE, "█", "solid"),
    "communication": _COMMUNICATION,
    "memcpy": Mark("copies", SKY, "≡", "rows"),
    "host": Mark("idle: host late", ORANGE, "░", "dots"),
    "dependency": Mark("idle: waiting", LIGHT, "▚", "hatch"),
    "other": Mark("idle: other", GREY, "·", "none"),
    "outside": Mark("idle: no work", DARK, "▪", "grid"),
}

#: A mark for everything that a rank's GPU does, in the colours of the parts of a GPU's time.
RANK_PARTS = {
    "computing_ms": Mark("computing", BLUE, "█", "solid"),
    "both_ms": Mark("computing and communicating", GREEN, "▓", "hatch"),
    "exposed_ms": Mark("communicating alone", YELLOW, "≈", "rising"),
    "copying_ms": Mark("copying alone", SKY, "≡", "rows"),
    "idle_ms": Mark("idle", GREY, "·", "none"),
}

#: A mark for every kind of segment of a critical path. Segments on the GPU look as above.
PATH = {
    **{name: GPU[name] for name in ("computation", "communication", "memcpy")},
    "delay": Mark("gap between kernels", LIGHT, "▚", "hatch"),
    "launch": Mark("launch", GREEN, "▒", "columns"),
    "operator": Mark("ops on the host", ORANGE, "░", "dots"),
    "call": Mark("GPU calls on the host", VERMILION, "▓", "hatch"),
    "host": Mark("host between ops", SLATE, "▞", "grid"),
    "synchronisation": Mark("return from waiting", DARK, "▪", "solid"),
    "handover": Mark("change of thread", PURPLE, "╬", "cross"),
    "unknown": Mark("not known", GREY, "·", "none"),
}

#: A mark for every part of a whole run.
RUN = {
    "data": Mark("waiting for data", ORANGE, "░", "dots"),
    "step": Mark("steps", BLUE, "█", "solid"),
    "other": Mark("between steps", GREY, "·", "none"),
    "profiled": Mark("profiled windows", PURPLE, "╬", "cross"),
}

#: A mark for every part of a request's time.
REQUEST = {
    "wait": Mark("waiting", ORANGE, "░", "dots"),
    "prefill": Mark("first token (prefill)", BLUE, "█", "solid"),
    "decode": Mark("later tokens (decode)", SKY, "▒", "columns"),
}
#: A mark for every kind of layer. Phases are shown in the same place. No kind is therefore blue like forward or
#: vermilion like backward, and no phase has the same colour and pattern as a kind.
KINDS = {
    "attention": Mark("attention", PURPLE, "▓", "hatch"),
    "linear": Mark("linear", YELLOW, "█", "columns"),
    "convolution": Mark("convolution", SKY, "▒", "rising"),
    "normalisation": Mark("normalisation", ORANGE, "░", "rows"),
    "activation": Mark("activation", GREEN, "▞", "dots"),
    "embedding": Mark("embedding", DARK, "≡", "grid"),
    "other": Mark("other", GREY, "·", "none"),
}

_LINES = (
    *((BLUE, "█", "solid"), (ORANGE, "░", "dots"), (GREEN, "▒", "columns"), (VERMILION, "▓", "hatch")),
    *((PURPLE, "╬", "cross"), (SKY, "≡", "rows"), (SLATE, "▞", "grid"), (YELLOW, "≈", "rising")),
)
#: The number of lines with different colours.
LINES = len(_LINES)


def mark(phase: str) -> Mark:
    """Return the mark of `phase`. An unknown phase looks like ``other`` but keeps its name."""
    return MARKS.get(phase) or Mark(phase, GREY, "·", "none")


def category(name: str) -> Mark:
    """Return the mark of a memory category. An unknown category looks like ``other`` but keeps its name."""
    return CATEGORIES.get(name) or Mark(name, GREY, "·", "none")


def line(place: int, word: str) -> Mark:
    """Return the mark of a line in a chart. The first `LINES` lines have different colours."""
    return Mark(word, *_LINES[place % len(_LINES)])
