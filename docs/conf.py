"""How Sphinx builds the documentation: `make docs`."""

from __future__ import annotations

from typing import Any

import perfnb

project = "perfnb"
author = "perfnb developers"
project_copyright = "perfnb developers"
version = release = perfnb.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"perfnb {release}"
html_show_sphinx = False

# A name in single backticks in a docstring is a link where it names something public, and code anywhere else.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
python_maximum_signature_line_length = 100


def without_signature(app: Any, what: str, name: str, found: Any, options: Any, signature: Any, returned: Any) -> Any:
    """Nobody calls a class of perfnb: its functions make the objects."""
    return ("", None) if what == "class" else None


def whole_sentences(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """A colon in what a property says parts no type from its description, as Napoleon would have it."""
    if what == "property":
        lines[:0] = [".. a comment, which has no colon", ""]


def reachable(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Mend what keeps the pages from those who use a keyboard or a screen reader.

    Code that is wider than the page can be scrolled with keys; a signature of several lines is no list of definitions
    without terms; a caption over pages says of what level it is.
    """
    body = str(context.get("body", ""))
    body = body.replace("<pre>", '<pre tabindex="0">').replace("<dl>\n<dd><em", '<dl role="none">\n<dd><em')
    tree = str(context.get("furo_navigation_tree", ""))
    context.update(body=body, furo_navigation_tree=tree.replace('role="heading"', 'role="heading" aria-level="2"'))


def setup(app: Any) -> None:
    """What Sphinx calls."""
    app.connect("html-page-context", reachable, priority=900)  # the theme's own first
    app.connect("autodoc-process-signature", without_signature)
    app.connect("autodoc-process-docstring", whole_sentences, priority=400)  # before Napoleon
