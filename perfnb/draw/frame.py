"""What every static view shares: the element that holds it with its style sheet, and its header."""

from __future__ import annotations

from perfnb.draw import escape
from perfnb.draw.assets import static_style


def framed(body: str, *, narrow: bool = False) -> str:
    """A static view by itself.

    Parameters
    ----------
    body : str
        HTML already.
    narrow : bool
        Names and words in its tables are broken before a column is cut off, figures never.
    """
    kind = "perfnb-static pf-narrow" if narrow else "perfnb-static"
    # It can be reached with the keyboard, to scroll what is wider than the page.
    reached = 'role="group" aria-label="perfnb" tabindex="0"'
    return f'<div class="{kind}" {reached}><style>{static_style()}</style>{body}</div>'


def header(name: object, kind: object, verdict: object = "", *facts: object) -> str:
    """What this is, the answer in large letters, and what else is to be said of it, a line each.

    Parameters
    ----------
    name : object
        Of what was measured; it may come from a model or a trace, as all of these.
    kind : object
        What was made of it, or on which device.
    verdict : object
        The answer; empty where there is none.
    facts : object
        Sentences.
    """
    title = f"<strong>{escape.html_sentence(name)}</strong> · {escape.html_sentence(kind)}"
    large = [f'<strong class="pf-step">{escape.html_sentence(verdict)}</strong>'] if verdict else []
    lines = [title, *large, *(escape.html_sentence(fact) for fact in facts if fact)]
    return f'<p class="pf-head">{"<br>".join(lines)}</p>'
