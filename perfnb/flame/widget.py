"""The live view of a host profile."""

from __future__ import annotations

from perfnb.draw.assets import script, style
from perfnb.draw.widget import DrawnWidget


class HostWidget(DrawnWidget):
    """A host profile drawn in the browser."""

    _esm = script("flame/js/host.js")
    _css = style("flame/js/flame.css")
