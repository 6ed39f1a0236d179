"""The live views of a comparison of architectures and of a scaling study."""

from __future__ import annotations

from typing import Any

from perfnb.draw.assets import script, style
from perfnb.draw.widget import DrawnWidget


class ArchitecturesWidget(DrawnWidget):
    """A comparison drawn from `perfnb.models.architectures_view.architectures_data`."""

    _esm = script("models/js/architectures.js")
    _css = style("models/js/architectures.css")

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data, f"ArchitecturesWidget({len(data['names'])} architectures)")


class ScalingWidget(DrawnWidget):
    """A scaling study drawn from `perfnb.models.scaling_view.scaling_data`."""

    _esm = script("models/js/scaling.js")
    _css = style("models/js/scaling.css")

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data, f"ScalingWidget({len(data['measured']['size'])} sizes)")
