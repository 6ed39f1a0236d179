"""Draw matplotlib figures for papers in a uniform style."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The colours of text, less important text, lines and the background. A figure has its own background, which makes it
#: readable on any page.
INK, QUIET, LINE, GROUND = "#1f2328", "#57606a", "#d0d7de", "#ffffff"

_DOTS_AN_INCH = 150
_STYLE: Any = {
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": QUIET,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "figure.facecolor": GROUND,
    "axes.facecolor": GROUND,
}


def figure_of(draw: Callable[[Figure], None], inches: tuple[float, float]) -> Figure:
    """Create a figure that a notebook displays as a picture.

    Parameters
    ----------
    draw : callable
        A function that draws on an empty figure.
    inches : tuple of float
        The width and height.
    """
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            with _styled():
                buffer = io.BytesIO()
                self.savefig(buffer, format="png")
                return buffer.getvalue()

    Shown.__name__ = Shown.__qualname__ = "Figure"
    with _styled():
        figure = Shown(figsize=inches, dpi=_DOTS_AN_INCH, layout="constrained")
        draw(figure)
    return figure


@contextmanager
def _styled() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # names may be written in any script
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def bare(axes: Axes) -> None:
    """Remove the frame around `axes` except for its lower edge."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
