"""Lab 11: what its tests share."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from tests.labs import solved

cell_with = partial(solved.cell_with, lab=11)


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
