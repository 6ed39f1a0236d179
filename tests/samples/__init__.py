"""Results of each room as documents, over which the contracts of `tests/draw/test_document_renderers.py` run."""

from __future__ import annotations

#: A name that is markup, ends scripts, reverses text, moves a terminal's cursor and is long and wide.
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x1b[31m\u202e\n\u2028" + "层é" * 90
