"""Lab 11: what its tests share."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn

from notebooks.labs import build


def cell_with(words: str) -> str:
    """The cell of the solved notebook that has these words."""
    (path,) = [path for path in build.built() if path.name.startswith("11") and path.parent.name == "solutions"]
    (found,) = [cell for cell in json.loads(build.built()[path])["cells"] if words in "".join(cell["source"])]
    return "".join(found["source"])


def models() -> dict[str, Any]:
    """The Readers of the notebook."""
    names: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(cell_with("class Checked("), names)
    return names


def rewritten(returns: str, *, more: str = "") -> Any:
    """A Reader whose forward returns this, of `x` before the head; `more` comes before."""
    names = models()
    body = f"""
class Whole(Reader):
    def forward(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        {more or "pass"}
        return {returns}
"""
    exec(body, names)
    return names["Whole"]
