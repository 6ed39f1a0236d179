"""`ProfileComparison`: what `Profile.compare` gives."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfnb.analysis.profile_diff import ProfileDiff
from perfnb.views.profile_diff import diff_html, diff_text


class ProfileComparison:
    """Two profiles side by side, layer by layer. Shows itself in a notebook."""

    def __init__(self, diff: ProfileDiff) -> None:
        self._diff = diff

    @property
    def layers(self) -> pd.DataFrame:
        """A row a layer of either: its names, how they were matched, its figures in both, and ``grew_ms``."""
        return self._diff.layers.copy()

    @property
    def phases(self) -> pd.DataFrame:
        """Milliseconds of each phase in both."""
        return self._diff.phases.copy()

    def __str__(self) -> str:
        return diff_text(self._diff)

    def __repr__(self) -> str:
        matched = int(self._diff.layers["matched"].notna().sum())
        return f"<perfnb.ProfileComparison: {matched} layers matched of {len(self._diff.layers)}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": diff_html(self._diff)}
