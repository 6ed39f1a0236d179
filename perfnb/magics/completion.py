"""Completion of the magics' options."""

from __future__ import annotations

import re
from typing import Any

from IPython.core.completer import SimpleCompletion, context_matcher

from perfnb.magics.gpuwatch import GpuWatchMagics
from perfnb.magics.latency import LatencyMagics
from perfnb.magics.line import option_names
from perfnb.magics.profile_step import ProfileStepMagics
from perfnb.magics.try_levers import TryLeversMagics

#: The magics whose options complete.
_MAGICS: dict[str, Any] = {
    "profile_step": ProfileStepMagics.profile_step,
    "gpuwatch": GpuWatchMagics.gpuwatch,
    "try_levers": TryLeversMagics.try_levers,
    "latency": LatencyMagics.latency,
}
#: A partly typed option.
_TYPED = re.compile(rf"(^|=)\s*%%?(?P<magic>{'|'.join(_MAGICS)})\s(.*\s)?(?P<typed>-[\w-]*)$")


@context_matcher()
def match_options(context: Any) -> Any:
    """The options that match what has been typed, and no other completions."""
    match = _TYPED.search(context.text_until_cursor)
    if match is None:
        return {"completions": []}
    names = [name for name in option_names(_MAGICS[match["magic"]].parser) if name.startswith(match["typed"])]
    return {
        "completions": [SimpleCompletion(text=name, type="param") for name in names],
        "matched_fragment": match["typed"],
        "suppress": True,
    }
