"""Complete the magics' options."""

from __future__ import annotations

import re
from typing import Any

from IPython.core.completer import SimpleCompletion, context_matcher

from perfnb.magics import MAGICS, parser_of
from perfnb.magics.line import option_names

#: A partly typed option.
_TYPED = re.compile(rf"(^|=)\s*%%?(?P<magic>{'|'.join(MAGICS)})\s(.*\s)?(?P<typed>-[\w-]*)$")


@context_matcher()
def match_options(context: Any) -> Any:
    """Return the options that match what has been typed, and no other completions."""
    match = _TYPED.search(context.text_until_cursor)
    if match is None:
        return {"completions": []}
    names = [name for name in option_names(parser_of(match["magic"])) if name.startswith(match["typed"])]
    return {
        "completions": [SimpleCompletion(text=name, type="param") for name in names],
        "matched_fragment": match["typed"],
        "suppress": True,
    }
