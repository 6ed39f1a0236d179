"""Separate the table of layers into modules, which form a tree based on their names, and rows that are not modules."""

from __future__ import annotations

import pandas as pd

from perfnb import quantities as fmt
from perfnb.recording.schema import SPECIAL_ROWS

_NO_PARENT = -1


def split_layers(layers: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split the table into modules and special rows."""
    special = layers.index.isin(SPECIAL_ROWS) & layers["module"].isna().to_numpy()
    return layers[~special], layers[special]


def nested(modules: pd.DataFrame) -> tuple[list[str], list[int]]:
    """Nest layers based on their dotted names, or on their depths if the names do not show the nesting.

    Returns
    -------
    tuple of (list of str, list of int)
        Each layer's name relative to its parent, and the parent's index, which is -1 for roots. Parents come before
        their children.
    """
    names = [str(name) for name in modules.index]
    depths = [fmt.known(depth) or 0.0 for depth in modules["depth"]]
    seen: dict[str, int] = {}
    open_rows: list[int] = []
    labels, parents = [], []
    for position, name in enumerate(names):
        while open_rows and depths[open_rows[-1]] >= depths[position]:
            open_rows.pop()
        parent = _named_parent(name, seen)
        labels.append(name if parent is None else name[len(names[parent]) + 1 :])
        if parent is None:
            parent = open_rows[-1] if open_rows else _NO_PARENT
        parents.append(parent)
        seen.setdefault(name, position)
        open_rows.append(position)
    return labels, parents


def _named_parent(name: str, seen: dict[str, int]) -> int | None:
    end = len(name)
    for _ in range(100):  # real modules are never nested more deeply, but a malicious name may have thousands of dots
        end = name.rfind(".", 0, end)
        if end <= 0:
            return None
        if name[:end] in seen:
            return seen[name[:end]]
    return None
