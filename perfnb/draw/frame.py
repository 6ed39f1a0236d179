"""Build the parts that static views share, such as the outer element and self-contained pages."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable

from perfnb.draw import escape
from perfnb.draw.assets import static_style

#: The content security policy of every page. It forbids all requests, and anything else that is not listed.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_PAGE_STYLE = (
    ":root{color-scheme:light dark;--pf-page:#fff}"
    "@media (prefers-color-scheme:dark){:root{--pf-page:#16181d}}"
    "body{margin:0;background:var(--pf-page);font-family:system-ui,sans-serif}"
    "h1{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}"
    "main{max-width:1480px;margin:0 auto;padding:20px clamp(8px,2vw,32px) 48px}"
)


def framed(body: str) -> str:
    """Wrap the HTML of a static view in its outer element, with the style sheet."""
    # The element is focusable, so that content wider than the page can be scrolled with the keyboard.
    reached = 'role="group" aria-label="perfnb" tabindex="0"'
    return f'<div class="perfnb-static" {reached}><style>{static_style()}</style>{body}</div>'


def notes_html(notes: Iterable[str]) -> str:
    """Return notes as a list with a heading, or an empty string if there are no notes."""
    items = "".join(f"<li>{escape.html_sentence(note)}</li>" for note in notes)
    return items and f"<p><strong>Notes</strong></p><ul>{items}</ul>"


def script_digest(script: str) -> str:
    """Return the digest that identifies a script in a content security policy."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def live_page(title: str, style: str, body: str, rest: str, script: str) -> str:
    """Return a stand-alone page with a view that is drawn by a script.

    The page's content security policy allows only this script. It forbids other scripts, inline event handlers and
    requests.

    Parameters
    ----------
    title : str
        The title, which may quote names.
    style : str
        The style sheet, which is added after the style sheet shared by all pages.
    body : str
        HTML inside ``<main>``.
    rest : str
        HTML after ``<main>``: the script's data.
    script : str
        The script, which is a module.
    """
    policy = f"{_POLICY}; script-src 'sha256-{script_digest(script)}'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape.html(title)} · perfnb</title>\n"
        f"<style>{_PAGE_STYLE}{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape.html(title)}</h1>\n{body}\n</main>\n"
        f'{rest}<script type="module">{script}</script>\n</body>\n</html>\n'
    )
