"""Documents of `timeline`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from perfnb.attribution.attribution import attribute
from perfnb.draw.document import Document, Table
from perfnb.timeline.build import timeline_of
from perfnb.timeline.tab import timeline_document
from tests.recordings import ByHand
from tests.samples import HOSTILE
from tests.timeline.test_timeline import training


def _of(made: ByHand) -> Document:
    """Without its picture, which only a browser with a timeline draws."""
    recording = made.recording()
    shown = timeline_document(timeline_of(recording, attribute(recording)))
    return replace(shown, sections=tuple(part for part in shown.sections if isinstance(part, Table)))


def hostile() -> ByHand:
    """Return a name that is markup, as a layer and as an op."""
    made = ByHand().step(0, 1000)
    return made.call(made.layer(HOSTILE), 10, 900).op(HOSTILE, 20, 800)


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "timeline": lambda: _of(training().kernel("gemm", 1100, 1500, 1600)),
    "hostile timeline": lambda: _of(hostile()),
}
