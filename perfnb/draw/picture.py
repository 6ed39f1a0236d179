"""Charts as pictures, for static views without scripts."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from perfnb.draw import escape, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Text, quiet text, lines and background. A picture has its own background, so that it is readable on any page; the
#: style sheet turns it dark in dark themes.
INK, QUIET, LINE, GROUND = "#1f2328", "#57606a", "#d0d7de", "#ffffff"

#: Hatch and hatch colour of each pattern.
HATCHES = {
    "hatch": ("///", "#ffffff99"),
    "rising": ("\\\\\\", "#00000088"),
    "cross": ("xxx", "#00000066"),
    "dots": ("...", "#00000088"),
    "rows": ("---", "#00000066"),
    "columns": ("|||", "#ffffff99"),
    "grid": ("+++", "#ffffff88"),
}

_DOTS_AN_INCH = 100
_SHARPER = 1.5
_STYLE: Any = {
    "font.size": 8.5,
    "hatch.linewidth": 0.7,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": QUIET,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "figure.facecolor": GROUND,
    "axes.facecolor": GROUND,
}


def picture_html(draw: Callable[[Figure], None], inches: tuple[float, float], alt: str) -> str:
    """Draw a figure and return it as an image element with the picture inside.

    Parameters
    ----------
    draw : callable
        Draws on an empty figure.
    inches : tuple of float
        Width and height.
    alt : str
        Description of the picture; it may quote names.
    """
    figure = figure_of(draw, inches)
    with _styled():
        data = base64.b64encode(_few_colours(figure)).decode()
    width = round(inches[0] * _DOTS_AN_INCH)
    words = escape.html_sentence(alt)
    look = f'class="pf-picture" width="{width}" style="max-width:100%"'
    return f'<img alt="{words}" {look} src="data:image/png;base64,{data}">'


def figure_of(draw: Callable[[Figure], None], inches: tuple[float, float]) -> Figure:
    """Draw a figure that a notebook displays as a picture.

    Parameters
    ----------
    draw : callable
        Draws on an empty figure.
    inches : tuple of float
        Width and height.
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
        figure = Shown(figsize=inches, dpi=_SHARPER * _DOTS_AN_INCH, layout="constrained")
        draw(figure)
    return figure


@contextmanager
def _styled() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # names may be of any script
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def bare(axes: Axes) -> None:
    """Remove the frame around `axes` except for its lower edge."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)


def _few_colours(figure: Figure) -> bytes:
    """The figure as a PNG with a palette, a quarter of the size: every saved notebook contains it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image  # a dependency of matplotlib

    agg: Any = FigureCanvasAgg
    canvas = agg(figure)
    canvas.draw()
    colours = Image.new("P", (1, 1))
    colours.putpalette(_colours())
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())[:, :, :3].copy())
    buffer = io.BytesIO()
    pixels.quantize(palette=colours, dither=Image.Dither.NONE).save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def _colours() -> list[int]:
    """All colours of marks, mixed with their hatches, and greys for text and lines, as a flat list of RGB values."""
    marks = {mark.colour for mark in (*palette.MARKS.values(), *palette.CATEGORIES.values())}
    shades = [*(_mixed(INK, GROUND, part / 11) for part in range(12)), _mixed(INK, GROUND, 0.96)]
    for colour in sorted(marks):
        shades += [_mixed(colour, GROUND, part) for part in (0.0, 0.2, 0.4, 0.6, 0.8)]
        shades += [_mixed(colour, "#000000", part) for part in (0.2, 0.4)]
    return [level for shade in shades for level in shade]


def _mixed(colour: str, other: str, part: float) -> tuple[int, ...]:
    """Mix `part` of `other` into `colour`."""
    pairs = zip(bytes.fromhex(colour[1:]), bytes.fromhex(other[1:]), strict=True)
    return tuple(round((1 - part) * a + part * b) for a, b in pairs)
