"""The messages that *Troubleshooting* quotes are those of the code."""

from __future__ import annotations

import re

from tests.docs.pages import DOCS
from tests.test_architecture import PACKAGE, sources

PAGE = (DOCS / "troubleshooting.md").read_text("utf-8")
#: The words of all modules, with texts that are spread over lines put together.
CODE = "\n".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text("utf-8")) for path in sources(PACKAGE))

_QUOTED = re.compile(r"(?<![*\w])\*(?!\*)([^*]+)\*(?!\*)")
#: Words in italics that are a name, not a message.
NAMES = {"other", "host code"}


def test_every_quoted_message_exists() -> None:
    quoted = [" ".join(words.split()) for words in _QUOTED.findall(PAGE)]
    pieces = {piece.strip(" ,") for words in quoted if words not in NAMES for piece in words.split("…")} - {""}

    assert len(pieces) > 15
    assert {piece for piece in pieces if piece not in CODE} == set()
