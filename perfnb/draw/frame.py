"""What all static views share: the outer element with its style sheet, and the header."""

from __future__ import annotations

from perfnb.draw import escape
from perfnb.draw.assets import static_style


def framed(body: str, *, narrow: bool = False) -> str:
    """Wrap the HTML of a static view in its outer element, with the style sheet.

    Parameters
    ----------
    body : str
        HTML.
    narrow : bool
        In tables, break names and words, but never figures, before cutting off a column.
    """
    kind = "perfnb-static pf-narrow" if narrow else "perfnb-static"
    # Focusable, so that content wider than the page can be scrolled with the keyboard.
    reached = 'role="group" aria-label="perfnb" tabindex="0"'
    return f'<div class="{kind}" {reached}><style>{static_style()}</style>{body}</div>'


def header(name: object, kind: object, verdict: object = "", *facts: object) -> str:
    """Return the header of a view: its title, the verdict in large type, and further facts, one per line.

    Parameters
    ----------
    name : object
        Name of what was measured. Like all arguments, it may come from a model or a trace.
    kind : object
        Kind of result, or device.
    verdict : object
        Empty if there is none.
    facts : object
        Sentences.
    """
    title = f"<strong>{escape.html_sentence(name)}</strong> · {escape.html_sentence(kind)}"
    large = [f'<strong class="pf-step">{escape.html_sentence(verdict)}</strong>'] if verdict else []
    lines = [title, *large, *(escape.html_sentence(fact) for fact in facts if fact)]
    return f'<p class="pf-head">{"<br>".join(lines)}</p>'
