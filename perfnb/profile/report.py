"""The report: its tabs in their order, and what each view of it goes through."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from perfnb.draw import assets
from perfnb.draw.tree import split_layers

if TYPE_CHECKING:
    from perfnb.draw.tab import Tab
    from perfnb.profile.summary import Summary
    from perfnb.timeline.timeline import Timeline

#: The tabs in the order of the report. A new tab is an object in its room and a line here.
TABS = (
    "perfnb.profile.tab:LAYERS",
    "perfnb.profile.tab:OPS",
    "perfnb.timeline.tab:TAB",
    "perfnb.gpu.tab:TAB",
    "perfnb.findings.tab:TAB",
    "perfnb.memory.tab:TAB",
    "perfnb.roofline.tab:TAB",
    "perfnb.watching.tab:TAB",
)

_SCRIPT = "profile/js/report.js"


@dataclass(frozen=True)
class Report:
    """What the tabs show.

    Attributes
    ----------
    summary : Summary
    timeline : Timeline or None
        When everything ran; ``None`` if no step was traced.
    timeline_facts : mapping or None
        What the browser is told of the packed timeline; see `perfnb.timeline.data.timeline_bytes`.
    """

    summary: Summary
    timeline: Timeline | None = None
    timeline_facts: Mapping[str, Any] | None = None

    def shown(self) -> list[tuple[Tab, Any]]:
        """The tabs that appear, each with what it shows, in the order of the report."""
        shown = ((tab, tab.shows(self)) for tab in tabs())
        return [(tab, part) for tab, part in shown if part is not None]

    def shown_static(self) -> list[tuple[Tab, Any]]:
        """The same in the order of the static twin."""
        return sorted(self.shown(), key=lambda pair: not pair[0].upfront)

    @functools.cached_property
    def layer_places(self) -> dict[str, int]:
        """The row of each layer in the browser's table."""
        names = [str(name) for part in split_layers(self.summary.layers) for name in part.index]
        return {name: place for place, name in reversed(list(enumerate(names)))}

    @functools.cached_property
    def op_places(self) -> dict[str, int]:
        """The row of each op in the browser's table."""
        names = dict.fromkeys([*map(str, self.summary.ops.index), *map(str, self.summary.layer_ops["op"])])
        return {name: place for place, name in enumerate(names)}


@functools.cache
def tabs() -> tuple[Tab, ...]:
    """All tabs; their rooms are imported at the first call."""
    return tuple(map(resolve_name, TABS))


def report_script(keys: Iterable[str] | None = None) -> str:
    """The report's script with the tabs of these keys, by default all: a module whose default export has ``render``."""
    return assets.script(*(tab.script for tab in _of(keys)), _SCRIPT)


def report_style(keys: Iterable[str] | None = None) -> str:
    """The report's style sheet with those of the tabs of these keys, by default all."""
    return assets.style(*(tab.style for tab in _of(keys) if tab.style))


def _of(keys: Iterable[str] | None) -> list[Tab]:
    chosen = None if keys is None else set(keys)
    return [tab for tab in tabs() if tab.script and (chosen is None or tab.key in chosen)]
